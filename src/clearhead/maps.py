"""The attention matrix as a lazy array: any cell, row or window, computed when it is asked for.

A row's weights are exp(s - lse), with s the scores and lse the log-sum-exp that the forward pass
has already found. So a (T, S) matrix is a function of q (T, D), k (S, D) and lse (T,), and that is
all an `AttentionMap` holds: a window of it costs what the window costs, whatever T and S are.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import to_numpy
from ._check import Problem, check_attention
from ._check_map import check_bytes, check_observe
from ._index import axes_of, expanded, integer_in, is_array, is_integer
from .biases import Bias
from .masks import Mask
from .observation import Call, Observation, observe
from .ops import _as_bits, _options
from .pictures import draw
from .products import times_values, times_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Ints = NDArray[np.intp]
_GIB = 1 << 30
_CONVERTED = 4096  # keys at a time
_BLOCK_BYTES = 1 << 25  # of scores at a time: temporaries stay small beside the result


class AttentionMap:
    """The weights softmax(scale * q k^T + bias) of every head, (..., H, T, S), computed on demand.

    q          (..., H, T, D)  float64, float32, float16 or bfloat16; (T, D) means one head
    k          (..., G, S, D)  H % G == 0; query head h reads group h // (H // G)
    lse        (..., H, T)     natural logarithm, as `attention_with_lse` returns it; a float64 one
                               makes the arithmetic float64: a float32 one of 80 is good to 1e-5
    mask       Mask, or bool, broadcastable to (..., H, T, S); True = may attend
    bias       added to the scores: an array broadcastable likewise, or alibi(...) and its like
    scale      default D ** -0.5
    softcap    c * tanh(s / c) on the scores before the bias
    sink       as `attention` takes it: it is in lse already; `amap @ v` needs it besides
    max_bytes  the most that one index, or `np.asarray`, may compute

    Indexing is NumPy's: integers, slices, index arrays, boolean arrays, `...`, `None`. The result
    is a new array, float64 for float64 queries and float32 otherwise; hidden cells are 0 and a
    query that sees no key gives a row of 0. NaN in a visible query or key gives NaN in the row;
    `nan_rows` finds such rows, and the map's repr tells of them.

    Memory  q, k, lse and the mask, which are kept as they are, never copied, never (T, S). Raises
    ValueError for shapes that do not fit and for more than `max_bytes`; IndexError as NumPy.
    Source  FlashAttention's backward recomputation (Dao et al. 2022, section 3.1).
    Spec    clearhead.reference.weights

    >>> amap = ch.attention_map(q, k)
    >>> amap[0, 3, 100:110].shape
    (10, 128)
    """

    def __init__(
        self,
        q: NDArray[Any],
        k: NDArray[Any],
        lse: NDArray[Any],
        *,
        mask: Mask | NDArray[np.bool_] | None = None,
        bias: NDArray[Any] | Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink: NDArray[Any] | None = None,
        max_bytes: int = _GIB,
    ) -> None:
        q, k, lse = to_numpy("q", q), to_numpy("k", k), to_numpy("lse", lse)
        mask, bias, sink = to_numpy("mask", mask), to_numpy("bias", bias), to_numpy("sink", sink)
        # A map has no values; keys stand in for them.
        problem = check_attention(q, k, k, mask, bias, scale, softcap, sink)
        _check_lse(lse, problem)
        self._problem = problem
        self._native_options = _options(problem, mask, bias, softcap, sink)
        self.shape = problem.score_shape
        self.q, self.k, self.lse = q, k, lse
        self.mask, self.bias, self.softcap, self.sink = mask, bias, softcap, sink
        self.scale = problem.scale
        self.max_bytes = max_bytes
        self.dtype = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
        self._work = np.promote_types(self.dtype, lse.dtype)  # of the scores

    @property
    def ndim(self) -> int:
        """The number of axes: 2 for one head, 3 with heads, more with a batch."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        axes = ["H", "T", "S"][-self.ndim :]
        axes = [f"B{i}" for i in range(self.ndim - len(axes))] + axes
        sizes = ", ".join(f"{axis}={n}" for axis, n in zip(axes, self.shape, strict=True))
        mask = "" if self.mask is None else f", mask={_brief(self.mask)}"
        bad = self.nan_rows()
        where = tuple(int(i) for i in bad[0]) if len(bad) else ()
        rows = "1 row" if len(bad) == 1 else f"{len(bad)} rows"
        nan = f", NaN in {rows}, the first at {where}" if len(bad) else ""
        return f"AttentionMap({sizes}, D={self.q.shape[-1]}, {self.dtype}{mask}{nan})"

    def nan_rows(self) -> NDArray[np.intp]:
        """The rows that hold NaN, (n, ndim - 1): indexes (..., h, t), in order.

        A row is NaN where its query, or a key that it sees, has a NaN, or a score is inf.
        """
        return np.argwhere(np.isnan(self.lse))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Every cell, if they take no more than `max_bytes`."""
        if copy is False:
            raise ValueError("AttentionMap: holds no matrix to share; copy must not be False")
        whole: NDArray[Any] = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """`x @ amap` of a NumPy array x; any other function of NumPy gets the whole matrix."""
        if ufunc is np.matmul and method == "__call__" and not options:
            a, b = inputs
            return self.__matmul__(b) if a is self else self.__rmatmul__(a)
        whole = [np.asarray(x) if isinstance(x, AttentionMap) else x for x in inputs]
        return getattr(ufunc, method)(*whole, **options)

    def __matmul__(self, v: ArrayLike) -> NDArray[Any]:
        """A @ v without A: attention, (..., H, T, E) for v (..., S, E), (..., H, T) for (S,).

        v may have one head, the G heads of k or H heads; its batch broadcasts with the map's.
        Returns the wider dtype of the two, as NumPy does. Memory and time of `attention`.
        """
        return times_values(self, np.asarray(to_numpy("v", v)))

    def __rmatmul__(self, x: ArrayLike) -> NDArray[Any]:
        """x @ A without A: (..., H, n, S) for x (..., n, T); (..., H, S) for (T,).

        Row sums weighted by x: with x = 1 it is `observe(received=True)`, and a chain of such
        products over layers is an attention rollout. x broadcasts over the map's heads and batch.
        Memory O(n (T + S)) a head, sums in float64, the same bits for any number of threads.
        """
        return times_weights(self, np.asarray(to_numpy("x", x)))

    def observe(
        self,
        *,
        pool: tuple[int, int] | None = None,
        group: tuple[ArrayLike, ArrayLike] | None = None,
        top: int | None = None,
        received: bool = False,
        entropy: bool = False,
        max: bool = False,
        by_distance: int | None = None,
        mean_over: tuple[str, ...] = (),
        progress: Callable[[int, int], object] | None = None,
    ) -> Observation:
        """Any of these statistics of the whole map, in one pass over it.

        pool         (R, C), at most (T, S): mean and largest weight in each cell of a grid of
                     uniform bins, bin r being rows [r T // R, (r + 1) T // R)
        group        (rows (T,), cols (S,)): labels from 0, -1 for none. Rows of a label averaged,
                     columns summed: how much a query of one group reads the keys of another
        top          the k largest weights of each row, k at most S, with their keys; of weights
                     that come out equal, as those of copies of a key do, the lower key
        received     the column sums
        entropy      of each row in nats, over the keys alone where there is a sink
        max          the largest weight of each row
        by_distance  n: for each d < n the sum over queries t of the weight of key t + S - T - d
        mean_over    "head", "batch" or both: sums, means and entropies are averaged over them, and
                     largest weights are the largest of all; the axis stays, with length 1
        progress     called about every 100 ms with (done, total); what it raises ends the pass

        Returns an `Observation`, with None for what was not asked for. Masks, bias, softcap and
        sinks count as they do in the map. A row that sees no key has entropy and max 0; NaN goes
        where a NaN row adds to.
        Memory O(T + S) times what is asked for, a head; never (T, S). Sums of a tile are float32,
        across tiles float64. The same bits for any number of threads. Ctrl-C works.
        Raises  TypeError, ValueError: the argument, what it is, what it must be; also where a
                result would take more than the map's max_bytes.
        Spec    clearhead.reference.observe

        >>> ch.attention_map(q, k).observe(pool=(16, 16), top=3, received=True)
        Observation(pool_mean (1, 8, 16, 16), pool_max (1, 8, 16, 16), top_weights (1, 8, 128, 3), \
top_keys (1, 8, 128, 3), received (1, 8, 128))
        """
        T, S = self.shape[-2:]
        wanted = check_observe(T, S, pool, group, top, by_distance, mean_over, progress)
        return observe(
            self._call(),
            wanted,
            received=received,
            entropy=entropy,
            max=max,
            max_bytes=self.max_bytes,
            progress=progress,
        )

    def group(self, rows: ArrayLike, cols: ArrayLike) -> NDArray[np.float64]:
        """How much the queries of one group read the keys of another, (..., H, R, C).

        rows (T,), cols (S,): labels from 0, -1 for none. Rows are averaged and columns summed, so
        that where every key has a label each row sums to 1.

        >>> words = np.arange(128) // 3
        >>> ch.attention_map(q, k).group(words, words).shape
        (1, 8, 43, 43)
        """
        found = self.observe(group=(rows, cols)).group
        assert found is not None
        return found

    def plot(
        self,
        head: int | tuple[int, ...] = 0,
        rows: slice | None = None,
        cols: slice | None = None,
        ax: "Axes | None" = None,
    ) -> "Axes":
        """Draw a window of one head with matplotlib, queries down and keys across.

        head        its index, or the indexes of batch and head; of no account for a (T, S) map
        rows, cols  slices of step 1; None: all

        A window of more than 512 rows or columns is drawn in bins that show their largest weight,
        so that a single strong cell stays visible. Returns the axes.
        """
        return draw(self, head, rows, cols, ax)

    def view(self) -> Any:
        """The map in the app of `clearhead view`: a widget in a notebook, with `clearhead[widget]`.

        Raises `ValueError` for a map with a batch of more than one.
        """
        from .notebook import view_map

        return view_map(self)

    def __getitem__(self, index: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf in q or k are the caller's
            return self._indexed(index)

    def _indexed(self, index: Any) -> Any:
        items, new_axes = expanded(index, self.ndim)
        if items is not None and isinstance(items[-1], slice):
            out = self._rows(tuple(items[:-1]), items[-1])
        elif items is not None and is_integer(items[-1]) and not any(map(is_array, items)):
            last = integer_in(items[-1], self.ndim - 1, self.shape[-1])
            out = self._rows(tuple(items[:-1]), slice(last, last + 1))[..., 0]
        else:
            return self._cells(index)
        return out[(..., *new_axes)] if new_axes else out[()]

    def _rows(self, index: tuple[Any, ...], columns: slice) -> NDArray[Any]:
        """The rows that `index` takes from (..., H, T), each over a range of keys."""
        where = [axis[index] for axis in axes_of(self.shape[:-1])]
        shape = (*where[0].shape, len(range(self.shape[-1])[columns]))
        self._check_size(shape)
        out = np.empty((prod(shape[:-1]), shape[-1]), self.dtype)
        *lead, t = (axis.reshape(-1) for axis in where)
        group = np.ravel_multi_index(lead, self.shape[:-2]) if lead else np.zeros_like(t)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order])) + 1
        step = max(1, _BLOCK_BYTES // max(1, shape[-1] * self.dtype.itemsize))
        for rows in np.split(order, cuts):  # each of one batch entry and head
            for at in range(0, len(rows), step):
                own = rows[at : at + step]
                one = tuple(int(axis[own[0]]) for axis in lead)
                out[own] = self._block(one, t[own], columns)
        return out.reshape(shape)

    def _block(self, one: tuple[int, ...], t: _Ints, columns: slice) -> NDArray[Any]:
        """Weights (n, m) of n queries of one head over a range of m keys."""
        q, k = self._head(one)
        rows, keys = q[t].astype(self._work, copy=False), k[columns]
        dots = np.empty((len(rows), len(keys)), self._work)
        for at in range(0, len(keys), _CONVERTED):  # a converted copy of all keys could be large
            some = keys[at : at + _CONVERTED].astype(self._work, copy=False)
            np.matmul(rows, some.T, out=dots[:, at : at + _CONVERTED])
        s = np.arange(self.shape[-1])[columns]
        block = (*self.shape[:-2], *dots.shape)  # what rules of (t, s) are broadcast to
        bias = seen = None
        if isinstance(self.bias, Bias):
            bias = np.broadcast_to(self.bias.at(self._distance(t[:, None], s)), block)[one]
        elif self.bias is not None:
            bias = np.broadcast_to(self.bias, self.shape)[one][t, columns]
        if isinstance(self.mask, Mask):
            allowed = self.mask.seen(t[:, None], s[None, :], *self.shape[-2:])
            seen = np.broadcast_to(allowed, block)[one]
        elif self.mask is not None:
            seen = np.broadcast_to(self.mask, self.shape)[one][t, columns]
        return self._weights(dots, self.lse[one][t][:, None], bias, seen)

    def _cells(self, index: Any) -> Any:
        """Single cells: for indexes that do not take whole ranges of keys."""
        where = [axis[index] for axis in axes_of(self.shape)]
        shape = where[0].shape
        self._check_size(shape)
        out = np.empty(prod(shape), self.dtype)
        flat = [axis.reshape(-1) for axis in where]
        step = max(1, _BLOCK_BYTES // (self.q.shape[-1] * self.dtype.itemsize))
        if isinstance(self.mask, Mask):
            step = min(step, 2048)  # `_allowed` asks for up to step x step cells
        for at in range(0, len(out), step):
            *one, t, s = (axis[at : at + step] for axis in flat)
            q, k = self._leading(one, t, self.q), self._leading(one, s, self.k)
            dots = np.einsum(
                "nd,nd->n", q.astype(self._work, copy=False), k.astype(self._work, copy=False)
            )
            bias = None if self.bias is None else self._added(self.bias, one, t, s)
            seen = None if self.mask is None else self._allowed(self.mask, one, t, s)
            out[at : at + step] = self._weights(dots, self.lse[(*one, t)], bias, seen)
        return out.reshape(shape)[()]

    def _call(self) -> Call:
        """What a native pass over the map needs."""
        return self._problem, (self.q, self.k, self.lse), self._native_options

    def _like(self, q: NDArray[Any], k: NDArray[Any], lse: NDArray[Any]) -> "AttentionMap":
        """Another map under the same rules; ValueError where they are not for its shape."""
        return AttentionMap(
            q,
            k,
            lse,
            mask=self.mask,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
            max_bytes=self.max_bytes,
        )

    def _head(self, one: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """q (T, D) and k (S, D) of one batch entry and head."""
        if not one:
            return self.q, self.k
        *batch, h = one
        q = np.broadcast_to(self.q, (*self.shape[:-3], *self.q.shape[-3:]))
        k = np.broadcast_to(self.k, (*self.shape[:-3], *self.k.shape[-3:]))
        group = h * self.k.shape[-3] // self.q.shape[-3]
        return q[(*batch, h)], k[(*batch, group)]

    def _leading(self, one: list[_Ints], at: _Ints, array: NDArray[Any]) -> NDArray[Any]:
        """The vectors (n, D) of q or k for n cells."""
        if not one:
            return array[at]
        *batch, h = one
        whole = np.broadcast_to(array, (*self.shape[:-3], *array.shape[-3:]))
        group = h * array.shape[-3] // self.q.shape[-3]  # h itself for q
        return cast(NDArray[Any], whole[(*batch, group, at)])

    def _weights(
        self,
        s: NDArray[Any],
        lse: NDArray[Any],
        bias: NDArray[Any] | None,
        seen: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """exp(scores - lse) from raw dot products, for any set of cells."""
        s *= self.scale
        if self.softcap is not None:
            s = self.softcap * np.tanh(s / self.softcap)
        if bias is not None:
            s += bias
        hidden = None if bias is None else np.isneginf(s)
        s -= lse  # -inf - -inf, a row that sees nothing, is NaN here
        # lse is the logarithm of a sum with exp(s) among its terms: only rounding makes this > 0.
        p: NDArray[Any] = np.minimum(s, 0, out=s).astype(self.dtype, copy=False)
        np.exp(p, out=p)
        if hidden is not None:
            p[hidden] = 0
        if seen is not None:
            p[~seen] = 0
        return p

    def _distance(self, t: _Ints, s: _Ints) -> _Ints:
        """How far key s lies before query t, whose position is t + S - T."""
        return t + (self.shape[-1] - self.shape[-2]) - s

    def _added(
        self, bias: NDArray[Any] | Bias, one: list[_Ints], t: _Ints, s: _Ints
    ) -> NDArray[Any]:
        """What the bias adds to each of n cells."""
        if isinstance(bias, np.ndarray):
            return cast(NDArray[Any], np.broadcast_to(bias, self.shape)[(*one, t, s)])
        rows = bias.at(self._distance(t, s)[None, :]).reshape(-1, len(t))  # (H or 1, n)
        return cast(NDArray[Any], rows[one[-1] if len(rows) > 1 else 0, np.arange(len(t))])

    def _allowed(
        self, mask: Mask | NDArray[np.bool_], one: list[_Ints], t: _Ints, s: _Ints
    ) -> NDArray[np.bool_]:
        """Which of n cells the mask allows: a Mask is asked for the rows and keys they are in."""
        if isinstance(mask, np.ndarray):
            return cast(NDArray[np.bool_], np.broadcast_to(mask, self.shape)[(*one, t, s)])
        rows, row = np.unique(t, return_inverse=True)
        keys, key = np.unique(s, return_inverse=True)
        tile = mask.seen(rows[:, None], keys[None, :], *self.shape[-2:])
        whole = np.broadcast_to(tile, (*self.shape[:-2], len(rows), len(keys)))
        return cast(NDArray[np.bool_], whole[(*one, row, key)])

    def _check_size(self, shape: tuple[int, ...]) -> None:
        window = ", ".join(["0"] * (self.ndim - 2) + [":1024", ":1024"])
        cure = f"ask for a window, as amap[{window}], or for amap.observe(pool=(1024, 1024))"
        what = f"AttentionMap {self.shape}"
        check_bytes(what, shape, self.dtype.itemsize, self.max_bytes, cure)


def attention_map(
    q: NDArray[Any],
    k: NDArray[Any],
    *,
    mask: Mask | NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: NDArray[Any] | None = None,
    lse: NDArray[Any] | None = None,
    max_bytes: int = _GIB,
) -> AttentionMap:
    """The attention weights of q and k as a lazy array: one pass for the lse, nothing (T, S).

    q          (..., H, T, D)  float64, float32, float16 or bfloat16; (T, D) means one head
    k          (..., G, S, D)  H % G == 0; query head h reads group h // (H // G)
    lse        (..., H, T)     where it is known, as from `attention_with_lse`; else found here, in
                               float64 so that weights of large scores keep their digits
    and mask, bias, scale, softcap, sink as `attention` takes them.

    Returns an `AttentionMap` of shape (..., H, T, S). With a sink, its rows sum to less than 1.
    Raises  ValueError, TypeError: the argument, what it is, what it must be.
    Spec    clearhead.reference.weights

    >>> ch.attention_map(q, k, mask=ch.causal())
    AttentionMap(B0=1, H=8, T=128, S=128, D=64, float32, mask=causal())
    """
    q, k = to_numpy("q", q), to_numpy("k", k)
    mask, bias, sink = to_numpy("mask", mask), to_numpy("bias", bias), to_numpy("sink", sink)
    if lse is None:
        problem = check_attention(q, k, k, mask, bias, scale, softcap, sink)
        lse = np.empty(problem.out_shape[:-1])
        spread = q if problem.flat else np.broadcast_to(q, (*problem.lead, *q.shape[-3:]))
        options = _options(problem, mask, bias, softcap, sink)
        _native.row_lse(_as_bits(spread), _as_bits(k), lse, *options, None)
    return AttentionMap(
        q,
        k,
        lse,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink=sink,
        max_bytes=max_bytes,
    )


def _check_lse(lse: Any, problem: Problem) -> None:
    if not isinstance(lse, np.ndarray):
        raise TypeError(f"lse: is {type(lse).__name__}, must be an array")
    if lse.dtype not in (np.float32, np.float64):
        raise TypeError(f"lse: dtype is {lse.dtype}, must be float32 or float64")
    want = problem.out_shape[:-1]
    if lse.shape != want:
        letters = "(T,)" if problem.flat else "(..., H, T)"
        raise ValueError(f"lse: shape is {lse.shape}, must be {letters} = {want}")


def _brief(mask: Mask | NDArray[np.bool_]) -> str:
    return f"bool {mask.shape}" if isinstance(mask, np.ndarray) else repr(mask)
