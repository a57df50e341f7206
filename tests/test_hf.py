"""Recording Hugging Face models: what is kept is what eager attention says, and nothing changes."""

import html
import threading

import numpy as np
import pytest
import torch
import transformers

from clearhead import hf
from small_models import (
    CAUSAL,
    MODELS,
    NO_SDPA,
    TWO_SIDED,
    assert_same_weights,
    build,
    eager,
    ids_of,
    inputs_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, how) for name in MODELS for how in ("eager", "sdpa") if (name, how) not in NO_SDPA],
)
def test_every_layer_is_what_eager_attention_says_and_outputs_do_not_change(name, implementation):
    model = build(name)
    model.set_attn_implementation(implementation)
    inputs = inputs_of(name)
    with torch.no_grad():
        before = model(**inputs)[0]
        with hf.record(model) as recording:
            during = model(**inputs)[0]
    assert torch.equal(before, during)
    expected = eager(model, **inputs)
    assert set(recording.names) == set(expected)
    for part, run in zip(recording.names, recording, strict=True):
        assert run.num_layers == len(expected[part])
        for layer in range(run.num_layers):
            assert_same_weights(run, layer, expected[part][layer][0])
        assert run.certificate().holds, str(run.certificate())
        assert {proof.backend for proof in run.certificate()} == {implementation}


@pytest.mark.parametrize("name", [*CAUSAL, "BERT", "RoBERTa", "DistilBERT"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_blank_and_the_rest_is_the_text_alone(name, side):
    model = build(name)
    if name in ("Gemma2", "GPT-OSS"):
        model.set_attn_implementation("eager")
    ids, shown = ids_of(2, 13), torch.ones(2, 13, dtype=torch.long)
    hidden, text = (slice(0, 4), slice(4, 13)) if side == "left" else (slice(9, 13), slice(0, 9))
    shown[1, hidden] = 0
    ids[1, hidden] = 1
    with torch.no_grad(), hf.record(model) as recording:
        model(input_ids=ids, attention_mask=shown)
    run = recording["text 1"]
    assert [token.special for token in run.tokens] == [not one for one in shown[1].tolist()]
    expected = eager(model, input_ids=ids, attention_mask=shown)["self"]
    for layer in range(run.num_layers):
        amap = run.map(layer)[...]
        assert not amap[:, hidden].any()
        assert not amap[:, :, hidden].any()
        assert_same_weights(run, layer, expected[layer][1], text)
    assert run.certificate().holds
    if name not in ("GPT-2", "BERT", "RoBERTa", "DistilBERT") or side == "right":
        alone = eager(model, input_ids=ids[1:, text])["self"]  # relative positions, or the same
        for layer in range(run.num_layers):
            amap = run.map(layer)
            np.testing.assert_allclose(amap[:, text, text], alone[layer][0], atol=2e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_prompt_and_generated_tokens_are_one_map(name):
    model = build(name)
    if name in ("Gemma2", "GPT-OSS"):
        model.set_attn_implementation("eager")
    prompt = ids_of(1, 11)
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
    with hf.record(model) as run:
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    assert [token.id for token in run.tokens] == out[0, :-1].tolist()
    expected = eager(model, input_ids=out[:, :-1])["self"]
    for layer in range(run.num_layers):
        assert run.map(layer).shape == (4, 17, 17)
        amap = run.map(layer)[...]
        np.testing.assert_allclose(amap, expected[layer][0], atol=5e-5)
        assert not np.triu(amap, 1).any()
    assert run.certificate().holds, str(run.certificate())


def test_a_generated_sequence_in_a_padded_batch_is_stitched_too():
    model, ids, shown = build("Llama"), ids_of(2, 11), torch.ones(2, 11, dtype=torch.long)
    shown[1, :4] = 0
    with hf.record(model) as recording:
        out = model.generate(
            ids, attention_mask=shown, max_new_tokens=5, min_new_tokens=5, pad_token_id=0
        )
    whole = torch.cat([shown, torch.ones(2, 4, dtype=torch.long)], 1)
    expected = eager(model, input_ids=out[:, :-1], attention_mask=whole)["self"]
    for text, first in ((0, 0), (1, 4)):
        run = recording[f"text {text}"]
        for layer in range(2):
            amap = run.map(layer)[...]
            assert not amap[:, :first].any()
            np.testing.assert_allclose(amap[:, first:], expected[layer][text][:, first:], atol=5e-5)


@pytest.mark.parametrize("name", TWO_SIDED)
def test_sequence_to_sequence_generation_has_three_maps(name):
    model, prompt = build(name), ids_of(1, 11)
    with hf.record(model) as recording:
        out = model.generate(
            prompt, max_new_tokens=6, min_new_tokens=6, num_beams=1, do_sample=False, pad_token_id=0
        )
    read = out[:, :-1]
    expected = eager(model, input_ids=prompt, decoder_input_ids=read)
    assert recording.names == ["encoder", "decoder", "cross"]
    for part in recording.names:
        run = recording[part]
        for layer in range(run.num_layers):
            np.testing.assert_allclose(run.map(layer)[...], expected[part][layer][0], atol=5e-5)
        assert run.certificate().holds
    cross = recording["cross"]
    assert [token.id for token in cross.tokens] == read[0].tolist()
    assert [token.id for token in cross.keys.tokens] == prompt[0].tolist()


def test_beam_search_is_refused_because_its_cache_is_reordered():
    model = build("Llama")
    with pytest.raises(ValueError, match="num_beams=1"), hf.record(model):
        model.generate(ids_of(1, 5), num_beams=3, max_new_tokens=9, pad_token_id=0)


def test_a_recording_that_begins_within_a_generation_is_rectangular():
    model, ids = build("Llama"), ids_of(1, 13)
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True).past_key_values
        with hf.record(model) as run:
            model(ids[:, 8:], past_key_values=cache)
    expected = eager(model, input_ids=ids)["self"]
    assert run.map(0).shape == (4, 5, 13)
    for layer in range(2):
        np.testing.assert_allclose(run.map(layer)[...], expected[layer][0][:, 8:], atol=2e-5)


def test_several_calls_are_several_runs():
    model = build("BERT")
    with torch.no_grad(), hf.record(model) as recording:
        for T in (5, 7, 11):
            model(ids_of(1, T))
    assert recording.names == ["call 0", "call 1", "call 2"]
    assert [run.map(0).shape for run in recording] == [(4, 5, 5), (4, 7, 7), (4, 11, 11)]
    with pytest.raises(ValueError, match="holds 3 runs"):
        recording.map(0)


def test_layers_and_heads_that_there_are_not_are_refused():
    model = build("Llama")
    with pytest.raises(ValueError, match=r"layers: 2 is not one, the model has 0 to 1"):
        hf.record(model, layers=[2]).__enter__()
    with (
        pytest.raises(ValueError, match=r"heads: 4 is not one, the model has 4: 0 to 3"),
        torch.no_grad(),
        hf.record(model, heads=[4]),
    ):
        model(ids_of(1, 5))


def test_the_model_is_as_it_was_whatever_happens():
    model = build("Llama")
    asked = transformers.modeling_utils.AttentionInterface.get_interface
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with pytest.raises(ZeroDivisionError), torch.no_grad(), hf.record(model):
        model(ids_of(1, 5))
        raise ZeroDivisionError
    after = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert (asked, hooks) == (transformers.modeling_utils.AttentionInterface.get_interface, after)
    assert model.config._attn_implementation == "sdpa"


def test_recordings_may_be_nested_and_one_model_is_not_the_other():
    one, other = build("Llama"), build("BERT")
    with torch.no_grad(), hf.record(one) as outer:
        with hf.record(other) as inner, hf.record(one) as again:
            one(ids_of(1, 5))
            other(ids_of(1, 7))
        one(ids_of(1, 3))
    assert [run.map(0).shape[1] for run in outer] == [5, 3]
    assert [run.map(0).shape[1] for run in again] == [5]
    assert [run.map(0).shape[1] for run in inner] == [7]


def test_recordings_in_two_threads_do_not_mix():
    model, lengths = build("Llama"), {}
    together = threading.Barrier(2)

    def read(T):
        with torch.no_grad(), hf.record(model) as run:
            together.wait(10)
            for _ in range(3):
                model(ids_of(1, T))
            together.wait(10)
        lengths[T] = [one.map(0).shape[1] for one in run]

    threads = [threading.Thread(target=read, args=(T,)) for T in (5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert lengths == {5: [5] * 3, 7: [7] * 3}


def test_a_model_that_computes_attention_by_itself_is_refused_with_the_class_that_does():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.BloomForCausalLM(config)
    with pytest.raises(ValueError, match=r"BloomForCausalLM cannot be recorded: BloomAttention"):
        hf.record(model).__enter__()


def test_attention_that_was_asked_for_and_not_used_is_noticed():
    model = build("GPT-2", reorder_and_upcast_attn=True)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="GPT2Attention asked"), torch.no_grad(), hf.record(model):
        model(ids_of(1, 5))


def test_a_recording_of_nothing_says_so():
    model = build("Llama")
    with pytest.raises(ValueError, match="nothing was recorded"), hf.record(model):
        pass
    with pytest.raises(TypeError, match="model: Linear, must be"):
        hf.record(torch.nn.Linear(2, 3)).__enter__()


def test_an_open_recording_says_that_it_is_going_on():
    model = build("Llama")
    with torch.no_grad(), hf.record(model) as run:
        with pytest.raises(ValueError, match="is going on"):
            run.map(0)
        model(ids_of(1, 5))
    assert run.num_layers == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_maps_hold_to_the_rounding_of_their_dtype(dtype):
    model, ids = build("Llama").to(getattr(torch, dtype)), ids_of(1, 13)
    with torch.no_grad(), hf.record(model) as run:
        model(ids)
    assert run.layers[0].q.dtype == np.dtype(dtype if dtype == "float16" else "bfloat16")
    assert run.certificate().holds, str(run.certificate())


def test_scores_that_overflow_an_eager_path_are_right_here_and_the_difference_is_shown():
    # transformers 33615: in float16, eager scores beyond 65,504 are infinite before the softmax.
    model, ids = build("Llama"), ids_of(1, 13)
    for block in model.model.layers:
        block.self_attn.q_proj.weight.data *= 400
        block.self_attn.k_proj.weight.data *= 400
    model.half().set_attn_implementation("eager")
    with torch.no_grad(), hf.record(model, layers=[0]) as run:
        model(ids)
    amap = run.map(0)
    wide = amap.q.astype(np.float32) @ amap.k.astype(np.float32).repeat(2, 0).mT
    assert np.abs(wide).max() > 65_504
    np.testing.assert_allclose(amap[...].sum(-1), 1, atol=0.02)
    assert not run.certificate().holds
    assert "DIFFERS" in str(run.certificate())


def test_a_mask_that_follows_no_rule_is_kept_as_booleans_and_its_cost_stated():
    model, ids = build("BERT"), ids_of(1, 13)
    seen = torch.rand(1, 1, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.5
    seen |= torch.eye(13, dtype=bool)
    with torch.no_grad(), hf.record(model) as run:
        model(ids, attention_mask=seen)
    amap = run.map(0)[...]
    assert not amap[:, ~seen[0, 0].numpy()].any()
    np.testing.assert_allclose(amap.sum(-1), 1, atol=1e-6)
    assert "169 bytes of booleans" in run.notes[0]
    assert run.certificate().holds


def test_packed_texts_do_not_read_each_other():
    model, ids = build("Llama"), ids_of(1, 13)
    places = torch.tensor([[*range(5), *range(8)]])
    with torch.no_grad(), hf.record(model) as run:
        model(ids, position_ids=places)
    amap = run.map(0)[...]
    expected = eager(model, input_ids=ids, position_ids=places)["self"]
    np.testing.assert_allclose(amap, expected[0][0], atol=2e-5)


def test_an_implementation_that_does_not_show_its_mask_is_refused():
    model = build("Llama")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=r"'flex_attention' does not show the mask.*\"sdpa\""):
        hf.record(model).__enter__()


def test_an_encoder_alone_can_be_called_while_its_model_is_recorded():
    model, ids = build("BART"), ids_of(1, 11)
    with torch.no_grad(), hf.record(model) as run:
        model.get_encoder()(ids)
    assert [token.id for token in run.tokens] == ids[0].tolist()
    assert run.map(0).shape == (4, 11, 11)


def test_what_is_not_a_key_of_the_cache_any_more_is_said():
    model, ids = build("Mistral"), ids_of(1, 13)
    with torch.no_grad():
        cache = model(ids[:, :12], use_cache=True).past_key_values
        with pytest.raises(ValueError, match="gone from a sliding cache"), hf.record(model):
            model(ids[:, 12:], past_key_values=cache)


def test_a_cache_that_was_cut_back_is_refused():
    model, ids = build("Llama"), ids_of(1, 13)
    with torch.no_grad(), pytest.raises(ValueError, match="cache that was cut"):
        with hf.record(model):
            cache = model(ids, use_cache=True).past_key_values
            cache.crop(-4)
            model(ids[:, 9:], past_key_values=cache)


def test_the_page_and_the_pictures_of_a_recording_show_its_certificate(tmp_path):
    model = build("GPT-2")
    with torch.no_grad(), hf.record(model) as run:
        model(**inputs_of("GPT-2"))
    line = run.certificate().line
    assert line.startswith("certificate: holds: sdpa")
    run.to_html(tmp_path / "run.html")
    page = html.unescape((tmp_path / "run.html").read_text(encoding="utf-8"))
    assert line.removeprefix("c") in page
    assert line in run.plot(layer=0, head=1).get_title()
