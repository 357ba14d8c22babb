"""The incremental forward pass of decoding: keys and values are kept, and some tokens are appended to every row.

The cache has two forms. A list of layers goes with a program that has each layer written out, which a CPU runs fastest
(measured). A stack of layers goes with a loop over them (`ModelConfig.scan_layers`): its program is as large as that of
one layer, and compiles in a time that does not grow with their number. `decoding_params` gives the parameters' form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.kernels import CACHE_BLOCK, cache_attention
from ragen_jax.models.transformer import (
    Params,
    block,
    embed,
    gathered,
    rms_norm,
    rope_angles,
    unstack,
)


def decoding_params(params: Params, cfg: ModelConfig) -> Params:
    """The parameters in the compute dtype and in the form that `extend` takes: layers listed, or stacked."""
    return gathered(params, cfg) if cfg.stacks_cache else unstack(params, cfg)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVLayer:
    """Rotated keys and values of one layer by slot."""

    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K H"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVStack:
    """Rotated keys and values of all layers; slots are beside the head dimension, as kernels read them."""

    k: Float[Array, "N B K S H"]
    v: Float[Array, "N B K S H"]


Cache = list[KVLayer] | KVStack


def init_cache(cfg: ModelConfig, batch: int, capacity: int) -> Cache:
    """An empty cache of `capacity` slots per row (a stack may have some more) in the compute dtype."""
    heads = cfg.num_key_value_heads * cfg.kv_copies
    if cfg.stacks_cache:
        shape = (cfg.num_hidden_layers, batch, heads, _stack_capacity(capacity), cfg.head_dim)
        zeros = cfg.constrain(jnp.zeros(shape, cfg.compute_dtype), None, "batch", "heads")
        return KVStack(zeros, zeros)
    zeros = jnp.zeros((batch, capacity, heads, cfg.head_dim), cfg.compute_dtype)
    zeros = cfg.constrain(zeros, "batch", None, "heads")
    return [KVLayer(zeros, zeros) for _ in range(cfg.num_hidden_layers)]


def _stack_capacity(capacity: int) -> int:
    return -(-capacity // CACHE_BLOCK) * CACHE_BLOCK


def spread_cache(cache: Cache, copies: int, capacity: int) -> Cache:
    """Every row `copies` times, one after another, in a cache of `capacity` slots."""
    if isinstance(cache, KVStack):
        more = _stack_capacity(capacity) - cache.k.shape[3]
        stretch = functools.partial(_stretch, copies=copies, more=more, rows=1, slots=3)
        return KVStack(stretch(cache.k), stretch(cache.v))
    more = capacity - cache[0].k.shape[1]
    stretch = functools.partial(_stretch, copies=copies, more=more, rows=0, slots=1)
    return [KVLayer(stretch(c.k), stretch(c.v)) for c in cache]


def _stretch(x: Array, *, copies: int, more: int, rows: int, slots: int) -> Array:
    return jnp.pad(jnp.repeat(x, copies, axis=rows), [(0, more if i == slots else 0) for i in range(x.ndim)])


_PREFIXES = 8  # static lengths of the cache that attention may stop at


def _at_prefix(last: Int[Array, "B C"], capacity: int, branch: Callable[..., Array], *operands: Any) -> Array:
    """`branch(length, *operands)` at the first of a few static lengths of the cache that covers every row's last slot.

    A decoded token's cost is that of reading the cache, most of which is empty early in an episode.
    """
    lengths = sorted({-(-capacity * part // _PREFIXES) for part in range(1, _PREFIXES + 1)})
    parts = [functools.partial(branch, length) for length in lengths]
    used = jnp.minimum(jnp.max(last), capacity - 1)
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(lengths), used, side="right"), parts, *operands)


def attend_cache(
    q: Float[Array, "B C Q H"], layer: KVLayer, last: Int[Array, "B C"], scale: float
) -> Float[Array, "B C Q H"]:
    """Attention of each query over the cache slots 0 .. last (inclusive). Softmax in float32."""

    def prefix(length: int, q: Array, layer: KVLayer, last: Array) -> Array:
        return _attend(q, layer.k[:, :length], layer.v[:, :length], last, scale, "bskh")

    return _at_prefix(last, layer.k.shape[1], prefix, q, layer, last)


def attend_stack(
    q: Float[Array, "B C Q H"],
    cache: KVStack,
    layer: Int[Array, ""],
    start: Int[Array, "B"],
    cfg: ModelConfig,
) -> Float[Array, "B C Q H"]:
    """Attention of C new tokens a row, at the slots from `start`, over one layer of the cache."""
    if cfg.attention == "pallas" and cfg.platform == "tpu":
        rows, slots = ("batch", None, "heads"), (None, "batch", "heads")
        return cfg.by_device(
            cache_attention, (q, cache.k, cache.v, layer, start), (rows, slots, slots, (), ("batch",)), q.shape, rows
        )  # fmt: skip

    def prefix(length: int, q: Array, cache: KVStack, layer: Array, last: Array) -> Array:
        # Cut out here: a branch reads no more of the stack than it needs.
        size = (1, *cache.k.shape[1:3], length, cache.k.shape[4])
        k, v = (jax.lax.dynamic_slice(x, (layer, 0, 0, 0, 0), size)[0] for x in (cache.k, cache.v))
        return _attend(q, k, v, last, cfg.head_dim**-0.5, "bksh")

    last = start[:, None] + jnp.arange(q.shape[1])
    return _at_prefix(last, cache.k.shape[3], prefix, q, cache, layer, last)


def _attend(
    q: Float[Array, "B C Q H"], k: Array, v: Array, last: Int[Array, "B C"], scale: float, order: str
) -> Float[Array, "B C Q H"]:
    """`order`: the dimensions of k and v, batch b, slots s, key-value heads k, and h."""
    b, c, heads, dim = q.shape
    q = q.reshape(b, c, k.shape[order.index("k")], -1, dim)
    logits = jnp.einsum(f"bckgh,{order}->bkgcs", q, k, preferred_element_type=jnp.float32) * scale
    visible = jnp.arange(logits.shape[-1]) <= last[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(visible, logits, -jnp.inf), axis=-1)
    out = jnp.einsum(f"bkgcs,{order}->bckgh", weights.astype(v.dtype), v)
    return out.reshape(b, c, heads, dim)


def extend(
    params: Params, cfg: ModelConfig, tokens: Int[Array, "B C"], start: Int[Array, "B"], cache: Cache
) -> tuple[Float[Array, "B C D"], Cache]:
    """Appends C tokens to every row, row b's at slots start[b] .. start[b] + C - 1, and returns their hidden states.

    Slots beyond the capacity are dropped. A caller whose row holds fewer than C real tokens passes the true start next
    time: the surplus slots are overwritten before anything attends to them.
    """
    rows = jnp.arange(tokens.shape[0])[:, None]
    slots = start[:, None] + jnp.arange(tokens.shape[1])
    cos, sin = rope_angles(cfg, slots)
    x = embed(params, cfg, tokens)
    if isinstance(cache, KVStack):
        return _extend_stack(params, cfg, x, start, (rows, slots), (cos, sin), cache)
    new_cache = []
    for layer, kv in zip(params["layers"], cache, strict=True):
        b = block(cfg, layer)
        q, k, v = b.project(x, cos, sin)
        kv = KVLayer(kv.k.at[rows, slots].set(k, mode="drop"), kv.v.at[rows, slots].set(v, mode="drop"))
        new_cache.append(kv)
        x = b.finish(x, attend_cache(q, kv, slots, cfg.head_dim**-0.5))
    return rms_norm(x, params["norm"]["weight"], cfg.rms_norm_eps), new_cache


def _extend_stack(
    params: Params,
    cfg: ModelConfig,
    x: Float[Array, "B C D"],
    start: Int[Array, "B"],
    where: tuple[Array, Array],
    angles: tuple[Array, Array],
    cache: KVStack,
) -> tuple[Float[Array, "B C D"], KVStack]:
    """`extend` with the layers in a loop that carries the whole cache, so that it is changed in place."""
    rows, slots = where

    def body(carry: tuple[Array, KVStack, Array], layer: dict[str, Array]) -> tuple[Any, None]:
        x, cache, i = carry
        b = block(cfg, layer)
        q, k, v = b.project(x, *angles)
        # Every dimension but the last is indexed: a window over the heads would have the whole cache laid out anew.
        at = i, rows[..., None], jnp.arange(k.shape[2]), slots[..., None]
        cache = KVStack(cache.k.at[at].set(k, mode="drop"), cache.v.at[at].set(v, mode="drop"))
        x = b.finish(x, attend_stack(q, cache, i, start, cfg))
        return (x, cache, i + 1), None

    (x, cache, _), _ = jax.lax.scan(body, (x, cache, jnp.int32(0)), params["layers"])
    return rms_norm(x, params["norm"]["weight"], cfg.rms_norm_eps), cache
