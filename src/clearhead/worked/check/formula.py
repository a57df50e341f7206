"""Tokens to a tree: products, transposes, softmax, roots, fractions, lists of numbers.

chain := sum ('=' sum)*          sum  := term (('+'|'-') term)*
term  := power (('*'|'/'|'⊙') power | power)*     a number may not follow a number directly
power := atom ('^' atom | T)*    atom := number | name | matrix | function atom | '(' sum ')'
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .numbers import Cell, Matrix
from .tokens import Token

DEEPEST = 40


class NotAFormula(ValueError):
    """The tokens do not form a formula; never shown to a user."""


@dataclass(frozen=True, slots=True)
class Node:
    """op: 'number', 'name', 'matrix', '+', '-', '*', '/', '⊙', '^', 'T', 'neg' or a function."""

    op: str
    args: tuple["Node", ...] = ()
    cell: Cell | None = None
    name: str = ""
    matrix: Matrix | None = None

    def __str__(self) -> str:
        return _written(self)

    def walk(self) -> list["Node"]:
        """This node and all below it."""
        found, waiting = [], [self]
        while waiting:
            node = waiting.pop()
            found.append(node)
            waiting += node.args
        return found


def _written(node: Node) -> str:
    """The formula as one line of text."""
    match node.op:
        case "number":
            return node.cell.text if node.cell else ""
        case "name":
            return node.name
        case "matrix":
            return (node.matrix.name or node.matrix.label) if node.matrix else ""
        case "T":
            return f"{_grouped(node.args[0])}^T"
        case "neg":
            return f"-{_grouped(node.args[0])}"
        case "+" | "-":
            return f"{node.args[0]} {node.op} {_grouped(node.args[1])}"
        case "*" | "/" | "⊙":
            sign = "x" if node.op == "*" else node.op
            return f"{_grouped(node.args[0])} {sign} {_grouped(node.args[1])}"
        case "^":
            return f"{_grouped(node.args[0])}^{_grouped(node.args[1])}"
    return f"{node.op}({', '.join(str(arg) for arg in node.args)})"


def _grouped(node: Node) -> str:
    return f"({node})" if node.op in ("+", "-", "/", "⊙", "neg") else str(node)


def parse(tokens: Sequence[Token], loose: bool = True) -> Node:
    """The tree of all the tokens. `loose` lets `0.5 (0.4)`, with a space, be a product.

    Raises NotAFormula when anything is left over or missing.
    """
    parser = _Parser(tokens, loose)
    node = parser.sum(0)
    if parser.at != len(tokens):
        raise NotAFormula
    return node


class _Parser:
    """A recursive descent over one list of tokens, with a bound on its depth."""

    def __init__(self, tokens: Sequence[Token], loose: bool) -> None:
        self.tokens, self.loose, self.at = tokens, loose, 0

    def here(self, kind: str, text: str | None = None) -> bool:
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.kind == kind and (text is None or token.text == text)

    def take(self) -> Token:
        if self.at >= len(self.tokens):
            raise NotAFormula
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise NotAFormula
        node = self.term(depth)
        while self.here("op", "+") or self.here("op", "-"):
            node = Node(self.take().text, (node, self.term(depth)))
        return node

    def term(self, depth: int) -> Node:
        node = self.signed(depth)
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "op" and token.text in ("*", "/", "⊙"):
                self.at += 1
                node = Node(token.text, (node, self.signed(depth)))
            elif self.multiplies(token):
                node = Node("*", (node, self.power(depth)))
            else:
                break
        return node

    def multiplies(self, token: Token) -> bool:
        """Whether `token`, directly after an operand, begins another factor."""
        if token.kind in ("name", "func", "matrix", "frac"):
            return True
        return token.kind == "open" and token.text != "{" and (self.loose or not token.spaced)

    def signed(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise NotAFormula
        if self.here("op", "-"):
            self.take()
            return Node("neg", (self.signed(depth + 1),))
        if self.here("op", "+"):
            self.take()
        return self.power(depth)

    def power(self, depth: int) -> Node:
        node = self.atom(depth)
        while True:
            if self.here("T"):
                self.take()
                node = Node("T", (node,))
            elif self.here("op", "^"):
                self.take()
                exponent = self.signed(depth + 1) if self.here("op", "-") else self.atom(depth + 1)
                if exponent.op == "name" and exponent.name in ("T", "t"):
                    node = Node("T", (node,))
                elif node.op == "name" and node.name == "e":
                    node = Node("exp", (exponent,))
                else:
                    node = Node("^", (node, exponent))
            else:
                return node

    def atom(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise NotAFormula
        token = self.take()
        match token.kind:
            case "num":
                return Node("number", cell=token.cell)
            case "name":
                return Node("name", name=token.text)
            case "matrix":
                return Node("matrix", matrix=token.matrix)
            case "func":
                return Node(token.text, self.arguments(depth + 1))
            case "frac":
                return Node("/", (self.atom(depth + 1), self.atom(depth + 1)))
            case "open":
                return self.group(token, depth + 1)
        raise NotAFormula

    def arguments(self, depth: int) -> tuple[Node, ...]:
        """What a function is applied to: `(a, b)`, `{a}` or one atom."""
        if not self.here("open", "(") and not self.here("open", "{"):
            return (self.power(depth),)
        closing = {"(": ")", "{": "}"}[self.take().text]
        found = [self.sum(depth)]
        while self.here("comma"):
            self.take()
            found.append(self.sum(depth))
        if not self.here("close", closing):
            raise NotAFormula
        self.take()
        return tuple(found)

    def group(self, opening: Token, depth: int) -> Node:
        """`(a + b)` is the sum; `[0.1, 0.2]` and `[0.1 0.2]` are a row of numbers."""
        if opening.text == "[":
            row = self.row_of_numbers()
            if row:
                return Node("matrix", matrix=row)
        node = self.sum(depth)
        if not self.here("close", {"(": ")", "[": "]", "{": "}"}[opening.text]):
            raise NotAFormula
        self.take()
        return node

    def row_of_numbers(self) -> Matrix | None:
        """The row vector that starts here, or None when there is something else."""
        at, cells, sign = self.at, list[Cell](), False
        while at < len(self.tokens):
            token = self.tokens[at]
            at += 1
            if token.kind == "num" and token.cell and not (sign and token.spaced):
                cells.append(_negated(token.cell) if sign else token.cell)
                sign = False
            elif token.kind == "op" and token.text == "-" and not sign:
                sign = True
            elif token.kind == "close" and token.text == "]" and len(cells) > 1 and not sign:
                self.at = at
                return Matrix([cells], cells[0].line, kind="inline")
            elif token.kind != "comma":
                return None
        return None


def _negated(cell: Cell) -> Cell:
    """The cell with the minus sign before it taken in."""
    return Cell("-" + cell.text, -cell.value, cell.half, cell.line, cell.start - 1, cell.end)
