"""Rows in microbatches of a few static lengths, and the sampled slots of each."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int


def bucket_lengths(total: int, buckets: int) -> list[int]:
    """The static lengths, even shares of `total`, which is the last."""
    return sorted({-(-total * (i + 1) // buckets) for i in range(buckets)})


def sampled_slots(mask: Bool[Array, "m L"], most: int) -> tuple[Int[Array, "m S"], Bool[Array, "m S"]]:
    """Slots of each row's sampled tokens, first `most`, and which entries are real."""
    most = min(most, mask.shape[1] - 1)
    slots = jnp.argsort(~mask, axis=1, stable=True)[:, :most]
    return slots, jnp.take_along_axis(mask, slots, axis=1)


def at(x: Array, slots: Array) -> Array:
    """Values of [m, L] at the slots [m, S], flat."""
    return jnp.take_along_axis(x, slots, axis=1).reshape(-1)


def hidden_before(hidden: Float[Array, "m L D"], slots: Int[Array, "m S"]) -> Float[Array, "mS D"]:
    """The state that predicts each slot's token: the one a slot earlier."""
    picked = jnp.take_along_axis(hidden, jnp.maximum(slots - 1, 0)[..., None], axis=1)
    return picked.reshape(-1, hidden.shape[-1])


def microbatches(
    order: Int[Array, "B"],
    start: Array,
    count: Array,
    lengths: Int[Array, "B"],
    size: int,
    slots: int,
    buckets: int,
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """(number of microbatches, function of their index -> (rows, which are real, length bucket))."""
    bounds = jnp.array(bucket_lengths(slots, buckets))
    padded = jnp.pad(order, (0, size))

    def pick(i: Array) -> tuple[Array, Array, Array]:
        rows = jax.lax.dynamic_slice(padded, (start + i * size,), (size,))
        real = i * size + jnp.arange(size) < count
        longest = jnp.max(jnp.where(real, lengths[rows], 1))
        return rows, real, jnp.searchsorted(bounds, longest)

    return -(-count // size), pick
