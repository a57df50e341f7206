"""Linear memory: what a call takes beyond its inputs and its output."""

import subprocess
import sys
import textwrap

import pytest

MIB = 2**20


def peak_growth(setup: str, call: str) -> int:
    """Bytes by which one call raises the peak of a fresh process, output included."""
    code = f"""
        import numpy as np
        import clearhead as ch
        n = 32768
        q = np.random.default_rng(0).random((1, 1, n, 64), np.float32)
        small = q[:, :, :128]
        out, lse = ch.attention_with_lse(small, small, small, mask=ch.causal())
        ch.attention_grad(out, small, small, small, out, lse, mask=ch.causal())
        def peak():  # getrusage would count what this process was before exec: pytest
            return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
        {setup}
        before = peak()
        {call}
        print(peak() - before)
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


OUT = 32768 * 64 * 4
WINDOW = "ch.causal() & ch.window(left=255)"


@pytest.mark.parametrize(
    ("setup", "call", "result_bytes"),
    [
        ("", "out = ch.attention(q, q, q)", OUT),
        ("", f"out = ch.attention(q, q, q, mask={WINDOW})", OUT),
        (
            "bias = np.zeros((n, 1), np.float32)",
            f"out = ch.attention(q, q, q, mask={WINDOW}, bias=bias)",
            OUT,
        ),
        ("", f"out = ch.attention(q, q, q, mask={WINDOW}, bias=ch.alibi(0.1))", OUT),
        (
            f"m = {WINDOW}; out, lse = ch.attention_with_lse(q, q, q, mask=m)",
            "ch.attention_grad(q, q, q, q, out, lse, mask=m)",
            3 * OUT,
        ),
    ],
    ids=["full", "window", "broadcast bias", "alibi", "gradient"],
)
def test_a_call_at_32768_takes_at_most_64_mib_beyond_its_result(
    setup: str, call: str, result_bytes: int
) -> None:
    """The matrix itself would be 4 GiB."""
    assert peak_growth(setup, call) < result_bytes + 64 * MIB


OBSERVE = (
    "amap.observe(pool=(1024, 1024), top=8, received=True, entropy=True, max=True,"
    " by_distance=4096, group=(np.arange(T) // 128,) * 2)"
)


def test_an_observation_at_131072_takes_what_it_returns_and_a_row_of_sums_a_thread() -> None:
    """The matrix would be 64 GiB. A window keeps the test short; memory does not depend on it."""
    T, threads = 131072, 4
    setup = f"""
        T = {T}
        ch.set_num_threads({threads})
        long = np.random.default_rng(0).random((1, T, 8), np.float32)
        amap = ch.attention_map(long, long, mask=ch.causal() & ch.window(left=127))
        few = ch.attention_map(long[:, :128], long[:, :128])
        few.observe(pool=(2, 2), top=8, received=True, entropy=True, max=True)
        """.strip()
    # pool, group, top, and what belongs to a row or a key
    result = 1024 * 1024 * (8 + 4) + 1024 * 1024 * 8 + T * 8 * (4 + 8) + T * (8 + 8 + 4)
    # Each grid once more while it is divided into means; per thread the keys' sums and some rows.
    temporary = 3 * 1024 * 1024 * 8 + threads * (T * 8 + 2**20)
    growth = peak_growth(setup, f"seen = {OBSERVE}")
    assert growth < result + temporary + 16 * MIB
