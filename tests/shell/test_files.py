"""JSON, CSV, NPZ, and files that are written whole or not at all."""

import csv
import io
import json
import os
import stat

import numpy as np
import pytest

from clearhead._writing import replacing
from clearhead.viewer import data, ranking
from clearhead.viewer.outputs import check_output


def links(run, *, special=False, include_self=False, top=10_000):
    units = ranking.words(run, special=special)
    heads = ranking.all_heads(run)
    return data.links(run, units, heads, include_self=include_self, top=top)


def test_json_has_the_shape_that_is_written_down(animal):
    out = io.StringIO()
    data.write_json(animal, links(animal), out, between_tokens=False)
    page = json.loads(out.getvalue())
    assert list(page) == ["model", "text", "tokens", "words", "layers", "heads", "between", "links"]
    assert (page["layers"], page["heads"], page["between"]) == (2, 3, "words")
    assert len(page["tokens"]) == 13 and len(page["words"]) == 12 and len(page["links"]) == 540
    for token in page["tokens"]:
        assert list(token) == ["text", "start", "end", "word", "special"]
        if not token["special"]:
            assert page["text"][token["start"] : token["end"]] == token["text"]
    ends = [word["text"] for word in page["words"]].index
    (link,) = (
        one
        for one in page["links"]
        if (one["layer"], one["head"], one["from"], one["to"]) == (1, 2, ends("it"), ends("animal"))
    )
    assert np.float32(link["weight"]) == animal.weights()[1, 2, 7, 2]


def test_links_are_all_of_all_heads_strongest_first(animal):
    found = links(animal)
    assert len(found) == 6 * 10 * 9
    assert [link.weight for link in found] == sorted((x.weight for x in found), reverse=True)
    assert links(animal, top=7) == found[:7]
    assert len(links(animal, special=True, include_self=True)) == 6 * 12 * 12


def test_csv_has_a_row_a_link_with_both_texts(animal):
    out = io.StringIO()
    found = links(animal, top=5)
    data.write_csv(ranking.words(animal, special=False), found, out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert len(rows) == 5
    assert rows[0]["from_text"] == animal.words[found[0].source].text
    assert float(rows[0]["weight"]) == found[0].weight


def test_npz_holds_every_weight(animal):
    out = io.BytesIO()
    data.write_npz(animal, out)
    out.seek(0)
    with np.load(out, allow_pickle=False) as file:
        assert file["weights"].shape == (2, 3, 13, 13) and file["weights"].dtype == np.float32
        np.testing.assert_array_equal(file["weights"], animal.weights())
        assert file["tokens"].tolist()[9:11] == ["tir", "ed"]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "map.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as out:
        out.write("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["map.json"]


def test_a_new_file_has_the_rights_of_any_new_file_and_an_old_one_keeps_its_own(tmp_path):
    plain, new, old = tmp_path / "plain", tmp_path / "new", tmp_path / "old"
    plain.touch()
    old.touch()
    old.chmod(0o640)
    for path in (new, old):
        with replacing(path) as out:
            out.write("x")
    assert new.stat().st_mode == plain.stat().st_mode
    assert stat.S_IMODE(old.stat().st_mode) == 0o640


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with replacing(tmp_path / "link") as out:
        out.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_full_disk_is_an_error_that_names_the_file():
    with pytest.raises(OSError, match="'/dev/full'"), replacing("/dev/full") as out:
        out.write("x" * 100_000)


@pytest.mark.parametrize(
    ("path", "why"),
    [("", "is empty"), (".", "'.' is a folder"), ("no/x", "'no/x' .* does not exist")],
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^html: {why}"):
        check_output("html", path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="may not be written"):
        check_output("html", str(tmp_path / "map.html"))
