"""Paths for output, refused before anything is computed."""

import os


def check_output(option: str, path: str) -> None:
    """Refuse a path that cannot be written, before anything is computed.

    Raises  ValueError: the option, the path and what stands in the way.
    """
    where = os.path.realpath(path)
    folder = os.path.dirname(where)
    if not path:
        raise ValueError(f"{option}: is empty, must be the name of a file")
    if os.path.isdir(where):
        raise ValueError(f"{option}: {path!r} is a folder; it must be the name of a file")
    if not os.path.isdir(folder):
        raise ValueError(f"{option}: {path!r} is in a folder that does not exist, {folder!r}")
    if os.path.exists(where) and not os.access(where, os.W_OK):
        raise ValueError(f"{option}: {path!r} exists and may not be written")
    if (os.path.isfile(where) or not os.path.exists(where)) and not os.access(folder, os.W_OK):
        raise ValueError(f"{option}: {path!r} is in a folder that may not be written")
