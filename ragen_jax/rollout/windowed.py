"""Episodes in which a turn is sampled under a part of what came before: its prompt is gathered and encoded anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from envs_jax.borders import closing, reply_end, turn_begin
from envs_jax.mixture import MixtureParams, as_mixture
from envs_jax.turn import TurnEnv
from ragen_jax.models import Params, extend, init_cache
from ragen_jax.rollout.decoding import decode, without_sampled_eos
from ragen_jax.rollout.record import Record, begin, each_member
from ragen_jax.rollout.sampling import DYNAMICS, SAMPLE, fold
from ragen_jax.rollout.shares import Shares, longest_row
from ragen_jax.rollout.spec import RolloutSpec, StopTable, dialogue_slots
from ragen_jax.rollout.trajectories import Trajectories
from ragen_jax.rollout.windows import Marks, gather_runs, in_chunks, prompt_runs


def windowed_episodes(
    spec: RolloutSpec,
    group_size: int,
    weights: Params,
    tables: MixtureParams,
    stops: StopTable,
    key: Array,
    temperature: Array,
    shares: Shares,
) -> Trajectories:
    """`rollout` with `spec.window`, by one device. The result's runs say what each turn was sampled under."""
    window, env = spec.window, spec.env
    assert window is not None
    assert isinstance(env, TurnEnv)
    (params,) = tables
    mixture = as_mixture(env, shares.levels.shape[0])
    limits = jnp.asarray(mixture.response_limits(group_size))
    batch, most, response = limits.shape[0], env.config.max_turns, env.config.max_response_tokens
    prompt_slots, joints = window.prompt_slots(env), dialogue_slots(env)
    record, first, keys = begin(mixture, tables, key, shares, group_size, spec.capacity)
    ids = jnp.asarray([*window.answer, *window.result], jnp.int32)  # beyond every episode's end
    record = replace(record, tokens=record.tokens.at[:, joints:].set(ids))
    count = record.length
    head = jnp.minimum(window.borders.head, count)
    actions_left = each_member(first.info.actions_left, group_size)
    no_turn = jnp.zeros((batch, most), jnp.int32)
    marks = Marks(no_turn, no_turn, no_turn, no_turn, no_turn).at(
        0, reward=head, begin=head, state_end=jnp.maximum(count - closing(env, actions_left, params), head),
        prompt_end=count,
    )  # fmt: skip

    def add(ids: Array, start: Array, cache: Any) -> tuple[Array, Any]:
        return extend(weights, spec.model, ids, start, cache)

    def one_turn(carry: tuple[Record, Marks], t: Array) -> tuple[tuple[Record, Marks], dict[str, Array]]:
        e, marks = carry
        turn_keys = fold(keys, t)
        start, length = prompt_runs(window, env, marks, t, joints)
        length = jnp.where(e.live[:, None], length, 0)
        used = jnp.sum(length, axis=1)
        hidden, cache = in_chunks(
            add, gather_runs(e.tokens, start, length, prompt_slots), used, longest_row(used, spec.model),
            init_cache(spec.model, batch, prompt_slots + response), spec.model.hidden_size,
        )  # fmt: skip
        d = decode(
            weights, spec, limits, stops, fold(turn_keys, SAMPLE), temperature, e.live, cache, hidden, used
        )
        env_state, step = mixture.step(
            fold(turn_keys, DYNAMICS), e.env_state, d.response, d.count, tables, group_size
        )
        columns = e.columns(step, d, run_start=start, run_length=length)
        last = jnp.take_along_axis(d.response, jnp.maximum(d.count - 1, 0)[:, None], axis=1)[:, 0]
        closed = (d.count > 0) & stops.is_eos[last]
        obs, obs_len = without_sampled_eos(step, d, stops)
        dropped = step.obs_len - obs_len
        e = e.played(env_state, step, d, t)
        obs_len = jnp.where(e.live, obs_len, 0)
        at, end = e.length, e.length + obs_len
        begin = jnp.minimum(at + turn_begin(env, window.borders, step.reward, params) - dropped, end)
        following = {
            "reward": jnp.minimum(at + reply_end(env, params) - dropped, begin),
            "begin": begin,
            "state_end": jnp.maximum(end - closing(env, step.info.actions_left, params), begin),
            "prompt_end": end,
        }
        marks = marks.at(t, answer=d.count - closed).at(t + 1, **following)
        return (e.given(obs, obs_len, t + 1), marks), columns

    (record, _), columns = jax.lax.scan(one_turn, (record, marks), jnp.arange(most))
    return record.trajectories(
        columns, shares.levels, group_size, prompt_slots=prompt_slots, turn_slots=response
    )
