"""Write a text file whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str, mode: int = 0o644) -> None:
    """Write beside `path`, then put it there in one move; on a failure `path` is as it was."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(content)
        os.chmod(draft, mode)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
