"""Sudoku: fill the grid so that every row, column and box holds every digit once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError, suggestion
from envs_jax.games.sudoku.generator import generate_puzzles
from envs_jax.games.sudoku.solver import fill_singles, units_of_cells
from envs_jax.text.actions import NameTable, match_name
from envs_jax.text.scan import is_space

DIFFICULTIES = {"easy": 0.4, "medium": 0.5, "hard": 0.6}  # part of the cells that are empty
# Forms of an answer without its spaces, every digit as #, and which digit of it is the row, the column and the number.
FORMS = {
    "#,#,#": (0, 1, 2),
    "place#atrow#col#": (1, 2, 0),
    "place#atrow#,col#": (1, 2, 0),
    "place#atrow#column#": (1, 2, 0),
    "place#atrow#,column#": (1, 2, 0),
    "clearrow#col#": (0, 1, -1),
    "clearrow#,col#": (0, 1, -1),
    "clearrow#column#": (0, 1, -1),
    "clearrow#,column#": (0, 1, -1),
}
FEEDBACK = (  # of the last action; code 0 has none
    "Last action: done.\n",
    "Last action: refused, that cell is given.\n",
    "Last action: refused, that digit is already in the row, column or box.\n",
    "Last action: refused, it would change nothing.\n",
)
DONE, GIVEN, BREAKS_RULE, NO_CHANGE = 1, 2, 3, 4


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SudokuParams:
    """Traced parameters. N puzzles of S = grid_size ** 2 cells; a cell is row * grid_size + column, 0 is empty."""

    given: Int[Array, "N S"]  # i8
    solution: Int[Array, "N S"]  # i8
    correct_score: Float[Array, ""]
    invalid_score: Float[Array, ""]
    completion_score: Float[Array, ""]
    forms: NameTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SudokuState:
    """The grid, and what became of the last action."""

    level: Int[Array, ""]  # i32
    grid: Int[Array, " S"]  # i32
    feedback: Int[Array, ""]  # i32: 0 nothing yet, else one more than the index into FEEDBACK


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Placement:
    """A digit for a cell; digit 0 empties it."""

    cell: Int[Array, ""]  # i32
    digit: Int[Array, ""]  # i32


@dataclass(frozen=True)
class Sudoku(Environment):
    """Sudoku with one solution, found by logic.

    Actions: `place 5 at row 1 col 2` or `1,2,5` (row, column, digit, counted from 1), and `clear row 1 col 2`. Refused,
    with `invalid_score` and without effect: a given cell, a digit that its row, column or box holds already, and what
    changes nothing. Other digits are placed, right or wrong, and can be placed over. The reward is `correct_score`
    times the change in the number of rightly filled cells, so nothing can be earned twice, and `completion_score` for
    the full grid, which ends the episode (success). `metric_names`: empty cells, and rightly filled ones.

    Against RAGEN's: every puzzle has exactly one solution (it does not check); a legal but wrong digit pays 0 (it pays
    0.5 each time, so alternating digits pays without end); the tags allow more actions than there are empty cells (its
    20 and 30 actions cannot fill 32 and 40 cells).

    Fields:
        grid_size: 9, or 4 for boxes of 2 x 2.
        difficulty: easy, medium or hard: 40, 50 or 60 % of the cells are empty.
        correct_score: for each cell filled rightly, >= 0.
        invalid_score: of a refused action, <= 0.
        completion_score: of the full grid, >= 0.
    """

    grid_size: int = 9
    difficulty: str = "easy"
    correct_score: float = 1.0
    invalid_score: float = -0.1
    completion_score: float = 10.0

    def __post_init__(self) -> None:
        if self.grid_size not in (4, 9):
            raise ConfigError("grid_size", self.grid_size, "use 4 or 9")
        if self.difficulty not in DIFFICULTIES:
            raise ConfigError("difficulty", self.difficulty, suggestion(str(self.difficulty), DIFFICULTIES))
        for name in ("correct_score", "completion_score"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "use zero or a positive number")
        if self.invalid_score > 0:
            raise ConfigError("invalid_score", self.invalid_score, "use zero or a negative number")
        if self.num_levels < 1:
            raise ConfigError("num_levels", self.num_levels, "must be positive")

    @property
    def box(self) -> int:
        """Rows and columns of a box."""
        return 3 if self.grid_size == 9 else 2

    @property
    def empty_cells(self) -> int:
        """Empty cells of a puzzle."""
        return int(DIFFICULTIES[self.difficulty] * self.grid_size**2)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("empty_cells", "correct_cells")

    @property
    def answer_bytes(self) -> int:
        return 40

    @property
    def reward_range(self) -> tuple[float, float]:
        return min(self.invalid_score, -self.correct_score), self.correct_score + self.completion_score

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        n, box = self.grid_size, self.box
        return (
            f"You are solving a Sudoku of {n} x {n}. Fill the empty cells with digits from 1 to {n} so that each row, "
            f"each column and each box of {box} x {box} holds every digit once; there is exactly one solution. "
            "Given cells are shown in brackets and cannot be changed; a dot is an empty cell. "
            "Rows are counted from the top and columns from the left, both from 1. "
            "An action is `place 5 at row 1 col 2`, or in short `1,2,5` (row, column, digit); "
            "a digit of yours can be placed over, or taken back with `clear row 1 col 2`. "
            "A digit that its row, column or box already holds is refused and costs points."
        )

    @property
    def _cell_texts(self) -> list[str]:
        """Text of a cell by its code: 0 empty, d given, n + d placed."""
        digits = [str(d) for d in range(1, self.grid_size + 1)]
        return [".", *(f"[{d}]" for d in digits), *digits]

    def phrases(self) -> Sequence[str]:
        texts = self._cell_texts
        line = "+".join("-" * (2 * self.box + (0 if i in (0, self.box - 1) else 1)) for i in range(self.box))
        return [
            *texts,
            *(f" {t}" for t in texts),
            *(f" {t}\n" for t in texts),
            " |",
            f"{line}\n",
            *(f"Empty cells: {count}.\n" for count in range(self.grid_size**2 + 1)),
            *FEEDBACK,
        ]

    def state_tokens(self, lengths: np.ndarray, params: SudokuParams) -> tuple[int, int]:
        n, box = self.grid_size, self.box
        cells, (bar, line), rest = np.split(lengths, [3 * (2 * n + 1), 3 * (2 * n + 1) + 2])
        kinds = cells.reshape(3, -1).max(axis=0)
        numbers, feedback = rest[: n * n + 1], rest[n * n + 1 :]
        fixed = (
            (n * n - self.empty_cells) * kinds[1 : n + 1].max() + (box - 1) * (n * bar + line) + numbers.max()
        )
        start = fixed + self.empty_cells * kinds[0]
        later = fixed + self.empty_cells * max(kinds[0], kinds[n + 1 :].max()) + feedback.max()
        return int(start), int(later)

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> SudokuParams:
        """Draws the puzzles; raises RuntimeError if one is not found (see `generate_puzzles`)."""
        given, solution, valid = generate_puzzles(
            key, count=self.num_levels, box=self.box, empty=self.empty_cells
        )
        if not bool(jnp.all(valid)):
            raise RuntimeError(f"{int(jnp.sum(~valid))} of {self.num_levels} puzzles were not found")
        return self._params(given, solution)

    def params_from_puzzles(self, puzzles: Sequence[Sequence[int]]) -> SudokuParams:
        """Parameters with given puzzles, each of grid_size ** 2 digits row by row (0: empty).

        Raises ValueError unless there are `num_levels` of them that singles solve (so that their solution is known to
        be the only one).
        """
        given = np.asarray(puzzles, np.int32)
        n = self.grid_size
        if given.shape != (self.num_levels, n * n) or given.min() < 0 or given.max() > n:
            raise ValueError(f"{self.num_levels} puzzles of {n * n} digits in 0..{n} expected")
        solution = np.asarray(fill_singles(jnp.asarray(given), self.box))
        own = units_of_cells(self.box)
        for row, grid in enumerate(solution):
            counts = np.zeros((3 * n, n + 1), int)
            np.add.at(counts, (own, grid[:, None]), 1)
            if not np.all(counts[:, 1:] == 1):
                raise ValueError(f"puzzle {row} is not solved by singles")
        return self._params(jnp.asarray(given, jnp.int8), jnp.asarray(solution, jnp.int8))

    def _params(self, given: Array, solution: Array) -> SudokuParams:
        return SudokuParams(
            given=given,
            solution=solution,
            correct_score=jnp.float32(self.correct_score),
            invalid_score=jnp.float32(self.invalid_score),
            completion_score=jnp.float32(self.completion_score),
            forms=NameTable.build(tuple(FORMS), self.answer_bytes),
        )

    def level(self, index: Int[Array, ""], params: SudokuParams) -> SudokuState:
        index = jnp.asarray(index, jnp.int32)
        return SudokuState(index, params.given[index].astype(jnp.int32), jnp.zeros((), jnp.int32))

    def observe(self, state: SudokuState, params: SudokuParams) -> Int[Array, " F"]:
        n, box = self.grid_size, self.box
        kinds = 2 * n + 1
        given = params.given[state.level] > 0
        code = jnp.where(state.grid == 0, 0, jnp.where(given, state.grid, state.grid + n)).reshape(n, n)
        place = np.full(n, kinds, np.int32)  # first of its row, inner, last
        place[0], place[-1] = 0, 2 * kinds
        bar, line, count = 3 * kinds, 3 * kinds + 1, 3 * kinds + 2
        # A row: its cells with a bar before each box but the first; a line above each band but the first.
        columns = [c for c in range(n + box - 1) if (c + 1) % (box + 1)]
        rows = jnp.full((n, n + box - 1), bar, jnp.int32).at[:, np.asarray(columns)].set(code + place)
        lines: list[Array] = []
        for r in range(n):
            if r and r % box == 0:
                lines.append(jnp.full(1, line, jnp.int32))
            lines.append(rows[r])
        left = count + jnp.sum(state.grid == 0, dtype=jnp.int32)
        said = jnp.where(state.feedback > 0, count + n * n + state.feedback, -1)
        return jnp.concatenate([*lines, jnp.stack([left, said]).astype(jnp.int32)])

    def parse(
        self, span: Span, state: SudokuState, params: SudokuParams
    ) -> tuple[Placement, Bool[Array, ""]]:
        """One of FORMS, spaces wherever; digits in 1..grid_size."""
        data, width = span.data, self.answer_bytes
        digit = (data >= ord("0")) & (data <= ord("9"))
        kept = ~is_space(data) & (jnp.arange(width, dtype=jnp.int32) < span.length)
        slot = jnp.where(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, width)
        skeleton = jnp.where(digit, ord("#"), data).astype(jnp.uint8)
        packed = jnp.zeros_like(data).at[slot].set(skeleton, mode="drop")
        form, known = match_name(Span(packed, jnp.sum(kept, dtype=jnp.int32)), params.forms)

        rank = jnp.where(digit & kept, jnp.cumsum(digit & kept, dtype=jnp.int32) - 1, 3)
        numbers = jnp.zeros(3, jnp.int32).at[rank].set(data.astype(jnp.int32) - ord("0"), mode="drop")
        order = jnp.asarray(list(FORMS.values()), jnp.int32)[form]
        row, column = numbers[order[0]], numbers[order[1]]
        clears = order[2] < 0
        value = jnp.where(clears, 0, numbers[order[2]])
        inside = (row >= 1) & (row <= self.grid_size) & (column >= 1) & (column <= self.grid_size)
        inside &= clears | ((value >= 1) & (value <= self.grid_size))
        known &= inside & (span.length <= width)
        cell = jnp.where(known, (row - 1) * self.grid_size + column - 1, 0)
        return Placement(cell.astype(jnp.int32), jnp.where(known, value, 0).astype(jnp.int32)), known

    def transition(
        self, key: Array, state: SudokuState, action: Placement, params: SudokuParams
    ) -> Transition:
        own = jnp.asarray(units_of_cells(self.box))
        given, solution = params.given[state.level], params.solution[state.level].astype(jnp.int32)
        old = state.grid[action.cell]
        held = jnp.any((own == own[action.cell]) & (state.grid == action.digit)[:, None]) & (action.digit > 0)
        feedback = jnp.where(
            given[action.cell] > 0,
            GIVEN,
            jnp.where(old == action.digit, NO_CHANGE, jnp.where(held, BREAKS_RULE, DONE)),
        ).astype(jnp.int32)
        valid = feedback == DONE
        grid = jnp.where(
            valid & (jnp.arange(len(own), dtype=jnp.int32) == action.cell), action.digit, state.grid
        )
        right = grid == solution
        success = jnp.all(right)
        target = solution[action.cell]
        change = (action.digit == target).astype(jnp.float32) - (old == target).astype(jnp.float32)
        earned = params.correct_score * change + jnp.where(success, params.completion_score, 0.0)
        filled = jnp.sum(right & (given == 0), dtype=jnp.int32)
        return Transition(
            state=SudokuState(state.level, grid, feedback),
            reward=jnp.where(valid, earned, params.invalid_score).astype(jnp.float32),
            terminated=success,
            success=success,
            valid=valid,
            effective=valid,
            metrics=jnp.stack([jnp.sum(grid == 0, dtype=jnp.int32), filled]).astype(jnp.float32),
        )
