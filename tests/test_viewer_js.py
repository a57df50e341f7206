"""The browser app's own unit tests, and its types."""

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STRICT = (
    "--noEmit --allowJs --checkJs --strict --noUnusedLocals --target es2022 --module es2022 "
    "--moduleResolution bundler --lib es2023,dom,dom.iterable"
).split()


def ran(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_tests_of_the_app_pass_in_node() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the app's unit tests run in it")
    tests = sorted(map(str, (HERE / "js").glob("*.test.js")))
    assert tests
    ran([node, "--test", *tests])


def test_the_types_of_the_app_hold() -> None:
    tsc = shutil.which("tsc")
    if tsc is None:
        pytest.skip("tsc is not installed: npm install -g typescript")
    folder = Path(str(files("clearhead.viewer").joinpath("static")))
    ran([tsc, *STRICT, *sorted(map(str, folder.glob("*.js")))])
