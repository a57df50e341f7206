"""Files written whole or not at all: the one place from which anything is written to a path."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that takes the name `path` when the block ends well.

    Until then it is a temporary file in the same folder; if the block raises, it is removed and an
    older file of that name stays as it was. A link is written through, a device or a pipe as it
    stands. A new file has the rights of any new file, an old one keeps its own.

    Raises  OSError with the name that the user gave, TypeError for what is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: is {type(path).__name__}, must be str or os.PathLike")
    if not os.fspath(path):
        raise ValueError("path: is empty, must be the name of a file")
    where = Path(os.path.realpath(path))
    if where.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
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
    if error.errno is None:  # a message of somebody's own
        return error
    if error.filename is not None and os.fspath(error.filename) != os.fspath(opened):
        return error
    return OSError(error.errno, error.strerror, os.fspath(path))
