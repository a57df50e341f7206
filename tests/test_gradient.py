"""The gradient walks panels of keys: who is the first, the last or the only one to add to dq."""

import numpy as np
import pytest

import clearhead as ch
from subject import Sizes, Subject

SIZES = Sizes(B=1, H=4, G=2, T=211, S=337, D=19, E=23)  # four panels of queries, six of keys


def documents():
    ids = np.repeat([3, 1, 4], [100, 90, 147])
    return ch.documents(ids[:211], ids)


def unseen():
    """Nobody sees the first panels of keys and the last; some queries see nothing."""
    seen = np.zeros((211, 337), dtype=bool)
    seen[70:140, 130:200] = np.tri(70, dtype=bool)
    seen[140:, 64:128] = True
    return ch.allowed(seen)


MASKS = {
    "none": lambda: None,
    "causal": ch.causal,
    "causal from the first key": lambda: ch.causal(offset=0),
    "window": lambda: ch.window(left=70, right=3),
    "few rows of a panel": lambda: ch.causal(offset=-180),
    "documents": documents,
    "unseen": unseen,
}


class TestPanels(Subject):
    dtype = np.float32
    threads = 1

    def attend(self, q, k, v, **options):
        return ch.attention_with_lse(q, k, v, **options)

    def gradients(self, dout, q, k, v, out, lse, **options):
        before = ch.num_threads()
        ch.set_num_threads(self.threads)
        try:
            return ch.attention_grad(dout, q, k, v, out, lse, **options)
        finally:
            ch.set_num_threads(before)

    @pytest.mark.parametrize("sizes", [SIZES, SIZES._replace(B=3), SIZES._replace(G=1)])
    @pytest.mark.parametrize("mask", MASKS)
    def test_any_mask_has_its_gradients(self, mask, sizes):
        lowered = MASKS[mask]()
        given = {} if lowered is None else {"mask": lowered}
        seen = np.ones((sizes.T, sizes.S), bool) if lowered is None else lowered.to_array(211, 337)
        dout = self.draw(sizes.B, sizes.H, sizes.T, sizes.E)
        self.check_gradients(dout, *self.qkv(sizes), array_mask=seen, **given)


class TestPanelsOfThreeThreads(TestPanels):
    """More chains of panels than threads, as many helpers as chains, and one chain for all."""

    threads = 3


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (5, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize("mask", ["causal", "unseen", "window"])
def test_threads_that_share_a_chain_change_no_bit(shape, mask):
    B, G = shape
    rng = np.random.default_rng(3)
    dout, q = rng.normal(size=(2, B, 4, 211, 17)).astype(np.float32)
    k, v = rng.normal(size=(2, B, G, 337, 17)).astype(np.float32)
    out, lse = ch.attention_with_lse(q, k, v, mask=MASKS[mask]())
    before, found = ch.num_threads(), set()
    try:
        for count in (1, 2, 3, 8) * 3:
            ch.set_num_threads(count)
            grads = ch.attention_grad(dout, q, k, v, out, lse, mask=MASKS[mask]())
            found.add(b"".join(x.tobytes() for x in grads[:3]))
    finally:
        ch.set_num_threads(before)
    assert len(found) == 1
