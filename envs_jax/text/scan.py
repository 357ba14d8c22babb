"""Small array algorithms on bytes that the parsers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, UInt8, UInt32

BLOCK = 16
T = TypeVar("T")


def running_max(x: Int[Array, " N"]) -> Int[Array, " N"]:
    """Running maximum. Values must be >= -1.

    Doubling inside blocks of 16, then over the blocks' last entries: on CPU several times faster than
    `jax.lax.cummax`, which sweeps the whole array 2 log N times.
    """
    n = x.shape[0]
    padded = jnp.pad(x, (0, -n % BLOCK), constant_values=-1).reshape(-1, BLOCK)
    step = 1
    while step < BLOCK:
        padded = jnp.maximum(padded, jnp.pad(padded, ((0, 0), (step, 0)), constant_values=-1)[:, :BLOCK])
        step *= 2
    before = jax.lax.cummax(padded[:, -1])
    before = jnp.concatenate([jnp.full((1,), -1, before.dtype), before[:-1]])
    return jnp.maximum(padded, before[:, None]).reshape(-1)[:n]


def words(x: UInt8[Array, " N"]) -> UInt32[Array, " N/4"]:
    """The same bytes four to a word; N must be a multiple of 4. A reduction over words takes a quarter of the time."""
    return jax.lax.bitcast_convert_type(x.reshape(-1, 4), jnp.uint32)


def if_any(compute: Callable[..., T]) -> Callable[..., T]:
    """`f(wanted, *args)`: `compute(*args)` where the bool `wanted` holds, else zeros of the same shapes and dtypes.

    Under `jax.vmap` a batch in which no row wants it does not pay for it; in one in which some row does, all do.
    """

    def kept(wanted: Array, out: T) -> T:
        def mask(x: Array) -> Array:
            return jnp.where(
                wanted.reshape(wanted.shape + (1,) * (x.ndim - wanted.ndim)), x, jnp.zeros_like(x)
            )

        return jax.tree.map(mask, out)

    @jax.custom_batching.custom_vmap
    def one(wanted: Array, *args: Any) -> T:
        return kept(wanted, compute(*args))

    @one.def_vmap
    def _(size: int, batched: Any, wanted: Array, *args: Any) -> tuple[T, Any]:
        own, *axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
        each = jax.vmap(compute, in_axes=tuple(axes), axis_size=size)
        wanted = jnp.broadcast_to(wanted, (size,)) if own is None else wanted
        shapes = jax.eval_shape(each, *args)
        out = jax.lax.cond(
            jnp.any(wanted),
            lambda wanted, *args: kept(wanted, each(*args)),
            lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            wanted,
            *args,
        )
        return out, jax.tree.map(lambda _: True, shapes)

    return one


def occurrences(data: UInt8[Array, " N"], pattern: bytes) -> Bool[Array, " N"]:
    """Whether `pattern` starts at each position."""
    n = data.shape[0]
    padded = jnp.pad(data, (0, len(pattern)))
    found = jnp.ones((n,), bool)
    for i, byte in enumerate(pattern):
        found &= jax.lax.slice(padded, (i,), (i + n,)) == byte
    return found


def is_space(data: UInt8[Array, " N"]) -> Bool[Array, " N"]:
    """ASCII whitespace of Python's `str`: tab to carriage return, the four separators 28..31, and space."""
    return ((data >= 9) & (data <= 13)) | ((data >= 28) & (data <= 32))


def first_true(flags: Bool[Array, " N"]) -> Int[Array, ""]:
    """First position where `flags` holds, N if there is none."""
    n = flags.shape[0]
    return jnp.min(jnp.where(flags, jnp.arange(n, dtype=jnp.int32), n))


def last_true(flags: Bool[Array, " N"]) -> Int[Array, ""]:
    """Last position where `flags` holds, -1 if there is none."""
    return jnp.max(jnp.where(flags, jnp.arange(flags.shape[0], dtype=jnp.int32), -1))
