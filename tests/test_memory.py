"""Linear memory: what a call takes beyond its inputs and its output."""

import subprocess
import sys
import textwrap

import pytest

MIB = 2**20


def peak_growth(setup: str, call: str) -> int:
    """Bytes by which one call raises the peak of a fresh process, output included."""
    code = f"""
        import resource
        import numpy as np
        import clearhead as ch
        n = 32768
        q = np.random.default_rng(0).random((1, 1, n, 64), np.float32)
        small = q[:, :, :128]
        out, lse = ch.attention_with_lse(small, small, small, mask=ch.causal())
        ch.attention_grad(out, small, small, small, out, lse, mask=ch.causal())
        {setup}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        {call}
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
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
            f"m = {WINDOW}; out, lse = ch.attention_with_lse(q, q, q, mask=m)",
            "ch.attention_grad(q, q, q, q, out, lse, mask=m)",
            3 * OUT,
        ),
    ],
    ids=["full", "window", "gradient"],
)
def test_a_call_at_32768_takes_at_most_64_mib_beyond_its_result(
    setup: str, call: str, result_bytes: int
) -> None:
    """The matrix itself would be 4 GiB."""
    assert peak_growth(setup, call) < result_bytes + 64 * MIB
