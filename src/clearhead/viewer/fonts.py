"""Labels that matplotlib can draw: a font for every letter, or the letter's number."""

from functools import lru_cache

from .labels import visible

_BUNDLED = "DejaVu Sans"  # comes with matplotlib


def drawable(labels: list[str]) -> tuple[list[str], list[str]]:
    """The labels, and the font families that together hold all their characters.

    A character that no installed font has, and an emoji's joiners, become `U+6771`.
    """
    made = [visible(label) for label in labels]
    missing = set("".join(made))
    families = []
    for family, file in _installed():
        found = missing & _characters(file) if missing else set()
        if found or family == _BUNDLED:
            families.append(family)
            missing -= found
    signs = {ord(char): f"U+{ord(char):04X}" for char in missing}
    return [label.translate(signs) for label in made], families


@lru_cache(maxsize=1)
def _installed() -> tuple[tuple[str, str], ...]:
    """Upright families of normal weight, each with its file: matplotlib's own first, then by name.

    (Of a large collection the plain sans-serif family comes first.)
    """
    from matplotlib.font_manager import fontManager

    files = {
        font.name: font.fname
        for font in fontManager.ttflist
        if font.style == "normal"
        and font.weight in (400, "normal", "regular", "book")
        and not font.name.startswith("Last Resort")  # has a box for every character
    }
    return tuple(
        (name, files[name])
        for name in sorted(
            files, key=lambda name: (name != _BUNDLED, "Sans" not in name, len(name), name)
        )
    )


@lru_cache(maxsize=1024)
def _characters(file: str) -> frozenset[str]:
    """The characters that matplotlib can draw from a font file; none if it cannot read it."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(file).get_charmap()))
    except (RuntimeError, OSError):  # not scalable, or not a font
        return frozenset()
