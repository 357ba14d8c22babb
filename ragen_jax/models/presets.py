"""Shapes of published models by name, for compiling without their files."""

from __future__ import annotations

from ragen_jax.models.config import Llama3Rope, ModelConfig


def _qwen25(hidden: int, layers: int, heads: int, kv: int, inner: int, *, small: bool) -> ModelConfig:
    return ModelConfig(
        vocab_size=151_936 if small else 152_064, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=inner, rope_theta=1e6, rms_norm_eps=1e-6,
        tie_word_embeddings=small, attention_bias=True, max_position_embeddings=32_768, dtype="bfloat16",
        attention="pallas",
    )  # fmt: skip


def _llama3(
    hidden: int, layers: int, heads: int, inner: int, *, head_dim: int, factor: float, tied: bool
) -> ModelConfig:
    return ModelConfig(
        vocab_size=128_256, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=8, intermediate_size=inner, head_dim=head_dim, rope_theta=5e5,
        rope_scaling=Llama3Rope(factor, 1.0, 4.0, 8192), tie_word_embeddings=tied, max_position_embeddings=131_072,
        dtype="bfloat16",
        attention="pallas",
    )  # fmt: skip


def _smollm2(hidden: int, layers: int, heads: int, kv: int, inner: int, theta: float) -> ModelConfig:
    return ModelConfig(
        vocab_size=49_152, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, intermediate_size=inner, rope_theta=theta, max_position_embeddings=8192,
        dtype="bfloat16",
        attention="pallas",
    )  # fmt: skip


PRESETS = {
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864, small=True),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960, small=True),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11_008, small=True),
    "qwen2.5-7b": _qwen25(3584, 28, 28, 4, 18_944, small=False),
    "qwen2.5-14b": _qwen25(5120, 48, 40, 8, 13_824, small=False),
    "llama3.2-1b": _llama3(2048, 16, 32, 8192, head_dim=64, factor=32.0, tied=True),
    "llama3.2-3b": _llama3(3072, 28, 24, 8192, head_dim=128, factor=32.0, tied=True),
    "llama3.1-8b": _llama3(4096, 32, 32, 14_336, head_dim=128, factor=8.0, tied=False),
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, 1e5),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, 1e5),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, 1.3e5),
}
"""By the name that `ragen-jax compile --model` takes. Compute dtype and attention are those for TPUs."""
