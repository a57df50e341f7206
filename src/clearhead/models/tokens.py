"""Text to tokens and words, both as spans of the user's own text.

Tokens come from the checkpoint's `tokenizer.json`, by the `tokenizers` library. What a token shows
is always `text[start:end]`, never a decoded id: `##ing`, `Ġ` and half an emoji are the tokenizer's
business (`Token.raw`), not the reader's.

A **word** is what a reader would point at:
- letters, digits and `_` together, with the marks on them: `snake_case`, `café`, `नमस्ते`; an
  apostrophe between letters and a point or comma between digits belong to it: `don't`, `3.14`;
- in scripts written without spaces, a run of up to four letters: `東京`; nothing tells where the
  words of a longer run are, so each of its characters stands for itself. Han, Hiragana, Thai, Lao,
  Khmer, Myanmar and Tibetan letters each make their own run. Katakana, of any length, are one word;
- a run of one punctuation character: `...`, `==`; any other sign by itself: `$`, `🙂`, `👨‍👩‍👧`,
  `🇯🇵`.
White space ends a word and is none. (The rules are those of Unicode's annex 29 where they agree.)

Words are then fitted to the tokens: where one token spans several words they are one word, a
special token (`[CLS]`) and a token of nothing but white space are words of their own, and a word
of which the model saw nothing is left out. So every token belongs to exactly one word, and what a
token reads, added up over words, is 1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from unicodedata import category

from tokenizers import Encoding, Tokenizer

from .weights import CheckpointError, read_json

_UNSPACED = (  # first and last code point of the scripts that put no space between words
    (0x0E00, 0x0E7F, "Thai"),
    (0x0E80, 0x0EFF, "Lao"),
    (0x0F00, 0x0FFF, "Tibetan"),
    (0x1000, 0x109F, "Myanmar"),
    (0x1780, 0x17FF, "Khmer"),
    (0x3005, 0x3007, "Han"),
    (0x3041, 0x309F, "Hiragana"),
    (0x30A0, 0x30FB, "Katakana"),
    (0x31F0, 0x31FF, "Katakana"),
    (0x3400, 0x4DBF, "Han"),
    (0x4E00, 0x9FFF, "Han"),
    (0xF900, 0xFAFF, "Han"),
    (0x20000, 0x3FFFF, "Han"),
)
_RUNS = {name for _, _, name in _UNSPACED} - {"Katakana"}
_LONGEST_RUN = 4  # letters; longer runs are taken apart
_APOSTROPHES = "'’"
_JOINER, _SPACE_OF_NO_WIDTH, _LONG_VOWEL = "\u200d", "\u200b", "\u30fc"


@dataclass(frozen=True, slots=True)
class Token:
    """One position of the model's input.

    id       row of the embedding table
    raw      the tokenizer's own piece: `##ing`, `Ġthe`, `[UNK]`
    text     what the user wrote there, `text[start:end]`; the name of a special token
    start    offsets into the user's text, in characters; equal for special tokens
    end
    word     index into the words of the same text
    special  put there by the tokenizer, not by the user
    """

    id: int
    raw: str
    text: str
    start: int
    end: int
    word: int
    special: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text, or a special token.

    text     what the user wrote, `text[start:end]`; the name of a special token
    start    offsets into the user's text, in characters
    end
    tokens   the positions that stand for it when it reads
    special  put there by the tokenizer, not by the user
    """

    text: str
    start: int
    end: int
    tokens: tuple[int, ...]
    special: bool = False


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, without its truncation and padding.

    Raises `CheckpointError` if `tokenizer.json` is missing or not a tokenizer.
    """
    path = folder / "tokenizer.json"
    read_json(path)  # missing, not UTF-8, keys twice: said in our words
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: is not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokenizer.encode("a")  # a template may name tokens that are not there
    except BaseException as error:  # the library panics, with a class of its own
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{path}: is not a tokenizer: {error}") from None
    return tokenizer


def check_text(text: str) -> None:
    """Raise `TypeError` if `text` is not a str, `ValueError` if it is blank or not Unicode text."""
    if not isinstance(text, str):
        raise TypeError(f"text: is {type(text).__name__}, must be str")
    if not text.strip():
        what = "holds nothing but white space" if text else "is empty"
        raise ValueError(f"text: {what}; it must hold at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"character {error.start} is half a surrogate pair"
        raise ValueError(f"text: {what}; it must be Unicode text") from None


def encode(tokenizer: Tokenizer, text: str) -> Encoding:
    """`text` as the tokenizer sees it, special tokens included.

    Raises as `check_text` does, and `ValueError` if it holds nothing that the tokenizer keeps.
    """
    check_text(text)
    encoding = tokenizer.encode(text)
    if all(encoding.special_tokens_mask):
        raise ValueError("text: holds nothing that the model's tokenizer keeps")
    return encoding


def word_spans(text: str) -> Iterator[tuple[int, int]]:
    """The words of `text` as (start, end), by the rules above, in order.

    >>> [text[a:b] for text in ["I don't, 東京!"] for a, b in word_spans(text)]
    ['I', "don't", ',', '東京', '!']
    """
    at = 0
    while at < len(text):
        kind = _kind(text[at])
        end = at + 1
        while end < len(text) and _goes_on(text, at, end, kind):
            end += 1
        if kind in _RUNS:
            yield from _run(text, at, end)
        elif kind != "space":
            yield at, end
        at = end


@lru_cache(maxsize=4096)
def _kind(char: str) -> str:
    """What a character is to a word that it begins."""
    kind = category(char)
    if char.isspace() or kind in ("Cc", "Cf"):
        return "space"
    if kind[0] in "LNM" or kind == "Pc":
        code = ord(char)
        return next((name for low, high, name in _UNSPACED if low <= code <= high), "letter")
    return "run" if kind[0] == "P" or kind in ("Sm", "Sk") else "sign"


@lru_cache(maxsize=4096)
def _extends(char: str) -> bool:
    """Marks, joiners, variation selectors, skin tones: part of the character before."""
    if "\U0001f3fb" <= char <= "\U0001f3ff" or char == _LONG_VOWEL:
        return True
    return category(char) in ("Mn", "Me", "Mc", "Cf") and char != _SPACE_OF_NO_WIDTH


def _goes_on(text: str, at: int, end: int, kind: str) -> bool:
    """Whether the word that begins at `at`, of that kind, takes in the character at `end`."""
    char, before = text[end], text[end - 1]
    if kind != "space" and _extends(char):
        return True
    if kind == "letter" and _binds(text, end):
        return True
    if kind == "run":
        return char == text[at]
    if kind == "sign":  # an emoji of several parts, or the two letters of a flag
        joined = before == _JOINER and _kind(char) == "sign"
        return joined or (end == at + 1 and _of_a_flag(before) and _of_a_flag(char))
    return _kind(char) == kind


def _binds(text: str, at: int) -> bool:
    """An apostrophe between letters, or a point or comma between digits."""
    if at + 1 == len(text):
        return False
    before, char, after = text[at - 1], text[at], text[at + 1]
    if char in _APOSTROPHES:
        return before.isalpha() and after.isalpha()
    return char in ".," and before.isdigit() and after.isdigit()


def _of_a_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _run(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A run of an unspaced script: one word if short, else its characters with their marks."""
    starts = [at for at in range(start, end) if at == start or not _extends(text[at])]
    if len(starts) <= _LONGEST_RUN:
        yield start, end
    else:
        yield from zip(starts, [*starts[1:], end], strict=True)


def spelled(encoding: Encoding, text: str) -> tuple[list[Token], list[Word]]:
    """The tokens of an encoding of `text` with their spans, and the words they make up."""
    special = [bool(flag) for flag in encoding.special_tokens_mask]
    spans = _spans(encoding, text, special)
    groups = _groups(spans, special, text)
    word_of = {token: index for index, (_, _, own) in enumerate(groups) for token in own}
    for start, end, own in groups:
        _fill(spans, start, end, own)
    ids, raw = encoding.ids, encoding.tokens
    tokens = [
        Token(ids[i], raw[i], raw[i] if special[i] else text[a:b], a, b, word_of[i], special[i])
        for i, (a, b) in enumerate(spans)
    ]
    words = [
        Word(raw[own[0]] if special[own[0]] else text[a:b], a, b, tuple(own), special[own[0]])
        for a, b, own in groups
    ]
    return tokens, words


def _spans(encoding: Encoding, text: str, special: list[bool]) -> list[tuple[int, int]]:
    """Where each token is, without white space at its ends; special tokens after what precedes."""
    spans: list[tuple[int, int]] = []
    at = 0
    for (start, end), is_special in zip(encoding.offsets, special, strict=True):
        if is_special:
            start = end = at
        piece = text[start:end]
        if piece.strip():  # byte-level pieces begin with the space before them
            start += len(piece) - len(piece.lstrip())
            end -= len(piece) - len(piece.rstrip())
        spans.append((start, end))
        at = max(at, end)
    return spans


def _groups(
    spans: list[tuple[int, int]], special: list[bool], text: str
) -> list[tuple[int, int, list[int]]]:
    """Words as (start, end, tokens), joined where one token spans several."""
    words = list(word_spans(text))
    starts, ends = [a for a, _ in words], [b for _, b in words]
    joined = list(range(len(words)))  # the first word that each is one with
    first_word: dict[int, int] = {}
    for i, (a, b) in enumerate(spans):
        first, last = bisect_right(ends, a), bisect_left(starts, b) - 1
        if not special[i] and first <= last:
            joined[first + 1 : last + 1] = [joined[first]] * (last - first)
            first_word[i] = first
    for word, leader in enumerate(joined):
        joined[word] = joined[leader]
    extent = {
        leader: (starts[leader], ends[list(members)[-1]])
        for leader, members in groupby(range(len(words)), joined.__getitem__)
    }
    groups: dict[tuple[str, int], tuple[int, int, list[int]]] = {}
    blank: list[int] = []  # the tokens of the last stretch of white space
    for i, (a, b) in enumerate(spans):
        if i in first_word:
            leader = joined[first_word[i]]
            groups.setdefault(("word", leader), (*extent[leader], []))[2].append(i)
        elif not special[i] and blank and a < spans[blank[-1]][1]:
            blank.append(i)  # the next byte of the same character
        else:
            own = [i]
            groups["token", i] = (a, b, own)
            blank = [] if special[i] else own
    return list(groups.values())


def _fill(spans: list[tuple[int, int]], start: int, end: int, own: list[int]) -> None:
    """Give what the tokenizer dropped within a word, an accent say, to the token before it."""
    for (a, b), same in groupby(reversed(own), spans.__getitem__):
        for i in same:
            spans[i] = (a, max(b, end))
        end = a
    first = spans[own[0]]
    for i in own:
        if spans[i] == first:
            spans[i] = (start, first[1])
