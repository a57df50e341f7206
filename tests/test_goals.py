"""benchmarks/attention.py: its list of cases, and the goals as it prints them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.bench import cases
from clearhead.bench.limits import Limits
from clearhead.bench.report import Measurement, Report

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def goals():
    spec = importlib.util.spec_from_file_location("goals", FOLDER / "goals.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["goals"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["goals"]


def attention(*arguments):
    return subprocess.run(
        [sys.executable, FOLDER / "attention.py", *arguments], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def listed():
    run = attention("--list")
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_every_listed_case_has_a_meaning_and_stands_once(listed):
    assert [cases.parse(name).name for name in listed] == listed
    assert len(set(listed)) == len(listed)


def report_of(rows):
    return Report({"cpu": "x", "versions": {}}, Limits(), [Measurement(*row) for row in rows])


def everything(listed, own_s, peer_s, of_limit, peak_bytes):
    """As if all cases had been timed: clearhead and every peer."""
    rows = []
    for name in listed:
        for n in (1, 2):
            seconds = [own_s * (1e-3 if name.startswith("window") else 1) / n]
            if name == "full/1x1x1x8/float32":
                seconds = [own_s * 1e-3]
            rows.append((name, n, "clearhead", seconds, None, of_limit, 0.1, peak_bytes))
            for peer in ("torch", "torch-rows", "ort-mha", "openvino", "jax"):
                rows.append((name, n, peer, [peer_s], peer_s / own_s, 0.1, 0.1, None))
    return report_of(rows)


def test_every_goal_can_be_measured_with_the_listed_cases(goals, listed):
    text = goals.lines(everything(listed, 0.001, 0.1, 0.99, 1))
    assert "not measured" not in text and "NOT MET" not in text
    text = goals.lines(everything(listed, 1.0, 0.1, 0.01, 1 << 30))
    assert text.count("NOT MET") > len(goals.GOALS) - 5
    assert all(len(line) <= 90 for line in text.splitlines())


def test_a_goal_is_judged_by_its_worst_case(goals):
    rows = [
        ("full/1x12x2048x64/float32", 1, "clearhead", [1.0], None, 0.95),
        ("full/1x8x8192x64/float32", 1, "clearhead", [1.0], None, 0.5),
    ]
    line = goals.lines(report_of(rows)).splitlines()[1:3]
    assert line[0].startswith("NOT MET           50%    >= 90%")
    assert line[1].strip() == "full/1x8x8192x64/float32, 1 thread"


def test_a_goal_nobody_measured_says_so(goals):
    text = goals.lines(report_of([]))
    assert text.count("not measured") == len(goals.GOALS)


def test_a_wrong_wish_is_one_sentence(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("{}")
    for arguments in (["--case", "x"], ["--show", str(other)], ["--show", "not/here.json"]):
        run = attention(*arguments)
        assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
        assert run.stderr.startswith("attention.py: ")
