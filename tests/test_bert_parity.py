"""Our encoder against transformers' eager attention: hidden states and every attention weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_bert
from clearhead.maps import AttentionMap
from clearhead.models import store
from clearhead.models.bert import Bert
from clearhead.models.tokens import encode, open_tokenizer

torch = pytest.importorskip("torch", reason="the oracle is PyTorch: pip install '.[test]'")
transformers = pytest.importorskip("transformers", reason="pip install '.[test]'")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LARGEST = 2e-5  # what the README promises, for both
TEXTS = {
    "short": "The animal crossed the road because it was tired.",
    "long": "The animal didn't cross the road, because it was too tired. " * 33,
    "scripts": "東京 नमस्ते 🙂\nשלום, café! 한국어 " * 5,
}


def differences(folder: Path, ids: list[int]) -> tuple[float, float]:
    """The largest difference of hidden states and of weights, over all layers."""
    oracle = transformers.AutoModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    ).eval()
    with torch.no_grad():
        said = oracle(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            output_attentions=True,
            output_hidden_states=True,
        )
    ours = Bert(folder)
    assert len(said.attentions) == ours.num_layers > 0
    hidden = [np.abs(ours.embedded(ids) - said.hidden_states[0][0].numpy()).max()]
    weights = []
    for layer, state, attention in zip(
        ours.layers(ids), said.hidden_states[1:], said.attentions, strict=True
    ):
        hidden.append(np.abs(layer.hidden - state[0].numpy()).max())
        amap = AttentionMap(layer.q, layer.k, layer.lse)
        assert amap.shape == attention[0].shape
        weights.append(np.abs(np.asarray(amap) - attention[0].numpy()).max())
    return float(max(hidden)), float(max(weights))


def check(name: str, folder: Path, ids: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    hidden, weights = differences(folder, ids)
    with capsys.disabled():
        print(f"\n  {name}: {len(ids)} tokens, hidden {hidden:.1e}, weights {weights:.1e}", end="")
    assert hidden <= LARGEST
    assert weights <= LARGEST


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_small_random_model_of_each_family_and_dtype_agrees(
    family: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_bert.write(tmp_path, family, dtype=dtype)
    ids = np.random.default_rng(5).integers(4, len(tiny_bert.VOCAB), 53).tolist()
    check(f"{family} {dtype}", folder, ids, capsys)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_each_activation_agrees(
    activation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_bert.write(tmp_path, hidden_act=activation)
    check(activation, folder, list(range(4, 47)), capsys)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_checkpoint_with_its_family_before_the_names_agrees(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_bert.write(tmp_path, family, prefix=f"{family}.")
    check(f"{family}.*", folder, [5, 7, 11], capsys)


@pytest.mark.parametrize("name", TEXTS)
def test_the_default_model_agrees(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        folder = store.resolve()
    except OSError as error:
        pytest.skip(f"needs the default model once: {error}")
    ids = encode(open_tokenizer(folder), TEXTS[name]).ids[:512]
    check(f"all-MiniLM-L6-v2, {name}", folder, ids, capsys)
