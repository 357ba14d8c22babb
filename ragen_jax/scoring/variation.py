"""Which axes of an enclosing `jax.shard_map` an array differs over. Loop carries must agree in it."""

from __future__ import annotations

import jax
from jax import Array


def varies(x: Array) -> frozenset[str]:
    """The manual axes that x differs over; empty outside `shard_map`."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def vary(x: Array, axes: frozenset[str]) -> Array:
    """x, marked as differing over `axes` too. Its gradient is then summed over the axes added."""
    missing = tuple(sorted(axes - varies(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def same_variation(*arrays: Array) -> tuple[Array, ...]:
    """Every array marked as differing over all the axes that any of them differs over."""
    axes = frozenset[str]().union(*(varies(a) for a in arrays))
    return tuple(vary(a, axes) for a in arrays)
