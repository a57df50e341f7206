"""KeyValueCache: it grows, and what it has given out stays."""

import tracemalloc

import numpy as np
import pytest

import clearhead as ch


def test_it_holds_what_was_appended_in_order(rng):
    k, v = rng.normal(size=(2, 3, 97, 5)), rng.normal(size=(2, 3, 97, 7))
    cache, start = ch.KeyValueCache(), 0
    assert repr(cache) == "KeyValueCache(empty)"
    for n in (0, 1, 16, 1, 40, 39):
        stop = start + n
        given = cache.append(k[..., start:stop, :], v[..., start:stop, :])
        start = stop
        np.testing.assert_array_equal(given[0], k[..., :stop, :])
        np.testing.assert_array_equal(given[1], v[..., :stop, :])
    assert len(cache) == 97
    np.testing.assert_array_equal(cache.keys, k)
    assert repr(cache) == "KeyValueCache(keys (2, 3, 97, 5), values (2, 3, 97, 7))"


def test_what_it_gave_out_neither_changes_nor_can_be_written(rng):
    cache = ch.KeyValueCache()
    first, _ = cache.append(np.ones((1, 5, 2)), np.ones((1, 5, 2)))
    with pytest.raises(ValueError, match="read-only"):
        first[...] = 0
    cache.truncate(3)
    later, _ = cache.append(np.zeros((1, 2, 2)), np.zeros((1, 2, 2)))
    np.testing.assert_array_equal(first, np.ones((1, 5, 2)))
    np.testing.assert_array_equal(later[0, :, 0], [1, 1, 1, 0, 0])


def test_appending_one_by_one_copies_each_key_a_bounded_number_of_times():
    cache, x = ch.KeyValueCache(), np.zeros((4, 1, 64))
    rooms = set()
    for _ in range(1000):
        keys, _ = cache.append(x, x)
        rooms.add(keys.ctypes.data)
    assert len(rooms) <= 8  # 16, 32, ... 1024
    tracemalloc.start()
    cache.append(x, x)
    assert tracemalloc.get_traced_memory()[1] < x.nbytes * 100  # no copy of the whole
    tracemalloc.stop()


@pytest.mark.parametrize(
    "k, v, kind, words",
    [
        ([1], np.ones((1, 1, 1)), TypeError, "k: list, must be a NumPy array"),
        (np.ones(3), np.ones(3), ValueError, r"k: shape is \(3,\), must be"),
        (np.ones((2, 1, 3)), np.ones((2, 2, 3)), ValueError, "k, v: are float64"),
        (np.ones((2, 1, 3)), np.ones((2, 1, 3), "f"), ValueError, "k, v: are float64"),
        (np.ones((2, 1, 4)), np.ones((2, 1, 3)), ValueError, r"k: is float64 \(2, 1, 4\), must be"),
        (np.ones((2, 1, 3)), np.ones((2, 1, 4)), ValueError, r"v: is float64 \(2, 1, 4\), must be"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(k, v, kind, words):
    cache = ch.KeyValueCache()
    cache.append(np.ones((2, 1, 3)), np.ones((2, 1, 3)))
    with pytest.raises(kind, match=words):
        cache.append(k, v)
    assert len(cache) == 1


def test_truncating_to_nowhere_is_refused():
    cache = ch.KeyValueCache()
    with pytest.raises(ValueError, match="cache: is empty"):
        _ = cache.keys
    with pytest.raises(ValueError, match="length: is 1, must be from 0 to 0"):
        cache.truncate(1)
    with pytest.raises(TypeError, match="length: is '1', must be a whole number"):
        cache.truncate("1")
