"""Actions written `name[argument]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, UInt8

from envs_jax.core import Span
from envs_jax.text.scan import first_true, is_space, last_true


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """`name` is an index into the names (0 where none was found); `argument[:length]` is trimmed, zeros beyond."""

    name: Int[Array, ""]
    argument: UInt8[Array, " A"]
    length: Int[Array, ""]
    found: Bool[Array, ""]


def match_call(span: Span, names: Sequence[str]) -> Call:
    """Reads `name[argument]`: the whole of the span, from one of `names` and a bracket to a closing bracket at its end.

    The argument may hold brackets. Names are compared as they are. A span that was cut short is no call.
    """
    data, size = span.data, span.data.shape[0]
    slots = jnp.arange(size, dtype=jnp.int32)
    closed = (span.length <= size) & (data[jnp.clip(span.length - 1, 0, size - 1)] == ord("]"))
    name, start = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    found = jnp.zeros((), bool)
    for index, text in enumerate(names):
        opening = f"{text}[".encode()
        if len(opening) >= size:
            continue
        here = jnp.all(data[: len(opening)] == jnp.asarray(list(opening), jnp.uint8)) & closed
        here &= span.length > len(opening)
        name, start = jnp.where(here, index, name), jnp.where(here, len(opening), start)
        found |= here
    visible = found & (slots >= start) & (slots < span.length - 1) & ~is_space(data)
    first, last = first_true(visible), last_true(visible)
    length = jnp.maximum(last - first + 1, 0)
    argument = data.at[first + slots].get(mode="fill", fill_value=0)
    argument = jnp.where(slots < length, argument, 0).astype(jnp.uint8)
    return Call(name.astype(jnp.int32), argument, length.astype(jnp.int32), found)
