"""The agent's protocol: sampled tokens in, actions, transitions, tokens of the next observation out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Params, Span, State, StepInfo, TimeStep, Tokenizer, Transition
from envs_jax.errors import ConfigError
from envs_jax.layout import Layout, TurnConfig, all_phrases, layout
from envs_jax.text.actions import split_actions
from envs_jax.text.chat import ChatFormat
from envs_jax.text.detokenise import VocabTable, detokenise
from envs_jax.text.phrases import PhraseTable, join, phrase_lengths
from envs_jax.text.scan import is_space
from envs_jax.text.tags import find_tags

BYTES_PER_TOKEN = 8  # default parser buffer for each token of a response, or the longest token if shorter
SIZING_LEVELS = 256  # levels looked at to choose the observation buffers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TurnParams:
    """Everything that an episode reads and that is not static: tables, rewards, levels."""

    env: Params
    phrases: PhraseTable  # the protocol's phrases, then the environment's
    vocab: VocabTable
    format_penalty: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TurnState:
    """State of one episode."""

    env: State
    turn: Int[Array, ""]  # turns taken
    actions_left: Int[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    success: Bool[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ParsedResponse:
    """What a response says. `actions` has leading axis K."""

    format_ok: Bool[Array, ""]
    think_valid: Bool[Array, ""]
    think_end: Int[Array, ""]
    actions: Span
    count: Int[Array, ""]
    overflow: Bool[Array, ""]


def _select(flag: Bool[Array, ""], new: State, old: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old)


@dataclass(frozen=True)
class TurnEnv:
    """An environment behind the agent's protocol. Static and hashable; equal arguments give equal objects.

    Call `reset` and `step` under `jax.vmap` for a batch. To compile once for equal objects, make the object
    a static argument: `jax.jit(TurnEnv.step, static_argnums=0)`.

    Attributes:
        tag: name in the registry.
        env: the environment.
        config: the protocol's settings, `response_bytes` filled in.
        chat: how messages are written.
        vocab_size: ids of the tokenizer.
        prompt_capacity: L0, slots of the first observation.
        obs_capacity: L1, slots of each later one.
        special_tokens: special tokens by text, for people.
    """

    tag: str
    env: Environment
    config: TurnConfig
    chat: ChatFormat
    vocab_size: int
    prompt_capacity: int
    obs_capacity: int
    special_tokens: tuple[tuple[str, int], ...] = ()

    @property
    def num_levels(self) -> int:
        return self.env.num_levels

    @property
    def layout(self) -> Layout:
        return layout(self.env, self.config, self.chat)

    @property
    def response_bytes(self) -> int:
        """N, bytes that the parser looks at."""
        return self.config.response_bytes or BYTES_PER_TOKEN * self.config.max_response_tokens

    # -- pure functions --------------------------------------------------------------------------------
    def draw_level(self, key: Array) -> Int[Array, ""]:
        """A level index, uniform over the pool."""
        return jax.random.randint(key, (), 0, self.num_levels, dtype=jnp.int32)

    def reset(self, level: Int[Array, ""], params: TurnParams) -> tuple[TurnState, TimeStep]:
        """Starts an episode of level `level` in [0, num_levels). `obs_tokens` has L0 slots."""
        false = jnp.zeros((), bool)
        state = TurnState(
            env=self.env.level(jnp.asarray(level, jnp.int32), params.env),
            turn=jnp.zeros((), jnp.int32),
            actions_left=jnp.full((), self.config.max_actions_per_traj, jnp.int32),
            terminated=false,
            truncated=false,
            success=false,
        )
        tokens, length, overflow = join(
            params.phrases, self.first_fragments(state, params), self.prompt_capacity
        )
        zero = jnp.zeros((), jnp.int32)
        info = StepInfo(
            format_ok=false,
            think_valid=false,
            think_end=zero,
            n_actions=zero,
            n_valid=zero,
            n_executed=zero,
            n_effective=zero,
            actions_left=state.actions_left,
            text_overflow=false,
            obs_overflow=overflow,
            metrics=jnp.zeros((len(self.env.metric_names),), jnp.float32),
        )
        none = jnp.zeros((), jnp.float32)
        return state, TimeStep(tokens, length, none, none, false, false, false, info)

    def step(
        self,
        key: Array,
        state: TurnState,
        tokens: Int[Array, " T"],
        length: Int[Array, ""],
        params: TurnParams,
    ) -> tuple[TurnState, TimeStep]:
        """Plays one response.

        Names that the environment does not know are left out and the others run in order, at most
        `actions_left`, up to the end of the episode; action k of the answer draws from `fold_in(key, k)`.
        The episode is terminated when the environment says so, and truncated when the actions or the turns
        are used up before. A finished episode stays as it is: no reward, no penalty, no observation.

        Args:
            key: of this turn's dynamics.
            state: where the episode stands.
            tokens: the sampled ids, T of any size; the opening tag and the observation are not among them.
            length: how many of them count.
            params: traced parameters.

        Returns:
            The next state and a `TimeStep` whose `obs_tokens` has L1 slots.
        """
        live = ~(state.terminated | state.truncated)
        said = self.parse_response(tokens, length, params)
        actions, known = jax.vmap(lambda span: self.env.parse(span, state.env, params.env))(said.actions)
        slot = jnp.arange(self.config.max_actions_per_turn, dtype=jnp.int32)
        known = known & (slot < said.count)
        n_valid = jnp.sum(known, dtype=jnp.int32)

        may_run = known & live & (jnp.cumsum(known, dtype=jnp.int32) <= state.actions_left)
        ran = self._run(key, state.env, actions, may_run, params)

        actions_left = state.actions_left - ran.executed
        turn = state.turn + live
        terminated = jnp.where(live, ran.terminated, state.terminated)
        used_up = (actions_left <= 0) | (turn >= self.config.max_turns)
        truncated = jnp.where(live, ~ran.terminated & used_up, state.truncated)
        after = TurnState(
            env=ran.state,
            turn=turn,
            actions_left=actions_left,
            terminated=terminated,
            truncated=truncated,
            success=jnp.where(live, ran.success, state.success),
        )

        at_fault = live & ((n_valid < said.count) | (n_valid == 0))
        fragments, off_table = self.later_fragments(after, ran.reward, n_valid == 0, params)
        obs, obs_length, overflow = join(params.phrases, fragments, self.obs_capacity)
        ended = terminated | truncated
        info = StepInfo(
            format_ok=said.format_ok & live,
            think_valid=said.think_valid & live,
            think_end=jnp.where(live, said.think_end, 0),
            n_actions=jnp.where(live, said.count, 0),
            n_valid=jnp.where(live, n_valid, 0),
            n_executed=ran.executed,
            n_effective=ran.effective,
            actions_left=actions_left,
            text_overflow=said.overflow & live,
            obs_overflow=(overflow | off_table) & ~ended,
            metrics=ran.metrics,
        )
        step = TimeStep(
            obs_tokens=jnp.where(ended, 0, obs),
            obs_len=jnp.where(ended, 0, obs_length),
            reward=ran.reward,
            penalty=jnp.where(at_fault, params.format_penalty, jnp.zeros((), jnp.float32)),
            terminated=terminated,
            truncated=truncated,
            success=after.success,
            info=info,
        )
        return after, step

    def parse_response(
        self, tokens: Int[Array, " T"], length: Int[Array, ""], params: TurnParams
    ) -> ParsedResponse:
        """Reads a response: its think span in tokens and the first K actions of its answer."""
        config = self.config
        text = detokenise(params.vocab, tokens, length, self.response_bytes)
        tags = find_tags(text.data, text.length, think=config.enable_think)
        actions, count = split_actions(
            text.data,
            tags.answer_start,
            tags.answer_stop,
            fold_case=self.env.folds_case,
            separator=config.action_sep if self.env.splits_actions else None,
            max_actions=config.max_actions_per_turn if self.env.splits_actions else 1,
            width=self.env.answer_bytes,
        )
        missing = config.max_actions_per_turn - actions.length.shape[0]
        if missing:
            actions = Span(
                jnp.pad(actions.data, ((0, missing), (0, 0))), jnp.pad(actions.length, (0, missing))
            )
        # Token that holds the first byte of "</think>": as many tokens end before that byte.
        think_end = jnp.sum(text.ends <= tags.think_stop, dtype=jnp.int32)
        slots = jnp.arange(text.data.shape[0], dtype=jnp.int32)
        kept_bytes = jnp.max(jnp.where(text.ends <= tags.think_stop, text.ends, 0))
        think_valid = tags.think_closed & jnp.any(~is_space(text.data) & (slots < kept_bytes))
        return ParsedResponse(
            format_ok=tags.format_ok,
            think_valid=think_valid,
            think_end=jnp.where(think_valid, think_end, 0),
            actions=actions,
            count=count,
            overflow=text.overflow,
        )

    def _run(
        self, key: Array, state: State, actions: State, may_run: Bool[Array, " K"], params: TurnParams
    ) -> _Ran:
        """Runs the marked actions in order until the environment ends the episode."""

        def body(carry: _Ran, x: tuple[Array, State, Array]) -> tuple[_Ran, None]:
            index, action, wanted = x
            out: Transition = self.env.transition(
                jax.random.fold_in(key, index), carry.state, action, params.env
            )
            run = wanted & ~carry.terminated
            return (
                _Ran(
                    state=_select(run, out.state, carry.state),
                    reward=carry.reward + jnp.where(run, out.reward, 0.0).astype(jnp.float32),
                    terminated=carry.terminated | (run & out.terminated),
                    success=jnp.where(run, out.success, carry.success),
                    executed=carry.executed + run,
                    effective=carry.effective + (run & out.effective),
                    metrics=jnp.where(run, out.metrics, carry.metrics).astype(jnp.float32),
                ),
                None,
            )

        zero, false = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        metrics = jnp.zeros((len(self.env.metric_names),), jnp.float32)
        start = _Ran(state, jnp.zeros((), jnp.float32), false, false, zero, zero, metrics)
        index = jnp.arange(may_run.shape[0], dtype=jnp.int32)
        return jax.lax.scan(body, start, (index, actions, may_run))[0]

    # -- observations as fragments ---------------------------------------------------------------------
    def first_fragments(self, state: TurnState, params: TurnParams) -> Int[Array, " F"]:
        """Fragments of the first observation: everything up to and with the opening tag."""
        at = self.layout
        tail = at.tail if self.config.style == "brief" else at.tail + state.actions_left
        return _fragments(jnp.zeros((), jnp.int32), self._state_fragments(state, params), tail)

    def later_fragments(
        self, state: TurnState, reward: Float[Array, ""], warn: Bool[Array, ""], params: TurnParams
    ) -> tuple[Int[Array, " F"], Bool[Array, ""]]:
        """Fragments of an observation after a turn, and whether the shown reward is not the real one.

        The reward is shown to one decimal, between the bounds that the environment declares; another value
        is shown as the nearest.
        """
        at = self.layout
        shown = self._state_fragments(state, params)
        if self.config.style == "brief":
            return _fragments(at.later, shown, at.tail), jnp.zeros((), bool)
        exact = jnp.nan_to_num(reward * 10 - at.reward_low, nan=0.0)
        nearest = jnp.clip(jnp.round(exact), 0, at.reward_count - 1)
        off = ~(jnp.abs(reward * 10 - at.reward_low - nearest) < 0.01)
        header = at.header + jnp.clip(state.turn - 1, 0, max(self.config.max_turns - 2, 0))
        warning = jnp.where(warn, at.warning, -1)
        number = at.reward + nearest.astype(jnp.int32)
        return _fragments(at.later, number, header, shown, warning, at.tail + state.actions_left), off

    def _state_fragments(self, state: TurnState, params: TurnParams) -> Int[Array, " F"]:
        ids = self.env.observe(state.env, params.env)
        return jnp.where(ids >= 0, ids + self.layout.count, -1)

    # -- text for people, on the host ------------------------------------------------------------------
    def phrases(self) -> tuple[str, ...]:
        """Every phrase, in the order of the phrase table."""
        return all_phrases(self.env, self.config, self.chat)

    def fragment_text(self, fragments: Sequence[int] | np.ndarray | Array) -> str:
        """Text of phrase ids (ids below zero are left out)."""
        phrases = self.phrases()
        return "".join(phrases[i] for i in np.asarray(fragments).tolist() if i >= 0)

    def render(self, state: TurnState, params: TurnParams) -> str:
        """The state of one episode as the agent reads it."""
        return self.fragment_text(self._state_fragments(state, params))

    def text_of(self, params: TurnParams, tokens: Sequence[int] | np.ndarray | Array) -> str:
        """Text of token ids, special tokens written out, invalid UTF-8 replaced."""
        pool, starts, lengths = _host_vocab(params.vocab)
        special = {i: s.encode() for s, i in self.special_tokens}
        out = bytearray()
        for token in np.asarray(tokens).tolist():
            if token in special:
                out += special[token]
            elif 0 <= token < len(starts):
                out += pool[starts[token] : starts[token] + lengths[token]]
        return out.decode("utf-8", errors="replace")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Ran:
    """Carry of the scan over actions."""

    state: State
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    success: Bool[Array, ""]
    executed: Int[Array, ""]
    effective: Int[Array, ""]
    metrics: Float[Array, " M"]


def _fragments(*parts: int | Array) -> Int[Array, " F"]:
    return jnp.concatenate([jnp.atleast_1d(jnp.asarray(p, jnp.int32)) for p in parts])


_HOST_VOCAB: dict[int, tuple[Array, tuple[bytes, list[int], list[int]]]] = {}


def _host_vocab(vocab: VocabTable) -> tuple[bytes, list[int], list[int]]:
    """Host copy of the newest vocabulary table used, kept with the array so that its id stays taken."""
    key = id(vocab.pool)
    if key not in _HOST_VOCAB:
        _HOST_VOCAB.clear()
        host = (
            np.asarray(vocab.pool).tobytes(),
            np.asarray(vocab.starts).tolist(),
            np.asarray(vocab.lengths).tolist(),
        )
        _HOST_VOCAB[key] = (vocab.pool, host)
    return _HOST_VOCAB[key][1]


# -- construction --------------------------------------------------------------------------------------
@functools.partial(jax.jit, static_argnums=0)
def _observation_sizes(
    env: TurnEnv, levels: Int[Array, " n"], params: TurnParams
) -> tuple[Array, Array, Array]:
    """Tokens of each level's state and of its first observation; fragments of the first level's state."""

    def size(level: Array) -> tuple[Array, Array]:
        state = env.reset(level, params)[0]
        shown = phrase_lengths(params.phrases, env._state_fragments(state, params))
        first = phrase_lengths(params.phrases, env.first_fragments(state, params))
        return jnp.sum(shown, dtype=jnp.int32), jnp.sum(first, dtype=jnp.int32)

    shown, first = jax.vmap(size)(levels)
    return shown, first, env._state_fragments(env.reset(levels[0], params)[0], params)


def _round_up(n: int, multiple: int = 8) -> int:
    return -(-n // multiple) * multiple


def build(
    tag: str,
    env: Environment,
    config: TurnConfig,
    chat: ChatFormat,
    tokenizer: Tokenizer,
    key: Array,
    *,
    split: str = "train",
    prompt_capacity: int | None = None,
    obs_capacity: int | None = None,
) -> tuple[TurnEnv, TurnParams]:
    """A `TurnEnv` and its parameters.

    Observation buffers that are not given hold what `Environment.state_tokens` bounds; without such a bound, the
    longest observation of the first levels of the pool and a margin of a quarter of the state's length (at least 16
    tokens) for states met later.
    """
    specials = tokenizer.special_ids()
    missing = [s for s in chat.required if s not in specials]
    if missing:
        raise ConfigError(
            "chat", chat.name, f"the tokenizer lacks {', '.join(missing)}; use another format or tokenizer"
        )
    vocab = VocabTable.build(tokenizer)
    if config.response_bytes is None:
        each = min(BYTES_PER_TOKEN, int(vocab.lengths.max()))
        config = replace(config, response_bytes=max(32, each * config.max_response_tokens))
    params = TurnParams(
        env=env.init_params(key, split),
        phrases=PhraseTable.build(all_phrases(env, config, chat), tokenizer),
        vocab=vocab,
        format_penalty=jnp.asarray(config.format_penalty, jnp.float32),
    )
    special_tokens = tuple(sorted(specials.items()))
    turn_env = TurnEnv(tag, env, config, chat, tokenizer.vocab_size, 1, 1, special_tokens)
    levels = jnp.arange(min(SIZING_LEVELS, env.num_levels), dtype=jnp.int32)
    shown, first, fragments = jax.device_get(_observation_sizes(turn_env, levels, params))

    sample = turn_env.fragment_text(fragments)
    if not sample.endswith("\n") or sample[:1].isspace():
        raise ConfigError(
            "observe", sample, "the text of a state begins without whitespace and ends with a newline"
        )
    margin = max(16, int(shown.max()) // 4)
    at, lengths = turn_env.layout, np.asarray(params.phrases.lengths)
    growth = (margin, margin)
    bounds = env.state_tokens(lengths[at.count :], params.env)
    if bounds is not None:
        growth = (max(bounds[0] - int(shown.max()), 0), max(bounds[1] - int(shown.max()), 0))
    around = int(lengths[at.later] + lengths[at.tail : at.reward if at.reward >= 0 else at.tail + 1].max())
    if at.reward >= 0:
        around += int(lengths[at.header : at.tail].max(initial=0) + lengths[at.warning])
        around += int(lengths[at.reward : at.reward + at.reward_count].max())
    needed = {"prompt_capacity": int(first.max()), "obs_capacity": int(shown.max()) + around}
    for name, given in (("prompt_capacity", prompt_capacity), ("obs_capacity", obs_capacity)):
        if given is not None and given < needed[name]:
            raise ConfigError(
                name, given, f"observations have up to {needed[name]} tokens; use at least that, or None"
            )
    prompt = prompt_capacity or _round_up(needed["prompt_capacity"] + growth[0])
    later = obs_capacity or _round_up(needed["obs_capacity"] + growth[1])
    return replace(turn_env, prompt_capacity=prompt, obs_capacity=later), params
