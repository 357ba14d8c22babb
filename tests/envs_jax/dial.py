"""A small environment for the protocol's tests, in JAX and, apart from it, in plain Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from envs_jax.core import Environment, Span, Transition
from envs_jax.text.actions import NameTable, match_name

ACTIONS = ("Inc", "Dec", "Draw", "Stop", "Even")
GOAL = 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DialState:
    value: Array
    level: Array


@dataclass(frozen=True)
class Dial(Environment):
    """A dial from -9 to 9.

    Inc and Dec turn it (Dec not below the level's start), Draw pays by chance, Stop ends the episode, Even is
    a word that exists only while the dial is even. Turning it to 1 succeeds.
    """

    num_levels: int = 3
    pay: float = 0.3

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("value",)

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def reward_range(self) -> tuple[float, float]:
        return (-0.4, 1.3)

    def instruction(self) -> str:
        return "Turn the dial to one."

    def phrases(self) -> Sequence[str]:
        return ["The dial is at", *(f" {v}.\n" for v in range(-9, 10))]

    def init_params(self, key: Array, split: str = "train") -> tuple[NameTable, Array]:
        return NameTable.build(ACTIONS, self.answer_bytes), jnp.float32(self.pay)

    def level(self, index: Array, params: tuple[NameTable, Array]) -> DialState:
        return DialState(-index, -index)

    def observe(self, state: DialState, params: tuple[NameTable, Array]) -> Array:
        return jnp.stack([jnp.int32(0), state.value + 10, jnp.int32(-1)])

    def parse(self, span: Span, state: DialState, params: tuple[NameTable, Array]) -> tuple[Array, Array]:
        index, known = match_name(span, params[0])
        return index, known & ((index != 4) | (state.value % 2 == 0))

    def transition(
        self, key: Array, state: DialState, action: Array, params: tuple[NameTable, Array]
    ) -> Transition:
        value = state.value + (action == 0) - ((action == 1) & (state.value > state.level))
        reached = (value == GOAL) & (action < 2)
        pays = jnp.stack([params[1], jnp.float32(-0.4), draw(key), jnp.float32(0), jnp.float32(0.1)])
        return Transition(
            state=DialState(value.astype(jnp.int32), state.level),
            reward=pays[action] + reached.astype(jnp.float32),
            terminated=reached | (action == 3),
            success=reached,
            valid=jnp.bool_(True),
            effective=value != state.value,
            metrics=value[None].astype(jnp.float32),
        )


def draw(key: Array) -> Array:
    return jax.random.randint(key, (), 0, 5, dtype=jnp.int32).astype(jnp.float32) / 10


@dataclass
class Reference:
    """One episode by RAGEN's rules (reference-ragen2 B.2, B.4), with our endings, in plain Python."""

    level: int
    turns: int
    per_turn: int
    per_episode: int
    penalty: float
    separator: str
    think: bool
    value: int = field(init=False)
    used: int = 0
    turn: int = 0
    terminated: bool = False
    truncated: bool = False
    success: bool = False

    def __post_init__(self) -> None:
        self.value = -self.level

    def play(self, response: str, draws: Sequence[float]) -> dict[str, float]:
        """`draws[k]` is what Draw pays as kept action k."""
        if self.terminated or self.truncated:
            return {
                "reward": 0.0,
                "penalty": 0.0,
                "executed": 0,
                "effective": 0,
                "kept": 0,
                "valid": 0,
                "format_ok": 0,
                "shown": 0,
            }
        if self.think:
            match = re.search(
                r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", "<think>" + response, re.DOTALL
            )
        else:
            match = re.search(r"<answer>(.*?)</answer>", "<answer>" + response, re.DOTALL)
        answer = match.group(match.lastindex) if match and match.lastindex else ""
        names = [a.strip() for a in answer.split(self.separator)]
        names = [a for a in names if a][: self.per_turn]
        known = [(k, n.lower()) for k, n in enumerate(names) if self.knows(n.lower())]
        reward, executed, effective = np.float32(0), 0, 0
        for k, name in known[: self.per_episode - self.used]:
            before = self.value
            reward += np.float32(self.apply(name, draws[k]))
            executed += 1
            effective += self.value != before
            if self.terminated:
                break
        self.used += executed
        self.turn += 1
        if not self.terminated and (self.used >= self.per_episode or self.turn >= self.turns):
            self.truncated = True
        fault = len(known) < len(names) or not known
        return {
            "reward": float(reward),
            "penalty": self.penalty if fault else 0.0,
            "executed": executed,
            "effective": effective,
            "kept": len(names),
            "valid": len(known),
            "format_ok": bool(match),
            "shown": not (self.terminated or self.truncated),
            "warn": not known,
        }

    def knows(self, name: str) -> bool:
        return name in ("inc", "dec", "draw", "stop") or (name == "even" and self.value % 2 == 0)

    def apply(self, name: str, drawn: float) -> float:
        if name == "inc":
            self.value += 1
        elif name == "dec" and self.value > -self.level:
            self.value -= 1
        if name in ("inc", "dec") and self.value == GOAL:
            self.terminated = self.success = True
        if name == "stop":
            self.terminated = True
        pays = {"inc": 0.3, "dec": -0.4, "draw": drawn, "stop": 0.0, "even": 0.1}
        return pays[name] + (1.0 if self.success else 0.0)
