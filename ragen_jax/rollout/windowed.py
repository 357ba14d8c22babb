"""Episodes in which a turn is sampled under a part of what came before: its prompt is gathered and encoded anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from envs_jax.borders import closing, reply_end, turn_begin
from envs_jax.mixture import States, as_mixture
from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.models import Params, extend, init_cache
from ragen_jax.rollout.episodes import (
    RolloutSpec,
    StopTable,
    decode,
    dialogue_slots,
    without_sampled_eos,
    write,
)
from ragen_jax.rollout.sampling import DYNAMICS, SAMPLE, fold, row_keys
from ragen_jax.rollout.shares import Shares
from ragen_jax.rollout.trajectories import GIVEN, SAMPLED, Trajectories
from ragen_jax.rollout.windows import Marks, gather_runs, in_chunks, prompt_runs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Record:
    """Carry of the loop over turns: an episode, every id once."""

    env_state: States
    live: Array
    length: Array
    tokens: Array
    role: Array
    turn: Array
    logprob: Array
    turns: Array
    terminated: Array
    truncated: Array
    success: Array
    overflow: Array
    marks: Marks


def _append(e: _Record, tokens: Array, count: Array, role: int, turn: Array, logprob: Array) -> _Record:
    return replace(
        e,
        length=e.length + count,
        tokens=write(e.tokens, e.length, count, tokens),
        role=write(e.role, e.length, count, jnp.full_like(tokens, role)),
        turn=write(e.turn, e.length, count, jnp.broadcast_to(turn, tokens.shape)),
        logprob=write(e.logprob, e.length, count, logprob),
    )


def windowed_episodes(
    spec: RolloutSpec,
    group_size: int,
    weights: Params,
    env_params: TurnParams,
    stops: StopTable,
    key: Array,
    temperature: Array,
    shares: Shares,
) -> Trajectories:
    """`rollout` with `spec.window`, on one device. The result's runs say what each turn was sampled under."""
    window, env = spec.window, spec.env
    assert window is not None
    assert isinstance(env, TurnEnv)
    levels = shares.levels
    groups, batch = levels.shape[0], levels.shape[0] * group_size
    mixture, tables = as_mixture(env, groups), (env_params,)
    most, response = env.config.max_turns, env.config.max_response_tokens
    prompt_slots = window.prompt_slots(env)
    limits = jnp.full(batch, response, jnp.int32)
    joints = dialogue_slots(env)

    def each_member(x: Array) -> Array:
        return jnp.repeat(x, group_size, axis=0)

    members = each_member(shares.first_member) + jnp.tile(jnp.arange(group_size), groups)
    keys = row_keys(key, each_member(shares.group_ids), members)
    state, first = mixture.reset(levels, tables)
    count, prompt = each_member(first.obs_len), each_member(first.obs_tokens)
    zero, off = jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool)
    blank, no_turn = jnp.zeros((batch, spec.capacity), jnp.int32), jnp.zeros((batch, most), jnp.int32)
    ids = jnp.asarray([*window.answer, *window.result], jnp.int32)  # beyond every episode's end
    begin = jnp.minimum(window.borders.head, count)
    state_end = jnp.maximum(count - closing(env, each_member(first.info.actions_left), env_params), begin)
    marks = Marks(no_turn, no_turn, no_turn, no_turn, no_turn).at(
        0, reward=begin, begin=begin, state_end=state_end, prompt_end=count
    )
    e = _Record(
        env_state=jax.tree.map(each_member, state), live=~off, length=zero,
        tokens=blank.at[:, joints:].set(ids), role=blank.astype(jnp.uint8), turn=blank,
        logprob=blank.astype(jnp.float32), turns=zero, terminated=off, truncated=off, success=off,
        overflow=each_member(first.info.obs_overflow), marks=marks,
    )  # fmt: skip
    e = _append(e, prompt, count, GIVEN, jnp.int32(0), jnp.zeros(prompt.shape, jnp.float32))

    def add(ids: Array, start: Array, cache: Any) -> tuple[Array, Any]:
        return extend(weights, spec.model, ids, start, cache)

    def one_turn(e: _Record, t: Array) -> tuple[_Record, dict[str, Array]]:
        turn_keys = fold(keys, t)
        start, length = prompt_runs(window, env, e.marks, t, joints)
        length = jnp.where(e.live[:, None], length, 0)
        used = jnp.sum(length, axis=1)
        cache = init_cache(spec.model, batch, prompt_slots + response)
        hidden, cache = in_chunks(
            add, gather_runs(e.tokens, start, length, prompt_slots), used, cache, spec.model.hidden_size
        )
        d = decode(
            weights, spec, limits, stops, fold(turn_keys, SAMPLE), temperature, e.live, cache, hidden, used
        )
        env_state, step = mixture.step(
            fold(turn_keys, DYNAMICS), e.env_state, d.response, d.count, tables, group_size
        )
        record = {
            "prompt_end": e.length, "think_start": e.length, "think_end": e.length + step.info.think_end,
            "turn_end": e.length + d.count - 1, "reward": step.reward, "penalty": step.penalty,
            "format_ok": step.info.format_ok, "executed": step.info.n_executed, "effective": step.info.n_effective,
            "run_start": start, "run_length": length,
        }  # fmt: skip
        record = {
            n: jnp.where(jnp.expand_dims(e.live, tuple(range(1, v.ndim))), v, jnp.zeros_like(v))
            for n, v in record.items()
        }
        last = jnp.take_along_axis(d.response, jnp.maximum(d.count - 1, 0)[:, None], axis=1)[:, 0]
        closed = (d.count > 0) & stops.is_eos[last]
        live = e.live & ~step.terminated & ~step.truncated
        obs, obs_len = without_sampled_eos(step, d, stops)
        dropped = step.obs_len - obs_len
        obs_len = jnp.where(live, obs_len, 0)
        e = replace(
            e,
            env_state=env_state,
            turns=e.turns + e.live,
            terminated=jnp.where(e.live, step.terminated, e.terminated),
            truncated=jnp.where(e.live, step.truncated, e.truncated),
            success=jnp.where(e.live, step.success, e.success),
            overflow=e.overflow | (e.live & (step.info.text_overflow | step.info.obs_overflow)),
            live=live,
        )
        e = _append(e, d.response, d.count, SAMPLED, t, d.logprob)
        at, end = e.length, e.length + obs_len
        begin = jnp.minimum(at + turn_begin(env, window.borders, step.reward, env_params) - dropped, end)
        following = {
            "reward": jnp.minimum(at + reply_end(env, env_params) - dropped, begin),
            "begin": begin,
            "state_end": jnp.maximum(end - closing(env, step.info.actions_left, env_params), begin),
            "prompt_end": end,
        }
        e = replace(e, marks=e.marks.at(t, answer=d.count - closed).at(t + 1, **following))
        return _append(e, obs, obs_len, GIVEN, t + 1, jnp.zeros(obs.shape, jnp.float32)), record

    e, records = jax.lax.scan(one_turn, e, jnp.arange(most))
    records = jax.tree.map(partial(jnp.swapaxes, axis1=0, axis2=1), records)
    return Trajectories(
        tokens=e.tokens, length=e.length, role=e.role, turn=e.turn, logprob=e.logprob, turns=e.turns,
        terminated=e.terminated, truncated=e.truncated, success=e.success, overflow=e.overflow,
        level=each_member(levels), group_size=group_size, prompt_slots=prompt_slots, turn_slots=response, **records,
    )  # fmt: skip
