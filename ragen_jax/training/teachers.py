"""Scripted teachers: demonstrations that look at the state and say what they see, and baseline policies.

A demonstration's words are always true; its moves are as good as `skill` says. So a policy that imitates it
learns the format and to read the state, and leaves to reinforcement learning what to do about it. All of it
runs on the host, before training and at evaluation; row i depends on the key, i and its state alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.games.frozen_lake import FrozenLake
from envs_jax.games.sokoban import Sokoban
from envs_jax.games.sokoban.solver import push_distance
from envs_jax.turn import TurnEnv, TurnParams, TurnState

BASELINES = ("random", "blind", "optimal")
STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}

# Each wording: what is seen, and what is chosen.
_LAKE_WORDING = (
    ("I am at {player}, the goal at {goal}. {around}.", " Go {moves}."),
    ("Me {player}. Goal {goal}. {around}.", " So {moves}."),
    ("Now at {player} and the goal is {goal}. {around}.", " I choose {moves}."),
)
_LAKE_KINDS = ("edge", "ice", "hole", "goal")
_SOKOBAN_WORDING = (
    ("I am at {player}, the box at {box}, the target at {goal}. {around}.", " Go {moves}."),
    ("Me {player}. Box {box}. Target {goal}. {around}.", " So {moves}."),
    ("Now at {player}, the box is {box} and its target {goal}. {around}.", " I choose {moves}."),
)
_SOKOBAN_KINDS = ("wall", "empty", "box", "target")


class Scene(ABC):
    """One state on the host, in which moves can be tried. Moves are action names of the environment."""

    names: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the episode has ended."""

    @abstractmethod
    def options(self, kind: str) -> list[str]:
        """Moves that a policy ("optimal", "blind", "legal") thinks equally good; empty if it knows none."""

    @abstractmethod
    def move(self, name: str) -> None:
        """Plays a move as intended, without slipping."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Words for the fields of a wording, apart from the moves."""


def _at(cell: tuple[int, int]) -> str:
    return f"({cell[0]},{cell[1]})"


class _Lake(Scene):
    """FrozenLake."""

    names = ("Left", "Down", "Right", "Up")

    def __init__(self, cell: int, goal: int, hole: np.ndarray, distance: np.ndarray) -> None:
        self.size = len(hole)
        self.hole, self.distance = hole, distance.reshape(self.size, self.size)
        self.player, self.goal = divmod(cell, self.size), divmod(goal, self.size)

    @property
    def over(self) -> bool:
        return self.player == self.goal or bool(self.hole[self.player])

    def _ahead(self, name: str) -> tuple[tuple[int, int], str]:
        """The cell in a direction and what lies there; the cell itself at the edge."""
        there = (self.player[0] + STEPS[name][0], self.player[1] + STEPS[name][1])
        if not (0 <= there[0] < self.size and 0 <= there[1] < self.size):
            return self.player, "edge"
        return there, "goal" if there == self.goal else "hole" if self.hole[there] else "ice"

    def options(self, kind: str) -> list[str]:
        if kind == "optimal":
            left = int(self.distance[self.player]) - 1
            return [n for n in self.names if left >= 0 and self.distance[self._ahead(n)[0]] == left]
        if kind == "blind":  # toward the goal, as one who cannot see holes
            way = (self.goal[0] - self.player[0], self.goal[1] - self.player[1])
            return [n for n in self.names if any(a * b > 0 for a, b in zip(STEPS[n], way, strict=True))]
        return list(self.names)

    def move(self, name: str) -> None:
        self.player = self._ahead(name)[0]

    def facts(self) -> dict[str, str]:
        around = ", ".join(f"{n} {self._ahead(n)[1]}" for n in self.names)
        return {"player": _at(self.player), "goal": _at(self.goal), "around": around}


class _Warehouse(Scene):
    """Sokoban with one box. `distance` and `open_distance` are [a, b, a, b] over the interior."""

    names = ("Up", "Down", "Left", "Right")

    def __init__(
        self,
        player: tuple[int, int],
        box: tuple[int, int],
        target: tuple[int, int],
        wall: np.ndarray,
        distance: np.ndarray,
        open_distance: np.ndarray,
    ) -> None:
        self.player, self.box, self.target, self.wall = player, box, target, wall
        self.distance, self.open_distance = distance, open_distance

    @property
    def over(self) -> bool:
        return self.box == self.target

    def _after(self, name: str, *, walls: bool = True) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Player and box after a move, None if it changes nothing. Without `walls`, only the outer."""
        edge = np.ones_like(self.wall)
        edge[1:-1, 1:-1] = False
        wall = self.wall if walls else edge
        (dr, dc), (r, c), box = STEPS[name], self.player, self.box
        ahead = (r + dr, c + dc)
        if wall[ahead]:
            return None
        if ahead == box:
            box = (r + 2 * dr, c + 2 * dc)
            if wall[box]:
                return None
        return ahead, box

    def _closer(self, distance: np.ndarray, *, walls: bool) -> list[str]:
        def left(player: tuple[int, int], box: tuple[int, int]) -> int:
            return int(distance[player[0] - 1, player[1] - 1, box[0] - 1, box[1] - 1])

        here = left(self.player, self.box)
        after = {name: self._after(name, walls=walls) for name in self.names}
        return [n for n, state in after.items() if here > 0 and state and left(*state) == here - 1]

    def options(self, kind: str) -> list[str]:
        if kind == "optimal":
            return self._closer(self.distance, walls=True)
        if kind == "blind":  # the best way in a room without inner walls
            return self._closer(self.open_distance, walls=False)
        return [name for name in self.names if self._after(name)]

    def move(self, name: str) -> None:
        self.player, self.box = self._after(name) or (self.player, self.box)

    def _kind(self, name: str) -> str:
        there = (self.player[0] + STEPS[name][0], self.player[1] + STEPS[name][1])
        if self.wall[there]:
            return "wall"
        return "box" if there == self.box else "target" if there == self.target else "empty"

    def facts(self) -> dict[str, str]:
        around = ", ".join(f"{n} {self._kind(n)}" for n in self.names)
        cells = {"player": _at(self.player), "box": _at(self.box), "goal": _at(self.target)}
        return {**cells, "around": around}


@lru_cache(maxsize=4)
def _open_distances(a: int, b: int) -> np.ndarray:
    """Distances in the room without inner walls, for each target: i16[a * b, a, b, a, b]."""
    target = jnp.arange(a * b, dtype=jnp.int32)
    distance = jax.jit(push_distance)(jnp.ones((a * b, a, b), bool), target)
    return np.asarray(distance).reshape(a * b, a, b, a, b)


def _lakes(env: FrozenLake, params: Any, state: Any) -> list[Scene]:
    level, cell = np.asarray(state.level), np.asarray(state.cell)
    rows, goal = np.asarray(params.hole_rows)[level], np.asarray(params.goal)[level]
    hole = (rows[:, :, None] >> np.arange(env.size)) & 1 == 1
    distance = np.asarray(params.distance)[level]
    return [_Lake(int(c), int(g), h, d) for c, g, h, d in zip(cell, goal, hole, distance, strict=True)]


def _warehouses(env: Sokoban, params: Any, state: Any) -> list[Scene]:
    rows, cols = env.dim_room
    shape = (rows - 2, cols - 2)
    level = np.asarray(state.level)
    wall = np.asarray(params.wall)[level].reshape(-1, rows, cols)
    distance = np.asarray(params.distance)[level].reshape(-1, *shape, *shape)
    cells = [np.asarray(state.player), np.asarray(state.box)[:, 0], np.asarray(params.target)[level, 0]]
    places = [[divmod(int(cell), cols) for cell in column] for column in cells]
    free = _open_distances(*shape)
    return [
        _Warehouse(player, box, target, w, d, free[(target[0] - 1) * shape[1] + target[1] - 1])
        for player, box, target, w, d in zip(*places, wall, distance, strict=True)
    ]


def _scenes(env: TurnEnv, params: TurnParams, states: TurnState) -> list[Scene]:
    if isinstance(env.env, FrozenLake):
        return _lakes(env.env, params.env, states.env)
    if isinstance(env.env, Sokoban) and env.env.has_distances:
        return _warehouses(env.env, params.env, states.env)
    raise ValueError(f"{env.tag} has no scripted teacher")


def has_teacher(env: TurnEnv) -> bool:
    """Whether demonstrations can be made: FrozenLake, and Sokoban with one box in rooms up to 10 x 10."""
    return isinstance(env.env, FrozenLake) or (isinstance(env.env, Sokoban) and env.env.has_distances)


def _wordings(env: TurnEnv) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Templates (what is seen, what is chosen), and the words for what lies in a direction."""
    if isinstance(env.env, FrozenLake):
        return _LAKE_WORDING, _LAKE_KINDS
    return _SOKOBAN_WORDING, _SOKOBAN_KINDS


def vocabulary(env: TurnEnv, params: TurnParams) -> list[str]:
    """Texts that hold every word a teacher of this environment can say; empty without a teacher."""
    if not has_teacher(env):
        return []
    wordings, kinds = _wordings(env)
    blank = dict.fromkeys(("player", "box", "goal", "around", "moves"), "")
    words = ["".join(wording).format(**blank) for wording in wordings] + [f" {kind}" for kind in kinds]
    return [*words, *(f"{space}{name}" for name in env.env.action_names for space in ("", " ")), " then"]


def _draws(key: jax.Array, rows: int, columns: int) -> np.ndarray:
    """Uniform numbers [rows, columns]; row i is the same for any number of rows."""
    seed = np.asarray(jax.random.key_data(key)).astype(np.uint32)
    return np.random.default_rng(seed).random((rows, columns))


def _plan(scene: Scene, kinds: list[str], draws: np.ndarray) -> list[str]:
    """One move for each kind of policy, until the episode would be over; a legal one for want of ideas."""
    moves = []
    for kind, draw in zip(kinds, draws, strict=True):
        options = scene.names if kind == "random" else scene.options(kind) or scene.options("legal")
        options = options or scene.names
        moves.append(options[int(draw * len(options))])
        scene.move(moves[-1])
        if scene.over:
            break
    return moves


def _budget(env: TurnEnv, states: TurnState) -> np.ndarray:
    """How many actions each row may still use in one turn, at least one."""
    return np.clip(np.asarray(states.actions_left), 1, env.config.max_actions_per_turn)


def demonstrations(
    env: TurnEnv, params: TurnParams, states: TurnState, key: jax.Array, skill: float
) -> list[str]:
    """One response text for each of a batch of states (leading axis B).

    Reasoning, `</think>`, the answer and its closing tag; the opening tag is not included, nor any reasoning
    where the protocol has none. The reasoning names the places of player and goal (and box), what lies in
    each direction, and the chosen moves, in one of three wordings. With probability `skill` in [0, 1] a move
    is on a shortest way, else any legal move. Raises ValueError for an environment without a teacher.
    """
    wordings, _ = _wordings(env)
    count = env.config.max_actions_per_turn
    scenes = _scenes(env, params, states)
    draws = _draws(key, len(scenes), 1 + 2 * count)
    out = []
    for scene, row, budget in zip(scenes, draws, _budget(env, states), strict=True):
        facts = scene.facts()
        kinds = ["optimal" if draw < skill else "legal" for draw in row[1 : 1 + budget]]
        moves = _plan(scene, kinds, row[1 + count : 1 + count + budget])
        answer = f" {env.config.action_sep} ".join(moves) + "</answer>"
        if env.config.enable_think:
            wording = "".join(wordings[int(row[0] * len(wordings))])
            answer = f"{wording.format(**facts, moves=' then '.join(moves))}</think><answer>{answer}"
        out.append(answer)
    return out


def descriptions(env: TurnEnv, params: TurnParams, states: TurnState, key: jax.Array) -> list[str]:
    """The part of a demonstration that says what is seen, for each of a batch of states; the same wordings.

    Raises ValueError for an environment without a teacher.
    """
    wordings, _ = _wordings(env)
    scenes = _scenes(env, params, states)
    draws = _draws(key, len(scenes), 1)[:, 0]
    return [
        wordings[int(draw * len(wordings))][0].format(**scene.facts())
        for scene, draw in zip(scenes, draws, strict=True)
    ]


def baseline_actions(
    env: TurnEnv, params: TurnParams, states: TurnState, key: jax.Array, kind: str
) -> list[str]:
    """Answer texts (no tags) of a scripted policy for a batch of states.

    `kind`: "random" names any action; "blind" goes for the goal without seeing holes (FrozenLake) or inner
    walls (Sokoban); "optimal" takes a shortest way, and any legal move where none is left.
    """
    if kind not in BASELINES:
        raise ValueError(f"kind must be one of {', '.join(BASELINES)}, got {kind!r}")
    scenes = _scenes(env, params, states)
    draws = _draws(key, len(scenes), env.config.max_actions_per_turn)
    plans = [
        _plan(scene, [kind] * int(budget), row[:budget])
        for scene, row, budget in zip(scenes, draws, _budget(env, states), strict=True)
    ]
    return [f" {env.config.action_sep} ".join(moves) for moves in plans]
