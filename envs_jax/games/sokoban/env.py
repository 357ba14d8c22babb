"""Sokoban with the rules and rewards of gym-sokoban 0.0.6, its text as row and coordinate phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.games._board import check_format, compact
from envs_jax.games.sokoban.generator import Rooms, generate, has_table
from envs_jax.games.sokoban.solver import push_distance
from envs_jax.games.sokoban.text import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    SokobanText,
)
from envs_jax.text.actions import NameTable, match_name

ACTIONS = ("Up", "Down", "Left", "Right")
SYMBOLS = ("#", "_", "O", "√", "X", "P", "S")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SokobanParams:
    """Traced parameters. N levels; cells are row * columns + column; C cells in the interior."""

    wall: Bool[Array, "N cells"]
    target: Int[Array, "N boxes"]  # i32, ascending
    player: Int[Array, " N"]  # i32, start
    box: Int[Array, "N boxes"]  # i32, start
    distance: Int[Array, "N C C"]  # i16, moves to the solution, as in `Rooms`
    row_base: Int[Array, "N rows pieces"]  # i32, phrases of the empty room's rows
    step_reward: Float[Array, ""]  # f32
    box_reward: Float[Array, ""]  # f32, for a box more on target; minus that for one less
    solved_reward: Float[Array, ""]  # f32
    max_steps: Int[Array, ""]  # i32
    names: NameTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SokobanState:
    """Player and boxes; walls and targets are those of the level."""

    level: Int[Array, ""]  # i32
    player: Int[Array, ""]  # i32 cell
    box: Int[Array, " boxes"]  # i32 cells
    steps: Int[Array, ""]  # i32, actions so far


@dataclass(frozen=True)
class Sokoban(Environment):
    """Sokoban.

    Actions: 0 Up, 1 Down, 2 Left, 3 Right (i32). Reward of an action: -0.1; +1 if more boxes stand on targets
    than before, -1 if fewer; +10 when all do. The episode ends then (success) or after `max_steps` actions.

    Levels. Topology, placement, reverse play and the player's stray first steps follow gym-sokoban's
    generator as RAGEN uses it. With one box (rooms up to 10 x 10) the start is a state that reverse play
    displaces furthest, a random one among equals where the original takes the first in its search order; the
    shortest solutions then have the published lengths (6 x 6: mean 4.1, 33 % <= 2, 75 % <= 5, 99 % <= 10).
    Otherwise it is the best of 8 random reverse plays of `search_depth` steps (8 x 8, two boxes, depth 10:
    mean 6.1, 42 % <= 5, 98 % <= 10; published 5.75, 45 %, 99.7 %). Every level is solvable.

    Fields:
        dim_room: rows and columns with the outer wall, each at least 4.
        num_boxes: boxes and targets.
        symbols: characters for wall, empty, target, box on target, box, player, player on target.
        observation_format: grid, coord or grid_coord. Walls have no coordinate list; empty lists are left
            out.
        max_steps: actions after which the episode ends.
        search_depth: steps of a reverse play, for several boxes.
        difficulty: None, or (least, greatest) length of the shortest solution: then the start is uniform
            among the room's states of such a length. One box only.

    `metric_names`: boxes on target; with one box also the shortest solution from the start and from here (-1
    where there is none any more).

    Text: a row is one phrase, so the fragments' tokens are the canonical ones of the text. In rooms wider
    than 8 cells a row is cut in pieces of at most 6, and the tokens may differ from the canonical ones.
    """

    dim_room: tuple[int, int] = (6, 6)
    num_boxes: int = 1
    symbols: tuple[str, ...] = SYMBOLS
    observation_format: str = "grid"
    max_steps: int = 100
    search_depth: int = 300
    difficulty: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("dim_room", "symbols", "difficulty"):  # lists from a configuration file
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if len(self.dim_room) != 2 or min(self.dim_room) < 4:
            raise ConfigError("dim_room", self.dim_room, "give rows and columns, each at least 4")
        interior = (self.dim_room[0] - 2) * (self.dim_room[1] - 2)
        if not 1 <= self.num_boxes <= interior - 2:
            raise ConfigError("num_boxes", self.num_boxes, f"must be in 1..{interior - 2} for this room")
        symbols = self.symbols
        if len(symbols) != 7 or len(set(symbols)) != 7 or any(len(s) != 1 or s.isspace() for s in symbols):
            raise ConfigError("symbols", symbols, "give seven different characters, none a space")
        for name in ("max_steps", "search_depth", "num_levels"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must be positive")
        if self.difficulty is not None:
            if len(self.difficulty) != 2 or not 1 <= self.difficulty[0] <= self.difficulty[1]:
                raise ConfigError(
                    "difficulty", self.difficulty, "give (least, greatest) solution length, from 1"
                )
            if not self.has_distances:
                raise ConfigError(
                    "difficulty", self.difficulty, "needs one box and a room of at most 10 x 10"
                )
        check_format(self.observation_format)

    @property
    def has_distances(self) -> bool:
        """Whether the parameters hold exact distances: one box, a room of at most 10 x 10."""
        return self.num_boxes == 1 and has_table(*self.dim_room)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("boxes_on_target", *(("optimal_length", "distance_left") if self.has_distances else ()))

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def reward_range(self) -> tuple[float, float]:
        return (-1.1, 10.9)

    # -- text ------------------------------------------------------------------------------------------------
    @cached_property
    def _text(self) -> SokobanText:
        return SokobanText(*self.dim_room, self.num_boxes, self.symbols, self.observation_format)

    def instruction(self) -> str:
        return self._text.instruction()

    def phrases(self) -> Sequence[str]:
        return self._text.phrases()

    # -- parameters ------------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> SokobanParams:
        """Draws the level pool; raises RuntimeError if no room is found in the generator's attempts."""
        rooms = generate(
            key,
            self.num_levels,
            rows=self.dim_room[0],
            cols=self.dim_room[1],
            boxes=self.num_boxes,
            depth=self.search_depth,
            difficulty=self.difficulty,
        )
        return self.params_from_rooms(rooms)

    def params_from_rooms(self, rooms: Rooms) -> SokobanParams:
        """Parameters with given rooms, of which `valid` is not looked at."""
        floor = np.asarray(rooms.floor)
        if floor.shape != (self.num_levels, *self.dim_room) or rooms.box.shape[1] != self.num_boxes:
            raise ValueError(
                f"expected {self.num_levels} rooms of {self.dim_room} with {self.num_boxes} boxes"
            )
        codes = np.where(floor, FLOOR, WALL).reshape(self.num_levels, -1)
        np.put_along_axis(codes, np.asarray(rooms.target), TARGET, axis=1)
        rows = (
            self._text.row_codes(codes.reshape(floor.shape)) if self._text.shows_grid else np.zeros((1, 1, 1))
        )
        return SokobanParams(
            wall=jnp.asarray(~floor.reshape(self.num_levels, -1)),
            target=rooms.target,
            player=rooms.player,
            box=rooms.box,
            distance=rooms.distance,
            row_base=jnp.asarray(rows, jnp.int32),
            step_reward=jnp.float32(-0.1),
            box_reward=jnp.float32(1.0),
            solved_reward=jnp.float32(10.0),
            max_steps=jnp.int32(self.max_steps),
            names=NameTable.build(ACTIONS, self.answer_bytes),
        )

    def rooms_from_arrays(self, fixed: np.ndarray, state: np.ndarray) -> Rooms:
        """Rooms from gym-sokoban's `room_fixed` and `room_state`, each [N, rows, cols] of cell codes.

        Raises ValueError unless each room is walled in and has one player, `num_boxes` boxes and targets.
        """
        fixed, state = np.asarray(fixed), np.asarray(state)
        count = fixed.shape[0]
        edge = np.ones(fixed.shape[1:], bool)
        edge[1:-1, 1:-1] = False
        if np.any(fixed[:, edge] != WALL):
            raise ValueError("the outer cells of a room must be walls")

        def cells(mask: np.ndarray, number: int) -> Array:
            mask = mask.reshape(count, -1)
            if np.any(mask.sum(1) != number):
                raise ValueError(
                    f"each room needs 1 player, {self.num_boxes} boxes and {self.num_boxes} targets"
                )
            return jnp.asarray(np.nonzero(mask)[1].reshape(count, number), jnp.int32)

        target = cells(fixed == TARGET, self.num_boxes)
        player = cells((state == PLAYER) | (state == PLAYER_ON_TARGET), 1)[:, 0]
        box = cells((state == BOX) | (state == BOX_ON_TARGET), self.num_boxes)
        floor = jnp.asarray(fixed != WALL)
        distance = jnp.zeros((count, 0, 0), jnp.int16)
        if self.has_distances:
            distance = push_distance(floor[:, 1:-1, 1:-1], self._interior(target[:, 0]))
        return Rooms(floor, target, player, box, distance, jnp.ones(count, bool))

    def _interior(self, cell: Array) -> Array:
        cols = self.dim_room[1]
        return (cell // cols - 1) * (cols - 2) + cell % cols - 1

    # -- pure functions --------------------------------------------------------------------------------------
    def level(self, index: Int[Array, ""], params: SokobanParams) -> SokobanState:
        index = jnp.asarray(index, jnp.int32)
        return SokobanState(index, params.player[index], params.box[index], jnp.zeros_like(index))

    def observe(self, state: SokobanState, params: SokobanParams) -> Int[Array, " F"]:
        text = self._text
        target = params.target[state.level]
        on_target = jnp.any(state.box[:, None] == target, axis=1)
        ids = []
        if text.shows_coordinates:
            ids.append(text.coordinates_of(state.player, state.box, target, on_target))
        if text.shows_grid:
            rows = text.rows_of(params.row_base[state.level], state.player, state.box, on_target)
            ids += [jnp.asarray(text.top_row()), rows, jnp.asarray(text.piece_bases())]
        joined = jnp.concatenate(ids)
        return compact(joined) if text.shows_coordinates else joined

    def parse(
        self, span: Span, state: SokobanState, params: SokobanParams
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        return match_name(span, params.names)

    def distance_left(self, state: SokobanState, params: SokobanParams) -> Int[Array, ""]:
        """Fewest moves to the solution, i32, -1 where there is none. One box, rooms up to 10 x 10."""
        inner = self._interior(jnp.stack([state.player, state.box[0]]))
        return params.distance[state.level, inner[0], inner[1]].astype(jnp.int32)

    def transition(
        self, key: Array, state: SokobanState, action: Int[Array, ""], params: SokobanParams
    ) -> Transition:
        cols, cells = self.dim_room[1], self.dim_room[0] * self.dim_room[1]
        step = jnp.where(action < 2, cols, 1) * jnp.where(action & 1, 1, -1).astype(jnp.int32)
        ahead = state.player + step
        beyond = jnp.clip(ahead + step, 0, cells - 1)  # outside only where `ahead` is a wall
        pushed = state.box == ahead
        blocked = params.wall[state.level, beyond] | jnp.any(state.box == beyond)
        able = ~params.wall[state.level, ahead] & ~(jnp.any(pushed) & blocked)
        new = SokobanState(
            level=state.level,
            player=jnp.where(able, ahead, state.player),
            box=jnp.where(able & pushed, beyond, state.box),
            steps=state.steps + 1,
        )
        target = params.target[state.level]
        before = jnp.sum(state.box[:, None] == target, dtype=jnp.int32)
        after = jnp.sum(new.box[:, None] == target, dtype=jnp.int32)
        solved = after == self.num_boxes
        reward = params.step_reward + jnp.sign(after - before).astype(jnp.float32) * params.box_reward
        metrics = [after]
        if self.has_distances:
            start = self.level(state.level, params)
            metrics += [self.distance_left(start, params), self.distance_left(new, params)]
        return Transition(
            state=new,
            reward=reward + jnp.where(solved, params.solved_reward, 0.0),
            terminated=solved | (new.steps >= params.max_steps),
            success=solved,
            valid=jnp.ones_like(solved),
            effective=able,
            metrics=jnp.stack(metrics).astype(jnp.float32),
        )
