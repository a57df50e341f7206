"""Static word vectors from files: GloVe text, word2vec text, word2vec binary.

    GloVe text       word x1 x2 ... xD    one line per word, no header
    word2vec text    N D                  a header line, then lines as in GloVe
    word2vec binary  N D                  a header line, then N times: the word, one space, D
                                          little-endian float32, perhaps a newline

The file is read once, row by row, and a row that nobody asked for is never turned into numbers.
What a header claims is compared with the size of the file before anything of that size exists.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

Format = Literal["text", "binary"]
Row = tuple[str, NDArray[np.float32] | None]  # the numbers are None where the row was not wanted

_LINE_BYTES = 1 << 22  # a line of 100,000 numbers fits; a file without newlines stops here
_WORD_BYTES = 1 << 14  # no vocabulary has longer words
_BLOCK_ROWS = 4096  # rows are gathered in blocks, so memory follows what was read, not a header


@dataclass(frozen=True)
class Vectors:
    """Words and one static vector each: `matrix[i]` belongs to `words[i]`.

    words    (N,)     in the order of the file, each once (the first row wins)
    matrix   (N, D)   float32
    missing  words that were asked for and are not in the file
    """

    words: tuple[str, ...]
    matrix: NDArray[np.float32]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {word: i for i, word in enumerate(self.words)})

    @property
    def size(self) -> int:
        """D, the numbers per word."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    @overload
    def __getitem__(self, word: str) -> NDArray[np.float32]: ...
    @overload
    def __getitem__(self, word: Sequence[str]) -> NDArray[np.float32]: ...
    def __getitem__(self, word: str | Sequence[str]) -> NDArray[np.float32]:
        """(D,) for a word, (n, D) for a list of n; KeyError names the word that is not here."""
        if isinstance(word, str):
            row: NDArray[np.float32] = self.matrix[self._row(word)]
            return row
        return self.matrix[[self._row(w) for w in word]]

    def nearest(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The `top` other words of highest cosine to `word`, best first (a zero vector: 0)."""
        lengths = np.linalg.norm(self.matrix, axis=1)
        unit = self.matrix / np.where(lengths > 0, lengths, 1)[:, None]
        cosine = unit @ unit[self._row(word)]
        order = np.argsort(-cosine, kind="stable")
        best = [i for i in order if i != self._row(word)][: max(top, 0)]
        return [(self.words[i], float(cosine[i])) for i in best]

    def __repr__(self) -> str:
        return f"Vectors({len(self)} words, {self.size} numbers each)"

    @property
    def _rows(self) -> dict[str, int]:
        rows: dict[str, int] = self.__dict__["_index"]
        return rows

    def _row(self, word: str) -> int:
        try:
            return self._rows[word]
        except KeyError:
            raise KeyError(f"word: {word!r} has no vector among these {len(self)} words") from None


def read_vectors(
    path: str | os.PathLike[str],
    *,
    words: Collection[str] | None = None,
    limit: int | None = None,
    format: Format | None = None,
) -> Vectors:
    """The static vectors in a GloVe or word2vec file, as float32.

    path     the file
    words    keep only these words; the others are never parsed into numbers
    limit    read only the first `limit` rows of the file (GloVe and word2vec sort by frequency)
    format   "text" or "binary"; None: decided from the first bytes. A first line of two whole
             numbers is a word2vec header; any other first line is a row.

    Returns  Vectors: words (N,), matrix (N, D)
    Cost     one pass; memory 4 * N * D bytes for the N words that are kept, plus the words
    Raises   ValueError, one sentence with the line (text) or byte (binary): rows of unequal length,
             a header that does not match, a file cut off, NaN or infinity, no UTF-8, an empty file.
             TypeError where `words` is a single string.
    Source   Mikolov et al. 2013 (word2vec); Pennington et al. 2014 (GloVe)

    >>> from pathlib import Path; from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "tiny.txt"
    ...     _ = path.write_text("duck 0.5 1\\npond 0.25 2\\n")
    ...     read_vectors(path)["pond"]
    array([0.25, 2.  ], dtype=float32)
    """
    if isinstance(words, str):
        raise TypeError("words: a single string, must be a collection of words")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: {limit}, must be at least 1")
    if format not in (None, "text", "binary"):
        raise ValueError(f"format: {format!r}, must be 'text', 'binary' or None")
    path = Path(path)
    wanted = None if words is None else frozenset(words)
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        header = _header(file, path, file_bytes)
        binary = format == "binary" or (
            format is None and header is not None and _binary(file, header[1])
        )
        if binary and header is None:
            raise ValueError(
                f"{path.name}: line 1 is no header of two whole numbers, as a binary file must have"
            )
        if header is not None:
            _plausible(path, header, file_bytes - file.tell(), binary)
        if binary:
            assert header is not None
            rows = _binary_rows(file, path, header, wanted, limit)
        else:
            rows = _text_rows(file, path, header, wanted, limit)
        return _gather(rows, path, wanted)


def _header(file: BufferedReader, path: Path, file_bytes: int) -> tuple[int, int] | None:
    """(N, D) with the file placed behind it, or None with the file at its beginning."""
    line = file.readline(_LINE_BYTES)
    if not line.strip():
        what = "the file is empty" if file_bytes == 0 else "line 1 is empty"
        raise ValueError(f"{path.name}: {what}, must hold a word and its numbers")
    fields = line.split()
    if len(line) < 100 and len(fields) == 2 and all(f.isdigit() for f in fields):
        rows, size = int(fields[0]), int(fields[1])
        if rows == 0 or size == 0:
            raise ValueError(
                f"{path.name}: line 1: {rows} words of {size} numbers, must be at least 1 of 1"
            )
        return rows, size
    file.seek(0)
    return None


def _binary(file: BufferedReader, size: int) -> bool:
    """Whether what follows the header is float32 bytes: no text row, and bytes that no text has."""
    start = file.tell()
    sample = file.read(4096)
    file.seek(start)
    first = sample.split(b"\n", 1)[0].split()
    if len(first) == size + 1 and _numbers(first[1:]) is not None:
        return False
    try:
        sample[:-4].decode()  # a character may be cut in two at the end
    except UnicodeDecodeError:
        return True
    return any(byte < 32 and byte not in b"\t\n\r" for byte in sample)


def _plausible(path: Path, header: tuple[int, int], body_bytes: int, binary: bool) -> None:
    rows, size = header
    least = rows * (2 + 4 * size if binary else 1 + 2 * size)
    if least > body_bytes + 1:  # the last newline may be missing
        raise ValueError(
            f"{path.name}: line 1: {rows} words of {size} numbers need at least {least} bytes, "
            f"but {body_bytes} follow: the header is wrong or the file is cut off"
        )


def _text_rows(
    file: BufferedReader,
    path: Path,
    header: tuple[int, int] | None,
    wanted: frozenset[str] | None,
    limit: int | None,
) -> Iterator[Row]:
    size = header[1] if header else None
    number = 1 if header else 0
    done = 0
    while limit is None or done < limit:
        line = file.readline(_LINE_BYTES)
        if not line:
            break
        number += 1
        where = f"{path.name}: line {number}"
        if len(line) == _LINE_BYTES:
            raise ValueError(
                f"{where} is longer than {_LINE_BYTES} bytes, must be a word and its numbers"
            )
        line = line.rstrip(b"\r\n ")
        if not line:
            raise ValueError(f"{where} is empty, must hold a word and its numbers")
        if size is None:
            size = line.count(b" ")
            if size == 0:
                raise ValueError(f"{where} has no numbers, must hold a word and its numbers")
        done += 1
        yield _text_row(line, size, where, wanted)
    if header is not None and limit is None and done != header[0]:
        raise ValueError(f"{path.name}: {done} rows, must be the {header[0]} that line 1 announces")


def _text_row(line: bytes, size: int, where: str, wanted: frozenset[str] | None) -> Row:
    """The numbers are the last D fields: GloVe's 840B file has words with spaces in them."""
    pieces = line.rsplit(b" ", size)
    if len(pieces) != size + 1:
        raise ValueError(f"{where}: {len(pieces) - 1} numbers, must be {size}")
    if not pieces[0]:
        raise ValueError(f"{where} begins with a space, must begin with a word")
    last = pieces[0].rsplit(b" ", 1)
    if len(last) == 2 and _numbers([last[1]]) is not None:
        raise ValueError(f"{where}: {line.count(b' ')} numbers, must be {size}")
    word = _decode(pieces[0], where)
    if wanted is not None and word not in wanted:
        return word, None
    numbers = _numbers(pieces[1:])
    if numbers is None:
        bad = next(p for p in pieces[1:] if _numbers([p]) is None)
        raise ValueError(f"{where}: {_shown(bad)} is no number")
    return word, _finite(numbers, f"{where}: {word!r}")


def _binary_rows(
    file: BufferedReader,
    path: Path,
    header: tuple[int, int],
    wanted: frozenset[str] | None,
    limit: int | None,
) -> Iterator[Row]:
    rows, size = header
    for row in range(rows if limit is None else min(rows, limit)):
        if file.peek(1)[:1] == b"\n":  # some writers end a row with a newline, some do not
            file.read(1)
        where = f"{path.name}: byte {file.tell()}: word {row + 1} of {rows}"
        word = _decode(_binary_word(file, where), where)
        numbers = file.read(4 * size)
        if len(numbers) != 4 * size:
            raise ValueError(
                f"{where}: {len(numbers)} bytes of numbers, must be {4 * size}: the file is cut off"
            )
        if wanted is not None and word not in wanted:
            yield word, None
        else:
            yield (
                word,
                _finite(np.frombuffer(numbers, "<f4").astype(np.float32), f"{where}: {word!r}"),
            )
    if limit is None and (rest := file.read(4096).strip(b"\n")):
        raise ValueError(
            f"{path.name}: {len(rest)} or more bytes after the {rows} words that line 1 announces"
        )


def _binary_word(file: BufferedReader, where: str) -> bytes:
    """The bytes before the next space."""
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte:
            raise ValueError(f"{where}: the file is cut off")
        word += byte
        if len(word) > _WORD_BYTES:
            raise ValueError(f"{where}: no space within {_WORD_BYTES} bytes, must end the word")
    if not word:
        raise ValueError(f"{where}: an empty word")
    return bytes(word)


def _gather(rows: Iterator[Row], path: Path, wanted: frozenset[str] | None) -> Vectors:
    kept: dict[str, None] = {}
    blocks: list[NDArray[np.float32]] = []
    block: list[NDArray[np.float32]] = []
    for word, numbers in rows:
        if numbers is None or word in kept:
            continue
        kept[word] = None
        block.append(numbers)
        if len(block) == _BLOCK_ROWS:
            blocks.append(np.stack(block))
            block = []
    if not kept:
        raise ValueError(
            f"{path.name}: none of the {len(wanted or ())} words asked for, must hold at least one"
        )
    if block:
        blocks.append(np.stack(block))
    missing = tuple(sorted(wanted - kept.keys())) if wanted is not None else ()
    return Vectors(tuple(kept), np.concatenate(blocks), missing)


def _numbers(fields: Sequence[bytes]) -> NDArray[np.float64] | None:
    try:
        numbers = np.array([float(f) for f in fields])
    except ValueError:
        return None
    return (
        None if any(b"_" in f for f in fields) else numbers
    )  # Python reads 1_0 as ten; files do not


def _finite(numbers: NDArray[np.floating], where: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.isfinite(single).all():
        bad = int(np.flatnonzero(~np.isfinite(single))[0])
        raise ValueError(f"{where}: number {bad + 1} is {numbers[bad]}, must be finite in float32")
    return single


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where}: {_shown(raw)} is not UTF-8") from None


def _shown(raw: bytes) -> str:
    text = repr(raw[:40])[1:]
    return text if len(raw) <= 40 else f"{text[:-1]}...'"
