"""Whatever writes a file writes it whole, with the user's rights, through links, and names it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

import clearhead as ch
import tiny_bert
from clearhead.worked import drawing
from clearhead.worked.trace import file as trace_file

matplotlib.use("agg")
Write = Callable[[Path], object]


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Write]:
    run = ch.read("The road.", tiny_bert.write(tmp_path_factory.mktemp("models") / "tiny"))
    made = trace_file.chosen(None, True, None, model=None, layer=0, head=0, digits=2)
    layer = ch.MultiHeadAttention(d_model=6, num_heads=2)
    return {
        "run.save": run.save,
        "run.to_html": run.to_html,
        "layer.save": layer.save,
        "trace": lambda path: trace_file.write(made, path, None, None),
        "figure": lambda path: drawing.save(Figure(), path),
    }


WRITERS = ["run.save", "run.to_html", "layer.save", "trace", "figure"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_new_file_has_the_rights_of_any_new_file(
    writers: dict[str, Write], name: str, tmp_path: Path
) -> None:
    before = os.umask(0o027)
    try:
        writers[name](tmp_path / "new.png")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.png").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["new.png"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_is_written_through_and_an_old_file_keeps_its_rights(
    writers: dict[str, Write], name: str, tmp_path: Path
) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o604)
    (tmp_path / "link.png").symlink_to("real")
    writers[name](tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "real").read_bytes() != b"old"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o604
    assert sorted(os.listdir(tmp_path)) == ["link.png", "real"]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("given", ["missing/map.png", "folder.png"])
def test_an_error_names_the_path_that_was_given_and_leaves_nothing(
    writers: dict[str, Write], name: str, given: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(OSError) as refused:
        writers[name](tmp_path / given)
    assert refused.value.filename == str(tmp_path / given)
    assert os.listdir(tmp_path) == ["folder.png"]
