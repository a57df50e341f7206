"""An article, line by line: which matrices, formulas and equations stand in it, in reading order.

Every line is looked at a fixed number of times, so the time is linear in the size of the file.
"""

import re
from dataclasses import dataclass, field, replace
from itertools import accumulate

from .arrays import Place, Span, bracket_arrays, latex_matrices
from .equations import Equation, equations
from .numbers import Cell, Matrix, Problem, read_number
from .rows import RowReader, is_operator_line
from .tokens import Token, tokenize

MOST_MATRICES = 400
MOST_EQUATIONS = 4000
LONGEST_LINE = 20_000
_FENCE = re.compile(r"\s{0,12}(?:>\s?)*(```+|~~~+)\s*([\w+-]*)")
_RULE = re.compile(r"[\s|:\-]+$")
_STYLE = re.compile(r"^(?:\*\*|__|\*|`|\[|<b>|<mark>|\$)+|(?:\*\*|__|\*|`|\]|</b>|</mark>|\$)+$")
_SEPARATOR = re.compile(r"[,;]|\\\\|\\q?quad|\$\$?|\b(?:and|so|then|where)\b|\\\[")
_TURNED = re.compile(r"\s?(?:\.T\b|\^\{?\\?(?:T|top|intercal)\}?|ᵀ)")
_ONLY_OPERATORS = re.compile(r"[\s$]*(?:\.T|\^\{?T\}?|ᵀ)?[\s$]*[x×*@·⋅=≈+\-−][\s$]*$")
_NAMING = re.compile(r"[(=]|score|weight|softmax|output|mask", re.IGNORECASE)
CODE = frozenset(["python", "py", "python3", "pycon", "ipython", "js", "json", "bash", "sh", "c"])

Item = Matrix | list[Token] | None  # None: whatever stands here ends a chain of operators


@dataclass(eq=False)
class Article:
    """What was found. `items` keeps the order in which a reader meets matrices and operators."""

    items: list[tuple[int, Item]] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    malformed: list[Problem] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)
    line_count: int = 0

    @property
    def matrices(self) -> list[Matrix]:
        return [item for _, item in self.items if isinstance(item, Matrix)]


def read_article(text: str) -> Article:
    """Find everything in `text` that can be checked. Never raises for odd content."""
    lines = text.split("\n")
    article = Article(line_count=len(lines))
    place = Place([0, *accumulate(len(line) + 1 for line in lines)][:-1])
    spans: list[Span] = []
    for reader in (bracket_arrays, latex_matrices):
        found, problems = reader(text, place)
        spans += found
        article.malformed += problems
    spans.sort(key=lambda span: span.start)
    used = _chains_of_spans(text, spans, place, article)
    _Walk(_blanked(text, used).split("\n"), lines, article).run()
    article.items.sort(key=lambda item: item[0])
    if len(article.matrices) > MOST_MATRICES:
        last = article.matrices[MOST_MATRICES].line
        article.unread.append(
            Problem(last, f"more than {MOST_MATRICES} matrices: the rest is not read")
        )
        article.items = [item for item in article.items if item[0] < last]
    return article


def _blanked(text: str, regions: list[tuple[int, int]]) -> str:
    """The text with spaces where formulas of bracketed matrices stood: nothing is read twice."""
    parts, at = list[str](), 0
    for start, end in regions:
        parts.append(text[at:start])
        parts.append(re.sub(r"[^\n]", " ", text[start:end]))
        at = end
    return "".join([*parts, text[at:]])


def _chains_of_spans(
    text: str, spans: list[Span], place: Place, article: Article
) -> list[tuple[int, int]]:
    """Add the bracketed matrices with the formulas between them: `QK^T = [..] [..]^T = [..]`.

    Returns the parts of the text that this has used up.
    """
    used: list[tuple[int, int]] = []
    for at, span in enumerate(spans):
        line_start = text.rfind("\n", 0, span.start) + 1
        previous = spans[at - 1].end if at else 0
        together = at > 0 and _same_formula(text[previous : span.start])
        start = previous if together else max(previous, line_start)
        *before, gap = _SEPARATOR.split(text[start : span.start])
        start = span.start - len(gap)
        together = together and not before
        if not together:
            article.items.append((span.matrix.line, None))
        tokens = tokenize(gap.replace("\n", " "), *place(start))
        if together and not tokens:
            tokens = [Token("op", "*")]  # one matrix directly after another
        readable = not any(token.kind == "bad" for token in tokens)
        if readable and (span.matrix.kind == "latex" or (together and _ONLY_OPERATORS.match(gap))):
            article.items.append((span.matrix.line, tokens))
            used.append((start, span.end))
        else:
            used.append((span.start, span.end))
        article.items.append((span.matrix.line, span.matrix))
        after = spans[at + 1].start if at + 1 < len(spans) else len(text)
        turned = _TURNED.match(text, span.end, min(after, span.end + 16))
        if turned and not _same_formula(text[span.end : after]):
            article.items.append((span.matrix.line, [Token("T", "T")]))
    return used


def _same_formula(gap: str) -> bool:
    """Whether what stands between two matrices keeps them in one formula."""
    return len(gap) < 200 and "\n\n" not in gap and "```" not in gap and "$$" not in gap


@dataclass(eq=False)
class _Walk:
    """One pass over the lines. `lines` has the arrays blanked out, `original` has not."""

    lines: list[str]
    original: list[str]
    article: Article
    matrices: int = 0  # in blocks and tables, so far
    lead: str = ""  # the last line of prose: the caption of what follows

    def run(self) -> None:
        at = 0
        while at < len(self.lines) and not (self._enough and self._enough_equations):
            line = self.lines[at]
            fence = _FENCE.match(line) if "```" in line or "~~~" in line else None
            if fence:
                at = self._fence(at, fence)
            elif "|" in line and at + 1 < len(self.lines) and self._is_rule(self.lines[at + 1]):
                at = self._table(at)
            else:
                self._prose(at)
                at += 1
        self._name_arrays()

    @property
    def _enough(self) -> bool:
        return self.matrices > MOST_MATRICES

    @property
    def _enough_equations(self) -> bool:
        return len(self.article.equations) >= MOST_EQUATIONS

    def _fence(self, at: int, opening: re.Match[str]) -> int:
        """Read a fenced block; the line after it is returned."""
        closing, language = opening[1], opening[2].lower()
        body: list[tuple[int, str]] = []
        at += 1
        while at < len(self.lines) and not self._closes(self.lines[at], closing):
            body.append((at + 1, self.lines[at]))
            at += 1
        if at == len(self.lines) and body:
            self.article.unread.append(
                Problem(body[0][0] - 1, "a fenced block that is never closed")
            )
        if language not in CODE:
            self._block(body)
        self.lead = ""
        return at + 1

    @staticmethod
    def _closes(line: str, closing: str) -> bool:
        stripped = line.strip().lstrip("> ")
        return stripped.startswith(closing) and not stripped.strip(closing[0])

    def _block(self, body: list[tuple[int, str]]) -> None:
        """The rows and equations of a block of plain text."""
        rows: list[tuple[int, str]] = []
        for number, text in body:
            if len(text) > LONGEST_LINE:
                self._too_long(number)
                continue
            found = self._equations(text, number)
            if not self._enough:
                rows.append((number, "" if found else text))
        reader = RowReader()
        reader.read(rows)
        for line, item in reader.found:
            if isinstance(item, Matrix) and not item.caption and self.lead:
                item = replace(item, caption=self.lead)
                self.lead = ""
            self.matrices += isinstance(item, Matrix)
            self.article.items.append((line, item))
        self.article.malformed += reader.problems

    def _prose(self, at: int) -> None:
        line = self.lines[at]
        if len(line) > LONGEST_LINE:
            self._too_long(at + 1)
            return
        if not line.strip():
            return
        if is_operator_line(line.strip().strip("*` ")):
            sign = line.strip().strip("*` ") or line.strip()
            tokens = [Token("op", "*")] if sign == "x" else tokenize(sign, at + 1)
            self.article.items.append((at + 1, tokens))
            return
        self._equations(line, at + 1)
        if line == self.original[at]:
            self.article.items.append((at + 1, None))
        self.lead = line.strip() if _is_caption(line.strip()) else ""

    def _equations(self, text: str, number: int) -> list[Equation]:
        """The equations of one line, added to the article until there are too many."""
        if self._enough_equations:
            return []
        found = equations(text, number)
        self.article.equations += found
        if self._enough_equations:
            self.article.unread.append(
                Problem(number, f"more than {MOST_EQUATIONS} equations: the rest is not read")
            )
        return found

    def _too_long(self, number: int) -> None:
        self.article.unread.append(
            Problem(number, f"a line of more than {LONGEST_LINE} characters is not read")
        )

    @staticmethod
    def _is_rule(line: str) -> bool:
        return "-" in line and "|" in line and len(line) < LONGEST_LINE and bool(_RULE.match(line))

    def _table(self, at: int) -> int:
        """Read a Markdown table; a table of words is passed over."""
        header, top = self.lines[at], at
        at += 2
        rows: list[list[Cell | str]] = []
        while at < len(self.lines) and "|" in self.lines[at]:
            if len(self.lines[at]) <= LONGEST_LINE and len(rows) <= 512:
                rows.append(_table_row(self.lines[at], at + 1))
            at += 1
        self.article.items.append((top + 1, None))
        matrix = self._table_matrix(rows, header, top + 1)
        if matrix:
            self.matrices += 1
            self.article.items.append((top + 1, matrix))
        self.lead = ""
        return at

    def _table_matrix(self, rows: list[list[Cell | str]], header: str, line: int) -> Matrix | None:
        top = _table_row(header, line)
        if all(isinstance(cell, Cell) and "." in cell.text for cell in top):
            rows = [top, *rows]  # Markdown wants a first row, and the author gave it numbers
        body = [row[1:] if row and isinstance(row[0], str) else row for row in rows]
        kept = [row for row in body if row]
        numbers = [[cell for cell in row if isinstance(cell, Cell)] for row in kept]
        count, total = sum(map(len, numbers)), sum(map(len, kept))
        if not kept or count < 2 or 2 * count <= total:
            return None
        if count < total or len({len(row) for row in numbers}) > 1:
            self.article.unread.append(
                Problem(line, "a table that mixes numbers and words, or is ragged")
            )
            return None
        if len(kept) > 512 or len(kept[0]) > 512:
            self.article.unread.append(Problem(line, "a table of more than 512 rows or columns"))
            return None
        corner = _STYLE.sub("", header.strip().strip("|").split("|")[0].strip())
        return Matrix(numbers, line, caption=self.lead or corner, kind="table")

    def _name_arrays(self) -> None:
        """Arrays and LaTeX matrices without a name take the line above as their caption."""
        for index, (line, item) in enumerate(self.article.items):
            if not isinstance(item, Matrix) or item.kind not in ("array", "latex") or item.name:
                continue
            if index and isinstance(self.article.items[index - 1][1], list):
                continue  # inside a formula, which says what the matrix is
            above = line - 2
            while above >= 0 and above > line - 5 and not self.original[above].strip(" `$~"):
                above -= 1
            text = self.original[above].strip() if above >= 0 else ""
            call = re.fullmatch(r"(?:>>>\s*)?print\(([\w .]{1,40})\)|>>>\s*([\w .]{1,40})", text)
            if call:
                text = call[1] or call[2]
            if (call or _is_caption(text)) and not text.endswith("\\\\") and "[" not in text:
                self.article.items[index] = (line, replace(item, caption=text))


def _is_caption(line: str) -> bool:
    """A heading, something bold, a line with a colon at its end, or a few words with a capital."""
    if not 0 < len(line) <= 160 or "\\begin" in line:
        return False
    marked = line[0] in "#*_" or line.rstrip("*_ ")[-1:] == ":"
    named = (
        len(line) <= 60 and line[-1] not in ".!?;" and (line[0].isupper() or _NAMING.search(line))
    )
    return marked or bool(named)


def _table_row(line: str, number: int) -> list[Cell | str]:
    """The entries of one line: numbers where they are numbers, out of their emphasis."""
    entries: list[Cell | str] = []
    body = line.rstrip()
    begin = body.index("|") + 1 if body.lstrip().startswith("|") else 0
    stop = len(body) - 1 if body.endswith("|") else len(body)
    at = begin
    for piece in body[begin:stop].split("|"):
        plain = piece.strip()
        core = _STYLE.sub("", plain).strip()
        start = at + piece.find(core) if core else at
        cell = read_number(core, number, start, highlighted=core != plain)
        entries.append(cell if cell else plain)
        at += len(piece) + 1
    return entries
