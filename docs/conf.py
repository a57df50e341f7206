"""The documentation site: `sphinx-build -W docs site`, or `make docs`.

Nothing on a page comes from elsewhere: formulas are MathML, fonts are the reader's own, figures and
the reference are made here from the package that is installed.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

import clearhead

project = "clearhead"
author = "the clearhead authors"
copyright = "the clearhead authors, Apache-2.0"
version = release = clearhead.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["release.md"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"clearhead {release}"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
autodoc_typehints = "none"  # shapes and dtypes are in the docstrings
autodoc_member_order = "bysource"
pygments_style = "friendly"

HERE = Path(__file__).parent
GENERATED = HERE / "_generated"


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda _: generate())
    app.connect("autodoc-process-docstring", docstring_as_written)
    app.connect("autodoc-skip-member", skip_member)
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))


def generate() -> None:
    """The reference page, and the figures that pages show."""
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / "reference.md").write_text(reference_page(), encoding="utf-8")
    figures = GENERATED / "figures"
    clearhead.learn().save_figures(figures, formats=["svg"])
    for name in ("scale", "saturation", "mask", "tiling"):
        getattr(clearhead.why, name)().save(figures / f"why-{name}.svg")


def reference_page() -> str:
    """Every public name, grouped by the module it lives in."""
    homes: dict[str, list[str]] = {}
    for name, home in clearhead._HOME.items():
        homes.setdefault(home, []).append(name)
    parts = ["# Reference", "Every public name, with the docstring that Python's `help` shows."]
    for home, names in sorted(homes.items()):
        module = import_module(f"clearhead.{home}")
        modules = [n for n in names if type(getattr(clearhead, n)).__name__ == "module"]
        rest = [n for n in names if n not in modules]
        if rest:
            parts += [f"## clearhead.{home}", first_paragraph(module.__doc__ or "")]
            parts += [directive(n, home) for n in sorted(rest, key=str.lower)]
        for name in modules:
            inner = getattr(clearhead, name)
            parts += [f"## clearhead.{name}", first_paragraph(inner.__doc__ or "")]
            functions = [
                n
                for n, value in vars(inner).items()
                if callable(value)
                and not n.startswith("_")
                and getattr(value, "__module__", "") == inner.__name__
            ]
            parts += [directive(n, name) for n in functions]
    return "\n\n".join(parts) + "\n"


def directive(name: str, home: str) -> str:
    owner = clearhead if hasattr(clearhead, name) else getattr(clearhead, home)
    path = f"clearhead.{name}" if owner is clearhead else f"clearhead.{home}.{name}"
    kind, options = "autofunction", ""
    if isinstance(getattr(owner, name), type):
        kind, options = "autoclass", "   :members:\n"
    return f"```{{eval-rst}}\n.. {kind}:: {path}\n{options}```"


def first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def docstring_as_written(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Our docstrings are laid out for a terminal: the first paragraph is text, the rest stays."""
    text = "\n".join(lines).strip("\n")
    head, _, body = text.partition("\n\n")
    lines[:] = [*as_text(head).splitlines(), ""]
    for is_example, chunk in chunks(body.splitlines()):
        lines.append(f".. code-block:: {'pycon' if is_example else 'text'}")
        lines += ["", *(f"   {line}" for line in chunk), ""]


def as_text(paragraph: str) -> str:
    """Plain text to reStructuredText: `code` stays code, every other character means itself."""
    pieces = re.split(r"(`[^`]+`)", paragraph)
    return "".join(
        f"``{p[1:-1]}``" if p.startswith("`") and len(p) > 2 else re.sub(r"([*_|\\`])", r"\\\1", p)
        for p in pieces
    )


def chunks(lines: list[str]) -> list[tuple[bool, list[str]]]:
    """Runs of text and of doctests; a doctest goes on until a blank line."""
    found: list[tuple[bool, list[str]]] = []
    example = False
    for line in lines:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not found or found[-1][0] != example:
            found.append((example, []))
        found[-1][1].append(line)
    stripped = ((e, "\n".join(chunk).strip("\n").splitlines()) for e, chunk in found)
    return [(e, chunk) for e, chunk in stripped if chunk]


def skip_member(app: Any, what: str, name: str, obj: object, skip: bool, options: Any) -> bool:
    doc = (getattr(obj, "__doc__", None) or "").strip()
    return skip or doc.startswith("Alias for field")


def inline_math(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def display_math(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
