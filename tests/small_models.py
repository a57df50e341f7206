"""Small Hugging Face models, built from their configurations, and what eager attention says."""

import numpy as np
import torch
import transformers

from clearhead.models.certificate import spread

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
BART = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 40,
}
T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
VIT = {
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES | {"num_key_value_heads": 2}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "Mistral": ("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 5}),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GROUPED | {"sliding_window": 5}),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    ),
    "GPT-OSS": (
        "GptOssForCausalLM",
        "GptOssConfig",
        GROUPED | {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "BERT": ("BertModel", "BertConfig", SIZES),
    "RoBERTa": ("RobertaModel", "RobertaConfig", SIZES),
    "DistilBERT": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 97, "dim": 32, "hidden_dim": 37, "n_layers": 2, "n_heads": 4},
    ),
    "ALBERT": ("AlbertModel", "AlbertConfig", SIZES | {"embedding_size": 16}),
    "T5": ("T5ForConditionalGeneration", "T5Config", T5),
    "BART": ("BartForConditionalGeneration", "BartConfig", BART),
    "ViT": ("ViTModel", "ViTConfig", VIT),
}
NO_SDPA = (("Gemma2", "sdpa"), ("GPT-OSS", "sdpa"))  # transformers has none with caps or sinks
CAUSAL = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "GPT-2", "GPT-OSS")
TWO_SIDED = ("T5", "BART")


def build(name, **changes):
    model, config, sizes = MODELS[name]
    torch.manual_seed(3)
    made = getattr(transformers, model)(getattr(transformers, config)(**(sizes | changes)))
    # Small models attend almost evenly; larger projections give maps with something to see.
    for parameter in made.parameters():
        if parameter.ndim == 2:
            parameter.data *= 3
    return made.eval()


def ids_of(B, T, seed=0):
    return torch.randint(5, 90, (B, T), generator=torch.Generator().manual_seed(seed))


def inputs_of(name, B=1, T=13):
    if name == "ViT":
        generator = torch.Generator().manual_seed(0)
        return {"pixel_values": torch.randn(B, 3, 16, 16, generator=generator)}
    inputs = {"input_ids": ids_of(B, T)}
    return inputs | ({"decoder_input_ids": ids_of(B, 7, seed=1)} if name in TWO_SIDED else {})


def eager(model, **inputs):
    """What `output_attentions` gives, by part: of each layer an array (B, H, T, S)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    names = {"self": "attentions", "encoder": "encoder_attentions"}
    names |= {"decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {
        part: [one.float().numpy() for one in out[name]]
        for part, name in names.items()
        if out.get(name)
    }


def assert_same_weights(run, layer, expected, rows=slice(None)):
    """A recorded layer (H, T, S) is what eager attention says, to float32's own rounding."""
    amap = run.map(layer)
    rounding = spread(amap.q, amap.k, amap.scale)
    assert rounding < 1e-3  # or this would prove little
    np.testing.assert_allclose(amap[:, rows], expected[:, rows], rtol=0, atol=rounding)
