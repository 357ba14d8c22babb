"""Small random models for the tests of loading, and a writer of GGUF files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np

from ragen_jax.models import Llama3Rope, ModelConfig, init_params, weight_specs
from ragen_jax.models.weights import named_tensors

LLAMA = ModelConfig(
    vocab_size=293, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=96, rope_theta=5e5, tie_word_embeddings=False, max_position_embeddings=512,
    rope_scaling=Llama3Rope(8.0, 1.0, 4.0, 16),
)  # fmt: skip
QWEN2 = dataclasses.replace(
    LLAMA, rope_scaling=None, tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-6, rope_theta=1e6
)
PLAIN = dataclasses.replace(LLAMA, rope_scaling=None)


def random_params(cfg: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Every leaf random, norms and biases too, so that nothing can be swapped unnoticed."""
    leaves, tree = jax.tree.flatten(init_params(cfg, jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    return tree.unflatten([w + 0.1 * rng.standard_normal(w.shape, np.float32) for w in leaves])


def assert_equal_trees(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def write_gguf(
    path: Path,
    cfg: ModelConfig,
    params: dict[str, Any],
    kind: Any = None,
    arch: str | None = None,
    **fields: Any,
) -> Path:
    """A GGUF file with llama.cpp's reordering of q and k (its own formula, for the llama architecture)."""
    arch = arch or ("qwen2" if cfg.attention_bias else "llama")
    writer = gguf.GGUFWriter(path, arch)
    values = {
        "block_count": cfg.num_hidden_layers,
        "context_length": cfg.max_position_embeddings,
        "embedding_length": cfg.hidden_size,
        "feed_forward_length": cfg.intermediate_size,
        "attention.head_count": cfg.num_attention_heads,
        "attention.head_count_kv": cfg.num_key_value_heads,
        "rope.freq_base": cfg.rope_theta,
        "attention.layer_norm_rms_epsilon": cfg.rms_norm_eps,
    } | fields
    for name, value in values.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{arch}.{name}", value)
    back = {
        spec.hf_name.format(layer=i): spec.gguf_name.format(layer=i)
        for spec in weight_specs(cfg).values()
        for i in range(cfg.num_hidden_layers)
    }
    for hf_name, value in named_tensors(params, cfg):
        name = back[hf_name]
        if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
            heads = cfg.num_attention_heads if ".attn_q." in name else cfg.num_key_value_heads
            value = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
            value = np.ascontiguousarray(value.swapaxes(1, 2).reshape(-1, value.shape[-1]))
        if kind is None or value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
