"""Sampling with addressed random numbers, and stopping on bytes.

A random number's address is (run key, group, member, turn, position, purpose): it depends on neither the row's place in
the batch, nor the mesh, nor which other rows are still alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Truncation:
    """Which of the most likely ids can be drawn. Anything but the defaults samples from another distribution than the
    policy's. Raises ValueError naming the field.

    top_k: the k most likely ids, and those as likely as the last of them; -1: all.
    top_p: the most likely ids of the rest that together reach this probability.
    min_p: of the rest, ids at least this share as likely as the most likely one.
    """

    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"rollout.top_p is {self.top_p}; it must lie in (0, 1], 1: all")
        if self.top_k < 1 and self.top_k != -1:
            raise ValueError(f"rollout.top_k is {self.top_k}; it must be at least 1, or -1: all")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"rollout.min_p is {self.min_p}; it must lie in [0, 1], 0: all")

    @property
    def off(self) -> bool:
        """Whether every id can be drawn."""
        return self == Truncation()


def truncate(scaled: Float[Array, "B V"], how: Truncation) -> Float[Array, "B V"]:
    """The logits (temperature applied) with -inf for what cannot be drawn: top-k, then top-p, then min-p."""
    if 0 < how.top_k < scaled.shape[-1]:
        least = jax.lax.top_k(scaled, how.top_k)[0][:, -1:]
        scaled = jnp.where(scaled >= least, scaled, -jnp.inf)
    if how.top_p < 1:
        order = jnp.argsort(-scaled, axis=-1, stable=True)
        probs = jax.nn.softmax(jnp.take_along_axis(scaled, order, axis=-1), axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs  # of the more likely ids
        kept = (
            jnp.zeros(scaled.shape, bool)
            .at[jnp.arange(scaled.shape[0])[:, None], order]
            .set(before < how.top_p)
        )
        scaled = jnp.where(kept, scaled, -jnp.inf)
    if how.min_p > 0:
        least = jnp.max(scaled, axis=-1, keepdims=True) + np.log(how.min_p)
        scaled = jnp.where(scaled >= least, scaled, -jnp.inf)
    return scaled


def sample(
    keys: Array,
    logits: Float[Array, "B V"],
    temperature: Float[Array, ""],
    valid_vocab: int,
    truncation: Truncation = Truncation(),
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Draws from softmax(logits / temperature) over ids < valid_vocab that `truncation` leaves; returns the ids and
    the log-probs that they were drawn with, float32.

    At temperature 0 the most likely id is taken, with its log-prob at temperature 1 and without truncation.
    """
    greedy = temperature <= 0
    scaled = logits.astype(jnp.float32) / jnp.where(greedy, 1.0, temperature)
    scaled = jnp.where(jnp.arange(logits.shape[-1]) < valid_vocab, scaled, -jnp.inf)
    if not truncation.off:
        scaled = jnp.where(greedy, scaled, truncate(scaled, truncation))
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
