"""Multi-turn episodes of a whole batch as one compiled program: decode, parse, step, append, repeat.

The key-value cache survives between turns: a turn's observation is a chunked append, and no id is ever encoded twice.
Nothing crosses to the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from envs_jax.core import TimeStep, Tokenizer
from envs_jax.mixture import Mixture, MixtureParams, States, as_mixture
from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.models import (
    Cache,
    ModelConfig,
    Params,
    decoding_params,
    extend,
    init_cache,
    spread_cache,
    unembedding,
)
from ragen_jax.rollout.sampling import (
    DYNAMICS,
    SAMPLE,
    Truncation,
    fold,
    row_keys,
    sample,
    stop_table,
    stopped,
)
from ragen_jax.rollout.shares import Shares, any_row, play_shares, share_out
from ragen_jax.rollout.trajectories import GIVEN, SAMPLED, Trajectories
from ragen_jax.rollout.windows import Window


@dataclass(frozen=True)
class RolloutSpec:
    """Static description of a rollout; one compiled program each."""

    model: ModelConfig
    env: TurnEnv | Mixture
    valid_vocab: int  # ids at or above are padding rows of the embedding and are never sampled
    truncation: Truncation = field(default_factory=Truncation)
    window: Window | None = None  # None: every turn is sampled under all that came before

    @property
    def capacity(self) -> int:
        """L: slots of the longest dialogue that the environment's fixed buffers allow, and of what a window inserts."""
        joints = 0 if self.window is None else len(self.window.answer) + len(self.window.result)
        return max(dialogue_slots(env) for env in self.parts) + joints

    @property
    def parts(self) -> tuple[TurnEnv, ...]:
        """The environments of the batch."""
        return self.env.parts if isinstance(self.env, Mixture) else (self.env,)

    def __post_init__(self) -> None:
        if self.window is not None:
            self._check_window(self.window)
        for env in self.parts if self.window is None else ():
            c = env.config
            if dialogue_slots(env) > self.model.max_position_embeddings:
                raise ValueError(
                    f"an episode of {env.tag} may need {dialogue_slots(env)} tokens (prompt {env.prompt_capacity} + "
                    f"{c.max_turns} turns of {c.max_response_tokens} sampled + {env.obs_capacity} given), but "
                    f"model.max_position_embeddings is {self.model.max_position_embeddings}; lower env.max_turns or "
                    "env.max_response_tokens, or show less of it (rollout.max_model_len, rollout.context_window_mode)"
                )
        if self.valid_vocab > self.model.vocab_size:
            raise ValueError(
                f"the tokenizer has {self.valid_vocab} ids but model.vocab_size is {self.model.vocab_size}; "
                "the model and the tokenizer do not belong together"
            )

    def _check_window(self, window: Window) -> None:
        if not isinstance(self.env, TurnEnv):
            raise ValueError("rollout.context_window_mode: a mixture (env.tags) needs full contexts")
        needed = window.prompt_slots(self.env) + self.env.config.max_response_tokens
        if needed > self.model.max_position_embeddings:
            raise ValueError(
                f"a turn of {self.env.tag} may need {needed} tokens under {window.turns} turns of context, but "
                f"model.max_position_embeddings is {self.model.max_position_embeddings}; lower "
                "rollout.max_context_window or rollout.max_model_len"
            )


def dialogue_slots(env: TurnEnv) -> int:
    """Slots of the longest dialogue that an environment's fixed buffers allow."""
    turns = env.config.max_turns
    return env.prompt_capacity + turns * env.config.max_response_tokens + (turns - 1) * env.obs_capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StopTable:
    """Tables of the tokenizer that decoding needs; traced, so a program holds no copy of them."""

    automaton: UInt8[Array, "V S"]
    is_eos: Bool[Array, "V"]


def make_stop_table(tokenizer: Tokenizer, tag: str = "</answer>") -> StopTable:
    """Stops on the tokenizer's eos ids and on `tag` wherever it appears in the sampled bytes."""
    table = stop_table(tokenizer.token_bytes(), tokenizer.eos_ids, tag.encode())
    is_eos = jnp.zeros(tokenizer.vocab_size, bool).at[jnp.array(tokenizer.eos_ids)].set(True)
    return StopTable(table, is_eos)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Invariant: cache slots [0, length) hold the row's text; `hidden` is the network's output at slot length - 1."""

    cache: Cache
    hidden: Float[Array, "B D"]
    length: Int[Array, "B"]
    response: Int[Array, "B R"]
    logprob: Float[Array, "B R"]
    count: Int[Array, "B"]  # tokens sampled in this turn
    automaton: UInt8[Array, "B"]
    position: Int[Array, ""]


def decode(
    params: Params,
    spec: RolloutSpec,
    limits: Int[Array, "B"],
    stops: StopTable,
    keys: Array,
    temperature: Array,
    live: Bool[Array, "B"],
    cache: Cache,
    hidden: Array,
    length: Array,
) -> DecodeState:
    """Samples one response for every live row, of at most `limits` tokens; other rows keep their state."""
    limit = max(env.config.max_response_tokens for env in spec.parts)
    batch = length.shape[0]
    zeros = jnp.zeros((batch, limit), jnp.int32)
    init = DecodeState(
        cache, hidden, length, zeros, jnp.zeros((batch, limit), jnp.float32), jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, jnp.uint8), jnp.int32(0),
    )  # fmt: skip
    head = unembedding(params, spec.model)

    def active(s: DecodeState) -> Array:
        return live & ~stopped(stops.automaton, s.automaton) & (s.count < limits)

    def unfinished(s: DecodeState) -> Array:
        return (s.position < limit) & any_row(active(s), spec.model)

    def body(s: DecodeState) -> DecodeState:
        on = active(s)
        logits = jnp.einsum("bd,vd->bv", s.hidden, head, preferred_element_type=jnp.float32)
        ids, logprob = sample(fold(keys, s.position), logits, temperature, spec.valid_vocab, spec.truncation)
        hidden, cache = extend(params, spec.model, ids[:, None], s.length, s.cache)
        return DecodeState(
            cache=cache,
            hidden=jnp.where(on[:, None], hidden[:, 0], s.hidden),
            length=s.length + on,
            response=s.response.at[:, s.position].set(jnp.where(on, ids, 0)),
            logprob=s.logprob.at[:, s.position].set(jnp.where(on, logprob, 0.0)),
            count=s.count + on,
            automaton=jnp.where(on, stops.automaton[ids, s.automaton], s.automaton),
            position=s.position + 1,
        )

    return jax.lax.while_loop(unfinished, body, init)


def write(target: Array, start: Array, count: Array, values: Array) -> Array:
    """target[b, start[b] : start[b] + count[b]] = values[b, :count[b]]; what would fall outside is dropped."""
    offsets = jnp.arange(values.shape[1])
    slots = jnp.where(offsets < count[:, None], start[:, None] + offsets, target.shape[1])
    return target.at[jnp.arange(target.shape[0])[:, None], slots].set(
        values.astype(target.dtype), mode="drop"
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Episode:
    """Carry of the loop over turns."""

    env_state: States
    live: Array
    cache: Cache
    hidden: Array
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


def _append(
    params: Params, spec: RolloutSpec, e: _Episode, tokens: Array, count: Array, turn: Array | int
) -> _Episode:
    """Appends given tokens (an observation) to every row."""
    hidden, cache = extend(params, spec.model, tokens, e.length, e.cache)
    last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
    return replace(
        e,
        cache=cache,
        hidden=jnp.where(count[:, None] > 0, last, e.hidden),
        length=e.length + count,
        tokens=write(e.tokens, e.length, count, tokens),
        role=write(e.role, e.length, count, jnp.full_like(tokens, GIVEN)),
        turn=write(e.turn, e.length, count, jnp.full_like(tokens, turn)),
    )


def rollout(
    params: Params,
    spec: RolloutSpec,
    env_params: TurnParams | MixtureParams,
    stops: StopTable,
    key: Array,
    levels: Int[Array, "P"],
    *,
    group_size: int,
    temperature: float | Array = 1.0,
    group_ids: Int[Array, "P"] | None = None,
) -> Trajectories:
    """Plays `group_size` episodes of each level. Pure; wrap it in `jax.jit` with `spec` and `group_size` static.

    `levels` are indices into the environment's pool; the members of a group share the level and the prompt, and differ
    in every random draw after it. In a mixture `levels` has the groups of its parts one after another, each an index
    into the pool of the group's own environment. `group_ids` (default 0 .. P - 1) are the groups' addresses for
    random numbers, so a batch may be split without changing what its members draw. At temperature 0 decoding is
    greedy.

    On several devices (`spec.model.placement`) each plays its share of the rows, whole groups or parts of one, and the
    result is then whole on every device. Raises ValueError unless the rows can be shared out evenly.
    """
    group_ids = jnp.arange(levels.shape[0]) if group_ids is None else group_ids
    weights = decoding_params(params, spec.model)
    inputs = weights, env_params, stops, key, jnp.asarray(temperature, jnp.float32)
    placement = spec.model.placement
    if spec.window is not None:
        from ragen_jax.rollout.windowed import windowed_episodes  # which is built from what is here

        if placement is not None:
            raise ValueError("rollout.context_window_mode: on several devices contexts must be full")
        assert isinstance(env_params, TurnParams)
        shares = Shares(levels, group_ids, jnp.zeros_like(levels))
        return windowed_episodes(spec, group_size, weights, env_params, stops, key, inputs[-1], shares)
    if placement is None:
        return _episodes(spec, group_size, *inputs, Shares(levels, group_ids, jnp.zeros_like(levels)))
    members, shares = share_out(levels, group_ids, group_size, placement.rows)
    return play_shares(partial(_episodes, spec, members), inputs, shares, group_size, placement)


def _episodes(
    spec: RolloutSpec,
    group_size: int,
    weights: Params,
    env_params: TurnParams | MixtureParams,
    stops: StopTable,
    key: Array,
    temperature: Array,
    shares: Shares,
) -> Trajectories:
    """`rollout` on one device; `weights` as `decoding_params` gives them, `group_size` members of each share."""
    levels = shares.levels
    groups, batch = levels.shape[0], levels.shape[0] * group_size
    env = as_mixture(spec.env, groups)
    tables = env_params if isinstance(env_params, tuple) else (env_params,)
    limits = jnp.asarray(env.response_limits(group_size))

    def row(a: Array) -> Array:
        return jnp.repeat(a, group_size)

    members = row(shares.first_member) + jnp.tile(jnp.arange(group_size), groups)
    keys = row_keys(key, row(shares.group_ids), members)

    # The prompt is encoded once a group, and its keys and values are given to every member.
    def each_member(x: Array) -> Array:
        return jnp.repeat(x, group_size, axis=0)

    state, first = env.reset(levels, tables)
    hidden, cache = extend(
        weights, spec.model, first.obs_tokens, jnp.zeros(groups, jnp.int32),
        init_cache(spec.model, groups, env.prompt_capacity),
    )  # fmt: skip
    cache = spread_cache(cache, group_size, spec.capacity)
    hidden = jnp.take_along_axis(hidden, (first.obs_len - 1)[:, None, None], axis=1)[:, 0]
    blank = jnp.zeros((batch, spec.capacity), jnp.int32)
    count, prompt = each_member(first.obs_len), each_member(first.obs_tokens)
    zero = jnp.zeros(batch, jnp.int32)
    off = jnp.zeros(batch, bool)
    episode = _Episode(
        env_state=jax.tree.map(each_member, state), live=~off, cache=cache, hidden=each_member(hidden), length=count,
        tokens=write(blank, zero, count, prompt),
        role=write(blank.astype(jnp.uint8), zero, count, jnp.full_like(prompt, GIVEN)),
        turn=blank, logprob=blank.astype(jnp.float32), turns=zero, terminated=off, truncated=off, success=off,
        overflow=each_member(first.info.obs_overflow),
    )  # fmt: skip

    def one_turn(e: _Episode, t: Array) -> tuple[_Episode, dict[str, Array]]:
        turn_keys = fold(keys, t)
        d = decode(
            weights,
            spec,
            limits,
            stops,
            fold(turn_keys, SAMPLE),
            temperature,
            e.live,
            e.cache,
            e.hidden,
            e.length,
        )
        env_state, step = env.step(
            fold(turn_keys, DYNAMICS), e.env_state, d.response, d.count, tables, group_size
        )
        record = {
            "prompt_end": e.length,
            "think_start": e.length,
            "think_end": e.length + step.info.think_end,
            "turn_end": d.length - 1,
            "reward": step.reward,
            "penalty": step.penalty,
            "format_ok": step.info.format_ok,
            "executed": step.info.n_executed,
            "effective": step.info.n_effective,
        }
        record = {n: jnp.where(e.live, v, jnp.zeros_like(v)) for n, v in record.items()}
        next_live = e.live & ~step.terminated & ~step.truncated
        sampled = jnp.full_like(d.response, SAMPLED)
        e = replace(
            e,
            env_state=env_state,
            cache=d.cache,
            hidden=d.hidden,
            length=d.length,
            tokens=write(e.tokens, e.length, d.count, d.response),
            role=write(e.role, e.length, d.count, sampled),
            turn=write(e.turn, e.length, d.count, jnp.full_like(d.response, t)),
            logprob=write(e.logprob, e.length, d.count, d.logprob),
            turns=e.turns + e.live,
            terminated=jnp.where(e.live, step.terminated, e.terminated),
            truncated=jnp.where(e.live, step.truncated, e.truncated),
            success=jnp.where(e.live, step.success, e.success),
            overflow=e.overflow | (e.live & (step.info.text_overflow | step.info.obs_overflow)),
            live=next_live,
        )
        obs, obs_len = without_sampled_eos(step, d, stops)
        obs_len = jnp.where(next_live, obs_len, 0)
        e = jax.lax.cond(
            any_row(next_live, spec.model),
            lambda e: _append(weights, spec, e, obs, obs_len, t + 1),
            lambda e: e,
            e,
        )
        return e, record

    episode, records = jax.lax.scan(one_turn, episode, jnp.arange(env.max_turns))
    columns: dict[str, Any] = {n: v.T for n, v in records.items()}
    return Trajectories(
        tokens=episode.tokens, length=episode.length, role=episode.role, turn=episode.turn, logprob=episode.logprob,
        turns=episode.turns, terminated=episode.terminated, truncated=episode.truncated, success=episode.success,
        overflow=episode.overflow, level=each_member(levels), group_size=group_size, **columns,
    )  # fmt: skip


def without_sampled_eos(step: TimeStep, d: DecodeState, stops: StopTable) -> tuple[Array, Array]:
    """The observation, less its first id where that id closes the turn and the policy has just sampled it."""
    last = jnp.take_along_axis(d.response, jnp.maximum(d.count - 1, 0)[:, None], axis=1)[:, 0]
    first = step.obs_tokens[:, 0]
    drop = (d.count > 0) & (last == first) & stops.is_eos[last] & (step.obs_len > 0)
    shifted = jnp.roll(step.obs_tokens, -1, axis=1)
    return jnp.where(drop[:, None], shifted, step.obs_tokens), step.obs_len - drop
