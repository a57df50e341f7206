"""Modules that tests import, by `pythonpath` in pyproject.toml: their asserts are explained too."""

import pytest

pytest.register_assert_rewrite("conformance", "gradient_conformance", "naive", "subject")
