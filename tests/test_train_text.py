"""examples/train_text.py: both kernels learn the same, on a text small enough to wait for."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

PATH = Path(__file__).resolve().parents[1] / "examples" / "train_text.py"
SMALL = ["--batch", "3", "--context", "17", "--layers", "2", "--heads", "2", "--channels", "22"]


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("train_text", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_text"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_text"]


def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("a duck, a pond; a duck ducks. " * 20, encoding="utf-8")
    return path


def test_it_learns_and_both_kernels_learn_the_same(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main([str(text(tmp_path)), "--steps", "25", "--rate", "2e-2", "--sample", "7", *SMALL])
    out = capsys.readouterr().out
    rows = dict(
        (m[1], (float(m[2]), float(m[3])))
        for m in re.finditer(r"^(clearhead|PyTorch) +([\d.]+) +([\d.]+) +[\d,]+$", out, re.M)
    )
    assert rows["clearhead"][1] < 0.7 * rows["clearhead"][0]
    assert rows["clearhead"][0] == pytest.approx(rows["PyTorch"][0], abs=1e-4)
    assert rows["clearhead"][1] == pytest.approx(rows["PyTorch"][1], rel=0.05)
    assert len(out.splitlines()[-1]) == 8


def test_ctrl_c_prints_what_there_is(
    example: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, taken = example.Learner.step, []

    def interrupted(self: object, x: object, y: object) -> None:
        taken.append(self)
        if len(taken) == 5:
            raise KeyboardInterrupt
        step(self, x, y)

    monkeypatch.setattr(example.Learner, "step", interrupted)
    example.main([str(text(tmp_path)), "--sample", "1", *SMALL])
    captured = capsys.readouterr()
    assert "stopped after 2 of 200 steps" in captured.err
    assert "tokens/s" in captured.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heads", "3"], "channels, heads: 22, 3, must divide"),
        (["--steps", "0"], "steps: 0, must be at least 1"),
        (["--context", "10000"], "file: 600 characters, must be more than context + 1 = 10001"),
    ],
)
def test_bad_input_is_one_sentence(
    example: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit, match="2"):
        example.main([str(text(tmp_path)), *SMALL, *options])
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_text_is_named(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(SystemExit, match="2"):
        example.main([str(path), *SMALL])
    assert "must be a UTF-8 text" in capsys.readouterr().err
