"""Text as a list of fragments: each phrase is tokenised once on the host, and joined on device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.core import Tokenizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PhraseTable:
    """Tokens of F phrases, end to end: phrase f is `pool[starts[f] : starts[f] + lengths[f]]`."""

    pool: Int[Array, " P"]
    starts: Int[Array, " F"]
    lengths: Int[Array, " F"]

    @staticmethod
    def build(phrases: Sequence[str], tokenizer: Tokenizer) -> PhraseTable:
        """Encodes each phrase by itself."""
        encoded = [tokenizer.encode(p) for p in phrases]
        lengths = np.asarray([len(e) for e in encoded], np.int32)
        pool = np.concatenate([np.asarray(e, np.int32) for e in encoded] + [np.zeros(1, np.int32)])
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])[:-1]
        return PhraseTable(jnp.asarray(pool), jnp.asarray(starts), jnp.asarray(lengths))


def spread(
    sources: Int[Array, " F"], lengths: Int[Array, " F"], capacity: int
) -> tuple[Int[Array, " L"], Int[Array, " F"]]:
    """Where each slot of a ragged concatenation comes from.

    Run f occupies `lengths[f]` slots and is read from `sources[f]` on. Returns the index to read for each of
    `capacity` slots (meaningless beyond the total length) and the end of each run. O(F + L): the change of
    (source - slot) from run to run is scattered at the run's first slot and summed up; runs of length zero
    cancel out.
    """
    ends = jnp.cumsum(lengths, dtype=jnp.int32)
    starts = ends - lengths
    shift = sources - starts
    change = jnp.diff(shift, prepend=jnp.zeros((1,), jnp.int32))
    steps = jnp.zeros((capacity,), jnp.int32).at[starts].add(change, mode="drop")
    return jnp.arange(capacity, dtype=jnp.int32) + jnp.cumsum(steps, dtype=jnp.int32), ends


def phrase_lengths(table: PhraseTable, fragments: Int[Array, " F"]) -> Int[Array, " F"]:
    """Tokens of each fragment, 0 for padding (ids below zero)."""
    return jnp.where(fragments >= 0, table.lengths[jnp.maximum(fragments, 0)], 0)


def join(
    table: PhraseTable, fragments: Int[Array, " F"], capacity: int
) -> tuple[Int[Array, " L"], Int[Array, ""], Bool[Array, ""]]:
    """Tokens of the fragments one after another.

    Args:
        table: the phrases.
        fragments: phrase ids; ids below zero are left out, wherever they stand.
        capacity: L, slots of the result.

    Returns:
        Tokens i32[L] (0 beyond the length), length i32, and whether the fragments needed more than L slots;
        in that case the result holds the longest run of whole fragments from the start that fits.
    """
    lengths = phrase_lengths(table, fragments)
    sources = table.starts[jnp.maximum(fragments, 0)]
    index, ends = spread(sources, lengths, capacity)
    overflow = ends[-1] > capacity
    length = jnp.max(jnp.where(ends <= capacity, ends, 0))
    tokens = table.pool.at[index].get(mode="clip")
    return jnp.where(jnp.arange(capacity, dtype=jnp.int32) < length, tokens, 0), length, overflow
