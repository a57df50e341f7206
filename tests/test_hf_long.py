"""Recordings that are large: less is kept, or on disk, and memory stays flat."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import hf
from small_models import assert_same_weights, build, eager, ids_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_layers_and_heads_choose_what_is_kept():
    model, ids = build("Llama"), ids_of(1, 13)
    with torch.no_grad(), hf.record(model, layers=[-1], heads=[1, 2]) as run:
        model(ids)
    expected = eager(model, input_ids=ids)["self"]
    assert (run.layer_numbers, run.head_numbers) == ((1,), (1, 2))
    assert_same_weights(run, 0, expected[1][0][[1, 2]])


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_stats_only_says_of_heads_what_the_whole_recording_says(name):
    model, prompt = build(name), ids_of(1, 11)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with hf.record(model) as whole:
        model.generate(prompt, **options)
    with hf.record(model, stats_only=True) as stats:
        model.generate(prompt, **options)
    for column, values in whole.heads().columns.items():
        np.testing.assert_allclose(stats.heads().columns[column], values, atol=2e-5, err_msg=column)
    for layer in range(2):
        received = whole.map(layer)[...].sum(1)
        np.testing.assert_allclose(stats.received(layer), received, atol=1e-5)
    assert stats.certificate().holds


def test_a_recording_in_a_folder_is_opened_from_its_files(tmp_path):
    model, ids = build("Llama"), ids_of(2, 13)
    with torch.no_grad(), hf.record(model, folder=tmp_path) as recording:
        model(ids)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "text-0.safetensors",
        "text-1.safetensors",
    ]
    expected = eager(model, input_ids=ids)["self"]
    for text, run in enumerate(recording):
        assert not run.layers[0].q.flags.owndata
        for layer in range(2):
            assert_same_weights(run, layer, expected[layer][text])
        assert ch.load(tmp_path / f"text-{text}.safetensors").certificate().holds


def test_too_large_a_recording_is_refused_before_it_is_taken():
    model = build("Llama")
    with (
        pytest.raises(ValueError, match=r"fewer layers= or heads=, .*stats_only=True"),
        torch.no_grad(),
        hf.record(model, max_bytes=10_000),
    ):
        model(ids_of(1, 31))
    with torch.no_grad():
        model(ids_of(1, 31))  # and all is as it was


def test_fifty_texts_in_a_loop_leave_memory_flat():
    model, resident = build("BERT"), []
    for text in range(50):
        with torch.no_grad(), hf.record(model) as run:
            model(ids_of(1, 509, seed=text))
        if text % 10 == 0:
            run.heads()
        with open("/proc/self/statm") as file:
            resident.append(int(file.read().split()[1]) * 4096)
    one_run = 2 * (2 * 509 * 32 + 4 * 509) * 4  # bytes
    assert max(resident[10:]) - resident[10] < 10 * one_run


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"layers": 3}, TypeError, r"layers: is 3, must be a list of numbers, as layers=\[0, -1\]"),
        ({"layers": [1.5]}, TypeError, "layers: has 1.5, must be whole numbers"),
        ({"layers": []}, ValueError, "layers: is empty, must name one at least"),
        ({"heads": 0}, TypeError, "heads: is 0, must be a list"),
        ({"heads": [True]}, TypeError, "heads: has True, must be whole numbers"),
        ({"heads": []}, ValueError, "heads: is empty"),
        ({"folder": 5}, TypeError, "folder: is int, must be a path"),
        ({"folder": __file__}, ValueError, "is a file, must be a folder"),
        ({"max_bytes": "4"}, TypeError, "max_bytes: is '4', must be a number of bytes"),
        ({"stats_only": "x"}, TypeError, "stats_only: is 'x', must be True or False"),
        ({"tokenizer": "x"}, TypeError, "tokenizer: str, must be a transformers tokenizer"),
    ],
)
def test_a_wrong_wish_is_refused_before_the_model_runs(wrong, error, says):
    with pytest.raises(error, match=says):
        hf.record(build("Llama"), **wrong).__enter__()


def test_a_folder_that_is_not_there_is_made(tmp_path):
    model, folder = build("Llama"), tmp_path / "some" / "runs"
    with torch.no_grad(), hf.record(model, folder=folder) as run:
        model(ids_of(1, 5))
    assert run.num_layers == 2
    assert [path.name for path in folder.iterdir()] == ["self.safetensors"]


def test_what_statistics_alone_cannot_answer_says_why():
    model = build("Llama")
    with torch.no_grad(), hf.record(model, stats_only=True) as run:
        model(ids_of(1, 5))
    with pytest.raises(AttributeError, match="links: was not kept, stats_only=True keeps heads"):
        run[0].links("a")
    with pytest.raises(TypeError, match="layer: is float"):
        run.received(0.5)
