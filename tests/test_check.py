"""Every wrong argument gets one sentence that names it, what it is, and what it must be."""

import re
import timeit

import ml_dtypes
import numpy as np
import pytest

from clearhead._check import check_attention, check_gradient, check_merge

B, H, G, T, S, D, E = 2, 6, 3, 5, 11, 7, 13


def arrays(dtype=np.float32):
    return {
        "q": np.zeros((B, H, T, D), dtype),
        "k": np.zeros((B, G, S, D), dtype),
        "v": np.zeros((B, G, S, E), dtype),
    }


def f32(*shape):
    return np.zeros(shape, np.float32)


class Rule:
    def lower(self):
        raise AssertionError("checking a call does not evaluate its mask")


class MaskRule(Rule):
    allowed_count = None


class BiasRule(Rule):
    heads = None


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_valid_call_gives_its_sizes(dtype):
    problem = check_attention(**arrays(dtype))
    assert problem == ((B,), H, G, T, S, D, E, D**-0.5, False)
    assert problem.out_shape == (B, H, T, E) and problem.score_shape == (B, H, T, S)


def test_leading_axes_broadcast():
    problem = check_attention(f32(3, 1, H, T, D), f32(B, G, S, D), f32(G, S, E))
    assert problem.lead == (3, B) and problem.out_shape == (3, B, H, T, E)


def test_rank_two_is_one_head_without_its_axis():
    problem = check_attention(f32(T, D), f32(S, D), f32(S, E), sink=f32(1), bias=f32(S))
    assert problem == ((), 1, 1, T, S, D, E, D**-0.5, True)
    assert problem.out_shape == (T, E) and problem.score_shape == (T, S)


@pytest.mark.parametrize(
    "sizes", [(0, H, G, T, S), (B, 0, 0, T, S), (B, H, G, 0, S), (B, H, G, T, 0)]
)
def test_empty_axes_are_valid(sizes):
    b, h, g, t, s = sizes
    assert check_attention(f32(b, h, t, D), f32(b, g, s, D), f32(b, g, s, E)).S == s


@pytest.mark.parametrize(
    "options",
    [
        {"mask": np.ones((T, S), bool)},
        {"mask": np.ones((B, 1, T, 1), bool)},
        {"mask": np.array(True)},
        {"mask": MaskRule(), "bias": BiasRule()},
        {"bias": f32(1, H, 1, S)},
        {"sink": f32(H)},
        {"sink": f32(B, 1)},
        {"scale": 2},
        {"scale": np.float32(-0.5)},
        {"scale": 0.0},
        {"softcap": 50},
    ],
)
def test_valid_options_are_accepted(options):
    problem = check_attention(**arrays(), **options)
    assert problem.scale == options.get("scale", D**-0.5)
    assert type(problem.scale) is float


def test_a_subclass_that_is_an_array_all_the_same_is_accepted(tmp_path):
    mapped = np.memmap(tmp_path / "q", np.float32, "w+", shape=(B, H, T, D))
    check_attention(**{**arrays(), "q": mapped})


SHAPES = f"q ({B}, {H}, {T}, {D}), k ({B}, {G}, {S}, {D}), v ({B}, {G}, {S}, {E})"

WRONG = [
    # kinds
    ({"q": None}, TypeError, "q: None, must be an array"),
    ({"k": [[1.0]]}, TypeError, "k: a list, must be an array"),
    ({"v": 3}, TypeError, "v: an int, must be an array"),
    ({"v": re.compile("")}, TypeError, "v: re.Pattern, must be an array"),
    (
        {"k": np.ma.zeros((B, G, S, D), np.float32)},
        TypeError,
        "k: a masked array, must be a plain one; pass mask=, True = may attend",
    ),
    # dtypes
    (
        {"q": np.zeros((B, H, T, D), np.int64)},
        TypeError,
        "q: dtype is int64, must be float64, float32, float16 or bfloat16; "
        'q.astype("float32") makes it so',
    ),
    (
        {"v": np.zeros((B, G, S, E), complex)},
        TypeError,
        "v: dtype is complex128, must be float64, float32, float16 or bfloat16",
    ),
    (
        {"q": np.zeros((B, H, T, D), ">f4")},
        TypeError,
        "q: dtype is >f4, must be float64, float32, float16 or bfloat16; "
        'q.astype("float32") makes it so',
    ),
    (
        {"k": np.zeros((B, G, S, D))},
        TypeError,
        'k: dtype is float64, must be float32 as q; k.astype("float32") makes it so',
    ),
    (
        {"v": np.zeros((B, G, S, E), ml_dtypes.bfloat16)},
        TypeError,
        'v: dtype is bfloat16, must be float32 as q; v.astype("float32") makes it so',
    ),
    # ranks
    (
        {"q": f32(D)},
        ValueError,
        "q: has 1 axis, must be (T, D) or (..., heads, T, D); "
        "q (7,), k (2, 3, 11, 7), v (2, 3, 11, 13)",
    ),
    (
        {"v": f32()},
        ValueError,
        "v: has no axis, must be (S, E) or (..., heads, S, E); "
        "q (2, 6, 5, 7), k (2, 3, 11, 7), v ()",
    ),
    (
        {"q": f32(T, D)},
        ValueError,
        "q, k, v: some have a head axis and some have none, must all have one or all be of rank 2; "
        "q (5, 7), k (2, 3, 11, 7), v (2, 3, 11, 13)",
    ),
    # sizes
    (
        {"k": f32(B, G, S, 17)},
        ValueError,
        "k: D is 17 but q has D = 7; q (2, 6, 5, 7), k (2, 3, 11, 17), v (2, 3, 11, 13)",
    ),
    (
        {"v": f32(B, G, 9, E)},
        ValueError,
        "v: S is 9 but k has S = 11; q (2, 6, 5, 7), k (2, 3, 11, 7), v (2, 3, 9, 13)",
    ),
    (
        {"v": f32(B, 1, S, E)},
        ValueError,
        "v: 1 value heads but k has 3 key heads; q (2, 6, 5, 7), k (2, 3, 11, 7), v (2, 1, 11, 13)",
    ),
    (
        {"q": f32(B, 8, T, D)},
        ValueError,
        "k, v: 8 query heads are not a multiple of 3 key heads; "
        "q (2, 8, 5, 7), k (2, 3, 11, 7), v (2, 3, 11, 13)",
    ),
    (
        {"k": f32(B, 0, S, D), "v": f32(B, 0, S, E)},
        ValueError,
        "k, v: 6 query heads are not a multiple of 0 key heads; "
        "q (2, 6, 5, 7), k (2, 0, 11, 7), v (2, 0, 11, 13)",
    ),
    (
        {"q": f32(B, H, T, 0), "k": f32(B, G, S, 0)},
        ValueError,
        "q, k: D is 0, must be at least 1; q (2, 6, 5, 0), k (2, 3, 11, 0), v (2, 3, 11, 13)",
    ),
    (
        {"v": f32(B, G, S, 0)},
        ValueError,
        "v: E is 0, must be at least 1; q (2, 6, 5, 7), k (2, 3, 11, 7), v (2, 3, 11, 0)",
    ),
    (
        {"k": f32(3, G, S, D)},
        ValueError,
        "q, k, v: leading axes (2,), (3,) and (2,) do not broadcast; "
        "q (2, 6, 5, 7), k (3, 3, 11, 7), v (2, 3, 11, 13)",
    ),
    (
        {
            "q": np.broadcast_to(f32(1), (2**40, 1, 1, 1)),
            "k": np.broadcast_to(f32(1), (1, 1, S, 1)),
            "v": np.broadcast_to(f32(1), (1, 1, S, 2**30)),
        },
        ValueError,
        f"q, v: the result would have {2**70} elements, must have at most 2**59; "
        f"q ({2**40}, 1, 1, 1), k (1, 1, 11, 1), v (1, 1, 11, {2**30})",
    ),
    # mask
    ({"mask": "causal"}, TypeError, "mask: a str, must be a Mask or a boolean array"),
    ({"mask": True}, TypeError, "mask: a bool, must be a Mask or a boolean array"),
    (
        {"mask": np.ones((T, S), np.int8)},
        TypeError,
        "mask: dtype is int8, must be bool, True = may attend; mask != 0 is one",
    ),
    (
        {"mask": f32(T, S)},
        TypeError,
        "mask: dtype is float32, must be bool, True = may attend; an additive mask is bias=",
    ),
    (
        {"mask": np.ones((S, T), bool)},
        ValueError,
        f"mask: shape is (11, 5), must broadcast to (..., H, T, S) = (2, 6, 5, 11); {SHAPES}",
    ),
    (
        {"mask": np.ones((1, B, H, T, S), bool)},
        ValueError,
        "mask: shape is (1, 2, 6, 5, 11), must broadcast to (..., H, T, S) = (2, 6, 5, 11); "
        + SHAPES,
    ),
    (
        {"mask": BiasRule()},
        TypeError,
        "mask: tests.BiasRule, must be a Mask or a boolean array",
    ),
    # bias
    (
        {"bias": MaskRule()},
        TypeError,
        "bias: tests.MaskRule, must be an array or a rule such as alibi(slopes); a Mask is mask=",
    ),
    ({"bias": 1.0}, TypeError, "bias: a float, must be an array or a rule such as alibi(slopes)"),
    (
        {"bias": np.zeros((T, S))},
        TypeError,
        'bias: dtype is float64, must be float32 as q; bias.astype("float32") makes it so',
    ),
    (
        {"bias": np.ones((T, S), bool)},
        TypeError,
        "bias: dtype is bool, must be float32 as q; a boolean array is mask=",
    ),
    (
        {"bias": f32(G, T, S)},
        ValueError,
        f"bias: shape is (3, 5, 11), must broadcast to (..., H, T, S) = (2, 6, 5, 11); {SHAPES}",
    ),
    # numbers
    ({"scale": "1"}, TypeError, "scale: a str, must be a number"),
    ({"scale": True}, TypeError, "scale: a bool, must be a number"),
    ({"scale": 1j}, TypeError, "scale: a complex, must be a number"),
    ({"scale": f32(1)}, TypeError, "scale: numpy.ndarray, must be a number"),
    (
        {"scale": float("nan")},
        ValueError,
        "scale: nan, must be a finite number, at most 1e30 in magnitude",
    ),
    (
        {"scale": -np.inf},
        ValueError,
        "scale: -inf, must be a finite number, at most 1e30 in magnitude",
    ),
    (
        {"scale": 10**400},
        ValueError,
        "scale: inf, must be a finite number, at most 1e30 in magnitude",
    ),
    (
        {"softcap": 0},
        ValueError,
        "softcap: 0, must be positive, at least 1e-30; None leaves scores uncapped",
    ),
    (
        {"softcap": -3.0},
        ValueError,
        "softcap: -3.0, must be positive, at least 1e-30; None leaves scores uncapped",
    ),
    (
        {"softcap": np.inf},
        ValueError,
        "softcap: inf, must be a finite number, at most 1e30 in magnitude",
    ),
    ({"softcap": False}, TypeError, "softcap: a bool, must be a number"),
    # sink
    ({"sink": 0.5}, TypeError, "sink: a float, must be an array"),
    (
        {"sink": np.zeros(H, np.float16)},
        TypeError,
        'sink: dtype is float16, must be float32 as q; sink.astype("float32") makes it so',
    ),
    (
        {"sink": f32(G)},
        ValueError,
        f"sink: shape is (3,), must broadcast to (..., H) = (2, 6); {SHAPES}",
    ),
]


@pytest.mark.parametrize(("change", "kind", "message"), WRONG, ids=[m for *_, m in WRONG])
def test_a_wrong_argument_gets_its_sentence(change, kind, message):
    with pytest.raises(kind) as error:
        check_attention(**{**arrays(), **change})
    assert str(error.value) == message


def gradient_arguments():
    return {
        "dout": f32(B, H, T, E),
        **arrays(),
        "out": f32(B, H, T, E),
        "lse": f32(B, H, T),
    }


def test_a_valid_gradient_call_gives_its_sizes():
    problem = check_gradient(**gradient_arguments())
    assert problem == check_attention(**arrays())
    half = {name: x.astype(np.float16) for name, x in gradient_arguments().items()}
    half["lse"] = half["lse"].astype(np.float32)
    assert check_gradient(**half) == problem
    flat = check_gradient(f32(T, E), f32(T, D), f32(S, D), f32(S, E), f32(T, E), f32(T))
    assert flat.flat


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"dout": None}, TypeError, "dout: None, must be an array"),
        (
            {"dout": f32(B, H, T, D)},
            ValueError,
            f"dout: shape is (2, 6, 5, 7), must be (..., H, T, E) = (2, 6, 5, 13); {SHAPES}",
        ),
        (
            {"dout": f32(H, T, E)},
            ValueError,
            f"dout: shape is (6, 5, 13), must be (..., H, T, E) = (2, 6, 5, 13); {SHAPES}",
        ),
        (
            {"out": np.zeros((B, H, T, E))},
            TypeError,
            'out: dtype is float64, must be float32 as q; out.astype("float32") makes it so',
        ),
        (
            {"lse": np.zeros((B, H, T))},
            TypeError,
            "lse: dtype is float64, must be float32 as the lse of q; "
            'lse.astype("float32") makes it so',
        ),
        (
            {"lse": f32(B, T, H)},
            ValueError,
            f"lse: shape is (2, 5, 6), must be (..., H, T) = (2, 6, 5); {SHAPES}",
        ),
        (
            {"softcap": -1},
            ValueError,
            "softcap: -1, must be positive, at least 1e-30; None leaves scores uncapped",
        ),
    ],
)
def test_a_wrong_gradient_argument_gets_its_sentence(change, kind, message):
    with pytest.raises(kind) as error:
        check_gradient(**{**gradient_arguments(), **change})
    assert str(error.value) == message


def test_states_that_merge_are_accepted():
    check_merge([f32(T, E)], [f32(T)])
    check_merge((f32(B, H, T, E), f32(B, H, T, E)), (f32(B, H, T), f32(B, H, T)))
    check_merge(f32(3, B, H, T, E).astype(np.float16), f32(3, B, H, T))


@pytest.mark.parametrize(
    ("outs", "lses", "kind", "message"),
    [
        (None, [f32(T)], TypeError, "outs: None, must be a sequence of arrays"),
        ([f32(T, E)], 3.0, TypeError, "lses: a float, must be a sequence of arrays"),
        (
            [],
            [],
            ValueError,
            "outs, lses: 0 and 0 arrays, must be as many of both, and one at least",
        ),
        (
            [f32(T, E)] * 2,
            [f32(T)],
            ValueError,
            "outs, lses: 2 and 1 arrays, must be as many of both, and one at least",
        ),
        ([[1.0]], [f32(T)], TypeError, "outs[0]: a list, must be an array"),
        (
            [f32(T, E), np.zeros((T, E))],
            [f32(T)] * 2,
            TypeError,
            "outs[1]: dtype is float64, must be float32 as outs[0]; "
            'outs[1].astype("float32") makes it so',
        ),
        (
            [f32(T, E)],
            [np.zeros(T)],
            TypeError,
            "lses[0]: dtype is float64, must be float32 as the lse of outs[0]; "
            'lses[0].astype("float32") makes it so',
        ),
        (
            [f32(E)],
            [f32()],
            ValueError,
            "outs[0]: shape is (13,), must have two axes at least, (..., T, E)",
        ),
        (
            [f32(T, E), f32(T, D)],
            [f32(T)] * 2,
            ValueError,
            "outs[1]: shape is (5, 7), must be (5, 13) as that of outs[0]",
        ),
        (
            [f32(H, T, E)],
            [f32(T, H)],
            ValueError,
            "lses[0]: shape is (5, 6), must be (..., T) = (6, 5); outs[0] (6, 5, 13)",
        ),
    ],
)
def test_states_that_do_not_merge_get_their_sentence(outs, lses, kind, message):
    with pytest.raises(kind) as error:
        check_merge(outs, lses)
    assert str(error.value) == message


def test_checking_a_plain_call_costs_microseconds():
    q, k, v = arrays().values()
    best = min(timeit.repeat(lambda: check_attention(q, k, v), number=2000, repeat=7)) / 2000
    assert best < 5e-6
