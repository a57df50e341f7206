"""Matrices typed as rows of numbers, one under another or side by side, as in a fenced block.

    # Q (2 tokens x 2 dims)              1.0 0.5   x   1.1 0.3   =   1.25 0.90
     1.0  [0.5]                          0.2 1.4       0.3 1.2       0.64 1.74
     0.2   1.4

Brackets, bars and commas are furniture; a bracket round one number among several is a highlight.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from .numbers import Cell, Matrix, Problem, read_number, uneven
from .tokens import Token, tokenize

WIDEST = 512  # numbers in a row, and rows in a matrix; more than a person works by hand
OPERATORS = frozenset("x×✕⨯*@·⋅∙•=≈+÷/⊙")

_PIECE = re.compile(
    r"(?P<gap>[\s,;|│┃⎡⎢⎣⎤⎥⎦⎛⎜⎝⎞⎟⎠()&]+)|(?P<mark>\*\*|[\[\]`])|(?P<word>[^\s,;|│┃⎡⎢⎣⎤⎥⎦⎛⎜⎝⎞⎟⎠()\[\]`&*]+|\*)"
)
_PLAIN_ROW = re.compile(r"[\s\d.,eE+\-\[\]|;]+$")
_NAN = re.compile(r"[+-]?(?:np\.|float\()?nan\b", re.IGNORECASE)
_COMMENT = re.compile(r"\s(?:#|//|<-|←|--)\s.*$")


@dataclass(frozen=True, slots=True)
class Piece:
    """A number, an operator or a word of a line, with its columns."""

    text: str
    start: int
    end: int
    cell: Cell | None

    @property
    def operator(self) -> bool:
        return self.cell is None and self.text in OPERATORS


@dataclass(eq=False)
class Column:
    """The part of a block between two operator columns, while its rows are gathered."""

    left: int
    right: int
    rows: list[list[Cell]] = field(default_factory=list)
    caption: str = ""


Found = tuple[int, Matrix | list[Token]]  # with the line it stands on


def pieces(line: str, number: int) -> list[Piece]:
    """The numbers, operators and words of a line; a comment at its end is left out."""
    comment = _COMMENT.search(line)
    body = line[: comment.start()] if comment and comment.start() > 0 else line
    found: list[Piece] = []
    opened = False
    for match in _PIECE.finditer(body):
        if match.lastgroup == "mark":
            opened = match[0] in ("[", "**", "`")
            continue
        if match.lastgroup == "gap":
            continue
        cell = read_number(match[0], number, match.start(), highlighted=opened)
        found.append(Piece(match[0], match.start(), match.end(), cell))
        opened = False
    return found


def is_row(line: list[Piece]) -> bool:
    """Numbers only, but for a label of at most three words in front."""
    numbers = [piece.cell is not None for piece in line]
    if not any(numbers):
        return False
    first = numbers.index(True)
    return all(numbers[first:]) and first <= 3 and not any(p.operator for p in line[:first])


def no_number(line: list[Piece], beside: list[list[Piece]]) -> str:
    """What stands where a number should in what is else a row like the one beside it, or ""."""
    body = _without_label(line)
    words = [piece for piece in body if piece.cell is None]
    if not words or len(body) < 2 or any(piece.operator for piece in line):
        return ""
    nan = next((True for piece in words if _NAN.match(piece.text)), False)
    number_first = body[0].cell is not None and "." in body[0].text
    if not (nan or number_first):
        return ""
    if not any(is_row(other) and len(_without_label(other)) == len(body) for other in beside):
        return ""
    if nan:
        return "NaN in a matrix; it has no value"
    return f"'{words[0].text[:40]}' stands where the row beside it has a number"


def _without_label(line: list[Piece]) -> list[Piece]:
    first = (i for i, p in enumerate(line[:4]) if p.cell is not None or _NAN.match(p.text))
    return line[next(first, 0) :]


def is_operator_line(text: str) -> bool:
    """`x`, `=`, `÷ √2 =`: an operator first, and nothing that is a sentence."""
    words = text.split()
    if not words or len(words) > 6 or words[0] not in OPERATORS:
        return False
    kinds = {token.kind for token in tokenize(text)}
    return "bad" not in kinds and (len(words) == 1 or words[-1] in "=≈" or words[0] in "=≈÷/")


class RowReader:
    """Reads the lines of one block into matrices, operators and problems, in order."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.problems: list[Problem] = []
        self.columns: list[Column] = []
        self.captions: list[str] = []
        self.odd: Problem | None = None  # of the group that is being gathered

    def read(self, lines: list[tuple[int, str]]) -> None:
        """`lines` are (line number, text); the results are in `found` and `problems`."""
        group: list[tuple[int, str, list[Piece]]] = []
        for at, (number, text) in enumerate(lines):
            if len(group) > WIDEST and _PLAIN_ROW.match(text):
                continue  # too many already, and said so at the end of the group
            parts = pieces(text, number)
            if self._belongs(parts):
                group.append((number, text, parts))
                continue
            beside = [group[-1][2]] if group else []
            beside += [pieces(line, n) for n, line in lines[at + 1 : at + 2]]
            word = no_number(parts, beside)
            if word:
                self.odd = self.odd or Problem(number, word)
                group.append((number, text, parts))
                continue
            self._finish(group)
            group = []
            if not text.strip():
                continue
            if is_operator_line(text.strip()):
                column = len(text) - len(text.lstrip())
                self.found.append((number, _operator(text.strip(), number, column)))
                self.captions = []
            else:
                self.captions.append(text)
        self._finish(group)

    @staticmethod
    def _belongs(parts: list[Piece]) -> bool:
        """A row of one matrix, or of several side by side."""
        if is_row(parts):
            return True
        numbers = [piece.cell is not None for piece in parts]
        inner = [p for p in parts if p.operator or p.cell is not None]
        return any(numbers) and len(inner) == len(parts) and any(p.operator for p in parts)

    def _finish(self, group: list[tuple[int, str, list[Piece]]]) -> None:
        """Turn the gathered lines into matrices."""
        if not group:
            return
        if self.odd is not None:
            self.problems.append(self.odd)
            self.odd, self.captions = None, []
            return
        if len(group) > WIDEST:
            self._problem(
                group[0][0], f"a matrix of more than {WIDEST} rows; up to {WIDEST} are checked"
            )
            return
        if len(group) == 1 and sum(p.cell is not None for p in group[0][2]) == 1:
            self.captions.append(group[0][1])  # one number is a remark, not a matrix
            return
        cuts = sorted({p.start for _, _, parts in group for p in parts if p.operator})
        if not cuts:
            rows = [[p.cell for p in parts if p.cell is not None] for _, _, parts in group]
            self._matrix(rows, self._caption_over(len(rows[0])), group[0][0])
        else:
            self._side_by_side(group, cuts)
        self.captions = []

    def _caption_over(self, columns: int) -> str:
        """The nearest line above, but for a line of column headings."""
        if len(self.captions) > 1 and len(self.captions[-1].split()) == columns:
            return self.captions[-2]
        return self.captions[-1] if self.captions else ""

    def _side_by_side(self, group: list[tuple[int, str, list[Piece]]], cuts: list[int]) -> None:
        """Split every line at the columns where some line has an operator."""
        edges = [-1, *cuts, 1 << 30]
        line = group[0][0]  # all parts of the row of matrices count as standing on its first line
        captions = _split_words(self.captions[-1] if self.captions else "", edges)
        for at, (left, right) in enumerate(pairwise(edges)):
            rows = []
            for _, _, parts in group:
                row = [p.cell for p in parts if p.cell is not None and left <= p.start < right]
                if row:
                    rows.append(row)
            if left >= 0:
                sign = next(p for _, _, parts in group for p in parts if p.start == left)
                self.found.append((line, _operator(sign.text, line, left)))
            if rows:
                self._matrix(rows, captions[at], line)

    def _matrix(self, rows: list[list[Cell]], caption: str, line: int) -> None:
        widths = {len(row) for row in rows}
        if max(widths) > WIDEST:
            self._problem(line, f"a row of {max(widths)} numbers; up to {WIDEST} are checked")
        elif len(widths) > 1:
            at, row = next((i, r) for i, r in enumerate(rows) if len(r) != len(rows[0]))
            self._problem(
                row[0].line,
                uneven(at + 1, len(row), len(rows[0])),
            )
        else:
            own = caption.strip()
            self.found.append((line, Matrix(rows, line, caption=own)))

    def _problem(self, line: int, sentence: str) -> None:
        self.problems.append(Problem(line, sentence))


def _operator(text: str, line: int, column: int) -> list[Token]:
    """The tokens of an operator line; a letter x alone is a multiplication sign."""
    if text == "x":
        return [Token("op", "*")]
    return tokenize(text.replace(" x ", " × "), line, column)


def _split_words(caption: str, edges: list[int]) -> list[str]:
    """The words of a caption line, shared out to the columns they stand over."""
    words: list[list[str]] = [[] for _ in edges[1:]]
    for match in re.finditer(r"\S+(?: \S+)*", caption):
        middle = (match.start() + match.end()) / 2
        column = sum(middle >= edge for edge in edges[1:-1])
        if match[0] not in OPERATORS:
            words[column].append(match[0])
    return [" ".join(group) for group in words]
