"""Which (episode, turn) pairs are cross-scored: the three sampling families of the reference implementation.

Each returns a fixed number of places; those that hold nothing have `chosen` False. The first-turn family is
scored under the prompts of the groups, the other two under each draw's own prompt (a column for each row).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, PRNGKeyArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PairSample:
    """Places of a sample; where `chosen` is False the other two mean nothing (they stay in range)."""

    episode: Int[Array, " S"]
    turn: Int[Array, " S"]
    chosen: Bool[Array, " S"]


def sample_first_turn(key: PRNGKeyArray, valid: Bool[Array, "B T"], num_samples: int) -> PairSample:
    """Uniform subset, without replacement, of episodes whose first turn is valid. S = min(num_samples, B).

    Raises:
        ValueError: num_samples < 1, or valid not two-dimensional.
    """
    valid = _checked(valid, num_samples)
    picked, chosen = _subset(key, valid[:, 0], num_samples)
    return PairSample(episode=picked, turn=jnp.zeros_like(picked), chosen=chosen)


def sample_turns(key: PRNGKeyArray, valid: Bool[Array, "B T"], num_samples: int) -> PairSample:
    """Uniform subset, without replacement, of all valid (episode, turn) pairs. S = min(num_samples, B * T).

    Raises:
        ValueError: num_samples < 1, or valid not two-dimensional.
    """
    valid = _checked(valid, num_samples)
    picked, chosen = _subset(key, valid.reshape(-1), num_samples)
    turns = valid.shape[1]
    return PairSample(episode=picked // turns, turn=picked % turns, chosen=chosen)


def sample_trajectories(key: PRNGKeyArray, valid: Bool[Array, "B T"], num_samples: int) -> PairSample:
    """min(num_samples, valid turns) draws with replacement: an episode, then one of its valid turns.

    S = num_samples. Episodes are drawn from all B; a draw of one without a valid turn is dropped, as in the
    reference.

    Raises:
        ValueError: num_samples < 1, or valid not two-dimensional.
    """
    valid = _checked(valid, num_samples)
    episode_key, turn_key = jax.random.split(key)
    episodes, turns = valid.shape
    episode = jax.random.randint(episode_key, (num_samples,), 0, episodes)
    options = valid[episode]
    noise = jax.random.uniform(turn_key, (num_samples, turns))
    turn = jnp.argmax(jnp.where(options, noise, -1.0), axis=1)
    chosen = options.any(axis=1) & (jnp.arange(num_samples) < valid.sum())
    return PairSample(episode=episode, turn=turn, chosen=chosen)


def _subset(key: Array, valid: Array, num_samples: int) -> tuple[Array, Array]:
    noise = jax.random.uniform(key, valid.shape)
    picked = jnp.argsort(jnp.where(valid, noise, 2.0))[: min(num_samples, valid.shape[0])]
    return picked, valid[picked]


def _checked(valid: Array, num_samples: int) -> Array:
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    valid = jnp.asarray(valid)
    if valid.ndim != 2:
        raise ValueError(f"valid must have shape [episodes, turns], got {valid.shape}")
    return valid
