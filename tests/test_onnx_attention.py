"""The ONNX project's own cases for its Attention operator, through a thin adapter.

Where ONNX says more than `clearhead.attention`, the adapter composes it: heads folded into the last
axis, caches joined, masks padded, windows and causal masks that start from an offset, and the
scores before softmax (`qk_matmul_output`), which are log(weight) + lse of a map.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest

import clearhead as ch

onnx = pytest.importorskip("onnx", reason="the cases come with onnx")


def cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases
        found = collect_testcases("Attention")
    # Each case comes twice; "expanded" is the same as a graph of other operators.
    return [case for case in found if not case.name.endswith("_expanded")]


CASES = cases()


def onnx_attention(
    q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *,
    scale=None, is_causal=0, q_num_heads=None, kv_num_heads=None, softcap=0.0,
    left_window_size=-1, right_window_size=-1, qk_matmul_output_mode=0, softmax_precision=None,
):  # fmt: skip
    """Y, present_key, present_value, qk_matmul_output. (Our softmax is never below float32.)"""
    folded = q.ndim == 3
    if folded:
        q = unfolded(q, q_num_heads)
        k, v = unfolded(k, kv_num_heads), unfolded(v, kv_num_heads)
    offset = 0
    if past_key is not None:
        offset = past_key.shape[-2]
        k, v = np.concatenate([past_key, k], -2), np.concatenate([past_value, v], -2)
    T, S = q.shape[-2], k.shape[-2]
    mask, bias = None, None
    if nonpad_kv_seqlen is not None:
        mask = ch.lengths(nonpad_kv_seqlen)
        offset = nonpad_kv_seqlen[:, None, None, None] - T  # one for each batch
    if attn_mask is not None:
        boolean = attn_mask.dtype == np.bool_
        widths = [(0, 0)] * (attn_mask.ndim - 1) + [(0, S - attn_mask.shape[-1])]
        filled = np.pad(attn_mask, widths, constant_values=False if boolean else -np.inf)
        if boolean:
            mask = both(mask, ch.allowed(filled))
        else:
            bias = filled
    if is_causal:
        mask = both(mask, reach(T, S, offset, None, 0))
    if (left_window_size, right_window_size) != (-1, -1):
        left = None if left_window_size == -1 else left_window_size
        right = None if right_window_size == -1 else right_window_size
        mask = both(mask, reach(T, S, offset, left, right))
    options = {"scale": scale, "softcap": softcap or None}
    y = ch.attention(q, k, v, mask=mask, bias=bias, **options)
    if qk_matmul_output_mode == 3:
        products = weights(q, k, mask=mask, bias=bias, **options)
    elif qk_matmul_output_mode == 2:
        products = scores(q, k, mask=mask, bias=bias, **options)
    elif qk_matmul_output_mode == 1:
        products = scores(q, k, **options)
    else:
        products = scores(q, k, scale=scale)
    if folded:
        y = y.swapaxes(1, 2).reshape(y.shape[0], T, -1)
    return y, k, v, products


def unfolded(x, heads):
    """(B, T, heads * n) as (B, heads, T, n): a view, D beside T in memory."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def both(a, b):
    return b if a is None else a & b


def reach(T, S, offset, left, right):
    """Keys from `left` before to `right` after position t + offset; a rule where there is one."""
    if np.ndim(offset) == 0 and left is None and right == 0:
        return ch.causal(offset=offset)
    if np.ndim(offset) == 0 and offset == S - T:
        return ch.window(left, right)
    distance = np.arange(T)[:, None] + offset - np.arange(S)
    seen = np.ones(distance.shape, bool)
    seen &= True if left is None else distance <= left
    seen &= True if right is None else -distance <= right
    return ch.allowed(seen)


def weights(q, k, **options):
    return ch.attention_map(q, k, **options)[:].astype(np.float64)


def scores(q, k, **options):
    """log(weight) + lse, -inf where a key is hidden."""
    amap = ch.attention_map(q, k, **options)
    with np.errstate(divide="ignore"):
        s = np.log(amap[:].astype(np.float64)) + amap.lse.astype(np.float64)[..., None]
    return np.where(np.isnan(s), -np.inf, s)  # -inf + -inf is no key at all


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_onnx_case(case):
    (node,) = case.model.graph.node
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for given, expected in case.data_sets:
        arrays = iter(given)
        inputs = [next(arrays) if name else None for name in node.input]
        results = onnx_attention(*inputs, **options)
        wanted = [result for result, name in zip(results, node.output, strict=False) if name]
        assert len(wanted) == len(expected)
        for result, want in zip(wanted, expected, strict=True):
            assert_agrees(result, want, case)


def assert_agrees(result, want, case):
    """To the case's own tolerance, or to its dtype's rounding where its expectation is rounded."""
    assert result.shape == want.shape
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    result, want = result.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isinf(result), np.isinf(want))
    atol = max(case.atol, 4 * eps * np.abs(want[np.isfinite(want)]).max(initial=0))
    np.testing.assert_allclose(result, want, rtol=case.rtol, atol=atol)


def test_every_case_of_the_operator_is_here():
    assert len(CASES) >= 93
