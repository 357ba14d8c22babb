"""What of an episode each turn is sampled under, as runs of ids of the episode's own record.

The record (`Trajectories.tokens`) holds every id once, in the order of the episode, whatever the policy was shown. A
turn's prompt is a list of runs (first slot, number of slots) of it, so a prompt is never written out or encoded again:
the rollout, the trainer and the diagnosis gather the same runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from envs_jax.borders import Borders, measure_borders
from envs_jax.core import Tokenizer
from envs_jax.errors import ConfigError
from envs_jax.text.phrases import spread
from envs_jax.turn import TurnEnv, TurnParams

Mode = Literal["full", "limited_multi_turn", "single_turn"]


@dataclass(frozen=True)
class Window:
    """Static description of the prompts. See `training.sections.RolloutSection` for the meaning of the settings."""

    mode: Mode
    turns: int  # W: most turns shown, the present one among them
    borders: Borders
    max_len: int | None = None  # most tokens of a prompt and its response; older turns are left out
    answer: tuple[int, ...] = ()  # ids before an earlier answer, single_turn
    result: tuple[int, ...] = ()  # ids after one

    @property
    def runs(self) -> int:
        """K: runs of a prompt."""
        return 4 * self.turns - 2 if self.mode == "single_turn" else 2

    def prompt_slots(self, env: TurnEnv) -> int:
        """Slots that hold any prompt."""
        response = env.config.max_response_tokens
        most = max(env.prompt_capacity, self.borders.head + env.obs_capacity)
        most += (self.turns - 1) * (response + env.obs_capacity + len(self.answer) + len(self.result))
        return most if self.max_len is None else min(most, self.max_len - response)


def make_window(
    env: TurnEnv, params: TurnParams, tokenizer: Tokenizer, mode: Mode, turns: int, max_len: int | None
) -> Window | None:
    """The window of a configuration; None where every turn is sampled under all that came before.

    Raises ConfigError where not even the present turn fits, or a tokenizer lets no turn begin by itself.
    """
    if mode == "full" and max_len is None:
        return None
    shown = env.config.max_turns if mode == "full" else min(turns, env.config.max_turns)
    window = Window(mode, shown, measure_borders(env, params), max_len)
    if max_len is not None:
        response = env.config.max_response_tokens
        least = replace(window, turns=1, max_len=None).prompt_slots(env) + response
        if max_len < least:
            raise ConfigError(
                "rollout.max_model_len", max_len,
                f"one turn of {env.tag} alone may need {least} tokens, {response} of them sampled",
            )  # fmt: skip
    if mode == "single_turn" and shown > 1:
        brief = env.config.style == "brief"
        answer = ("" if brief else "Your answer:\n") + env.config.opening
        result = "\n" if brief else "\nReward:\n"
        window = replace(
            window, answer=tuple(tokenizer.encode(answer)), result=tuple(tokenizer.encode(result))
        )
    return window


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Marks:
    """Slots of the record, by turn; of turns to come 0."""

    reward: Int[Array, "B T"]  # where the reward of the turn before begins, that this turn's message shows
    begin: Int[Array, "B T"]  # where the turn's own part of its message begins
    state_end: Int[Array, "B T"]  # first slot after the state
    prompt_end: Int[Array, "B T"]  # first slot of the response
    answer: Int[Array, "B T"]  # tokens of the response, without an eos at its end

    def at(self, turn: Array | int, **values: Array) -> Marks:
        """With those values of a turn; a turn beyond the last is dropped."""
        new = {n: getattr(self, n).at[:, turn].set(v, mode="drop") for n, v in values.items()}
        return replace(self, **new)


def prompt_runs(
    window: Window, env: TurnEnv, marks: Marks, turn: Array, joints: int
) -> tuple[Int[Array, "B K"], Int[Array, "B K"]]:
    """First slots and lengths of the runs that are the prompt of `turn`.

    `joints`: slot of the record where `window.answer` and then `window.result` stand.
    """
    most = marks.begin.shape[1]
    head = window.borders.head
    end = marks.prompt_end[:, turn]
    first = jnp.broadcast_to(jnp.maximum(turn - window.turns + 1, 0), end.shape)
    zero = jnp.zeros_like(end)

    def of(x: Array, number: Array) -> Array:
        return jnp.take_along_axis(x, jnp.minimum(number, most - 1)[:, None], axis=1)[:, 0]

    if window.mode != "single_turn":
        if window.max_len is not None:
            room = window.max_len - env.config.max_response_tokens - head
            outgrown = (jnp.arange(most) < turn) & (end[:, None] - marks.begin > room)
            first = jnp.maximum(first, jnp.sum(outgrown, axis=1))
        begin = of(marks.begin, first)
        return jnp.stack([zero, begin], axis=1), jnp.stack([zero + head, end - begin], axis=1)

    runs = [(zero, zero + head)]
    for i in range(window.turns - 1):
        number = first + i
        earlier = number < turn
        begin = of(marks.begin if i == 0 else marks.reward, number)
        parts = (
            (begin, of(marks.state_end, number) - begin),
            (zero + joints, zero + len(window.answer)),
            (of(marks.prompt_end, number), of(marks.answer, number)),
            (zero + joints + len(window.answer), zero + len(window.result)),
        )
        runs += [(start, jnp.where(earlier, count, 0)) for start, count in parts]
    begin = jnp.where(first == turn, marks.begin[:, turn], marks.reward[:, turn])
    runs.append((begin, end - begin))
    return jnp.stack([s for s, _ in runs], axis=1), jnp.stack([c for _, c in runs], axis=1)


def gather_runs(
    tokens: Int[Array, "B L"], start: Int[Array, "B K"], count: Int[Array, "B K"], slots: int
) -> Int[Array, "B slots"]:
    """The ids of the runs end to end, in `slots` slots; 0 after them."""
    index, ends = jax.vmap(spread, in_axes=(0, 0, None))(start, count, slots)
    ids = jnp.take_along_axis(tokens, jnp.clip(index, 0, tokens.shape[1] - 1), axis=1)
    return jnp.where(jnp.arange(slots) < ends[:, -1:], ids, 0)


def in_chunks(
    extend: Callable[[Array, Array, Any], tuple[Array, Any]],
    tokens: Int[Array, "B L"],
    length: Int[Array, "B"],
    longest: Int[Array, ""],
    cache: Any,
    width: int,
    chunk: int = 64,
) -> tuple[Array, Any]:
    """Encodes prompts a chunk of slots at a time, as many as `longest` needs: (state at the last token, cache).

    `extend(ids, start, cache)` appends ids at slots; `width` is that of its states, of rows of length 0 all 0.
    """
    batch, slots = tokens.shape
    chunk = min(chunk, slots)
    tokens = jnp.pad(tokens, ((0, 0), (0, -slots % chunk)))

    def body(i: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        last, cache = carry
        ids = jax.lax.dynamic_slice(tokens, (0, i * chunk), (batch, chunk))
        hidden, cache = extend(ids, jnp.full(batch, i * chunk, jnp.int32), cache)
        at = length - 1 - i * chunk
        found = jnp.take_along_axis(hidden, jnp.clip(at, 0, chunk - 1)[:, None, None], axis=1)[:, 0]
        return jnp.where(((at >= 0) & (at < chunk))[:, None], found, last), cache

    dtype = jax.eval_shape(lambda c: extend(tokens[:, :chunk], length, c)[0], cache).dtype
    return jax.lax.fori_loop(0, -(-longest // chunk), body, (jnp.zeros((batch, width), dtype), cache))
