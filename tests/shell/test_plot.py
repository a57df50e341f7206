"""Pictures: their size and colours, and labels in any script."""

import struct

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from clearhead.viewer import fonts, plot

PAPER = np.array([0xFD, 0xFC, 0xF9]) / 255
DEEPEST = np.array([0x0F, 0x22, 0x60]) / 255


def near(picture: np.ndarray, colour: np.ndarray) -> np.ndarray:
    return (np.abs(picture[..., :3] - colour) < 0.02).all(-1)


def test_a_head_is_drawn_on_the_axes_given_with_a_name_for_every_token(animal):
    axes = Figure().add_subplot()
    assert plot.heat_map(animal, 1, 2, axes) is axes
    np.testing.assert_array_equal(axes.images[0].get_array(), animal.weights()[1, 2])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [token.text for token in animal.tokens]
    assert axes.images[0].get_clim() == (0, animal.weights()[1, 2].max())


def test_without_axes_a_figure_of_its_own_is_made(animal):
    from matplotlib import pyplot

    axes = plot.heat_map(animal, 0, 0, raw=True)
    assert axes.get_xticklabels()[10].get_text() == "##ed"
    assert pyplot.fignum_exists(axes.figure.number)
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("layer", "head", "name"), [(2, 0, "layer"), (0, 3, "head"), (-1, 0, "layer")]
)
def test_a_head_that_is_not_there_is_refused(animal, tmp_path, layer, head, name):
    with pytest.raises(ValueError, match=f"^{name}: -?[0-9] is not in this model; it has 0 to"):
        plot.write_png(animal, tmp_path / "x.png", layer, head)
    assert not list(tmp_path.iterdir())


def test_a_head_without_a_layer_is_refused_and_a_layer_alone_is_its_heads(animal, tmp_path):
    with pytest.raises(ValueError, match=r"^head: 1 is not enough"):
        plot.write_png(animal, tmp_path / "x.png", head=1)
    assert not list(tmp_path.iterdir())
    panels = [axes for axes in plot.all_heads(animal, 1).axes if axes.images]
    assert len(panels) == 3
    np.testing.assert_array_equal(panels[2].images[0].get_array(), animal.weights()[1, 2])


def test_the_picture_of_all_heads_has_one_panel_a_head(make_run, tmp_path):
    run = make_run(["_a", "_b", "_c"], layers=3, heads=5)
    run.weights()[:] = 0
    run.weights()[..., 0] = 1  # every head: a first column of 1
    plot.write_png(run, tmp_path / "all.png")
    picture = imread(tmp_path / "all.png")
    deep = near(picture, DEEPEST)
    row = np.diff(deep.any(0).astype(int))
    # five dark columns, one a panel, and the dark end of the colour bar
    assert np.count_nonzero(row == 1) == 6
    assert near(picture, PAPER).mean() > 0.1


def test_a_single_cell_of_a_long_text_can_still_be_seen(make_run, tmp_path):
    run = make_run([f"_w{at}" for at in range(300)], layers=1, heads=1)
    run.weights()[:] = 0
    run.weights()[0, 0, 150, 77] = 1
    plot.write_png(run, tmp_path / "all.png")
    blue = near(imread(tmp_path / "all.png"), DEEPEST)
    assert blue[:, : blue.shape[1] * 2 // 3].any()


def test_a_text_of_many_tokens_is_pooled_and_its_axes_still_count_tokens(make_run, monkeypatch):
    monkeypatch.setattr(plot, "_SQUARES", 32)
    run = make_run([f"_w{at}" for at in range(98)], layers=1, heads=1)
    axes = plot.heat_map(run, 0, 0, Figure().add_subplot())
    weights = np.pad(run.weights()[0, 0], (0, 24))  # 100 tokens, in squares of 4
    largest = weights.reshape(31, 4, 31, 4).max((1, 3))[:25, :25]
    np.testing.assert_array_equal(axes.images[0].get_array(), largest)
    assert axes.get_xlim() == (-0.5, 99.5)
    assert axes.get_title().endswith("(a square: the largest of 4 × 4 weights)")


def test_any_script_is_drawn_without_a_warning(hard, tmp_path):
    plot.write_png(hard, tmp_path / "one.png", 0, 1)
    plot.write_png(hard, tmp_path / "all.png")
    for name in ("one.png", "all.png"):
        head = (tmp_path / name).read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:])
        assert head[:4] == b"\x89PNG" and width > 200 and height > 100


def test_a_letter_that_no_font_has_is_written_as_its_number(monkeypatch):
    bundled = [("DejaVu Sans", fonts._installed()[0][1])]
    monkeypatch.setattr(fonts, "_installed", lambda: tuple(bundled))
    labels, families = fonts.drawable(["東京", "été", "[CLS]"])
    assert labels == ["U+6771U+4EAC", "été", "[CLS]"]
    assert families == ["DejaVu Sans"]
