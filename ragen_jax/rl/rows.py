"""What one forward pass reads: whole episodes, or with limited contexts single turns under the prompts they had.

Everything about a token (log-probs, advantages, weights) stays in the episode's own slots; only tokens, positions and
attention are those of the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from ragen_jax.models import ModelConfig
from ragen_jax.rl.microbatch import at, sampled_slots
from ragen_jax.rollout import Trajectories
from ragen_jax.rollout.windows import gather_runs


@dataclass(frozen=True)
class Rows:
    """m rows of n tokens: slots of their sampled tokens, which of these are real, and a way to what the batch says of
    them (`pick`: [B, L] to [m S], 0 where nothing is real)."""

    tokens: Int[Array, "m n"]
    where: Int[Array, "m S"]
    found: Bool[Array, "m S"]
    pick: Callable[[Array], Array]


def width(traj: Trajectories) -> int:
    """Slots of the longest row."""
    return traj.prompt_slots + traj.turn_slots if traj.windowed else traj.tokens.shape[1]


def episodes(traj: Trajectories, rows: Int[Array, "m"]) -> Int[Array, "m"]:
    """The episode of each row."""
    return rows // traj.reward.shape[1] if traj.windowed else rows


def lengths(traj: Trajectories) -> Int[Array, "N"]:
    """Tokens of each row: of all episodes, or of all turns (turn t of episode b is row b T + t)."""
    if traj.run_length is None:
        return traj.length
    own = jnp.where(traj.taken, traj.turn_end + 1 - traj.prompt_end, 0)
    return (jnp.sum(traj.run_length, axis=2) + own).reshape(-1)


def rows_of(traj: Trajectories, x: Array) -> Array:
    """What is said of each episode, said of each row; False or 0 for turns that were not taken."""
    if not traj.windowed:
        return x
    return jnp.where(traj.taken, x[:, None], jnp.zeros_like(x)[:, None]).reshape(-1)


def kept_first(traj: Trajectories, kept: Bool[Array, "B"], key: Int[Array, "B"]) -> Int[Array, "N"]:
    """Rows of kept episodes first, by `key`, then by length."""
    if not traj.windowed:
        return jnp.lexsort((traj.length, jnp.where(kept, key, kept.shape[0])))
    rank = jnp.where(rows_of(traj, kept), rows_of(traj, key), kept.shape[0])
    return jnp.lexsort((lengths(traj), rank))


def row_count(traj: Trajectories, kept: Bool[Array, "B"]) -> Int[Array, ""]:
    """How many rows kept episodes have."""
    return jnp.sum(rows_of(traj, kept))


def read_rows(
    traj: Trajectories,
    rows: Int[Array, "m"],
    real: Bool[Array, "m"],
    length: int,
    model: ModelConfig,
    most: int,
) -> Rows:
    """The rows, cut to `length` slots. `most`: most tokens that an episode can have sampled."""
    if traj.run_start is None:
        where, found = sampled_slots(traj.loss_mask[rows, :length] & real[:, None], most)

        def pick(x: Array) -> Array:
            return jnp.where(found.reshape(-1), at(x[rows, :length], where), 0.0)

        return Rows(model.constrain(traj.tokens[rows, :length], "batch"), where, found, pick)

    assert traj.run_length is not None
    episode, turn = rows // traj.reward.shape[1], rows % traj.reward.shape[1]
    begin = traj.prompt_end[episode, turn]
    count = jnp.where(real, traj.turn_end[episode, turn] + 1 - begin, 0)
    prompt = traj.run_length[episode, turn]
    tokens = gather_runs(
        traj.tokens[episode],
        jnp.concatenate([traj.run_start[episode, turn], begin[:, None]], axis=1),
        jnp.concatenate([prompt, count[:, None]], axis=1),
        length,
    )
    offsets = jnp.arange(traj.turn_slots)
    inside = offsets < count[:, None]
    where_turn = jnp.minimum(jnp.sum(prompt, axis=1)[:, None] + offsets, length - 1)
    source = jnp.minimum(begin[:, None] + offsets, traj.tokens.shape[1] - 1)

    def pick_turn(x: Array) -> Array:
        return jnp.where(inside, x[episode[:, None], source], 0.0).reshape(-1)

    return Rows(model.constrain(tokens, "batch"), where_turn, inside, pick_turn)


def place_rows(
    traj: Trajectories, table: Array, rows: Int[Array, "m"], real: Bool[Array, "m"], values: Array
) -> Array:
    """`table` [B, L] with the `values` [m, S] of turns in their episodes' slots."""
    episode, turn = rows // traj.reward.shape[1], rows % traj.reward.shape[1]
    slots = traj.prompt_end[episode, turn][:, None] + jnp.arange(traj.turn_slots)
    inside = real[:, None] & (slots <= traj.turn_end[episode, turn][:, None])
    slots = jnp.where(inside, slots, table.shape[1])
    return table.at[episode[:, None], slots].set(values, mode="drop")
