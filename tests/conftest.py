"""Modules that tests import, by `pythonpath` in pyproject.toml: their asserts are explained too."""

import signal

import numpy as np
import pytest

import clearhead as ch
from clearhead import _native

pytest.register_assert_rewrite(
    "chromium",
    "conformance",
    "gradient_conformance",
    "naive",
    "small_models",
    "subject",
    "tiles",
    "tiny_bert",
)

# A shell lets what it starts in the background ignore Ctrl-C, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(20251130)


@pytest.fixture
def as_before():
    """The instruction set and the number of threads, whatever a test makes of them."""
    before = ch.isa(), ch.num_threads()
    yield
    _native.choose_isa(before[0])
    ch.set_num_threads(before[1])


@pytest.fixture(params=ch.available_isas())
def isa(request, as_before):
    _native.choose_isa(request.param)
    return request.param


@pytest.fixture
def on_tiles(as_before):
    _native.choose_isa("amx")
