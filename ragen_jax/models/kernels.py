"""Attention kernels for TPUs (Pallas): Splash attention in training, and one over a cache of rows of any length.

Both compute what the plain forms in `attention` and `incremental` do. `interpret` runs them, slowly, on any backend.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int

SPLASH_BLOCKS = (512, 384, 256, 128)
CACHE_BLOCK = 256
"""Slots of the cache that the kernel reads together; a capacity is a multiple of it."""
_TILE = 512  # queries (slots x query heads of one key-value head) taken together
_LANES = 128
_NEGATIVE = -1e30  # in place of -inf, whose difference with itself is not a number


def splash_block(length: int) -> tuple[int, int]:
    """(block, padded length): the blocks of queries and keys that pad a row of `length` slots least, large ones first.

    Blocks under 256 are for short rows alone.
    """
    blocks = SPLASH_BLOCKS[:-1] if length > 2 * _LANES else SPLASH_BLOCKS[-1:]
    block = min(blocks, key=lambda b: (-(-length // b) * b, -b))
    return block, -(-length // block) * block


@functools.cache
def _splash(heads: int, length: int, block: int, interpret: bool) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )  # fmt: skip
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha(
            mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
        )


def splash_attention(
    q: Float[Array, "B L Q H"],
    k: Float[Array, "B L K H"],
    v: Float[Array, "B L K H"],
    *,
    interpret: bool = False,
) -> Float[Array, "B L Q H"]:
    """`attention.causal_attention` by the Splash kernel of JAX, forward and backward, on one device."""
    length, heads, dim = q.shape[1:]
    block, padded = splash_block(length)

    def heads_first(x: Array) -> Array:
        return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, padded - length), (0, 0)))

    scaled = (q.astype(jnp.float32) * dim**-0.5).astype(q.dtype)
    out = jax.vmap(_splash(heads, padded, block, interpret))(*map(heads_first, (scaled, k, v)))
    return out[:, :, :length].swapaxes(1, 2)


def _cache_kernel(
    layer_ref: Any, start_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, top_ref: Any, sum_ref: Any,
    acc_ref: Any, *, group: int, tile: int, block: int, blocks: int, scale: float,
) -> None:  # fmt: skip
    """One tile of queries against one block of slots; the running softmax is that of Milakov and Gimelshein (2018).

    Query r of a row sees the slots up to start + r // group.
    """
    row, at, step = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    start = start_ref[row]

    @pl.when(step == 0)
    def _() -> None:
        top_ref[...] = jnp.full_like(top_ref, _NEGATIVE)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(step * block <= start + ((at + 1) * tile - 1) // group)
    def _() -> None:
        contract = (((1,), (1,)), ((), ()))
        logits = jax.lax.dot_general(q_ref[...], k_ref[...], contract, preferred_element_type=jnp.float32)
        ahead = step * block + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) - start
        query = at * tile + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0)
        logits = jnp.where(ahead * group <= query, logits * scale, _NEGATIVE)
        old = top_ref[:, :1]
        top = jnp.maximum(old, jnp.max(logits, axis=1, keepdims=True))
        weights = jnp.exp(logits - top)
        decay = jnp.exp(old - top)
        total = decay * sum_ref[:, :1] + jnp.sum(weights, axis=1, keepdims=True)
        top_ref[...] = jnp.broadcast_to(top, top_ref.shape)
        sum_ref[...] = jnp.broadcast_to(total, sum_ref.shape)
        acc_ref[...] = acc_ref[...] * decay + jnp.dot(
            weights.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32
        )

    @pl.when(step == blocks - 1)
    def _() -> None:
        out_ref[...] = (acc_ref[...] / sum_ref[:, :1]).astype(out_ref.dtype)


def cache_attention(
    q: Float[Array, "B C Q H"],
    k: Float[Array, "N B K S H"],
    v: Float[Array, "N B K S H"],
    layer: Int[Array, ""],
    start: Int[Array, "B"],
    *,
    interpret: bool = False,
) -> Float[Array, "B C Q H"]:
    """Attention of C new tokens a row over the slots 0 .. start + c of one layer of a stacked cache, on one device.

    Of each row only the blocks up to its last slot are read. Softmax in float32. Raises ValueError unless S is a
    multiple of `CACHE_BLOCK`.
    """
    b, c, heads, dim = q.shape
    kv, capacity = k.shape[2:4]
    if capacity % CACHE_BLOCK:
        raise ValueError(f"a cache of {capacity} slots; their number must be a multiple of {CACHE_BLOCK}")
    group, blocks = heads // kv, capacity // CACHE_BLOCK
    rows = -(-c * group // 16) * 16  # what a tile of bfloat16 holds
    tile = min(rows, _TILE)
    rows = -(-rows // tile) * tile
    q = q.reshape(b, c, kv, group, dim).transpose(0, 2, 1, 3, 4).reshape(b, kv, c * group, dim)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, rows - c * group), (0, 0)))

    def of_queries(row: Any, head: Any, at: Any, step: Any, *_: Any) -> tuple[Any, ...]:
        return row, head, at, 0

    def of_slots(row: Any, head: Any, at: Any, step: Any, layer: Any, start: Any) -> tuple[Any, ...]:
        last = (start[row] + ((at + 1) * tile - 1) // group) // CACHE_BLOCK
        # a block named twice is read once
        return layer[0], row, head, jnp.minimum(jnp.minimum(step, last), blocks - 1), 0

    queries = pl.BlockSpec((None, None, tile, dim), of_queries)
    slots = pl.BlockSpec((None, None, None, CACHE_BLOCK, dim), of_slots)
    width = k.dtype.itemsize
    out = pl.pallas_call(
        functools.partial(
            _cache_kernel, group=group, tile=tile, block=CACHE_BLOCK, blocks=blocks, scale=dim**-0.5
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(b, kv, rows // tile, blocks),
            in_specs=[queries, slots, slots],
            out_specs=queries,
            scratch_shapes=[
                pltpu.VMEM((tile, _LANES), jnp.float32),
                pltpu.VMEM((tile, _LANES), jnp.float32),
                pltpu.VMEM((tile, dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(  # every slot read
            flops=4 * b * c * heads * capacity * dim,
            bytes_accessed=2 * b * kv * capacity * dim * width,
            transcendentals=b * c * heads * capacity,
        ),
        interpret=interpret,
    )(layer.astype(jnp.int32).reshape(1), start.astype(jnp.int32), q, k, v)
    out = out[:, :, : c * group].reshape(b, kv, c, group, dim)
    return out.transpose(0, 2, 1, 3, 4).reshape(b, c, heads, dim)
