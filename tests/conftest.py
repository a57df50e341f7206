"""Modules that tests import, by `pythonpath` in pyproject.toml: their asserts are explained too."""

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
    "tiny_bert",
)


@pytest.fixture
def rng():
    return np.random.default_rng(20251130)


@pytest.fixture(params=ch.available_isas())
def isa(request):
    before = ch.isa()
    _native.choose_isa(request.param)
    yield request.param
    _native.choose_isa(before)
