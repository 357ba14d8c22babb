"""The settings of the agent's protocol, and the phrases that it speaks in."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from envs_jax.core import Environment
from envs_jax.errors import ConfigError
from envs_jax.text.actions import check_separator
from envs_jax.text.chat import ChatFormat

FORM_THINK = "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
FORM_ANSWER = "<answer> [your answer] </answer>"


@dataclass(frozen=True)
class TurnConfig:
    """Static settings of the protocol. The defaults are the published ones.

    Attributes:
        max_turns: turns (responses) in an episode, >= 1.
        max_actions_per_turn: K, actions kept of one answer, >= 1.
        max_actions_per_traj: actions executed in an episode, >= 1.
        action_sep: separator of actions in an answer.
        enable_think: whether a response begins with a think span.
        format_penalty: added to `TimeStep.penalty` for a turn with an unknown action or no known one, <= 0.
        max_response_tokens: T, length of the response buffer that the caller uses.
        length_hint: number of "words (tokens)" that the prompt asks the agent to stay within.
        style: "full" is the published layout; "brief" has only the state and the opening tag.
        response_bytes: N, the parser's buffer, at least 32. None: `max_response_tokens` times the longest
            token of the vocabulary or 8 bytes, whichever is less; `make` fills it in.
        system_prompt: first words of the system message.
    """

    max_turns: int = 5
    max_actions_per_turn: int = 2
    max_actions_per_traj: int = 10
    action_sep: str = "||"
    enable_think: bool = True
    format_penalty: float = -0.1
    max_response_tokens: int = 400
    length_hint: int = 100
    style: str = "full"
    response_bytes: int | None = None
    system_prompt: str = "You're a helpful assistant."

    def __post_init__(self) -> None:
        positive = (
            "max_turns",
            "max_actions_per_turn",
            "max_actions_per_traj",
            "max_response_tokens",
            "length_hint",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "use a number of at least 1")
        if self.response_bytes is not None and self.response_bytes < 32:
            raise ConfigError("response_bytes", self.response_bytes, "use at least 32, or None")
        if self.format_penalty > 0:
            raise ConfigError("format_penalty", self.format_penalty, "use zero or a negative number")
        if self.style not in ("full", "brief"):
            raise ConfigError("style", self.style, 'use "full" or "brief"')
        check_separator(self.action_sep)

    @property
    def opening(self) -> str:
        """The tag that the prompt ends with."""
        return "<think>" if self.enable_think else "<answer>"


@dataclass(frozen=True)
class Layout:
    """Phrases of the protocol and their places in the phrase table; the environment's follow from `count`."""

    phrases: tuple[str, ...]
    later: int  # what precedes the reward (full) or the state (brief) of every turn but the first
    warning: int
    header: int  # header of turn k (full, k >= 2) is header + k - 2
    tail: int  # what follows the state with A actions left is tail + A (full) or tail (brief)
    reward: int  # reward of r tenths is reward + r - reward_low
    reward_low: int
    reward_count: int

    @property
    def count(self) -> int:
        return len(self.phrases)


def _tenths(value: int) -> str:
    """Shortest decimal of value / 10."""
    sign, whole, tenth = "-" if value < 0 else "", abs(value) // 10, abs(value) % 10
    return f"{sign}{whole}.{tenth}" if tenth else f"{sign}{whole}"


def _instruction(env: Environment, config: TurnConfig) -> str:
    text = f"{config.system_prompt} {env.instruction()}"
    if env.action_names:
        text += f"\nAvailable actions: {', '.join(env.action_names)}."
    if env.action_names or (env.splits_actions and config.max_actions_per_traj > 1):
        text += (
            f"\nAt most {config.max_actions_per_turn} actions count in one answer and "
            f"{config.max_actions_per_traj} in the whole episode; "
            f'put "{config.action_sep}" between two actions.'
        )
    return text


@functools.lru_cache(maxsize=64)
def layout(env: Environment, config: TurnConfig, chat: ChatFormat) -> Layout:
    """The protocol's phrases.

    Every border between phrases is a border of pre-tokenisation: no phrase ends in a space or in two
    newlines, and none that follows a newline begins with whitespace.
    """
    later = chat.assistant_close + chat.user_open
    answer_open = chat.assistant_open + config.opening
    if config.style == "brief":
        # The state ends with a newline; where the chat format closes the message with one, that is the same
        # newline.
        tail = chat.user_close.removeprefix("\n") + answer_open
        phrases = [chat.begin + chat.user_open, later, tail]
        return Layout(
            tuple(phrases), later=1, warning=-1, header=-1, tail=2, reward=-1, reward_low=0, reward_count=0
        )

    phrases = [
        chat.begin
        + chat.system_open
        + _instruction(env, config)
        + chat.system_close
        + chat.user_open
        + "Turn 1:\nState:\n",
        later + "Reward:\n",
        "Your last answer held no valid action, so the state is unchanged. Try again.\n",
    ]
    header = len(phrases)
    phrases += [f"\n\nTurn {k}:\nState:\n" for k in range(2, config.max_turns + 1)]
    tail_at = len(phrases)
    form = FORM_THINK if config.enable_think else FORM_ANSWER
    for left in range(config.max_actions_per_traj + 1):
        phrases.append(
            f"You have {left} actions left. Reply in exactly this form and write nothing outside it: {form} "
            f"Any other form is not counted. Stay within {config.length_hint} words (tokens)."
            + chat.user_close
            + answer_open
        )
    low, high = (round(10 * bound * config.max_actions_per_turn) for bound in env.reward_range)
    low, high = min(low, 0), max(high, 0)
    reward = len(phrases)
    phrases += [_tenths(r) for r in range(low, high + 1)]
    return Layout(
        tuple(phrases),
        later=1,
        warning=2,
        header=header,
        tail=tail_at,
        reward=reward,
        reward_low=low,
        reward_count=high + 1 - low,
    )


@functools.lru_cache(maxsize=64)
def all_phrases(env: Environment, config: TurnConfig, chat: ChatFormat) -> tuple[str, ...]:
    return layout(env, config, chat).phrases + tuple(env.phrases())
