"""Agents for tests: texts through an environment's whole protocol, as tokens of bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.text.byte_tokenizer import ByteTokenizer

Agent = Callable[[int, int], str]  # (level, turn) -> response


def encode(texts: Sequence[str], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Responses as tokens and lengths."""
    speaker = ByteTokenizer()
    tokens, lengths = np.zeros((len(texts), size), np.int32), np.zeros(len(texts), np.int32)
    for row, text in enumerate(texts):
        ids = speaker.encode(text)[:size]
        tokens[row, : len(ids)], lengths[row] = ids, len(ids)
    return tokens, lengths


def play(
    env: envs_jax.TurnEnv, params: envs_jax.TurnParams, agent: Agent, turns: int
) -> tuple[list[envs_jax.TimeStep], envs_jax.TurnParams]:
    """Episodes of every level at once; what each turn gave."""
    size = env.config.max_response_tokens
    rows = env.num_levels
    state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jnp.arange(rows), params)[0]
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, 0, None)))
    out = []
    for turn in range(turns):
        tokens, lengths = encode([agent(level, turn) for level in range(rows)], size)
        state, result = step(jax.random.split(jax.random.key(turn), rows), state, tokens, lengths, params)
        out.append(jax.device_get(result))
    return out, params


def answer(text: str) -> str:
    return f"so</think> <answer>{text}</answer>"


def babble(alphabet: str, seed: int) -> Agent:
    """Random text, mostly in the right form."""

    def say(level: int, turn: int) -> str:
        rng = random.Random(f"{seed} {level} {turn}")
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 40)))
        return answer(text) if rng.random() < 0.9 else text

    return say
