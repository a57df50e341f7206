"""Files written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def check_output(option: str, path: str) -> None:
    """Refuse a path that cannot be written, before anything is computed.

    Raises  ValueError: the option, the path and what stands in the way.
    """
    where = os.path.realpath(path)
    folder = os.path.dirname(where)
    if not path or os.path.isdir(where):
        raise ValueError(f"{option}: {path!r} is a folder; it must be the name of a file")
    if not os.path.isdir(folder):
        raise ValueError(f"{option}: {path!r} is in a folder that does not exist, {folder!r}")
    if os.path.exists(where) and not os.access(where, os.W_OK):
        raise ValueError(f"{option}: {path!r} exists and may not be written")
    if (os.path.isfile(where) or not os.path.exists(where)) and not os.access(folder, os.W_OK):
        raise ValueError(f"{option}: {path!r} is in a folder that may not be written")


@contextmanager
def replacing(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that takes the name `path` when the block ends well.

    Until then it is a temporary file in the same folder; if the block raises, it is removed and an
    older file of that name stays as it was. A device or a pipe is written as it stands.
    """
    where = Path(os.path.realpath(path))
    mode = "wb" if binary else "w"
    text: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": ""}
    if where.exists() and not where.is_file():
        try:
            with open(where, mode, **text) as out:
                yield out
        except OSError as error:
            raise _named(error, path, where) from None
        return
    draft = where.with_name(f".clearhead-{secrets.token_hex(6)}.tmp")
    try:
        with open(draft, mode.replace("w", "x"), **text) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if where.exists():
            os.chmod(draft, where.stat().st_mode & 0o7777)
        os.replace(draft, where)
    except OSError as error:
        raise _named(error, path, draft) from None
    finally:
        draft.unlink(missing_ok=True)


def _named(error: OSError, path: str | os.PathLike[str], opened: Path) -> OSError:
    """The error with the name that the user gave; one about another file stays as it is."""
    if error.filename is not None and os.fspath(error.filename) != os.fspath(opened):
        return error
    return OSError(error.errno, error.strerror, os.fspath(path))
