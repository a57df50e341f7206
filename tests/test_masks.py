"""The mask algebra: its meaning, its words, its arithmetic, and that the core agrees with it."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead import reference

T, S = 71, 103
RNG = np.random.default_rng(3)
PATTERN = RNG.random((9, 13)) < 0.5

# A mask, and its meaning for query t, key s and position p = t + S - T, said again in NumPy.
MEANINGS = {
    "causal()": (ch.causal(), lambda t, s, p: s <= p),
    "causal(offset=0)": (ch.causal(offset=0), lambda t, s, p: s <= t),
    "causal(offset=-7)": (ch.causal(offset=-7), lambda t, s, p: s <= t - 7),
    "window(left=9, right=None)": (ch.window(left=9), lambda t, s, p: s >= p - 9),
    "window(left=3, right=5)": (
        ch.window(left=3, right=5),
        lambda t, s, p: (p - 3 <= s) & (s <= p + 5),
    ),
    "window(left=0, right=0)": (ch.window(left=0, right=0), lambda t, s, p: s == p),
    "first_keys(4)": (ch.first_keys(4), lambda t, s, p: s < 4),
    "prefix(40)": (ch.prefix(40), lambda t, s, p: (p < 40) & (s < 40)),
    "lengths(50)": (ch.lengths(50), lambda t, s, p: s < 50),
    "dilated(3)": (ch.dilated(3), lambda t, s, p: (p - s) % 3 == 0),
    "blocks((9, 13) array, block=8)": (
        ch.blocks(PATTERN, 8),
        lambda t, s, p: PATTERN[t // 8, s // 8],
    ),
    "~causal()": (~ch.causal(), lambda t, s, p: s > p),
    "causal() & (window(left=7, right=None) | first_keys(2))": (
        ch.causal() & (ch.window(left=7) | ch.first_keys(2)),
        lambda t, s, p: (s <= p) & ((s >= p - 7) | (s < 2)),
    ),
    "~(causal() | dilated(2)) & prefix(90)": (
        ~(ch.causal() | ch.dilated(2)) & ch.prefix(90),
        lambda t, s, p: ~((s <= p) | ((p - s) % 2 == 0)) & (p < 90) & (s < 90),
    ),
}


def grid(T: int, S: int):
    t, s = np.arange(T)[:, None], np.arange(S)[None, :]
    return t, s, t + S - T


@pytest.mark.parametrize("words", MEANINGS)
def test_a_mask_means_and_prints_what_it_says(words: str) -> None:
    mask, meaning = MEANINGS[words]
    np.testing.assert_array_equal(
        mask.to_array(T, S), np.broadcast_to(meaning(*grid(T, S)), (T, S))
    )
    assert repr(mask) == words
    assert mask.allowed_count(T, S) == np.count_nonzero(mask.to_array(T, S))


@pytest.mark.parametrize("words", MEANINGS)
def test_intervals_are_sound_and_leave_out_what_no_row_sees(words: str) -> None:
    mask, _ = MEANINGS[words]
    array = mask.to_array(T, S)
    for start in range(0, T, 16):
        rows = range(start, min(start + 16, T))
        seen = np.zeros(S, bool)
        for a, b, every in mask.intervals(rows, T, S):
            assert 0 <= a < b <= S
            seen[a:b] = True
            if every:
                assert array[rows.start : rows.stop, a:b].all()
        assert not array[rows.start : rows.stop, ~seen].any()


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (ch.causal(), 4096 * 4097 // 2 + 64 * 4096),
        (ch.window(left=255, right=0), 4096 * (256 + 64)),
        (ch.causal() & (ch.window(left=255) | ch.first_keys(4)), 4096 * (256 + 64 + 4)),
        (ch.documents(np.repeat(np.arange(32), 128)), 32 * 128 * 128),
        (ch.blocks(np.eye(64, dtype=bool), 64), 64 * 64 * 64),
    ],
    ids=["causal", "window", "sinks", "documents", "blocks"],
)
def test_what_is_visited_follows_what_is_allowed(mask: ch.Mask, most: int) -> None:
    """In panels of 64 rows, as the core goes; the whole matrix has 16.8 million cells."""
    visited = sum(
        64 * (b - a)
        for start in range(0, 4096, 64)
        for a, b, _ in mask.intervals(range(start, start + 64), 4096, 4096)
    )
    assert mask.allowed_count(4096, 4096) <= visited <= most


primitives = st.one_of(
    st.builds(ch.causal, st.one_of(st.none(), st.integers(-40, 40))),
    st.builds(
        ch.window,
        st.one_of(st.none(), st.integers(0, 50)),
        st.one_of(st.none(), st.integers(0, 50)),
    ),
    st.builds(ch.first_keys, st.integers(0, 130)),
    st.builds(ch.prefix, st.integers(0, 130)),
    st.builds(ch.lengths, st.integers(0, 130)),
    st.builds(ch.dilated, st.integers(1, 9)),
)
masks = st.recursive(
    primitives,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(mask=masks, T=st.integers(1, 140), S=st.integers(1, 140))
def test_the_core_sees_exactly_what_the_algebra_allows(mask: ch.Mask, T: int, S: int) -> None:
    """Values count the keys: with equal scores the output is the share of each visible key."""
    array = mask.to_array(T, S)
    out, lse = ch.attention_with_lse(np.zeros((T, 1)), np.zeros((S, 1)), np.eye(S), mask=mask)
    count = array.sum(1)
    want = array / np.maximum(count, 1)[:, None]
    np.testing.assert_allclose(out, want, atol=1e-15)
    np.testing.assert_array_equal(np.isneginf(lse), count == 0)
    assert mask.allowed_count(T, S) == count.sum()


def bytes_of(values: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Booleans as other libraries may write them: true is any byte that is not 0."""
    return RNG.choice(np.array(values, np.uint8), shape).view(np.bool_)


ARRAYS = {
    "rows of any length": RNG.random((T, S)) < 0.5,
    "bytes other than 0 and 1": bytes_of([0, 2, 127, 128, 255], (T, S)),
    "one odd byte": np.r_[bytes_of([0, 1], (T * S - 1,)), bytes_of([6], (1,))].reshape(T, S),
    "columns together": np.asfortranarray(bytes_of([0, 1, 4], (T, S))),
    "each other row and key": bytes_of([0, 1, 64], (2 * T, 2 * S))[::2, ::2],
    "backwards": (RNG.random((T, S)) < 0.5)[::-1, ::-1],
    "rows backwards": (RNG.random((T, S)) < 0.5)[::-1],
    "one row for all": bytes_of([0, 8], (1, S)),
    "one key for all": bytes_of([0, 8], (T, 1)),
    "repeated rows": np.broadcast_to(RNG.random(S) < 0.5, (T, S)),
    "repeated keys": np.broadcast_to(RNG.random((T, 1)) < 0.5, (T, S)),
    "one for all": np.ones((1, 1), np.bool_),
    "stretches": np.kron(RNG.random((3, 4)) < 0.5, np.ones((29, 32), np.bool_))[:T, :S],
    "nothing": np.zeros((T, S), np.bool_),
}


@pytest.mark.parametrize("first", [0, 1, 8])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_read_where_it_lies_whatever_its_bytes_and_strides(
    name: str, first: int
) -> None:
    """Values count the keys, as above; from another first key on, no row begins at a whole word."""
    array = ARRAYS[name] if ARRAYS[name].shape[1] == 1 else ARRAYS[name][:, first:]
    keys = S - first
    seen = np.broadcast_to(array.view(np.uint8) != 0, (T, keys))
    out, lse = ch.attention_with_lse(
        np.zeros((T, 1)), np.zeros((keys, 1)), np.eye(keys), mask=array
    )
    count = seen.sum(1)
    np.testing.assert_allclose(out, seen / np.maximum(count, 1)[:, None], atol=1e-15)
    np.testing.assert_array_equal(np.isneginf(lse), count == 0)


@pytest.mark.parametrize(
    "axes",
    [(), (1,), (3,), (2, 1), (2, 3), (1, 3), (5, 1, 1), (5, 1, 3), (5, 2, 1), (5, 2, 3)],
)
@pytest.mark.parametrize("inverted", [False, True])
def test_an_array_that_heads_or_batches_share_is_seen_by_each_of_them(axes, inverted) -> None:
    """Sizes of 1 are repeated; what several share is turned to bits once for all of them."""
    rng = np.random.default_rng(len(axes))
    q = rng.normal(size=(5, 2, 3, T, 7))
    k, v = rng.normal(size=(2, 5, 2, 1, S, 7))
    array = rng.random((*axes, T, S)) < 0.3
    other = rng.random((T, S)) < 0.5
    mask = (~ch.allowed(array) if inverted else ch.allowed(array)) & ch.causal() | ch.allowed(other)
    meant = (array ^ inverted) & ch.causal().to_array(T, S) | other
    want, lse = reference.forward(q, k, v, mask=meant)
    got = ch.attention_with_lse(q, k, v, mask=mask)
    np.testing.assert_allclose(got.out, want, atol=1e-13)
    np.testing.assert_allclose(got.lse, lse, atol=1e-13)


def test_masks_with_an_entry_for_each_batch() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 3, T, 5))
    ids = np.sort(rng.integers(0, 5, size=(2, T)))
    for mask in (ch.lengths([0, 30]), ch.documents(ids) & ch.causal()):
        array = mask.to_array(T, T)
        assert array.shape == (2, 1, T, T)
        want, _ = reference.forward(q, k, v, mask=array)
        np.testing.assert_allclose(ch.attention(q, k, v, mask=mask), want, atol=1e-13)


def test_documents_take_key_ids_of_their_own_and_the_tail_of_one_sequence() -> None:
    ids = np.array([0, 0, 1, 1, 1])
    assert ch.documents(ids).to_array(2, 5).astype(int).tolist() == [[0, 0, 1, 1, 1]] * 2
    cross = ch.documents([1, 0], ids).to_array(2, 5).astype(int)
    assert cross.tolist() == [[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_masks_built_alike_are_equal_and_hash_alike() -> None:
    ids = [0, 0, 1]
    pairs = [
        (ch.causal(), ch.causal()),
        (ch.causal() & ch.window(left=2), ch.causal() & ch.window(left=2)),
        (ch.documents(ids), ch.documents(np.array(ids))),
        (ch.allowed([[True, False]]), ch.allowed(np.array([[True, False]]))),
        (~ch.lengths([1, 2]), ~ch.lengths([1, 2])),
    ]
    for a, b in pairs:
        assert a == b
        assert hash(a) == hash(b)
    different = [ch.causal(), ch.causal(0), ch.window(left=2), ch.window(2, 2), ch.first_keys(2)]
    different += [ch.prefix(2), ~ch.causal(), ch.causal() & ch.prefix(2), ch.dilated(2)]
    assert len(set(different)) == len(different)
    assert ch.causal() != "causal()"


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ch.window(left=-1), ValueError, "left: is -1, must be at least 0"),
        (lambda: ch.window(left=1.5), TypeError, "left: is 1.5, must be a whole number"),
        (lambda: ch.first_keys(True), TypeError, "n: is True"),
        (lambda: ch.causal(offset="a"), TypeError, "offset: is 'a'"),
        (lambda: ch.causal(offset=2**70), ValueError, "offset: .* below"),
        (lambda: ch.dilated(0), ValueError, "step: is 0, must be at least 1"),
        (lambda: ch.lengths([1.0]), TypeError, "n_per_batch: is float64, must be integers"),
        (lambda: ch.lengths([-1]), ValueError, "n_per_batch: has -1"),
        (lambda: ch.documents(3), ValueError, "query_ids: is a single number"),
        (lambda: ch.blocks([[1, 0]], 2), TypeError, "pattern: is int64"),
        (lambda: ch.blocks([True], 2), ValueError, "pattern: is bool"),
        (lambda: ch.allowed([[1]]), TypeError, "array: is int64"),
        (lambda: ch.causal() and ch.window(1), TypeError, "joined by & and |, not by and, or"),
        (lambda: ch.causal() & True, TypeError, "unsupported operand"),
        (lambda: ch.documents([0, 1]).to_array(2, 5), ValueError, "must be (..., S)"),
        (lambda: ch.blocks([[True]], 2).to_array(2, 5), ValueError, r"must be (1, 3)"),
        (lambda: ch.allowed([[True] * 4]).to_array(2, 5), ValueError, "mask: is (1, 4)"),
        (lambda: ch.causal().to_array(-1, 5), ValueError, "T: is -1"),
        (lambda: ch.causal().intervals(range(3, 9), 4, 4), ValueError, "rows: is range(3, 9)"),
    ],
)
def test_a_mask_that_cannot_be_is_refused_in_one_sentence(build, error, message: str) -> None:
    pattern = message if "\\" in message or ".*" in message else re.escape(message)
    with pytest.raises(error, match=pattern) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_mask_that_does_not_fit_the_call_is_refused_before_it_runs() -> None:
    q = np.zeros((2, 1, 4, 3))
    with pytest.raises(ValueError, match=r"n_per_batch: is \(3,\), must be broadcastable"):
        ch.attention(q, q, q, mask=ch.lengths([1, 2, 3]))
    with pytest.raises(ValueError, match=r"key_ids is \(5,\), must end in 4"):
        ch.attention(q, q, q, mask=ch.documents([0] * 4, [0] * 5))
