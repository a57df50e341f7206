"""Arithmetic in a sentence: `q1 . k1 = 1.0(1.1) + 0.5(0.4) = 1.30`, `e^0.5 = 1.65`, vectors.

From every '=' the longest stretch of arithmetic on either side is taken. A stretch with names in
it is prose or algebra and is left alone: only numbers can be checked.
"""

import re
from dataclasses import dataclass

from .formula import Node, NotAFormula, parse
from .tokens import Token, tokenize

LONGEST_LINE = 20_000
LONGEST_RUN = 160  # tokens of one equation
_BULLET = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)]|#+|>+)\s+")


@dataclass(frozen=True, slots=True)
class Equation:
    """`sides` are equal, says the article. The first may have been cut off in more than one way."""

    line: int
    sides: tuple[Node, ...]
    first_alternatives: tuple[Node, ...]


def equations(text: str, line: int) -> list[Equation]:
    """The equations between numbers in one line of the article."""
    if len(text) > LONGEST_LINE or not any(sign in text for sign in ("=", "≈", "\\approx")):
        return []
    bullet = _BULLET.match(text)
    column = bullet.end() if bullet else 0
    found: list[Equation] = []
    for run in _runs(tokenize(text[column:], line, column)):
        parts = _split(run)
        if len(parts) > 1 and len(run) <= LONGEST_RUN:
            found += _equations_of(parts, line)
    return found


def _runs(tokens: list[Token]) -> list[list[Token]]:
    """Stretches without names (but e) and signs that are not arithmetic."""
    runs: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        plain = token.kind in ("num", "op", "open", "close", "func", "frac")
        if token.kind == "open":
            depth += 1
        elif token.kind == "close":
            depth = max(0, depth - 1)
        exponential = token.kind == "name" and token.text == "e"
        if plain or exponential or (token.kind == "comma" and depth > 0):
            runs[-1].append(token)
        elif runs[-1]:
            # a name directly before or after, as in `2 d = 4`, makes its neighbour algebra
            runs[-1].append(Token("bad", token.text))
            runs.append([Token("bad", token.text)])
            depth = 0
        else:
            runs[-1] = [Token("bad", token.text)]
    return runs


def _split(run: list[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in run:
        if token.kind == "op" and token.text == "=":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _equations_of(parts: list[list[Token]], line: int) -> list[Equation]:
    """Chains of neighbouring sides that can all be read."""
    found: list[Equation] = []
    sides: list[Node] = []
    alternatives: tuple[Node, ...] = ()
    for at, part in enumerate(parts):
        whole = _parsed(part[:1] if at == len(parts) - 1 and _remarked(part) else part)
        if whole is None and sides:
            start = _prefix(part)
            if start is not None:
                sides.append(start)
        if whole is None or not sides:
            found += _closed(sides, alternatives, line)
            sides = []
            if at < len(parts) - 1:
                ends = _suffixes(part) if at == 0 or whole is None else (whole,)
                if ends:
                    sides, alternatives = [ends[0]], ends
            continue
        sides.append(whole)
    return found + _closed(sides, alternatives, line)


def _remarked(part: list[Token]) -> bool:
    """`1.30 (0.92)` at the end: a result and a remark, not a product."""
    return len(part) > 1 and part[0].kind == "num" and part[1].kind == "open" and part[1].spaced


def _closed(sides: list[Node], alternatives: tuple[Node, ...], line: int) -> list[Equation]:
    """An equation, if there are two sides and some arithmetic in them."""
    if len(sides) < 2 or all(is_plain(side) for side in sides):
        return []
    return [Equation(line, tuple(sides), alternatives)]


def is_plain(node: Node) -> bool:
    """A number or a row of numbers: a printed result, not a calculation."""
    return node.op in ("number", "matrix") or (node.op == "neg" and is_plain(node.args[0]))


def _parsed(tokens: list[Token], loose: bool = True) -> Node | None:
    try:
        return parse(tokens, loose)
    except NotAFormula:
        return None


def _suffixes(part: list[Token]) -> tuple[Node, ...]:
    """The ways in which the end of `part` is arithmetic: the longest first.

    Besides the longest stretch: without a leading minus (it may be a dash), and without taking
    `2 (0.5)` for a product (the 2 may count something).
    """
    found: list[Node] = []
    for loose in (True, False):
        for at, token in enumerate(part):
            node = _parsed(part[at:], loose)
            if node is None:
                continue
            if at > 0 and _joined(part[at - 1], token, loose):
                break
            found.append(node)
            if token.kind == "op" and at + 1 < len(part):
                rest = _parsed(part[at + 1 :], loose)
                found += [rest] if rest is not None else []
            break
    return tuple(dict.fromkeys(found))


def _joined(before: Token, first: Token, loose: bool) -> bool:
    """Whether what stands before belongs to the arithmetic after it: `1.0 0.5 x 2`, `d / 2`."""
    if not loose and before.kind == "num" and first.kind == "open" and first.spaced:
        return False
    if before.kind != "bad":
        return before.kind != "open"
    touching = first.kind == "open" and not first.spaced and before.text.isalnum()
    return touching or first.kind == "op" or before.text in (".", "_", "^", "\\")


def _prefix(part: list[Token]) -> Node | None:
    """The longest beginning of `part` that is arithmetic, unless the rest belongs to it."""
    for end in range(len(part) - 1, 0, -1):
        node = _parsed(part[:end])
        if node is not None:
            after = part[end]
            broken = (
                after.kind in ("num", "func")
                or (after.kind == "open" and not after.spaced)
                or (after.kind == "op" and end + 1 < len(part))
            )
            sentence_end = after.kind == "bad" and after.text not in ("x", "X", "d", "n")
            return node if not broken and (sentence_end or after.kind != "bad") else None
    return None
