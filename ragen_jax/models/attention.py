"""Causal attention of the training forward, in memory that does not grow with the square of the length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ragen_jax.models.config import ModelConfig

WHOLE = 1024
"""Up to this length all logits of a row are made at once."""
BLOCK = 512
"""Queries taken together beyond it."""


def causal_attention(
    q: Float[Array, "B L Q H"], k: Float[Array, "B L K H"], v: Float[Array, "B L K H"]
) -> Float[Array, "B L Q H"]:
    """softmax(q k / sqrt(H)) v over the keys up to each query's own slot; Q is a multiple of K. Softmax in float32.

    Beyond `WHOLE` slots queries are taken `BLOCK` at a time, each block against the keys up to its own end, and a
    block's logits are made again in the backward pass: memory grows with L x BLOCK, and the work is half of L x L.
    """
    length = q.shape[1]
    if length <= WHOLE:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def block(start: int, q: Array, k: Array, v: Array) -> Array:
        visible = start + jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
        return jax.nn.dot_product_attention(q, k, v, mask=visible[None, None])

    parts = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        attend = jax.checkpoint(block, static_argnums=(0,))
        parts.append(attend(start, q[:, start:end], k[:, :end], v[:, :end]))
    return jnp.concatenate(parts, axis=1)


def training_attention(
    q: Float[Array, "B L Q H"], k: Float[Array, "B L K H"], v: Float[Array, "B L K H"], cfg: ModelConfig
) -> Float[Array, "B L Q H"]:
    """`causal_attention`, by the kernel that `cfg.attention` asks for where the devices are of its kind."""
    if cfg.attention == "cudnn" and cfg.platform == "gpu":
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    if cfg.attention == "pallas" and cfg.platform == "tpu":
        from ragen_jax.models.kernels import splash_attention

        axes = ("batch", None, "heads")
        return cfg.by_device(splash_attention, (q, k, v), (axes, axes, axes), q.shape, axes)
    return causal_attention(q, k, v)
