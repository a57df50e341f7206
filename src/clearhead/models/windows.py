"""Texts longer than a model takes: cut them, or let it read them through overlapping windows.

A window is as many tokens as the model takes, its own special tokens included; it begins and ends
with a word. Neighbours share about half. They are laid end to end as the model saw them, so a token
of the text stands there once for every window that it is in; a word reads from the window in which
it is most central, and what it reads is what it saw there: its row sums to 1 over that window, and
the rest is hidden from it.
"""

from dataclasses import replace
from itertools import accumulate

from .tokens import Token, Word


def margins(tokens: list[Token]) -> tuple[int, int]:
    """How many special tokens the tokenizer put before and after the text."""
    before = next(i for i, token in enumerate(tokens) if not token.special)
    after = next(i for i, token in enumerate(reversed(tokens)) if not token.special)
    return before, after


def cut(tokens: list[Token], words: list[Word], limit: int) -> tuple[list[Token], list[Word]]:
    """The first `limit` tokens with the closing special ones, ending at the end of a word.

    (Within a word only if that word alone is longer.)
    """
    before, after = margins(tokens)
    stop = limit - after
    return _taken(tokens, words, [(before, _edge(tokens, range(stop, before, -1)))])


def windows(
    tokens: list[Token], words: list[Word], limit: int
) -> tuple[list[Token], list[Word], list[int]]:
    """The text in windows of `limit` tokens: (tokens, words, where each window begins)."""
    before, after = margins(tokens)
    room = limit - before - after  # for tokens of the text, in each window
    spare = len(tokens) - before - after - room
    count = 1 - (-spare // max(1, room // 2))
    slack = room // 8  # how far an edge may move to fall between words
    parts = []
    for i in range(count):
        raw = before + spare * i // (count - 1)
        begin = _edge(tokens, range(raw, raw + slack)) if i else raw
        end = begin + room
        last = i == count - 1
        parts.append((begin, raw + room if last else _edge(tokens, range(end, end - slack, -1))))
    sizes = [before + end - begin + after for begin, end in parts]
    return *_taken(tokens, words, parts), [0, *accumulate(sizes[:-1])]


def _edge(tokens: list[Token], places: range) -> int:
    """The first of `places` that lies between two words, or the first."""
    between = (at for at in places if tokens[at].word != tokens[at - 1].word)
    return next(between, places.start)


def _taken(
    tokens: list[Token], words: list[Word], parts: list[tuple[int, int]]
) -> tuple[list[Token], list[Word]]:
    """Stretches of a text, each between its special tokens, end to end; words renumbered."""
    before, after = margins(tokens)
    opening, closing = tokens[:before], tokens[len(tokens) - after :]
    owner = {
        index: _most_central(word, parts) for index, word in enumerate(words) if not word.special
    }
    taken: list[tuple[Token, int | None]] = []  # each token, and its word in `words` unless special
    standing: dict[int, list[int]] = {}  # word in `words`: the positions that stand for it
    for part, (begin, end) in enumerate(parts):
        taken += ((token, None) for token in opening)
        for token in tokens[begin:end]:
            if owner[token.word] == part:
                standing.setdefault(token.word, []).append(len(taken))
            taken.append((token, token.word))
        at = taken[-1][0].end
        taken += ((replace(token, start=at, end=at), None) for token in closing)
    found: list[tuple[list[int], int | None]] = [(own, word) for word, own in standing.items()]
    found += (([i], None) for i, (_, word) in enumerate(taken) if word is None)
    found.sort()
    kept = [_word(words, taken, own, word) for own, word in found]
    number = {word: i for i, (_, word) in enumerate(found) if word is not None}
    number_of_special = {own[0]: i for i, (own, word) in enumerate(found) if word is None}
    return [
        replace(token, word=number_of_special[i] if word is None else number[word])
        for i, (token, word) in enumerate(taken)
    ], kept


def _most_central(word: Word, parts: list[tuple[int, int]]) -> int:
    """The stretch that holds most of a word's tokens and, of those, the one it is deepest in."""
    first, last = word.tokens[0], word.tokens[-1]

    def place(part: int) -> tuple[int, int]:
        begin, end = parts[part]
        held = min(last + 1, end) - max(first, begin)
        return held, min(first - begin, end - last)

    return max(range(len(parts)), key=place)


def _word(
    words: list[Word], taken: list[tuple[Token, int | None]], own: list[int], word: int | None
) -> Word:
    """A word of what was taken; shorter than it was if the text was cut within it."""
    if word is None:
        token = taken[own[0]][0]
        return Word(token.text, token.start, token.end, tuple(own), special=True)
    old = words[word]
    if len(own) == len(old.tokens):
        return replace(old, tokens=tuple(own))
    end = taken[own[-1]][0].end
    return replace(old, text=old.text[: end - old.start], end=end, tokens=tuple(own))
