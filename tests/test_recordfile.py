"""Version 2 of the run file: what contradicts itself is refused with one sentence."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import clearhead as ch
from clearhead.models.run import AttentionRun, LayerState, Reading
from clearhead.models.spelling import numbered
from clearhead.models.weights import Tensors

T, S = 5, 7


def recorded():
    """A rectangular run with every kind of rule and a sink."""
    rng = np.random.default_rng(0)
    layers = []
    whole = ch.causal() & (ch.window(left=3) | ch.first_keys(1))
    padded = ~ch.documents(np.ones(T, np.int64), np.r_[1, np.zeros(S - 1, np.int64)])
    for mask, bias in (
        (whole, ch.relative_bias(rng.normal(size=(4, 9)), -2)),
        (padded, ch.alibi([0.1, 0.2, 0.3, 0.4])),
        (
            ch.allowed(np.arange(T * S).reshape(T, S) % 3 > 0),
            rng.normal(size=(4, T, S)).astype("f"),
        ),
    ):
        q = rng.normal(size=(4, T, 3)).astype("f")
        k = rng.normal(size=(2, S, 3)).astype("f")
        sink = rng.normal(size=4).astype("f")
        options = {"mask": mask, "bias": bias, "scale": 0.5, "softcap": 9.0}
        _, lse = ch.attention_with_lse(q, k, k, sink=sink, **options)
        layers.append(LayerState(q, k, lse, mask, bias, 0.5, 9.0, sink))
    names = [f"token{i}" for i in range(S)]
    mine = numbered(names[:T], [False] * T, list(range(T)))
    keys = Reading(*numbered(names, [False] * S, list(range(S))))
    return AttentionRun("model", *mine, layers, keys=keys, layer_numbers=[1, 4, 9])


@pytest.fixture
def saved(tmp_path):
    recorded().save(tmp_path / "run.safetensors")
    return tmp_path / "run.safetensors"


def test_every_kind_of_rule_comes_back(saved):
    run, again = recorded(), ch.load(saved)
    for layer in range(3):
        np.testing.assert_array_equal(again.map(layer)[...], run.map(layer)[...])
        assert again.layers[layer].mask == run.layers[layer].mask
        assert not again.layers[layer].q.flags.owndata
    assert (again.keys, again.layer_numbers) == (run.keys, (1, 4, 9))


def test_the_same_run_gives_the_same_bytes(saved, tmp_path):
    ch.load(saved).save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


def test_the_file_is_one_that_safetensors_opens(saved):
    from safetensors.numpy import load_file

    assert set(load_file(saved)) == set(Tensors(saved))


def deep(depth):
    return ["~", deep(depth - 1)] if depth else ["causal", None]


TAMPERED = {
    "no record": (lambda r, h, a: h.pop("record"), "record: must be an object"),
    "numbers": (lambda r, h, a: r.update(layer_numbers=[1]), "layer_numbers: must be 3"),
    "a number": (lambda r, h, a: r.update(head_numbers=[0, 1, 2, -3]), "head_numbers: must be 4"),
    "proofs": (lambda r, h, a: r.update(proofs=[[]]), "proofs: must be one for each layer"),
    "a proof": (lambda r, h, a: r.update(proofs=[[1]] * 3), "proofs: must be .backend"),
    "keys": (lambda r, h, a: r.update(keys=[]), "keys: must be an object or null"),
    "fewer keys": (lambda r, h, a: r.update(keys=None), r"layers\.0: q float32"),
    "layers": (lambda r, h, a: r["layers"].pop(), "lacks 2"),
    "a scale": (lambda r, h, a: r["layers"][0].update(scale="1"), r"layers\[0\]\.scale: is '1'"),
    "a softcap": (lambda r, h, a: r["layers"][0].update(softcap=-1.0), r"layers\[0\]: softcap"),
    "a mask beyond": (lambda r, h, a: r["layers"][0].update(mask=9), "mask: 9 is none of masks"),
    "a mask true": (lambda r, h, a: r["layers"][0].update(mask=True), "mask: True is none"),
    "no mask": (lambda r, h, a: r["masks"].__setitem__(0, ["x"]), "is no mask"),
    "a window": (lambda r, h, a: r["masks"].__setitem__(0, ["window", -1, 0]), "masks: left"),
    "too deep": (lambda r, h, a: r["masks"].__setitem__(0, deep(50)), "is no mask"),
    "no tensor": (lambda r, h, a: r["masks"].__setitem__(0, ["allowed", "x"]), "is no tensor"),
    "another kind": (lambda r, h, a: r["masks"].__setitem__(0, ["allowed", "biases.0"]), "kind"),
    "a bias": (
        lambda r, h, a: r["biases"].__setitem__(0, ["distance", "biases.0", 0.5]),
        "no bias",
    ),
    "a shape": (lambda r, h, a: a.update({"biases.2": np.zeros((4, 3, S), "f")}), r"layers\[2\]"),
    "a tensor more": (lambda r, h, a: a.update(x=np.zeros(1, "f")), "its tensors must be those"),
    "a sink": (lambda r, h, a: a.update({"layers.1.sink": np.zeros(3, "f")}), r"layers\.1\.sink"),
    "no lse": (lambda r, h, a: a.pop("layers.2.lse"), "must have q, k and lse"),
    "groups": (
        lambda r, h, a: a.update({"layers.0.k": np.zeros((3, S, 3), "f")}),
        r"layers\[0\]: .*multiple",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_recording_that_contradicts_itself_is_refused(case, saved):
    change, says = TAMPERED[case]
    file = Tensors(saved)
    arrays = {name: array.copy() for name, array in file.items()}
    header = json.loads(file.metadata["clearhead.run"])
    change(header["record"], header, arrays)
    save_file(arrays, saved, {"clearhead.run": json.dumps(header)})
    with pytest.raises(ch.CheckpointError, match=says) as refused:
        ch.load(saved)
    assert str(refused.value).startswith(str(saved))
    assert "\n" not in str(refused.value)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_recording_is_read_or_refused_but_nothing_else(saved, data):
    recorded().save(saved)
    damaged = bytearray(saved.read_bytes())
    length = int.from_bytes(damaged[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, length + 8))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    saved.write_bytes(damaged)
    try:
        run = ch.load(saved)
    except ch.CheckpointError as error:
        assert "\n" not in str(error)
    else:
        with np.errstate(all="ignore"):
            assert run.map(0)[...].shape == run.map(0).shape
