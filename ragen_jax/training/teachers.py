"""Scripted teachers: demonstrations that look at the state and say what they see, and baseline policies.

A demonstration's words are always true; its moves are as good as `skill` says. So a policy that imitates it learns the
format and to read the state, and leaves to reinforcement learning what to do about it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from envs_jax.games.frozen_lake import FrozenLake
from envs_jax.turn import TurnEnv, TurnParams, TurnState

_STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
_NAMES = ("Left", "Down", "Right", "Up")  # FrozenLake's action order

_LAKE_WORDING = (
    "I am at ({r},{c}), the goal at ({gr},{gc}). {around}. Go {moves}.",
    "Me ({r},{c}). Goal ({gr},{gc}). {around}. So {moves}.",
    "Now at ({r},{c}) and the goal is ({gr},{gc}). {around}. I choose {moves}.",
)
_LAKE_KINDS = ("edge", "ice", "hole", "goal")
BASELINES = ("random", "blind", "optimal")


def has_teacher(env: TurnEnv) -> bool:
    """Whether demonstrations can be made for this environment."""
    return isinstance(env.env, FrozenLake)


def vocabulary(env: TurnEnv, params: TurnParams) -> list[str]:
    """Texts that hold every word a teacher of this environment can say; empty without a teacher."""
    if not has_teacher(env):
        return []
    return [*_LAKE_WORDING, *(f" {k}" for k in _LAKE_KINDS), *(f"{a}{n}" for n in _NAMES for a in ("", " ")), " then"]


class _Lake:
    """Host view of a batch of FrozenLake states."""

    def __init__(self, env: FrozenLake, params: Any, state: Any) -> None:
        self.size = env.size
        level = np.asarray(state.level)
        self.cell = np.asarray(state.cell)
        self.goal = np.asarray(params.goal)[level]
        rows = np.asarray(params.hole_rows)[level]
        self.hole = (rows[:, :, None] >> np.arange(env.size)) & 1 == 1
        self.distance = np.asarray(params.distance)[level]

    def look(self, i: int, cell: int, name: str) -> tuple[int, str]:
        """The cell in a direction and what lies there."""
        r, c = cell // self.size + _STEPS[name][0], cell % self.size + _STEPS[name][1]
        if not (0 <= r < self.size and 0 <= c < self.size):
            return cell, "edge"
        there = r * self.size + c
        return there, "goal" if there == self.goal[i] else "hole" if self.hole[i, r, c] else "ice"

    def best(self, i: int, cell: int, rng: np.random.Generator) -> str:
        """A move on a shortest way."""
        here = self.distance[i, cell]
        options = [n for n in _NAMES if self.distance[i, self.look(i, cell, n)[0]] == here - 1]
        return str(rng.choice(options)) if options else str(rng.choice(_NAMES))

    def blind(self, i: int, cell: int, rng: np.random.Generator) -> str:
        """A move toward the goal by someone who cannot see holes."""
        dr = int(self.goal[i]) // self.size - cell // self.size
        dc = int(self.goal[i]) % self.size - cell % self.size
        options = [n for n, (r, c) in _STEPS.items() if r * dr > 0 or c * dc > 0]
        return str(rng.choice(options)) if options else str(rng.choice(_NAMES))

    def say(self, i: int, moves: list[str], rng: np.random.Generator) -> str:
        cell = int(self.cell[i])
        around = ", ".join(f"{n} {self.look(i, cell, n)[1]}" for n in _NAMES)
        wording = _LAKE_WORDING[rng.integers(len(_LAKE_WORDING))]
        return wording.format(
            r=cell // self.size, c=cell % self.size, gr=self.goal[i] // self.size, gc=self.goal[i] % self.size,
            around=around, moves=" then ".join(moves),
        )  # fmt: skip


def demonstrations(
    env: TurnEnv, params: TurnParams, states: TurnState, key: jax.Array, skill: float
) -> list[str]:
    """One response text for each of a batch of states: reasoning, `</think>`, answer. The opening tag is not included."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    lake = _Lake(env.env, params.env, states.env)
    out = []
    for i in range(len(lake.cell)):
        cell, moves = int(lake.cell[i]), []
        for _ in range(env.config.max_actions_per_turn):
            choose = lake.best if rng.random() < skill else lake.blind
            moves.append(choose(i, cell, rng))
            cell, kind = lake.look(i, cell, moves[-1])
            if kind in ("goal", "hole"):
                break
        out.append(f"{lake.say(i, moves, rng)}</think><answer>{f' {env.config.action_sep} '.join(moves)}</answer>")
    return out


def baseline_actions(env: TurnEnv, params: TurnParams, states: TurnState, key: jax.Array, kind: str) -> list[str]:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    lake = _Lake(env.env, params.env, states.env)
    out = []
    for i in range(len(lake.cell)):
        cell, moves = int(lake.cell[i]), []
        for _ in range(env.config.max_actions_per_turn):
            moves.append(str(rng.choice(_NAMES)) if kind == "random" else lake.blind(i, cell, rng) if kind == "blind" else lake.best(i, cell, rng))
            cell = lake.look(i, cell, moves[-1])[0]
        out.append(f" {env.config.action_sep} ".join(moves))
    return out
