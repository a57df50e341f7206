"""Modules that tests import, by `pythonpath` in pyproject.toml: their asserts are explained too."""

import numpy as np
import pytest

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
