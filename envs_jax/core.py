"""The environment contract: what a game says, reads and does, as pure functions of arrays.

An `Environment` is a frozen, hashable description (its configuration is static) and holds no arrays. Everything that
an array can hold (level pools, rewards, probabilities, question tables) lives in the traced `params` pytree that
`init_params` builds, so changing it never recompiles. `envs_jax.turn.TurnEnv` adds the agent's text protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

State = Any  # a registered dataclass of arrays, private to each environment
Params = Any  # likewise, traced
Action = Any  # a pytree of arrays, private to each environment


class Tokenizer(Protocol):
    """What the environments need of a tokenizer. `ragen_jax.tokenizers` provides three kinds."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; valid ids are 0 .. vocab_size - 1."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a turn. Never empty."""
        ...

    def encode(self, text: str) -> list[int]:
        """Canonical ids of `text`. Special tokens written out in the text become their single id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out, invalid UTF-8 replaced."""
        ...

    def token_bytes(self) -> list[bytes]:
        """Bytes that each id stands for, length vocab_size; b"" for special tokens and unused ids."""
        ...

    def special_ids(self) -> dict[str, int]:
        """Special tokens by their text."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Span:
    """Bytes cut out of an answer: `data[:length]`. Where `length` exceeds A, `data` holds the first A of them."""

    data: UInt8[Array, "A"]
    length: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transition:
    """Outcome of one action. `metrics` is aligned with `Environment.metric_names`."""

    state: State
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    success: Bool[Array, ""]
    valid: Bool[Array, ""]  # the action was legal here
    effective: Bool[Array, ""]  # the action changed the state
    metrics: Float[Array, "M"]


@dataclass(frozen=True)
class Environment(ABC):
    """Base class of every environment. Subclasses are frozen dataclasses whose fields are static configuration.

    Text. `observe` returns fragment ids, indices into `phrases()`, padded with -1; the text that a person reads is the
    same fragments joined. A fragment border must be a pre-tokenisation border: a space belongs to the word after it,
    a newline to the punctuation before it, a board row is one fragment (docs/architecture.md, "Fragments").

    Levels. `level(i, params)` for i in [0, num_levels) is a pure function: the same index gives the same start.
    """

    num_levels: int = 4096  # levels in a pool

    # -- static facts ------------------------------------------------------------------------------------------------
    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of `Transition.metrics`."""
        return ()

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of a discrete action set, in id order; empty for free-text actions."""
        return ()

    @property
    def answer_bytes(self) -> int:
        """A: how many bytes of one action `parse` needs to see."""
        return max((len(n.encode()) for n in self.action_names), default=64)

    @property
    def splits_actions(self) -> bool:
        """Whether an answer may hold several actions joined by the separator."""
        return True

    @property
    def folds_case(self) -> bool:
        """Whether `parse` sees ASCII letters in lower case."""
        return True

    @property
    @abstractmethod
    def reward_range(self) -> tuple[float, float]:
        """Bounds of the sum of rewards that one turn of any length can give per action."""

    # -- text --------------------------------------------------------------------------------------------------------
    @abstractmethod
    def instruction(self) -> str:
        """What the agent is told once: the task, the legend of the real vocabulary, the form of an action."""

    @abstractmethod
    def phrases(self) -> Sequence[str]:
        """Every piece of text that `observe` can say, without duplicates."""

    def state_tokens(self, lengths: np.ndarray, params: Params) -> tuple[int, int] | None:
        """Bounds on the tokens of a start state's text and of any state's, where phrase f has `lengths[f]` tokens.

        Run once, on the host, to size the observation buffers. None: they are measured on start states, with a margin,
        which is for environments whose text hardly grows.
        """
        return None

    # -- pure functions ----------------------------------------------------------------------------------------------
    @abstractmethod
    def init_params(self, key: Array, split: str = "train") -> Params:
        """Builds the traced parameters, among them the level pool. Run once, outside any step.

        `key` already differs between splits. `split` is for environments on recorded data, whose `phrases()` hold
        the texts of every split, so that one phrase table serves the pools of all.
        """

    @abstractmethod
    def level(self, index: Int[Array, ""], params: Params) -> State:
        """Start state of level `index`."""

    @abstractmethod
    def observe(self, state: State, params: Params) -> Int[Array, "F"]:
        """Fragment ids of the state's text, -1 beyond its end."""

    @abstractmethod
    def parse(self, span: Span, state: State, params: Params) -> tuple[Action, Bool[Array, ""]]:
        """One action's text to an action, and whether it names one.

        The text is trimmed, and its ASCII letters are in lower case if `folds_case`.
        """

    @abstractmethod
    def transition(self, key: Array, state: State, action: Action, params: Params) -> Transition:
        """Applies one action to a live state."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepInfo:
    """What happened in one turn. Fixed struct: same leaves, shapes and dtypes in reset and step."""

    format_ok: Bool[Array, ""]  # the think and answer tags were found
    think_valid: Bool[Array, ""]  # the think span is closed and not empty
    # the span is response tokens [0, think_end); excludes a token straddling "</think>"
    think_end: Int[Array, ""]
    n_actions: Int[Array, ""]  # actions kept of the answer (at most max_actions_per_turn), known or not
    n_valid: Int[Array, ""]  # of these, how many were known
    n_executed: Int[Array, ""]  # of these, how many were executed
    n_effective: Int[Array, ""]  # of these, how many changed the state
    actions_left: Int[Array, ""]
    text_overflow: Bool[Array, ""]  # the response had more bytes than the parser's buffer
    obs_overflow: Bool[Array, ""]  # the observation had more tokens than its buffer, or a number out of range
    metrics: Float[Array, "M"]  # of the last executed action, aligned with Environment.metric_names


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeStep:
    """What the agent gets back. `obs_tokens[:obs_len]` is appended to the dialogue as it is; no id is ever re-encoded.

    After the first turn it begins with the tokens that close the assistant's message (when its first token is the eos
    that the policy has just sampled, the caller leaves that one out) and ends with the opening think (or answer) tag.
    A finished episode gives obs_len 0.
    """

    obs_tokens: Int[Array, "L"]
    obs_len: Int[Array, ""]
    reward: Float[Array, ""]  # sum over the turn's actions, without the penalty
    penalty: Float[Array, ""]  # format penalty of the turn, <= 0
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    success: Bool[Array, ""]
    info: StepInfo
