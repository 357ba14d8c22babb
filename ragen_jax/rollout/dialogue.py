"""Episodes in which every turn is sampled under all that came before.

The key-value cache survives between turns: a turn's observation is a chunked append, and no id is ever encoded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from envs_jax.mixture import MixtureParams, as_mixture
from ragen_jax.models import Cache, Params, extend, init_cache, spread_cache
from ragen_jax.rollout.decoding import decode, without_sampled_eos
from ragen_jax.rollout.record import Record, begin, each_member
from ragen_jax.rollout.sampling import DYNAMICS, SAMPLE, fold
from ragen_jax.rollout.shares import Shares, any_row
from ragen_jax.rollout.spec import RolloutSpec, StopTable
from ragen_jax.rollout.trajectories import Trajectories


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Episode:
    """Carry of the loop over turns. Invariant: as in `DecodeState`."""

    record: Record
    cache: Cache
    hidden: Array


def dialogues(
    spec: RolloutSpec,
    group_size: int,
    weights: Params,
    tables: MixtureParams,
    stops: StopTable,
    key: Array,
    temperature: Array,
    shares: Shares,
) -> Trajectories:
    """`rollout` by one device; `weights` as `decoding_params` gives them, `group_size` members of each share."""
    groups = shares.levels.shape[0]
    env = as_mixture(spec.env, groups)
    limits = jnp.asarray(env.response_limits(group_size))
    record, first, keys = begin(env, tables, key, shares, group_size, spec.capacity)

    # The prompt is encoded once a share, and its keys and values are given to every member.
    hidden, cache = extend(
        weights, spec.model, first.obs_tokens, jnp.zeros(groups, jnp.int32),
        init_cache(spec.model, groups, env.prompt_capacity),
    )  # fmt: skip
    hidden = jnp.take_along_axis(hidden, (first.obs_len - 1)[:, None, None], axis=1)[:, 0]
    cache = spread_cache(cache, group_size, spec.capacity)

    def append(e: _Episode, tokens: Array, count: Array, turn: Array) -> _Episode:
        hidden, cache = extend(weights, spec.model, tokens, e.record.length, e.cache)
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
        hidden = jnp.where(count[:, None] > 0, last, e.hidden)
        return _Episode(e.record.given(tokens, count, turn), cache, hidden)

    def one_turn(e: _Episode, t: Array) -> tuple[_Episode, dict[str, Array]]:
        record, turn_keys = e.record, fold(keys, t)
        d = decode(
            weights, spec, limits, stops, fold(turn_keys, SAMPLE), temperature, record.live, e.cache, e.hidden,
            record.length,
        )  # fmt: skip
        env_state, step = env.step(
            fold(turn_keys, DYNAMICS), record.env_state, d.response, d.count, tables, group_size
        )
        columns = record.columns(step, d)
        record = record.played(env_state, step, d, t)
        obs, obs_len = without_sampled_eos(step, d, stops)
        obs_len = jnp.where(record.live, obs_len, 0)
        e = jax.lax.cond(
            any_row(record.live, spec.model),
            lambda e: append(e, obs, obs_len, t + 1),
            lambda e: e,
            _Episode(record, d.cache, d.hidden),
        )
        return e, columns

    episode = _Episode(record, cache, each_member(hidden, group_size))
    episode, columns = jax.lax.scan(one_turn, episode, jnp.arange(env.max_turns))
    return episode.record.trajectories(columns, shares.levels, group_size)
