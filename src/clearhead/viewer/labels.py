"""Words and tokens as labels: every character visible, none of them a command to the screen."""

import unicodedata

_NAMED = {"\n": "↵", "\r": "↵", "\t": "⇥"}
# These reorder the text around them; a label must not.
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    """The text with each control character replaced by a sign for it.

    Spaces, letters of any script, marks and joiners stay, so that emoji and conjuncts stay whole.

    >>> visible("two\\nlines"), visible("\\x1b[31m"), visible("🙂 東京")
    ('two↵lines', '␛[31m', '🙂 東京')
    """
    return "".join(map(_sign, text))


def _sign(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if ord(char) < 32:
        return chr(0x2400 + ord(char))  # the block of control pictures has the same order
    if char in _BIDI_CONTROLS or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
        return f"U+{ord(char):04X}"
    return char
