"""Episodes of a scripted agent that sees nothing but text: observations in, answers out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.turn import TurnEnv, TurnParams

Agent = Callable[
    [list[str]], list[str]
]  # states as text (the newest observation of each live row) -> answers


@cache
def _programs() -> tuple[Any, Any]:
    reset = jax.jit(
        lambda env, levels, params: jax.vmap(env.reset, in_axes=(0, None))(levels, params), static_argnums=0
    )

    def step(env: TurnEnv, keys: Any, state: Any, tokens: Any, lengths: Any, params: TurnParams) -> Any:
        return jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, lengths, params)

    return reset, jax.jit(step, static_argnums=0)


def play(env: TurnEnv, params: TurnParams, agent: Agent, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Plays levels 0 .. rows - 1 to their ends: success, turns, executed actions and sum of rewards of each."""
    reset, step = _programs()
    speaker = ByteTokenizer()
    state, shown = reset(env, jnp.arange(rows, dtype=jnp.int32), params)
    out = {name: np.zeros(rows) for name in ("success", "turns", "executed", "reward", "penalty")}
    live, texts = np.ones(rows, bool), [""] * rows
    for turn in range(env.config.max_turns):
        ids, lengths = np.asarray(shown.obs_tokens), np.asarray(shown.obs_len)
        for row in np.flatnonzero(live):
            text = speaker.decode(ids[row, : lengths[row]].tolist())
            texts[row] = text.split("State:\n")[-1].split("You have ")[0]
        answers = iter(agent([texts[row] for row in np.flatnonzero(live)]))
        tokens = np.zeros((rows, env.config.max_response_tokens), np.int32)
        count = np.zeros(rows, np.int32)
        for row in np.flatnonzero(live):
            said = speaker.encode(f"I see</think><answer>{next(answers)}</answer>")
            tokens[row, : len(said)], count[row] = said, len(said)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), turn), rows)
        state, shown = step(env, keys, state, tokens, count, params)
        out["success"] = np.asarray(shown.success).astype(float)
        out["turns"] += live
        out["executed"] += np.asarray(shown.info.n_executed)
        out["reward"] += np.asarray(shown.reward)
        out["penalty"] += np.asarray(shown.penalty)
        assert not np.asarray(shown.info.obs_overflow).any()
        live = ~np.asarray(shown.terminated | shown.truncated)
        if not live.any():
            break
    assert not live.any()
    return out
