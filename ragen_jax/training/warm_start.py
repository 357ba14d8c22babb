"""Supervised start: a policy from scratch imitates a scripted teacher's whole dialogues."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from envs_jax.core import Tokenizer
from envs_jax.errors import ConfigError
from envs_jax.text.phrases import join
from envs_jax.turn import TurnEnv, TurnParams, TurnState
from ragen_jax.models import ModelConfig, Params, forward
from ragen_jax.rl.layout import laid_out, stored
from ragen_jax.scoring import policy_logprobs

Speaker = Callable[[TurnState, Array], list[str]]
_LENGTHS = 4  # lengths at which batches are compiled


@dataclass(frozen=True)
class Dialogues:
    """Token dialogues on the host: tokens i32[N, L], sampled bool[N, L] (the teacher's words), success bool[N]."""

    tokens: np.ndarray
    sampled: np.ndarray
    success: np.ndarray


@dataclass(frozen=True)
class Phase:
    """A stretch of the warm start: `steps` optimiser steps on batches of `batch_size` of `dialogues`."""

    dialogues: Dialogues
    steps: int
    batch_size: int


@partial(jax.jit, static_argnums=0)
def _reset(env: TurnEnv, levels: Array, params: TurnParams) -> Any:
    return jax.vmap(env.reset, in_axes=(0, None))(levels, params)


@partial(jax.jit, static_argnums=0)
def _step(env: TurnEnv, keys: Array, state: Any, tokens: Array, length: Array, params: TurnParams) -> Any:
    return jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, length, params)


@partial(jax.jit, static_argnums=0)
def _first_observations(env: TurnEnv, states: TurnState, params: TurnParams) -> Any:
    def one(state: TurnState) -> Any:
        return join(params.phrases, env.first_fragments(state, params), env.prompt_capacity)

    return jax.vmap(one)(states)


def read_aloud(
    env: TurnEnv, params: TurnParams, tokenizer: Tokenizer, see: Speaker, states: TurnState, key: Array
) -> Dialogues:
    """States (leading axis N) as first observations, each followed by `see(states, key) -> texts`."""
    obs, obs_len, _ = jax.device_get(_first_observations(env, states, params))
    given = [row[:length].tolist() for row, length in zip(obs, obs_len, strict=True)]
    said = [tokenizer.encode(text) for text in see(states, key)]
    rows = [g + s for g, s in zip(given, said, strict=True)]
    masks = [[False] * len(g) + [True] * len(s) for g, s in zip(given, said, strict=True)]
    return _packed(rows, masks, np.zeros(len(rows), bool))


def _packed(rows: list[list[int]], masks: list[list[bool]], success: np.ndarray) -> Dialogues:
    longest = -(-max(map(len, rows)) // 8) * 8
    tokens, sampled = np.zeros((len(rows), longest), np.int32), np.zeros((len(rows), longest), bool)
    for i, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        tokens[i, : len(row)], sampled[i, : len(row)] = row, mask
    return Dialogues(tokens, sampled, success)


def play(
    env: TurnEnv, params: TurnParams, tokenizer: Tokenizer, speak: Speaker, levels: Array, key: Array
) -> Dialogues:
    """Plays one episode of each level with responses from `speak(states, key) -> texts`, on the host's side.

    Raises ConfigError when a response does not fit `max_response_tokens`.
    """
    state, step = _reset(env, levels, params)
    count, limit = len(levels), env.config.max_response_tokens
    rows: list[list[int]] = [[] for _ in range(count)]
    masks: list[list[bool]] = [[] for _ in range(count)]
    obs, obs_len = np.asarray(step.obs_tokens), np.asarray(step.obs_len)
    live = np.ones(count, bool)
    for turn in range(env.config.max_turns):
        turn_key = jax.random.fold_in(key, turn)
        texts = speak(state, turn_key)
        response, length = np.zeros((count, limit), np.int32), np.zeros(count, np.int32)
        for i in np.flatnonzero(live).tolist():
            ids = tokenizer.encode(texts[i])
            if len(ids) > limit:
                raise ConfigError(
                    "env.max_response_tokens", limit, f"a demonstration has {len(ids)} tokens; raise it"
                )
            response[i, : len(ids)], length[i] = ids, len(ids)
            rows[i] += [*obs[i, : obs_len[i]].tolist(), *ids]
            masks[i] += [False] * int(obs_len[i]) + [True] * len(ids)
        keys = jax.random.split(jax.random.fold_in(turn_key, 1), count)
        state, step = _step(env, keys, state, jnp.asarray(response), jnp.asarray(length), params)
        obs, obs_len = np.asarray(step.obs_tokens), np.asarray(step.obs_len)
        live &= ~np.asarray(step.terminated | step.truncated)
        if not live.any():
            break
    return _packed(rows, masks, np.asarray(state.success))


def merge_dialogues(dialogues: list[Dialogues]) -> Dialogues:
    """All dialogues in one table, as long as the longest."""
    if len(dialogues) == 1:
        return dialogues[0]
    longest = max(d.tokens.shape[1] for d in dialogues)

    def wide(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, longest - x.shape[1])))

    return Dialogues(
        np.concatenate([wide(d.tokens) for d in dialogues]),
        np.concatenate([wide(d.sampled) for d in dialogues]),
        np.concatenate([d.success for d in dialogues]),
    )


@partial(jax.jit, static_argnames=("cfg", "optimiser", "valid_vocab"), donate_argnums=(0, 1))
def _sft_step(
    params: Params,
    opt_state: Any,
    tokens: Array,
    sampled: Array,
    *,
    cfg: ModelConfig,
    optimiser: optax.GradientTransformation,
    valid_vocab: int,
) -> tuple[Params, Any, Array]:
    def loss(params: Params) -> Array:
        hidden = forward(params, cfg, tokens)[:, :-1]
        logprob, _ = policy_logprobs(
            params,
            cfg,
            hidden.reshape(-1, hidden.shape[-1]),
            tokens[:, 1:].reshape(-1),
            valid_vocab=valid_vocab,
        )
        mask = sampled[:, 1:].reshape(-1)
        return -jnp.sum(jnp.where(mask, logprob, 0.0)) / jnp.maximum(jnp.sum(mask), 1)

    value, grad = jax.value_and_grad(loss)(params)
    changes, opt_state = optimiser.update(stored(grad, cfg), opt_state, params)
    return *stored((optax.apply_updates(params, changes), opt_state), cfg), value


def imitate(
    params: Params,
    cfg: ModelConfig,
    phases: Sequence[Phase],
    *,
    lr: float,
    valid_vocab: int,
    seed: int,
) -> Iterator[tuple[Params, Array]]:
    """Next-token cross-entropy on the teacher's words; yields parameters and loss after every step.

    AdamW with a linear warm-up of a tenth of all phases' steps and a cosine to a tenth. Rows are drawn without
    replacement within a pass, in batches of like length, so that few slots are padding and only a few shapes are
    compiled.
    """
    steps = sum(phase.steps for phase in phases)
    schedule = optax.schedules.warmup_cosine_decay_schedule(0.0, lr, max(1, steps // 10), steps, lr / 10)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.98, weight_decay=0.01)
    )
    opt_state = laid_out(optimiser.init, cfg, params)
    for number, phase in enumerate(phases):
        seen = phase.dialogues
        batches = _batches(seen, phase.batch_size, np.random.default_rng((seed, number)))
        for rows, length in itertools.islice(batches, phase.steps):
            params, opt_state, loss = _sft_step(
                params, opt_state, seen.tokens[rows, :length], seen.sampled[rows, :length],
                cfg=cfg, optimiser=optimiser, valid_vocab=valid_vocab,
            )  # fmt: skip
            yield params, loss


def _batches(dialogues: Dialogues, size: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Endless passes over the rows: (rows of one batch, the slots that they need)."""
    slots = dialogues.tokens.shape[1]
    last = slots - np.argmax(dialogues.sampled[:, ::-1], axis=1)  # one past a row's last sampled token
    bucket = -(-last * _LENGTHS // slots)
    while True:
        order = rng.permutation(len(last))
        order = order[np.argsort(bucket[order], kind="stable")]
        whole = order[: len(order) // size * size] if len(order) >= size else np.resize(order, size)
        batches = whole.reshape(-1, size)
        for rows in batches[rng.permutation(len(batches))]:
            yield rows, -(-int(bucket[rows].max()) * slots // _LENGTHS)
