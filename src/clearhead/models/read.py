"""`read`: a text and a model in, an `AttentionRun` out."""

import os
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .bert import Bert
from .run import AttentionRun, LayerState
from .store import DEFAULT, folder_of, name_of, resolve
from .tokens import check_text, encode, open_tokenizer, spelled
from .weights import CheckpointError
from .windows import cut as cut_to
from .windows import windows

_GIB = 1 << 30
_OPENING_CHARS = 1 << 16


def read(
    text: str,
    model: str | os.PathLike[str] | None = None,
    *,
    window: bool = False,
    cut: bool = False,
    progress: Callable[[int, int], None] | None = None,
    max_bytes: int = 4 * _GIB,
) -> AttentionRun:
    """Let a model read a text, and keep what every head read.

    text      any Unicode text with at least one word
    model     a checkpoint folder, a name that `clearhead models` lists, or, with the `hub` extra, a
              name of the Hugging Face hub; None: all-MiniLM-L6-v2, fetched on first use
    window    a text longer than the model takes is read in overlapping windows (models/windows.py)
    cut       it is cut instead, with a warning that the run keeps in `notes`
    progress  called with (windows read, windows)
    max_bytes the most that the run may keep

    Returns an `AttentionRun`. Memory: 2 * L * T * C float32, C the model's channels; never (T, T).
    Raises  ValueError for a text without words or longer than the model takes, TypeError for what
    is no text, CheckpointError for a model that cannot be read.

    >>> run = ch.read("The animal crossed the road because it was tired.")
    >>> run.links("it", top=1)
    [Link(layer=0, head=2, source=7, target=6, weight=0.99...)]
    """
    _check(text, window, cut, max_bytes)
    return Reader(model).read(text, window=window, cut=cut, progress=progress, max_bytes=max_bytes)


class Reader:
    """A model that has been opened, to read several texts with.

    model   as `read` takes it
    Raises CheckpointError for a model that cannot be read.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None) -> None:
        self._bert, self._tokenizer = _opened(model)
        self.name = name_of(model)

    def read(
        self,
        text: str,
        *,
        window: bool = False,
        cut: bool = False,
        progress: Callable[[int, int], None] | None = None,
        max_bytes: int = 4 * _GIB,
    ) -> AttentionRun:
        """As the function `read`."""
        _check(text, window, cut, max_bytes)
        bert, tokenizer = self._bert, self._tokenizer
        whole = len(text)
        if not window:
            text = _opening(tokenizer, text, 2 * bert.max_tokens)
        encoding = encode(tokenizer, text)
        length = len(encoding.ids)
        if length > bert.max_tokens and not (window or cut):
            more = "more than " if len(text) < whole else ""
            raise ValueError(
                f"text: is {more}{length:,} tokens, the model takes {bert.max_tokens:,}; "
                "read it in windows (window=True) or cut it (cut=True)"
            )
        _check_memory(bert, length if window else min(length, bert.max_tokens), max_bytes)
        tokens, words = spelled(encoding, text)
        starts, notes = [0], []
        if length > bert.max_tokens and cut:
            tokens, words = cut_to(tokens, words, bert.max_tokens)
            end = max(token.end for token in tokens)
            notes = [
                f"cut after character {end:,} of {whole:,}: "
                f"the model takes {bert.max_tokens:,} tokens"
            ]
            warnings.warn(f"text: {notes[0]}", stacklevel=3)
            text = text[:end]
        elif length > bert.max_tokens:
            tokens, words, starts = windows(tokens, words, bert.max_tokens)
            notes = [
                f"read in {len(starts)} overlapping windows of {bert.max_tokens:,} tokens; "
                "each word reads within the window it is most central in"
            ]
        layers = _layers(bert, [token.id for token in tokens], starts, progress)
        return AttentionRun(self.name, text, tokens, words, layers, starts=starts, notes=notes)


def _check(text: str, window: bool, cut: bool, max_bytes: int) -> None:
    if window and cut:
        raise ValueError(
            "window, cut: are both True; a long text can be read whole or cut, not both"
        )
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool):
        raise TypeError(f"max_bytes: is {type(max_bytes).__name__}, must be an integer")
    check_text(text)


def _opened(model: str | os.PathLike[str] | None) -> tuple[Bert, Tokenizer]:
    """The encoder and the tokenizer of a model; says how to mend one that we fetched."""
    folder = resolve(model)
    try:
        return Bert(folder), open_tokenizer(folder)
    except CheckpointError as error:
        if folder != folder_of(DEFAULT):
            raise
        again = f"it was whole when it was fetched; clearhead models remove {DEFAULT} and read anew"
        raise CheckpointError(f"{error}; {again}") from None


def _opening(tokenizer: Tokenizer, text: str, enough: int) -> str:
    """The text, or an opening of it if that alone is more than `enough` tokens.

    Megabytes that will be refused, or cut, are then never tokenized.
    """
    opening = text[:_OPENING_CHARS]
    many = len(text) > _OPENING_CHARS and len(tokenizer.encode(opening).ids) > enough
    return opening if many else text


def _layers(
    bert: Bert, ids: list[int], starts: list[int], progress: Callable[[int, int], None] | None
) -> list[LayerState]:
    """q, k, lse and v of every layer, over all windows."""
    H, T, D = bert.num_heads, len(ids), bert.head_size

    def rows() -> NDArray[np.float32]:
        return np.empty((H, T, D), np.float32)

    states = [
        LayerState(rows(), rows(), np.empty((H, T)), v=rows()) for _ in range(bert.num_layers)
    ]
    for done, (begin, end) in enumerate(zip(starts, [*starts[1:], T], strict=True)):
        for state, layer in zip(states, bert.layers(ids[begin:end]), strict=True):
            state.q[:, begin:end], state.k[:, begin:end] = layer.q, layer.k
            state.lse[:, begin:end] = layer.lse
            assert state.v is not None
            state.v[:, begin:end] = layer.v
        if progress is not None:
            progress(done + 1, len(starts))
    return states


def _check_memory(bert: Bert, length: int, max_bytes: int) -> None:
    """Refuse before the work what would not fit after it; windows hold each token about twice."""
    copies = 2 if length > bert.max_tokens else 1
    needed = copies * length * bert.num_layers * bert.num_heads * (3 * bert.head_size + 2) * 4
    if needed > max_bytes:
        raise ValueError(
            f"text: {length:,} tokens in windows would keep {needed / 1e9:,.1f} GB of queries, "
            f"keys and values, max_bytes is {max_bytes / 1e9:,.1f} GB; read a part of it"
        )
