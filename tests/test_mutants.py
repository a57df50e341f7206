"""The tests are tested: the conformance suite accepts a right attention and rejects wrong ones.

`python tests/test_mutants.py` runs the suite on each class of mutants.py to its first failure and
prints {class: [tests passed, what the last one raised]}.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = Path(__file__).with_name("mutants.py")
CLASSES = [
    node.name
    for node in ast.parse(MUTANTS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
]


class Verdict:
    """A pytest plugin that counts what passed and keeps the exception of what did not."""

    def __init__(self):
        self.passed, self.error = 0, None

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo is not None:
            self.error = call.excinfo.typename
        elif call.when == "call":
            self.passed += 1


def try_all():
    quiet = ["-x", "-qq", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
    verdicts = {}
    for name in CLASSES:
        verdict = Verdict()
        pytest.main([f"{MUTANTS}::{name}", *quiet], plugins=[verdict])
        verdicts[name] = [verdict.passed, verdict.error]
    return verdicts


@pytest.fixture(scope="module")
def verdicts():
    """What `try_all` finds, in a process of its own: pytest does not nest well."""
    run = subprocess.run(
        [sys.executable, __file__], cwd=MUTANTS.parents[1], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_right_attention_is_accepted(verdicts):
    passed, error = verdicts["TestCorrect"]
    assert error is None
    assert passed > 150


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "TestCorrect"])
def test_a_wrong_attention_is_rejected(verdicts, name):
    # By a comparison. Anything else would be a mutant that is broken, not wrong.
    assert verdicts[name][1] == "AssertionError"


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(try_all()) + "\n")
