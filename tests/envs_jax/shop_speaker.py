"""Speaks to an environment as text, a batch of episodes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.text.byte_tokenizer import ByteTokenizer

T = 320


class Speaker:
    """Episodes of levels 0 .. rows - 1; `texts[i]` is what episode i was last shown."""

    def __init__(self, tag: str, rows: int, **overrides: Any) -> None:
        self.env, self.params = envs_jax.make(
            tag, num_levels=rows, max_response_tokens=T, chat="plain", style="brief", **overrides
        )
        self.rows, self.tokenizer, self.turn = rows, ByteTokenizer(), 0
        self._step = jax.jit(jax.vmap(self.env.step, in_axes=(0, 0, 0, 0, None)))
        self.state, self.out = jax.jit(jax.vmap(self.env.reset, in_axes=(0, None)))(
            jnp.arange(rows, dtype=jnp.int32), self.params
        )
        self.texts = self._texts()

    def _texts(self) -> list[str]:
        shown = np.asarray(jax.vmap(self.env.env.observe, in_axes=(0, None))(self.state.env, self.params.env))
        phrases = self.env.env.phrases()
        self.fragments = [[phrases[i] for i in row if i >= 0] for row in shown.tolist()]
        return ["".join(row) for row in self.fragments]

    def say(self, answers: Sequence[str], raw: bool = False) -> Any:
        """Every episode's answer (with `raw`, the whole response); returns the time step on the host."""
        tokens, lengths = np.zeros((self.rows, T), np.int32), np.zeros(self.rows, np.int32)
        for row, answer in enumerate(answers):
            ids = self.tokenizer.encode(answer if raw else f"so</think><answer>{answer}</answer>")[:T]
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        keys = jax.random.split(jax.random.key(self.turn), self.rows)
        self.turn += 1
        self.state, self.out = self._step(keys, self.state, tokens, lengths, self.params)
        self.texts = self._texts()
        return jax.device_get(self.out)
