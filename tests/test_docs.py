"""Every example on every page runs, and the site builds without a warning or a link elsewhere.

A fence that begins with ```python runs, in the order of the page and in one namespace; where it
has `>>>` prompts, what it prints is compared, and `...` stands for anything. In a ```console fence
the lines `$ clearhead ...` run, and what is below them is compared likewise. A comment before it

    <!-- needs: torch, model -->

names modules, or `model` (the default model, fetched before), without which the rest of that
page is skipped. A ```sh fence is for what no test can run, such as installation.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.cli import main
from clearhead.models.store import list_models

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [p for p in PAGES if not {"_build", "_generated"} & set(p.parts)]
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(
    r"(?:^<!-- needs: (?P<needs>[^>]*?) -->\n+)?"
    r"^(?P<tick>`{3,})(?P<kind>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=tick)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    kind: str
    code: str
    line: int
    needs: tuple[str, ...]


def examples(text: str) -> list[Example]:
    found = []
    for match in FENCE.finditer(text):
        needs = tuple(n.strip() for n in (match["needs"] or "").split(",") if n.strip())
        line = text.count("\n", 0, match.start("code"))
        found.append(Example(match["kind"], match["code"], line, needs))
    return found


def run_python(example: Example, page: str, names: dict[str, Any]) -> None:
    if ">>>" not in example.code:
        padded = "\n" * example.line + example.code  # so that a traceback names the right line
        exec(compile(padded, page, "exec"), names)
        return
    parser, said = doctest.DocTestParser(), io.StringIO()
    test = parser.get_doctest(example.code, names, page, page, example.line)
    runner = doctest.DocTestRunner(optionflags=SHOWN)
    runner.run(test, out=said.write, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, said.getvalue()


def run_console(example: Example, page: str) -> None:
    for block in re.split(r"^\$ ", example.code, flags=re.MULTILINE)[1:]:
        command, _, want = block.partition("\n")
        program, *args = shlex.split(command, comments=True)
        assert program == "clearhead", f"{page}:{example.line}: {program} does not run here: use sh"
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(args)
        assert code in (0, 1), f"{page}:{example.line}: {command} ended with {code}"
        if want.strip():
            same = doctest.OutputChecker().check_output(want, out.getvalue(), SHOWN)
            assert same, f"{page}:{example.line}: {command}\nprinted\n{out.getvalue()}\nnot\n{want}"


def skip_without(needs: tuple[str, ...]) -> None:
    for name in needs:
        if name == "model":
            if all(model.folder is None for model in list_models()):
                pytest.skip("the default model has not been fetched: clearhead models fetch")
        elif importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_example_on_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with np.printoptions():  # a page may set its own
        for example in examples(page.read_text(encoding="utf-8")):
            skip_without(example.needs)
            if example.kind in ("python", "pycon"):
                run_python(example, str(page), names)
            elif example.kind == "console":
                run_console(example, str(page))


def test_the_runner_sees_every_fence_and_fails_when_an_example_is_wrong() -> None:
    text = (
        "# t\n\n```python\nx = 2\n```\n\n<!-- needs: numpy, torch -->\n```python\n>>> x\n3\n```\n"
    )
    one, two = examples(text)
    assert (one.kind, one.line, two.needs) == ("python", 3, ("numpy", "torch"))
    names: dict[str, Any] = {}
    run_python(one, "t.md", names)
    with pytest.raises(AssertionError, match=r"(?s)Expected:\s+3\s+Got:\s+2"):
        run_python(two, "t.md", names)
    with pytest.raises(AssertionError, match="printed"):
        run_console(Example("console", "$ clearhead --version\nnonsense\n", 0, ()), "t.md")
    with pytest.raises(AssertionError, match="rm does not run here"):
        run_console(Example("console", "$ rm x\n", 0, ()), "t.md")


class Loaded(HTMLParser):
    """What a browser would fetch for a page without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("stylesheet", "preload", "icon"):
            return
        if tag in ("script", "img", "link", "iframe", "source"):
            self.addresses += [given[a] or "" for a in ("src", "href") if given.get(a)]


def test_the_site_builds_in_strict_mode_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("sphinx", "furo", "myst_parser", "latex2mathml"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'clearhead[docs]'")
    source = tmp_path / "docs"
    source.mkdir()
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file() and not {"_build", "_generated"} & set(path.parts):
            copy = source / path.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(source), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(source.rglob("*.md"))) - 2
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        elsewhere = [a for a in loaded.addresses if re.match(r"(https?:)?//", a)]
        assert elsewhere == [], page.name
    styles = "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles) == []
