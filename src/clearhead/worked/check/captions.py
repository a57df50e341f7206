"""What a caption says: a name, a size, a part in the mechanism, and perhaps a formula.

# Scaled scores (scores / √2), 4 x 4     name "scaled scores", 4 x 4, formula scores / sqrt(2)
"""

import re
from dataclasses import dataclass
from typing import Literal

from .formula import Node, NotAFormula, parse
from .numbers import Cell, Matrix
from .tokens import tokenize
from .values import dimension

Part = Literal["scores", "scaled", "masked", "weights", "output", ""]

_SIZE = re.compile(
    r"\(?(?<![\w.])(\d{1,4})\s*(?:[A-Za-z-]{2,20}\s*)?[x×]\s*(\d{1,4})(?![\w.])(?:\s*[a-zA-Z-]+)?\)?"
)
_FRONT = re.compile(
    r"^[\s#>%/*_`$-]*(?:(?:step|stage|part|figure|table)\s*\d*|\d+)?\s*[.:)]?\s*", re.IGNORECASE
)
_PARTS: tuple[tuple[Part, re.Pattern[str]], ...] = (
    ("masked", re.compile(r"\bmask(?:ed|ing)?\b")),
    ("scaled", re.compile(r"\bscaled?\b|\bscaling\b")),
    ("weights", re.compile(r"\bsoftmax\b|\bweights?\b|\bprobabilit")),
    ("scores", re.compile(r"\bscores?\b|\blogits?\b|\bsimilarit")),
    ("output", re.compile(r"\boutputs?\b|\bcontext|\bresult|\bweighted\b")),
)


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption taken apart. `formulas` are texts that may be one, the likeliest first."""

    name: str
    size: tuple[int, int] | None
    part: Part
    formulas: tuple[str, ...]
    head: str = ""


def read_caption(text: str) -> Caption:
    """Take a caption apart; an empty one gives an empty name."""
    plain = _FRONT.sub("", text[:200], count=1).strip().rstrip(":.*_`$ ").strip()
    plain = re.split(r"(?<=[a-z\d)][.!?])\s+(?=[A-Z])", plain)[-1]  # its last sentence
    found = _SIZE.search(plain)
    size = (int(found[1]), int(found[2])) if found else None
    if found:
        plain = (plain[: found.start()] + " " + plain[found.end() :]).strip(" ,:;-")
    plain = plain.replace("**", "").replace("`", "")
    inside = re.search(r"\((.+)\)", plain)
    outside = re.sub(r"\(.*\)", " ", plain)
    if "=" in plain:  # then the formula is on its right, whole, or with a remark after a comma
        right = plain.rpartition("=")[2]
        candidates = [right, right.rpartition(", ")[0]]
    else:
        candidates = [inside[1] if inside else "", plain.rpartition(":")[2] if ":" in plain else ""]
        candidates += [plain, outside, outside.split(",")[0]]
    formulas = tuple(dict.fromkeys(c.strip() for c in candidates if c.strip()))
    name = re.split(r"\s*[=:,(]|\s+[-–—]\s", plain)[0].replace("$", "").strip() if plain else ""
    part = _part(name) or ("" if "=" in plain else _part(plain))  # `m = max(masked)` is no mask
    of_head = re.search(r"\bhead (\d{1,4})\b", plain, re.IGNORECASE)
    head = of_head[1] if of_head else ""
    return Caption(name if len(name) <= 60 else "", size, part, formulas, head)


def _part(text: str) -> Part:
    lower = text.lower().replace("_", " ")
    return next((part for part, pattern in _PARTS if pattern.search(lower)), "")


def canonical(name: str) -> str:
    """One spelling for a name: lower case; `K transposed`, `Kᵀ`, `K.T` and `K_T` are `k^t`."""
    plain = name.lower().strip().replace("{", "").replace("}", "").replace("$", "")
    plain = plain.replace("\\top", "t").replace("ᵀ", "^t").replace("⊤", "^t").replace(".t", "^t")
    plain = re.sub(r"[\s_]*(?:\^\s*t|_t|[ _-]?transposed?)$", "^t", plain)
    return re.sub(r"[\s_]+", "_", plain)


class Names:
    """The matrices that a formula may refer to, by every name the article has given them.

    What belongs to a head is found by formulas of that head only: set `head` before asking.
    """

    def __init__(self) -> None:
        self.known: dict[str, Matrix] = {}
        self.head = ""

    def learn(self, matrix: Matrix, part: Part = "") -> None:
        """From here on `matrix` is what its name, and its part, stand for."""
        names = [canonical(matrix.name)] if matrix.name else []
        if part:
            names.append(part)
            names += ["attention", "attention_weights"] if part == "weights" else []
            names += [f"{part}_scores"] if part in ("scaled", "masked") else []
        for name in names:
            self.known[f"{name}@{matrix.head}" if matrix.head else name] = matrix

    def get(self, key: str) -> Matrix | None:
        """The matrix known as `key` to the present head, else to all."""
        return self.known.get(f"{key}@{self.head}", self.known.get(key))

    def find(self, name: str) -> Node | None:
        """The matrix called `name`, perhaps as the transpose of one that the article shows."""
        key = canonical(name)
        same = self.get(key)
        if same is not None:
            return Node("matrix", matrix=same)
        turned = self.get(key.removesuffix("^t") if key.endswith("^t") else key + "^t")
        return None if turned is None else Node("T", (Node("matrix", matrix=turned),))

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def spells(self, name: str) -> bool:
        """Whether the letters of `name` are matrices one by one, as in QK."""
        return 1 < len(name) <= 4 and name.isupper() and all(letter in self for letter in name)

    def formula(self, text: str) -> Node | None:
        """`text` as a formula over known matrices that does something with them, or None."""
        try:
            node = self.resolve(parse(tokenize(self._joined(text))))
        except NotAFormula:
            return None
        inner = node.args[0] if node.op == "T" else node
        if inner.op in ("matrix", "number") or not any(n.op == "matrix" for n in node.walk()):
            return None
        return node

    def _joined(self, text: str) -> str:
        """Known names of several words, written as one."""
        keys = {key.partition("@")[0] for key in self.known if "_" in key}
        for key in sorted(keys, key=len, reverse=True):
            words = re.escape(key).replace("_", r"[\s_]")
            text = re.sub(rf"\b{words}\b", key.replace("\\", r"\\"), text, flags=re.IGNORECASE)
        return text

    def resolve(self, node: Node) -> Node:
        """Names replaced by what they stand for. Raises NotAFormula for an unknown one."""
        if node.op == "T" and node.args[0].op == "name":
            name = node.args[0].name
            turned = self.find(name + "^T")
            if turned is not None:
                return turned
            if name not in self and self.spells(name):  # QK^T is Q times K^T
                rest = [Node("name", name=letter) for letter in name[:-1]]
                return self.resolve(_product([*rest, Node("T", (Node("name", name=name[-1]),))]))
        if node.op == "name" and node.name not in self and self.spells(node.name):
            return self.resolve(_product([Node("name", name=letter) for letter in node.name]))
        if node.op == "name":
            size = dimension(node.name, self.known)
            found = number(size, node.name) if size else self.find(node.name)
            if found is None:
                raise NotAFormula
            return found
        return Node(
            node.op, tuple(self.resolve(arg) for arg in node.args), node.cell, "", node.matrix
        )


def _product(factors: list[Node]) -> Node:
    node = factors[0]
    for factor in factors[1:]:
        node = Node("*", (node, factor))
    return node


def number(value: float, text: str = "") -> Node:
    """An exact number in a formula."""
    return Node("number", cell=Cell(text or f"{value:g}", value, 0.0, 0, 0, 0))
