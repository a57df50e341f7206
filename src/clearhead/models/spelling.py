"""Token ids back to the text they stand for, each token with its span of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .tokens import Token, Word, spelled

_STRETCH = 24  # tokens decoded together: what a token looks like depends on its neighbours
_HALF = "\ufffd"  # what a decoder shows of half a character


class _Spelling(NamedTuple):
    """What `spelled` needs to know of an encoding."""

    ids: Sequence[int]
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]
    special_tokens_mask: Sequence[int]


def spell(
    ids: Sequence[int],
    pieces: Sequence[str],
    special: Sequence[bool],
    decode: Callable[[Sequence[int]], str],
) -> tuple[str, tuple[Token, ...], tuple[Word, ...]]:
    """(text, tokens, words) of token ids.

    pieces   the tokenizer's own name of each token
    special  which are not text: they take no room in it
    decode   ids to text, as one stretch
    """
    text: list[str] = []
    length = 0
    offsets: list[tuple[int, int]] = []
    open_from = 0  # where the stretch begins that is decoded together
    shown = ""  # what it looks like so far
    waiting = 0  # tokens that have not completed a character
    for i, token in enumerate(ids):
        if special[i]:
            offsets.append((length, length))
            open_from, shown, waiting = i + 1, "", 0
            continue
        now = decode(ids[open_from : i + 1])
        if now.endswith(_HALF) and i + 1 < len(ids) and not special[i + 1] and waiting < 8:
            offsets.append((length, length))
            waiting += 1
            continue
        new = now[len(shown) :] if now.startswith(shown) else decode([token])
        if i and special[i - 1] and text and not text[-1][-1:].isspace():
            text.append("\n")  # what a special token parts is not one word
            length += 1
        text.append(new)
        for half in range(i - waiting, i):  # every part of a character spans all of it
            offsets[half] = (length, length + len(new))
        offsets.append((length, length + len(new)))
        length += len(new)
        shown, waiting = now, 0
        if i - open_from >= _STRETCH:
            # Begin anew at a token that keeps its leading space: decode it with one before it.
            open_from, shown = i, decode(ids[i : i + 1])
    whole = "".join(text)
    spelling = _Spelling(ids, pieces, offsets, [int(one) for one in special])
    tokens, words = spelled(spelling, whole)  # type: ignore[arg-type]
    return whole, tuple(tokens), tuple(words)


def numbered(
    names: Sequence[str], special: Sequence[bool], ids: Sequence[int]
) -> tuple[str, tuple[Token, ...], tuple[Word, ...]]:
    """Without a tokenizer: every position a word of its own, called by `names`."""
    tokens: list[Token] = []
    words: list[Word] = []
    at = 0
    for i, name in enumerate(names):
        end = at + len(name)
        tokens.append(Token(ids[i], name, name, at, end, i, special[i]))
        words.append(Word(name, at, end, (i,), special[i]))
        at = end + 1
    return " ".join(names), tuple(tokens), tuple(words)
