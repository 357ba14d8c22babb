"""Where the parts of an observation begin and end, in tokens: for who shows an agent less than its whole dialogue.

A first observation is the head (system message and what opens the user's), then the turn: its header, the state, and
what closes the message and opens the reply. A later one is what closes the reply before and opens a message, the
reward of the turn before, then the turn likewise. Brief observations have neither headers nor rewards.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from envs_jax.errors import ConfigError
from envs_jax.turn import TurnEnv, TurnParams


@dataclass(frozen=True)
class Borders:
    """Numbers of tokens that are the same in every observation. Static and hashable."""

    head: int  # of the first observation, before its turn
    gap: int  # of a later turn's header, that part it from the reward before it: the two newlines


def measure_borders(env: TurnEnv, params: TurnParams) -> Borders:
    """Measured on the host. Raises ConfigError where a token of the tokenizer lies across one of the borders."""
    at, lengths = env.layout, np.asarray(params.phrases.lengths)
    if env.config.style == "brief":
        return Borders(int(lengths[0]), 0)
    starts, pool = np.asarray(params.phrases.starts), np.asarray(params.phrases.pool)
    sizes = np.asarray(params.vocab.lengths)

    def bytes_of(phrase: int) -> np.ndarray:
        return sizes[pool[starts[phrase] : starts[phrase] + lengths[phrase]]]

    turn = np.flatnonzero(np.cumsum(bytes_of(0)[::-1]) == len("Turn 1:\nState:\n"))
    gap = np.asarray([-1])
    if env.config.max_turns > 1:
        gap = np.flatnonzero(np.cumsum(bytes_of(at.header)) == len("\n\n"))
    if not len(turn) or not len(gap):
        raise ConfigError("style", "full", "the tokenizer joins a turn's header to what precedes it")
    return Borders(int(lengths[0] - 1 - turn[0]), int(gap[0] + 1))


def reply_end(env: TurnEnv, params: TurnParams) -> Int[Array, ""]:
    """Tokens of a later observation before the reward that it shows, or before its turn where it shows none."""
    return params.phrases.lengths[env.layout.later]


def turn_begin(
    env: TurnEnv, borders: Borders, reward: Float[Array, "B"], params: TurnParams
) -> Int[Array, "B"]:
    """Tokens of a later observation before its turn. `reward` is that of the turn before."""
    at = env.layout
    before = jnp.broadcast_to(reply_end(env, params), reward.shape)
    if env.config.style == "brief":
        return before
    nearest = jnp.clip(
        jnp.round(jnp.nan_to_num(reward * 10 - at.reward_low, nan=0.0)), 0, at.reward_count - 1
    )
    return before + params.phrases.lengths[at.reward + nearest.astype(jnp.int32)] + borders.gap


def closing(env: TurnEnv, actions_left: Int[Array, "B"], params: TurnParams) -> Int[Array, "B"]:
    """Tokens of an observation after its state: the form of the reply, what closes the message and opens the reply."""
    tail = env.layout.tail + (0 if env.config.style == "brief" else actions_left)
    return jnp.broadcast_to(params.phrases.lengths[tail], actions_left.shape)
