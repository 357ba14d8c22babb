"""Token ids to bytes on device."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8

from envs_jax.core import Tokenizer
from envs_jax.text.phrases import spread


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VocabTable:
    """Bytes of V tokens, end to end: token v is `pool[starts[v] : starts[v] + lengths[v]]`."""

    pool: UInt8[Array, " P"]
    starts: Int[Array, " V"]
    lengths: Int[Array, " V"]

    @staticmethod
    def build(tokenizer: Tokenizer) -> VocabTable:
        """Table of `tokenizer.token_bytes()`; special tokens have no bytes."""
        pieces = tokenizer.token_bytes()
        if len(pieces) != tokenizer.vocab_size:
            raise ValueError(
                f"token_bytes gave {len(pieces)} entries for a vocabulary of {tokenizer.vocab_size}"
            )
        lengths = np.asarray([len(p) for p in pieces], np.int32)
        pool = np.frombuffer(b"".join(pieces) + b"\0", np.uint8)
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])[:-1]
        return VocabTable(jnp.asarray(pool), jnp.asarray(starts), jnp.asarray(lengths))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ByteText:
    """Bytes of a run of tokens: `data[:length]`, zeros beyond.

    `owner[i]` is the index of the token that byte i belongs to (meaningless beyond the length), `ends[t]` the
    number of bytes up to and with token t. `overflow` tells that the tokens had more than N bytes.
    """

    data: UInt8[Array, " N"]
    length: Int[Array, ""]
    owner: Int[Array, " N"]
    ends: Int[Array, " T"]
    overflow: Bool[Array, ""]


def detokenise(
    table: VocabTable, tokens: Int[Array, " T"], length: Int[Array, ""], capacity: int
) -> ByteText:
    """Bytes of `tokens[:length]`, the first `capacity` (N) of them.

    Ids outside 0 .. V - 1 have no bytes. A character may be split over tokens, so the bytes of a single
    token need not be valid UTF-8. O(T + N).
    """
    n_tokens = tokens.shape[0]
    known = (
        (jnp.arange(n_tokens, dtype=jnp.int32) < length) & (tokens >= 0) & (tokens < table.lengths.shape[0])
    )
    ids = jnp.where(known, tokens, 0)
    lengths = jnp.where(known, table.lengths[ids], 0)
    index, ends = spread(table.starts[ids], lengths, capacity)
    total = jnp.minimum(ends[-1], capacity)
    data = table.pool.at[index].get(mode="clip")
    slots = jnp.arange(capacity, dtype=jnp.int32)
    # A token without bytes starts where the next one does; counting both leaves the later one as the owner.
    opened = jnp.zeros((capacity,), jnp.int32).at[ends - lengths].add(1, mode="drop")
    return ByteText(
        data=jnp.where(slots < total, data, 0).astype(jnp.uint8),
        length=total,
        owner=jnp.cumsum(opened, dtype=jnp.int32) - 1,
        ends=ends,
        overflow=ends[-1] > capacity,
    )
