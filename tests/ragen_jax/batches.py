"""Random trajectories for tests: ragged rows of alternating given and sampled runs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ragen_jax.models import ModelConfig
from ragen_jax.rollout import GIVEN, SAMPLED, Trajectories

TINY = ModelConfig(
    vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    intermediate_size=24, max_position_embeddings=128,
)  # fmt: skip


def random_trajectories(
    seed: int,
    groups: int = 4,
    members: int = 4,
    turns: int = 3,
    slots: int = 40,
    rewards: np.ndarray | None = None,
) -> Trajectories:
    """Rows of up to `turns` turns, each a run of given and a run of sampled tokens; some rows sample nothing."""
    rng = np.random.default_rng(seed)
    batch = groups * members
    role, turn = np.zeros((batch, slots), np.uint8), np.zeros((batch, slots), np.int32)
    length, taken = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
    prompt_end, turn_end = np.zeros((batch, turns), np.int32), np.zeros((batch, turns), np.int32)
    for b in range(batch):
        at = 0
        for t in range(rng.integers(1, turns + 1)):
            given, sampled = rng.integers(1, 7), rng.integers(1, 7)
            if at + given + sampled > slots:
                break
            role[b, at : at + given] = GIVEN
            prompt_end[b, t] = at + given
            role[b, at + given : at + given + sampled] = SAMPLED
            turn[b, at : at + given + sampled] = t
            at += given + sampled
            turn_end[b, t] = at - 1
            taken[b] += 1
        length[b] = at
    tokens = np.where(role > 0, rng.integers(0, TINY.vocab_size, (batch, slots)), 0)
    live = np.arange(turns) < taken[:, None]
    reward = rng.normal(size=(batch, turns)) if rewards is None else rewards
    false = np.zeros((batch, turns), bool)
    return Trajectories(
        tokens=jnp.asarray(tokens, jnp.int32), length=jnp.asarray(length), role=jnp.asarray(role),
        turn=jnp.asarray(turn), logprob=jnp.asarray(np.where(role == SAMPLED, -2.0, 0.0), jnp.float32),
        prompt_end=jnp.asarray(prompt_end), think_start=jnp.asarray(prompt_end), think_end=jnp.asarray(turn_end),
        turn_end=jnp.asarray(turn_end), reward=jnp.asarray(np.where(live, reward, 0), jnp.float32),
        penalty=jnp.zeros((batch, turns), jnp.float32), format_ok=jnp.asarray(false),
        executed=jnp.zeros((batch, turns), jnp.int32), effective=jnp.zeros((batch, turns), jnp.int32),
        turns=jnp.asarray(taken), terminated=jnp.asarray(false[:, 0]), truncated=jnp.asarray(false[:, 0]),
        success=jnp.asarray(false[:, 0]), overflow=jnp.asarray(false[:, 0]), level=jnp.zeros(batch, jnp.int32),
        group_size=members,
    )  # fmt: skip
