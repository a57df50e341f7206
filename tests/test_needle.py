"""examples/needle.py finds its needle, and says what a window would keep."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "needle.py"


def test_the_needle_is_found() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--length", "4096"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "query 2,048 reads key 1,365: 1.000\nquery 4,091 reads key 1,365: 1.000" in run.stdout
    assert "a window of    64 keys keeps" in run.stdout
