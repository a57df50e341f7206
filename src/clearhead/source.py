"""What the user pointed at: a text, a file of text, standard input, or a saved run."""

import os
import re
import sys
from typing import BinaryIO, NamedTuple

LARGEST_BYTES = 64 * 2**20
_LIKE_A_FILE = re.compile(r"\S+\.[A-Za-z]\w{0,10}|\S*/\S*")


class Source(NamedTuple):
    """A text, or the path of a saved run; `surprise`: a file that might have meant a text."""

    text: str | None
    run: str | None
    surprise: bool = False


def find_source(given: str) -> Source:
    """Read `-` as standard input, a file's name as that file, anything else as the text itself.

    A file whose name ends in .safetensors is a saved run. One word that looks like the name of a
    file, where there is no such file, is refused: it is a slip more often than a text.
    Raises  ValueError: empty, not UTF-8 text, a folder, too large, or no such file.
    """
    if given == "-":
        return Source(_text("standard input", sys.stdin.buffer), None)
    if os.path.isdir(given):
        raise ValueError(f"TEXT: {given!r} is a folder; it must be a text, a file, or - for stdin")
    if os.path.exists(given):
        if given.endswith(".safetensors"):
            return Source(None, given)
        with open(given, "rb") as file:
            return Source(_text(given, file), None, not _LIKE_A_FILE.fullmatch(given))
    if _LIKE_A_FILE.fullmatch(given):
        raise ValueError(
            f"TEXT: {given!r} looks like the name of a file, but there is no such file "
            "(to read it as a text, send it to -)"
        )
    try:
        given.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        raise ValueError("TEXT: is not UTF-8; it must be") from None
    return Source(_not_empty("TEXT", given), None)


def _text(name: str, file: BinaryIO) -> str:
    raw = file.read(LARGEST_BYTES + 1)
    if len(raw) > LARGEST_BYTES:
        raise ValueError(f"{name}: is over {LARGEST_BYTES >> 20} MiB; cut it into smaller texts")
    try:
        text = raw.decode("utf-8-sig")
        zero = text.find("\0")
    except UnicodeDecodeError as error:
        text, zero = "", error.start
    if zero >= 0:
        raise ValueError(f"{name}: is not text, see byte {zero}; it must be text in UTF-8")
    return _not_empty(name, text)


def _not_empty(name: str, text: str) -> str:
    if not text.strip():
        raise ValueError(f"{name}: is empty; it must hold at least one word")
    return text
