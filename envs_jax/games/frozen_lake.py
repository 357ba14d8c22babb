"""FrozenLake: walk over ice to the goal, do not fall into a hole; the ice may carry you sideways.

Rules and slip model of Gymnasium's FrozenLake-v1 with its `success_rate` argument; boards, symbols and
coordinate labels as RAGEN uses them (random tiles, start and goal anywhere, solvable).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.games._board import check_format, compact, coordinate_sentence, header
from envs_jax.text.actions import NameTable, match_name

LEFT, DOWN, RIGHT, UP = range(4)
ACTIONS = ("Left", "Down", "Right", "Up")
PLAYER, EMPTY, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = "P", "_", "O", "G", "X", "√"
MAX_SIZE = 10  # 2 ** size patterns of a row are written out as text
MAX_ATTEMPTS = 2000  # draws of one board before generation gives up


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrozenLakeParams:
    """Traced parameters. N levels of S = size * size cells; a cell is row * size + column."""

    hole_rows: Int[Array, "N size"]  # i32, bit c of row r: a hole at (r, c)
    start: Int[Array, " N"]  # i32 cell
    goal: Int[Array, " N"]  # i32 cell
    distance: Int[Array, "N S"]  # i32, moves to the goal without slipping, -1 where there is no way
    success_rate: Float[Array, ""]  # f32, probability that a move goes where it was meant to
    row_phrase: Int[
        Array, " R"
    ]  # i32, phrase of a row by (holes, goal column or size, player column or size)
    names: NameTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrozenLakeState:
    """Where the player is."""

    level: Int[Array, ""]  # i32
    cell: Int[Array, ""]  # i32, row * size + column


def slip(action: Int[Array, ""], uniform: Float[Array, ""], success_rate: Float[Array, ""]) -> Int[Array, ""]:
    """Direction that the ice gives to `action` for one draw in [0, 1).

    The categorical draw of Gymnasium over (action - 1) % 4, action, (action + 1) % 4 with probabilities
    (1 - success_rate) / 2, success_rate, (1 - success_rate) / 2.
    """
    side = (1.0 - success_rate) * 0.5
    turn = jnp.where(uniform < side, 3, jnp.where(uniform < side + success_rate, 0, 1)).astype(jnp.int32)
    return (action + turn) & 3


def neighbour(cell: Int[Array, ""], direction: Int[Array, ""], size: int) -> Int[Array, ""]:
    """Cell one step in `direction`; the edge of the board holds the player back."""
    row, col = cell // size, cell % size
    row = row + (direction == DOWN).astype(jnp.int32) - (direction == UP).astype(jnp.int32)
    col = col + (direction == RIGHT).astype(jnp.int32) - (direction == LEFT).astype(jnp.int32)
    return jnp.clip(row, 0, size - 1) * size + jnp.clip(col, 0, size - 1)


def goal_distance(hole: Bool[Array, "N size size"], goal: Int[Array, " N"]) -> Int[Array, "N S"]:
    """Moves to the goal from each cell, i32, -1 in holes and where no way leads (flood fill)."""
    count, size, _ = hole.shape
    cells = jnp.arange(size * size, dtype=jnp.int32).reshape(size, size)
    reached = (cells == goal[:, None, None]) & ~hole

    def grow(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        reached, distance, step, _ = carry
        padded = jnp.pad(reached, ((0, 0), (1, 1), (1, 1)))
        near = padded[:, :-2, 1:-1] | padded[:, 2:, 1:-1] | padded[:, 1:-1, :-2] | padded[:, 1:-1, 2:]
        new = near & ~hole & ~reached
        return reached | new, jnp.where(new, step, distance), step + jnp.int32(1), jnp.any(new)

    distance = jnp.where(reached, 0, -1).astype(jnp.int32)
    carry = (reached, distance, jnp.int32(1), jnp.bool_(True))
    return jax.lax.while_loop(lambda c: c[3], grow, carry)[1].reshape(count, size * size)


Attempts = tuple[Array, Array, Array, Array, Array, Array]  # number, hole, start, goal, distance, valid


@partial(jax.jit, static_argnames=("count", "size"))
def generate_boards(
    key: Array,
    frozen: Float[Array, ""],
    difficulty: tuple[Int[Array, ""], Int[Array, ""]],
    *,
    count: int,
    size: int,
) -> tuple[
    Bool[Array, "N size size"], Int[Array, " N"], Int[Array, " N"], Int[Array, "N S"], Bool[Array, " N"]
]:
    """Draws `count` boards: holes, start, goal, distances, and whether each is as wanted.

    Each attempt draws all tiles (frozen with probability `frozen`), then a start and a goal anywhere; it is
    taken if the shortest way from one to the other has a length within `difficulty` (least >= 1, greatest).
    Board i depends on (key, i) alone.
    """
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count, dtype=jnp.uint32))
    cells = jnp.arange(size * size, dtype=jnp.int32).reshape(size, size)

    def draw(key: Array) -> tuple[Array, Array, Array]:
        tile_key, end_key = jax.random.split(key)
        hole = jax.random.uniform(tile_key, (size, size), jnp.float32) >= frozen
        ends = jax.random.randint(end_key, (2,), 0, size * size, jnp.int32)
        return hole & (cells != ends[0]) & (cells != ends[1]), ends[0], ends[1]

    def attempt(carry: Attempts) -> Attempts:
        number, hole, start, goal, distance, valid = carry
        new_hole, new_start, new_goal = jax.vmap(draw)(
            jax.vmap(lambda k: jax.random.fold_in(k, number))(keys)
        )
        new_distance = goal_distance(new_hole, new_goal)
        way = jnp.take_along_axis(new_distance, new_start[:, None], axis=1)[:, 0]
        found = (way >= difficulty[0]) & (way <= difficulty[1])
        return (
            number + jnp.uint32(1),
            jnp.where(valid[:, None, None], hole, new_hole),
            jnp.where(valid, start, new_start),
            jnp.where(valid, goal, new_goal),
            jnp.where(valid[:, None], distance, new_distance),
            valid | found,
        )

    carry: Attempts = (
        jnp.uint32(0),
        jnp.zeros((count, size, size), bool),
        jnp.zeros(count, jnp.int32),
        jnp.zeros(count, jnp.int32),
        jnp.zeros((count, size * size), jnp.int32),
        jnp.zeros(count, bool),
    )
    carry = jax.lax.while_loop(lambda c: (c[0] < MAX_ATTEMPTS) & ~jnp.all(c[5]), attempt, carry)
    return carry[1], carry[2], carry[3], carry[4], carry[5]


@dataclass(frozen=True)
class FrozenLake(Environment):
    """FrozenLake on random solvable boards.

    Actions: 0 Left, 1 Down, 2 Right, 3 Up (i32). Reward 1 on reaching the goal, else 0. The episode ends at
    the goal (success) or in a hole. `metric_names`: shortest way from the start and from here, in moves
    without slipping (-1 in a hole).

    Fields:
        size: rows and columns, 2..10.
        p: probability that a tile is frozen.
        success_rate: in [0, 1]; 1 - success_rate is the slip (at 0 the player always goes sideways).
        observation_format: grid, coord or grid_coord.
        difficulty: None, or (least, greatest) length of the shortest way from the start, without slipping.
    """

    size: int = 4
    p: float = 0.9
    success_rate: float = 0.8
    observation_format: str = "grid"
    difficulty: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.size <= MAX_SIZE:
            raise ConfigError("size", self.size, f"must be in 2..{MAX_SIZE}")
        if not 0.0 <= self.p <= 1.0:
            raise ConfigError("p", self.p, "must be in [0, 1]")
        if not 0.0 <= self.success_rate <= 1.0:
            raise ConfigError("success_rate", self.success_rate, "must be in [0, 1]")
        if self.num_levels < 1:
            raise ConfigError("num_levels", self.num_levels, "must be positive")
        check_format(self.observation_format)
        if self.difficulty is not None:
            object.__setattr__(self, "difficulty", tuple(self.difficulty))  # a list from a configuration file
            if len(self.difficulty) != 2 or not 1 <= self.difficulty[0] <= self.difficulty[1]:
                raise ConfigError("difficulty", self.difficulty, "give (least, greatest) length, from 1")

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("optimal_length", "distance_left")

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def reward_range(self) -> tuple[float, float]:
        return (0.0, 1.0)

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        parts = [
            "You are crossing a frozen lake. Walk to the goal one cell at a time and keep out of the holes: "
            "falling into one ends the attempt. A move against the edge of the board changes nothing."
        ]
        if self.success_rate < 1.0:
            parts.append(
                "The ice is slippery: a move may carry you sideways instead of where you meant to go."
            )
        if self._shows_grid:
            parts.append(
                f"Legend of the map: {PLAYER} you, {EMPTY} safe ice, {HOLE} hole, {GOAL} goal, "
                f"{PLAYER_IN_HOLE} you in a hole, {PLAYER_ON_GOAL} you on the goal."
            )
        if self._shows_coordinates:
            parts.append(coordinate_sentence(self.size, self.size))
        return "\n".join(parts)

    @property
    def _shows_grid(self) -> bool:
        return self.observation_format != "coord"

    @property
    def _shows_coordinates(self) -> bool:
        return self.observation_format != "grid"

    def _row_texts(self) -> list[str]:
        """Text of a board row by code (holes * (size + 1) + goal column) * (size + 1) + player column."""
        n, texts = self.size, []
        for holes in range(2**n):
            ice = [HOLE if holes >> c & 1 else EMPTY for c in range(n)]
            for goal in range(n + 1):
                row = [*ice, ""]
                row[goal] = GOAL
                for player in range(n + 1):
                    shown = row.copy()
                    shown[player] = {GOAL: PLAYER_ON_GOAL, HOLE: PLAYER_IN_HOLE}.get(row[player], PLAYER)
                    texts.append("".join(shown[:n]) + "\n")
        return texts

    @cached_property
    def _text(self) -> tuple[list[str], dict[str, int], np.ndarray]:
        """Phrases, the id where each kind begins, and the phrase of each row code."""
        n = self.size
        phrases: list[str] = []
        base: dict[str, int] = {}
        if self._shows_coordinates:
            phrases.append(header(self.observation_format, n, n))
            for label in ("Start", "Goal", "Player", "Player on goal", "Player in hole"):
                base[label] = len(phrases)
                phrases += [f"{label}: ({r}, {c})\n" for r in range(n) for c in range(n)]
            base["Holes"] = len(phrases)
            for r in range(n):
                for holes in range(1, 2**n):
                    cells = ",".join(f" ({r}, {c})" for c in range(n) if holes >> c & 1)
                    phrases += [f"{a}{cells}{z}" for a in ("", "Holes:") for z in (",", "\n")]
        if self.observation_format == "grid_coord":
            base["Grid Map"] = len(phrases)
            phrases.append("Grid Map:\n")
        rows = np.zeros(0, np.int32)
        if self._shows_grid:
            known: dict[str, int] = {}
            texts = self._row_texts()
            rows = np.asarray([known.setdefault(t, len(phrases) + len(known)) for t in texts], np.int32)
            phrases += list(known)
        return phrases, base, rows

    def phrases(self) -> Sequence[str]:
        return self._text[0]

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> FrozenLakeParams:
        """Draws the level pool; raises RuntimeError if MAX_ATTEMPTS draws do not give every board."""
        least, greatest = self.difficulty or (1, self.size**2)
        hole, start, goal, distance, valid = generate_boards(
            key,
            jnp.float32(self.p),
            (jnp.int32(least), jnp.int32(greatest)),
            count=self.num_levels,
            size=self.size,
        )
        if not bool(jnp.all(valid)):
            raise RuntimeError(
                f"{int(jnp.sum(~valid))} of {self.num_levels} boards were unsolvable, or not of difficulty "
                f"{self.difficulty}, in {MAX_ATTEMPTS} draws each; raise p (now {self.p}) or widen difficulty"
            )
        return self._params(hole, start, goal, distance)

    def params_from_maps(self, maps: Sequence[Sequence[str]]) -> FrozenLakeParams:
        """Parameters with given boards instead of random ones: rows of S, F, H and G as Gymnasium's `desc`.

        Raises ValueError unless there are `num_levels` boards of the right size with one S and one G each.
        """
        tiles = np.asarray([[list(row) for row in board] for board in maps])
        if tiles.shape != (self.num_levels, self.size, self.size):
            raise ValueError(f"{self.num_levels} boards of {self.size} x {self.size} expected")
        flat = tiles.reshape(self.num_levels, -1)
        if not (np.all((flat == "S").sum(1) == 1) and np.all((flat == "G").sum(1) == 1)):
            raise ValueError("each board needs exactly one S and one G")
        hole = jnp.asarray(tiles == "H")
        start = jnp.asarray((flat == "S").argmax(1), jnp.int32)
        goal = jnp.asarray((flat == "G").argmax(1), jnp.int32)
        return self._params(hole, start, goal, goal_distance(hole, goal))

    def _params(self, hole: Array, start: Array, goal: Array, distance: Array) -> FrozenLakeParams:
        bits = jnp.left_shift(jnp.int32(1), jnp.arange(self.size, dtype=jnp.int32))
        return FrozenLakeParams(
            hole_rows=jnp.sum(hole * bits, axis=2, dtype=jnp.int32),
            start=start,
            goal=goal,
            distance=distance,
            success_rate=jnp.float32(self.success_rate),
            row_phrase=jnp.asarray(self._text[2]),
            names=NameTable.build(ACTIONS, self.answer_bytes),
        )

    def level(self, index: Int[Array, ""], params: FrozenLakeParams) -> FrozenLakeState:
        index = jnp.asarray(index, jnp.int32)
        return FrozenLakeState(level=index, cell=params.start[index])

    def observe(self, state: FrozenLakeState, params: FrozenLakeParams) -> Int[Array, " F"]:
        n, (_, base, _) = self.size, self._text
        rows, columns = jnp.arange(n, dtype=jnp.int32), 2**n - 1
        holes, goal = params.hole_rows[state.level], params.goal[state.level]
        ids = []
        if self._shows_coordinates:
            in_hole = (holes[state.cell // n] >> (state.cell % n)) & 1 == 1
            player = jnp.where(
                state.cell == goal,
                base["Player on goal"],
                jnp.where(in_hole, base["Player in hole"], base["Player"]),
            )
            lines = [jnp.int32(0), base["Start"] + params.start[state.level], base["Goal"] + goal]
            ids.append(jnp.stack([*lines, player + state.cell]).astype(jnp.int32))
            some = holes > 0
            first = some & (jnp.cumsum(some, dtype=jnp.int32) == 1)
            last = some & (jnp.cumsum(some[::-1], dtype=jnp.int32)[::-1] == 1)
            code = (rows * columns + holes - 1) * 4 + first * 2 + last
            ids.append(jnp.where(some, base["Holes"] + code, -1).astype(jnp.int32))
        if self.observation_format == "grid_coord":
            ids.append(jnp.full(1, base["Grid Map"], jnp.int32))
        if self._shows_grid:
            goal_column = jnp.where(rows == goal // n, goal % n, n)
            player_column = jnp.where(rows == state.cell // n, state.cell % n, n)
            ids.append(params.row_phrase[(holes * (n + 1) + goal_column) * (n + 1) + player_column])
        joined = jnp.concatenate(ids)
        return compact(joined) if self._shows_coordinates else joined

    def parse(
        self, span: Span, state: FrozenLakeState, params: FrozenLakeParams
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        return match_name(span, params.names)

    def move(
        self,
        state: FrozenLakeState,
        action: Int[Array, ""],
        uniform: Float[Array, ""],
        params: FrozenLakeParams,
    ) -> Transition:
        """`transition` with its one draw in [0, 1) given; equals Gymnasium's step for the same draw."""
        cell = neighbour(state.cell, slip(action, uniform, params.success_rate), self.size)
        success = cell == params.goal[state.level]
        in_hole = (params.hole_rows[state.level, cell // self.size] >> (cell % self.size)) & 1 == 1
        way = params.distance[state.level, jnp.stack([params.start[state.level], cell])]
        return Transition(
            state=FrozenLakeState(level=state.level, cell=cell),
            reward=success.astype(jnp.float32),
            terminated=success | in_hole,
            success=success,
            valid=jnp.ones_like(success),
            effective=cell != state.cell,
            metrics=way.astype(jnp.float32),
        )

    def transition(
        self, key: Array, state: FrozenLakeState, action: Int[Array, ""], params: FrozenLakeParams
    ) -> Transition:
        return self.move(state, action, jax.random.uniform(key, (), jnp.float32), params)
