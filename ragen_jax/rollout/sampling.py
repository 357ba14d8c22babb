"""Sampling with addressed random numbers, and stopping on bytes.

A random number's address is (run key, group, member, turn, position, purpose): it depends on neither the row's place in
the batch, nor the mesh, nor which other rows are still alive.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

SAMPLE, DYNAMICS, LEVEL = 0, 1, 2  # purposes


def row_keys(key: Array, group: Int[Array, "B"], member: Int[Array, "B"]) -> Array:
    """One key per (group, member), typed keys [B]."""
    return jax.vmap(lambda g, m: jax.random.fold_in(jax.random.fold_in(key, g), m))(group, member)


def fold(keys: Array, data: Int[Array, "..."] | int) -> Array:
    """`fold_in` of every key in `keys` [B] with `data` (a scalar or [B])."""
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(jnp.asarray(data, jnp.int32), keys.shape))


def sample(
    keys: Array, logits: Float[Array, "B V"], temperature: Float[Array, ""], valid_vocab: int
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Draws from softmax(logits / temperature) over ids < valid_vocab; returns the ids and their log-probs, float32.

    At temperature 0 the most likely id is taken, with its log-prob at temperature 1.
    """
    greedy = temperature <= 0
    scaled = logits.astype(jnp.float32) / jnp.where(greedy, 1.0, temperature)
    scaled = jnp.where(jnp.arange(logits.shape[-1]) < valid_vocab, scaled, -jnp.inf)
    noise = jax.vmap(lambda k: jax.random.gumbel(k, scaled.shape[1:]))(keys)
    ids = jnp.argmax(scaled + jnp.where(greedy, 0.0, noise), axis=-1).astype(jnp.int32)
    picked = jnp.take_along_axis(scaled, ids[:, None], axis=-1)[:, 0]
    return ids, picked - jax.nn.logsumexp(scaled, axis=-1)


def stop_table(token_bytes: Sequence[bytes], eos_ids: Sequence[int], tag: bytes) -> UInt8[Array, "V S"]:
    """Automaton that sees `tag` in the byte stream of sampled tokens, whatever way it is cut into tokens.

    Row v, column s: the state after token v in state s, where state s < len(tag) means that the last s bytes are a
    prefix of the tag (Knuth, Morris, Pratt 1977) and len(tag) means stop. Ids in `eos_ids` stop from every state.
    """
    n = len(tag)
    if not 0 < n < 256:
        raise ValueError(f"the stop tag has {n} bytes; it must have 1 to 255")
    step = np.zeros((n, 256), np.uint8)
    for state in range(n):
        for byte in range(256):
            seen = tag[:state] + bytes([byte])
            step[state, byte] = next(k for k in range(min(n, len(seen)), -1, -1) if seen.endswith(tag[:k]))
    step = np.concatenate([step, np.full((1, 256), n, np.uint8)])

    table = np.empty((len(token_bytes), n + 1), np.uint8)
    lengths = np.array([len(b) for b in token_bytes])
    padded = np.zeros((len(token_bytes), max(1, lengths.max(initial=0))), np.uint8)
    for i, b in enumerate(token_bytes):
        padded[i, : len(b)] = np.frombuffer(b, np.uint8)
    for state in range(n + 1):
        current = np.full(len(token_bytes), state, np.uint8)
        for column in range(padded.shape[1]):
            live = column < lengths
            current = np.where(live, step[current, padded[:, column]], current)
        table[:, state] = current
    table[list(eos_ids)] = n
    return jnp.asarray(table)


def stopped(table: UInt8[Array, "V S"], state: UInt8[Array, "B"]) -> Bool[Array, "B"]:
    """Whether the automaton has reached its last state."""
    return state == table.shape[1] - 1
