"""Formulas as tokens: plain text, Unicode and LaTeX spell the same thing in different ways.

`Q × Kᵀ`, `Q @ K.T`, `Q x K^T` and `Q K^\\top` give the same tokens. One pass of one regular
expression whose alternatives cannot overlap: linear in the length of the text.
"""

import re
from dataclasses import dataclass
from typing import Literal

from .numbers import Cell, Matrix, read_number

Kind = Literal["num", "name", "func", "op", "open", "close", "comma", "T", "frac", "matrix", "bad"]

FUNCTIONS = frozenset(
    ["softmax", "exp", "sqrt", "tanh", "ln", "log", "max", "max_j", "sum_j", "causal"]
)
_SYNONYMS = {
    "×": "*", "✕": "*", "⨯": "*", "·": "*", "⋅": "*", "∙": "*", "•": "*", "@": "*", "*": "*",
    "÷": "/", "/": "/", "+": "+", "-": "-", "−": "-", "–": "-", "=": "=", "≈": "=", "≃": "=",
    "≅": "=", "⊙": "⊙", "∘": "⊙", "^": "^",
}  # fmt: skip
_COMMANDS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "approx": "=", "simeq": "=", "odot": "⊙",
    "circ": "⊙",
}  # fmt: skip
_SILENT = frozenset(
    ["left", "right", "big", "Big", "bigl", "bigr", "quad", "qquad", "displaystyle", "mathbf",
     "mathrm", "text", "operatorname", "boxed", "bf", "underline", "textbf", "limits", "nonumber"]
)  # fmt: skip

_TOKEN = re.compile(
    r"""
      (?P<skip>    [\s`$&]+ | \*\*(?!\d) | \\[,;:!\ ] )
    | (?P<styled>  \\(?:text|textbf|mathrm|mathbf|mathit|operatorname\*?|boxed|bm)
                   \{(?P<inside>[^{}\\]{1,60})\} )
    | (?P<command> \\[A-Za-z]+ )
    | (?P<number>  (?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?(?:[eE][+\-−]?\d+)?%? | \.\d+ | ∞ )
    | (?P<power>   \*\*(?=\d) )
    | (?P<name>    [A-Za-z]+[0-9]*(?:_(?:[A-Za-z0-9]+|\{[A-Za-z0-9]{1,20}\})){0,6}(?:\.T\b)? )
    | (?P<T>       ᵀ|⊤ )
    | (?P<square>  ² )
    | (?P<root>    √ )
    | (?P<op>      [×✕⨯·⋅∙•@*÷/+\-−–=≈≃≅⊙∘^] )
    | (?P<open>    [(\[{] )
    | (?P<close>   [)\]}] )
    | (?P<comma>   , )
    | (?P<bad>     . )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a formula; `spaced` says that white space stands before it."""

    kind: Kind
    text: str
    cell: Cell | None = None
    matrix: Matrix | None = None
    spaced: bool = False


def tokenize(text: str, line: int = 0, column: int = 0) -> list[Token]:
    """The tokens of one line of a formula that starts at `column` of `line`."""
    tokens: list[Token] = []
    spaced = False
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup if found.lastgroup != "inside" else "styled")
        piece = found[0]
        if kind == "skip":
            spaced = True
            continue
        tokens += _tokens_of(kind, piece, found, line, column, spaced)
        spaced = False
    return _letter_x_between_operands(tokens)


def _tokens_of(
    kind: str, piece: str, found: re.Match[str], line: int, column: int, spaced: bool
) -> list[Token]:
    """One match of the pattern as tokens (`K.T` is two, `\\left` none)."""
    start = column + found.start()
    match kind:
        case "number":
            cell = read_number(piece, line, start)
            return [Token("num", piece, cell, spaced=spaced)] if cell else [Token("bad", piece)]
        case "styled":
            inside = found["inside"].strip()
            offset = start + piece.index("{") + 1 + found["inside"].index(inside)
            cell = read_number(inside, line, offset, highlighted=True)
            if cell:
                return [Token("num", inside, cell, spaced=spaced)]
            return [_word(inside.replace(" ", "_"), spaced)]
        case "name":
            if piece.endswith(".T"):
                return [_word(piece[:-2], spaced), Token("T", ".T")]
            return [_word(piece, spaced)]
        case "command":
            return _command(piece[1:], line, start, spaced)
        case "op":
            return [Token("op", _SYNONYMS[piece], spaced=spaced)]
        case "power":
            return [Token("op", "^", spaced=spaced)]
        case "square":
            return [
                Token("op", "^"),
                Token("num", "2", Cell("2", 2.0, 0.5, line, start, start + 1)),
            ]
        case "root":
            return [Token("func", "sqrt", spaced=spaced)]
        case "T":
            return [Token("T", piece)]
        case "open":
            return [Token("open", piece, spaced=spaced)]
        case "close":
            return [Token("close", piece, spaced=spaced)]
        case "comma":
            return [Token("comma", piece)]
    return [Token("bad", piece, spaced=spaced)]


def _command(word: str, line: int, start: int, spaced: bool) -> list[Token]:
    """A LaTeX command such as \\times, \\sqrt or \\top."""
    if word in _SILENT:
        return []
    if word in _COMMANDS:
        return [Token("op", _COMMANDS[word], spaced=spaced)]
    if word in ("top", "intercal"):
        return [Token("name", "T")]
    if word in ("frac", "dfrac", "tfrac"):
        return [Token("frac", word, spaced=spaced)]
    if word == "infty":
        cell = Cell("\\infty", float("inf"), 0.0, line, start, start + 6)
        return [Token("num", word, cell, spaced=spaced)]
    return [_word(word, spaced)]


def _word(text: str, spaced: bool) -> Token:
    plain = text.replace("{", "").replace("}", "")
    if plain.lower() in FUNCTIONS:
        return Token("func", plain.lower(), spaced=spaced)
    return Token("name", plain, spaced=spaced)


def _letter_x_between_operands(tokens: list[Token]) -> list[Token]:
    """The letter x is a multiplication sign when an operand stands before it and after it."""
    result = list(tokens)
    for at, token in enumerate(tokens):
        if token.kind != "name" or token.text not in ("x", "X") or not 0 < at < len(tokens) - 1:
            continue
        before, after = result[at - 1], tokens[at + 1]
        if before.kind in ("num", "name", "close", "T", "matrix") and (
            after.kind in ("num", "name", "open", "func", "frac", "matrix")
            or (after.kind == "op" and after.text == "-")
        ):
            if token.text == "X" and "num" not in (before.kind, after.kind):
                continue
            result[at] = Token("op", "*", spaced=token.spaced)
    return result
