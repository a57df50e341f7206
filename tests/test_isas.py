"""The conformance suite in every instruction set of this machine, forced by name and proven so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clearhead as ch

SUITE = Path(__file__).with_name("test_conformance.py")
OTHERS = [isa for isa in ch.available_isas() if isa != ch.isa()]


def python(isa, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "CLEARHEAD_ISA": isa},
        cwd=SUITE.parents[1],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("isa", ch.available_isas())
def test_the_forced_instruction_set_is_the_one_in_use(isa):
    run = python(isa, "-c", "import clearhead; print(clearhead.isa())")
    assert (run.stdout.strip(), run.stderr) == (isa, "")


@pytest.mark.skipif("CLEARHEAD_ISA" in os.environ, reason="one instruction set is forced already")
@pytest.mark.parametrize("isa", OTHERS)
def test_the_conformance_suite_passes_in(isa):
    classes = [f"{SUITE}::Test{dtype}" for dtype in ("Float32", "Float64", "Bfloat16", "Float16")]
    run = python(isa, "-m", "pytest", "--tb=short", "-p", "no:cacheprovider", *classes)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_an_unknown_instruction_set_is_an_error_that_names_the_choices():
    run = python("sse9", "-c", "import clearhead; clearhead.isa()")
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert "sse9" in last
    assert all(isa in last for isa in ch.available_isas())
