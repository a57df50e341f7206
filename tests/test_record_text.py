"""The tokens of a recording are what the model saw, and spell the text that they stand for."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import clearhead as ch
from clearhead import hf
from clearhead.cli import main
from clearhead.models.spelling import spell
from small_models import GROUPED, build, ids_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TEXT = "It doesn't rain in 東京 today 🙂, it pours.\n\nReally: naïve café!"


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level tokenizer of 300 pieces: most characters above ASCII are several tokens."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(["it rains in the city today and it pours in the night"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", pad_token="<pad>")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(GROUPED | {"vocab_size": 300}))).eval()


def test_tokens_spell_the_text_and_each_knows_its_span(model, tokenizer):
    ids = torch.tensor([[0, *tokenizer(TEXT, add_special_tokens=False).input_ids]])
    with torch.no_grad(), hf.record(model, tokenizer) as run:
        model(ids)
    assert run.text == TEXT
    assert [token.id for token in run.tokens] == ids[0].tolist()
    assert [token.special for token in run.tokens] == [True] + [False] * (ids.shape[1] - 1)
    words = [word.text for word in run.words]
    for word in ("doesn't", "東京", "today", "🙂", "naïve", "café"):
        assert word in words
    np.testing.assert_allclose(run.word_weights(0).sum(-1), 1, atol=1e-5)
    read = [link for link in run.links("café", special=True, include_self=True) if link.layer == 0]
    assert sum(link.weight for link in read if link.head == 0) == pytest.approx(1, abs=1e-5)


def test_a_special_token_added_twice_is_there_twice(model, tokenizer):
    # TransformerLens 369, 1418: a tokenizer and its caller may each put a <s> before the text.
    ids = torch.tensor([[0, 0, *tokenizer("it rains", add_special_tokens=False).input_ids]])
    with torch.no_grad(), hf.record(model, tokenizer) as run:
        model(ids)
    assert [token.raw for token in run.tokens[:3]] == ["<s>", "<s>", "it"]
    assert [word.special for word in run.words[:3]] == [True, True, False]


def test_padding_is_shown_as_the_token_that_it_is(model, tokenizer):
    ids = tokenizer(["it rains in the city", "it"], add_special_tokens=False).input_ids
    short = [1] * (len(ids[0]) - len(ids[1])) + ids[1]
    shown = torch.tensor([[1] * len(ids[0]), [int(i != 1) for i in short]])
    with torch.no_grad(), hf.record(model, tokenizer) as recording:
        model(torch.tensor([ids[0], short]), attention_mask=shown)
    run = recording["text 1"]
    assert [token.raw for token in run.tokens if token.special] == ["<pad>"] * (len(short) - 1)
    assert run.text == "it"
    assert run.heads().columns["first"][0, 0] == pytest.approx(1)  # the first that is text


def test_generated_text_can_be_asked_what_it_read_of_the_prompt(model, tokenizer):
    ids = tokenizer("it rains in the city", add_special_tokens=False, return_tensors="pt").input_ids
    with hf.record(model, tokenizer) as run:
        model.generate(ids, max_new_tokens=9, min_new_tokens=9, do_sample=False, pad_token_id=1)
    prompt = len("it rains in the city")
    assert run.text.startswith("it rains in the city")
    segments = {"prompt": (0, prompt), "answer": (prompt, len(run.text))}
    overall = run.group_by(segments).overall()
    np.testing.assert_allclose(overall[:2].sum(-1), 1, atol=1e-5)
    assert overall[0, 1] < 1e-6  # no token reads what comes later, but for one that spans the cut


def test_a_recording_saved_and_loaded_is_the_same(model, tokenizer, tmp_path):
    ids = torch.tensor([[0, *tokenizer(TEXT, add_special_tokens=False).input_ids]])
    with torch.no_grad(), hf.record(model, tokenizer) as run:
        model(ids)
    run.save(tmp_path / "run.safetensors")
    again = ch.load(tmp_path / "run.safetensors")
    assert (again.text, again.tokens, again.words) == (run.text, run.tokens, run.words)
    assert again.links("today", top=9) == run.links("today", top=9)
    assert again.certificate().rows() == run.certificate().rows()
    np.testing.assert_array_equal(again.rollout_to("today"), run.rollout_to("today"))


@pytest.mark.parametrize("name", ["Gemma2", "GPT-OSS", "T5", "Mistral", "BERT"])
def test_every_rule_survives_the_file(name, tmp_path):
    recorded = build(name)
    recorded.set_attn_implementation("eager")
    ids, shown = ids_of(2, 13), torch.ones(2, 13, dtype=torch.long)
    shown[1, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": shown}
    inputs |= {"decoder_input_ids": ids_of(2, 7)} if name == "T5" else {}
    with torch.no_grad(), hf.record(recorded, folder=tmp_path) as on_disk:
        recorded(**inputs)
    with torch.no_grad(), hf.record(recorded) as in_memory:
        recorded(**inputs)
    assert on_disk.names == in_memory.names
    for one, other in zip(on_disk, in_memory, strict=True):
        for layer in range(one.num_layers):
            np.testing.assert_array_equal(one.map(layer)[...], other.map(layer)[...])
        assert [p.holds for p in one.certificate()] == [True] * one.num_layers
        assert one.certificate().rows() == other.certificate().rows()


def test_a_model_that_lost_its_mask_shows_it_in_the_certificate():
    # transformers PR 30652: a fallback path dropped the causal mask, and nobody could see it.
    recorded = build("Llama")
    for block in recorded.model.layers:
        block.self_attn.is_causal = False
    with torch.no_grad(), hf.record(recorded) as run:
        recorded(ids_of(1, 13))
    assert {proof.applied for proof in run.certificate()} == {"every key"}
    assert np.triu(run.map(0)[...], 1).any()
    assert "every key" in str(run.certificate())


def test_the_command_says_which_computation_a_recording_is_of(tmp_path, capsys):
    recorded = build("Mistral")
    with torch.no_grad(), hf.record(recorded) as run:
        recorded(ids_of(1, 13))
    run.save(tmp_path / "run.safetensors")
    assert main(["heads", str(tmp_path / "run.safetensors"), "--top", "1"]) == 0
    said = capsys.readouterr()
    assert "certificate: holds: sdpa: causal() & window(left=4, right=None)" in said.err
    assert main(["map", str(tmp_path / "run.safetensors"), "--top", "1"]) == 0
    assert "certificate: holds" in capsys.readouterr().err


def test_nan_in_queries_is_reported_with_layer_head_and_rows():
    recorded = build("Llama")
    recorded.model.layers[1].self_attn.q_proj.weight.data[8:16] = float("nan")  # head 1
    with torch.no_grad(), hf.record(recorded) as run:
        recorded(ids_of(1, 5))
    certificate = run.certificate()
    assert "layer 1, head 1: NaN in 5 rows: 0, 1, 2, 3, 4" in certificate.notes
    assert [proof.holds for proof in certificate] == [True, False]


def test_half_a_character_at_the_end_and_between_specials_is_kept():
    pieces = {1: b"a", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b" b", 0: b""}

    def decode(ids):
        return b"".join(pieces[i] for i in ids).decode(errors="replace")

    ids = [0, 1, 2, 3, 4, 2, 0, 1]
    text, tokens, _ = spell(ids, [str(i) for i in ids], [i == 0 for i in ids], decode)
    assert text == "aé b\ufffd\na"
    assert [text[t.start : t.end] for t in tokens[1:4]] == ["a", "é", "é"]
    assert len(tokens) == len(ids)
