"""2048: slide all tiles one way, equal neighbours merge, a new tile appears; make the target tile.

Rules of the public game (4 x 4, a 2 with probability 0.9, else a 4). A move is one table lookup for each row: a row of
four exponents is a number of 16 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.text.actions import NameTable, match_name

ACTIONS = ("Up", "Right", "Down", "Left")
SIZE = 4
LARGEST = 15  # exponent that four bits hold; two such tiles do not merge
_SHIFTS = 4 * np.arange(SIZE, dtype=np.int32)
_CELLS = np.arange(SIZE * SIZE).reshape(SIZE, SIZE)
# View a of the board is `cells[_VIEW[a]]`: rows of four with the first cell where action a pushes to.
_VIEW = np.stack([_CELLS.T.ravel(), _CELLS[:, ::-1].ravel(), _CELLS[::-1].T.ravel(), _CELLS.ravel()]).astype(
    np.int32
)
_BACK = np.argsort(_VIEW, axis=1).astype(np.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Game2048Params:
    """Traced parameters. N start boards of 16 exponents (0 empty, e a tile of 2 ** e)."""

    start: Int[Array, "N 16"]  # i8
    row: Int[
        Array, "65536 2"
    ]  # i32, a packed row after its slide to the first cell, and the sum of its new tiles
    four_probability: Float[Array, ""]  # f32, that a new tile is a 4
    invalid_score: Float[Array, ""]  # f32, reward of a move that changes nothing
    names: NameTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Game2048State:
    """The board, row by row, and the sum of all tiles that merges have made."""

    cells: Int[Array, " 16"]  # i32 exponents
    score: Int[Array, ""]  # i32


@functools.cache
def row_table() -> np.ndarray:
    """i32[65536, 2]: each packed row (cell c in bits 4 c ..) slid to cell 0, and the sum of the tiles it makes.

    A tile merges once in a move, and pairs are taken from cell 0 on.
    """
    rows = np.arange(2**16, dtype=np.int64)
    left = [(rows >> int(s)) & 15 for s in _SHIFTS]
    for _ in range(SIZE - 1):  # bubble the tiles to the front
        for i in range(SIZE - 1):
            gap = left[i] == 0
            left[i], left[i + 1] = np.where(gap, left[i + 1], left[i]), np.where(gap, 0, left[i + 1])
    gain = np.zeros_like(rows)
    for i in range(SIZE - 1):
        pair = (left[i] == left[i + 1]) & (left[i] > 0) & (left[i] < LARGEST)
        left[i] = left[i] + pair
        gain += np.where(pair, 1 << left[i], 0)
        for j in range(i + 1, SIZE):  # those behind move up by one
            left[j] = np.where(pair, left[j + 1] if j + 1 < SIZE else 0, left[j])
    packed = sum(cell << int(s) for cell, s in zip(left, _SHIFTS, strict=True))
    return np.stack([packed, gain], axis=1).astype(np.int32)


def slide(
    cells: Int[Array, " 16"], action: Int[Array, ""], row: Int[Array, "65536 2"]
) -> tuple[Int[Array, " 16"], Int[Array, ""]]:
    """The board after a move, before a new tile appears, and the sum of the tiles that the move makes."""
    view = cells[jnp.asarray(_VIEW)[action]].reshape(SIZE, SIZE)
    packed = jnp.sum(view << _SHIFTS, axis=1, dtype=jnp.int32)
    after = row[packed]
    out = (after[:, :1] >> _SHIFTS) & 15
    return out.reshape(-1)[jnp.asarray(_BACK)[action]], jnp.sum(after[:, 1], dtype=jnp.int32)


def legal_moves(cells: Int[Array, " 16"]) -> Bool[Array, " 4"]:
    """Which of Up, Right, Down, Left change the board."""
    board = cells.reshape(SIZE, SIZE)
    out: dict[str, Array] = {}
    pairs = {
        ("Left", "Right"): (board[:, :-1], board[:, 1:]),
        ("Up", "Down"): (board[:-1], board[1:]),
    }
    for (toward, away), (near, far) in pairs.items():
        merges = jnp.any((near == far) & (near > 0) & (near < LARGEST))
        out[toward] = merges | jnp.any((near == 0) & (far > 0))
        out[away] = merges | jnp.any((far == 0) & (near > 0))
    return jnp.stack([out[name] for name in ACTIONS])


def spawn(
    cells: Int[Array, " 16"], draws: Float[Array, " 2"], four_probability: Float[Array, ""]
) -> Int[Array, " 16"]:
    """The board with a tile in empty cell floor(draws[0] * number of them): a 4 where draws[1] < four_probability."""
    empty = cells == 0
    rank = jnp.cumsum(empty, dtype=jnp.int32) - 1
    count = rank[-1] + 1
    chosen = jnp.minimum((draws[0] * count.astype(jnp.float32)).astype(jnp.int32), count - 1)
    tile = jnp.where(draws[1] < four_probability, 2, 1).astype(jnp.int32)
    return jnp.where(empty & (rank == chosen), tile, cells)


@functools.partial(jax.jit, static_argnames="count")
def _starts(key: Array, four_probability: Float[Array, ""], *, count: int) -> Int[Array, "N 16"]:
    """Boards with two tiles; board i depends on (key, i) alone."""

    def start(index: Array) -> Array:
        draws = jax.random.uniform(jax.random.fold_in(key, index), (2, 2), jnp.float32)
        cells = jnp.zeros(SIZE * SIZE, jnp.int32)
        for draw in draws:
            cells = spawn(cells, draw, four_probability)
        return cells.astype(jnp.int8)

    return jax.vmap(start)(jnp.arange(count, dtype=jnp.uint32))


@dataclass(frozen=True)
class Game2048(Environment):
    """2048 up to a target tile.

    Actions: 0 Up, 1 Right, 2 Down, 3 Left (i32). A move that merges tiles of sum s pays 0.1 round(log2(s + 1)), one
    that only moves tiles 0, one that changes nothing `invalid_score`, and no new tile appears then. The episode ends
    with the target tile (success) or when no move is left. `metric_names`: the largest tile, and the game's score (sum
    of all tiles that merges made).

    RAGEN counts success from a tile of 2048 on and allows 700 actions. The tiles of a board sum to 2.2 for each new
    tile on average, so 2048 needs about 930; 1024, the default here, about 470. The logarithm is rounded so that the
    reward that the agent reads, to one decimal, is the one that it is paid.

    Fields:
        target_tile: power of two, 8 .. 32768.
        four_probability: in [0, 1], that a new tile is a 4.
        invalid_score: reward of a move that changes nothing, <= 0.
    """

    target_tile: int = 1024
    four_probability: float = 0.1
    invalid_score: float = -0.1

    def __post_init__(self) -> None:
        if self.target_tile not in [1 << e for e in range(3, LARGEST + 1)]:
            raise ConfigError("target_tile", self.target_tile, f"use a power of two in 8..{1 << LARGEST}")
        if not 0.0 <= self.four_probability <= 1.0:
            raise ConfigError("four_probability", self.four_probability, "must be in [0, 1]")
        if self.invalid_score > 0:
            raise ConfigError("invalid_score", self.invalid_score, "use zero or a negative number")
        if self.num_levels < 1:
            raise ConfigError("num_levels", self.num_levels, "must be positive")

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("max_tile", "score")

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def reward_range(self) -> tuple[float, float]:
        """Eight merges, each of tiles below the target, are the most that one move can make."""
        most = 2 * SIZE * self.target_tile
        return (self.invalid_score, 0.1 * round(float(np.log2(most + 1))))

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        return (
            "You are playing 2048 on a board of 4 x 4. A move slides all tiles up, right, down or left; two equal "
            "tiles that meet become one of twice the value, each tile at most once a move. After every move that "
            "changes the board a new tile, mostly 2, sometimes 4, appears in an empty cell; a move that changes "
            f"nothing costs points. Make a tile of {self.target_tile} before the board is full. "
            "Merging large tiles pays more. A dot is an empty cell."
        )

    def phrases(self) -> Sequence[str]:
        values = [".", *(str(1 << e) for e in range(1, LARGEST + 1))]
        largest = [f"Largest tile: {value}. Goal: {self.target_tile}.\n" for value in values]
        moves = []
        for code in range(2 ** len(ACTIONS)):
            names = [name for i, name in enumerate(ACTIONS) if code >> i & 1]
            moves.append(f"Moves that change the board: {', '.join(names) or 'none'}.\n")
        return [*values, *(f" {v}" for v in values), *(f" {v}\n" for v in values), *largest, *moves]

    def state_tokens(self, lengths: np.ndarray, params: Game2048Params) -> tuple[int, int]:
        count = LARGEST + 1

        def bound(largest: int) -> int:
            """Sixteen tiles of up to 2 ** largest."""
            kinds = lengths[: 4 * count].reshape(4, count)[:, : largest + 1].max(axis=1)
            return int(SIZE * (kinds[0] + 2 * kinds[1] + kinds[2]) + kinds[3] + lengths[4 * count :].max())

        return bound(2), bound(self.target_tile.bit_length() - 1)

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> Game2048Params:
        four = jnp.float32(self.four_probability)
        return self._params(_starts(key, four, count=self.num_levels))

    def params_from_boards(self, tiles: Sequence[Sequence[Sequence[int]]]) -> Game2048Params:
        """Parameters with given start boards, as tiles (0 empty, else powers of two up to 32768).

        Raises ValueError unless there are `num_levels` boards of 4 x 4 of such tiles.
        """
        values = np.asarray(tiles)
        if values.shape != (self.num_levels, SIZE, SIZE):
            raise ValueError(f"{self.num_levels} boards of {SIZE} x {SIZE} expected")
        if not np.all(np.isin(values, [0, *(1 << e for e in range(1, LARGEST + 1))])):
            raise ValueError(f"tiles are 0 or powers of two in 2..{1 << LARGEST}")
        exponents = np.log2(np.maximum(values, 1)).astype(np.int8)
        return self._params(jnp.asarray(exponents.reshape(self.num_levels, -1)))

    def _params(self, start: Array) -> Game2048Params:
        return Game2048Params(
            start=start,
            row=jnp.asarray(row_table()),
            four_probability=jnp.float32(self.four_probability),
            invalid_score=jnp.float32(self.invalid_score),
            names=NameTable.build(ACTIONS, self.answer_bytes),
        )

    def level(self, index: Int[Array, ""], params: Game2048Params) -> Game2048State:
        return Game2048State(params.start[index].astype(jnp.int32), jnp.zeros((), jnp.int32))

    def observe(self, state: Game2048State, params: Game2048Params) -> Int[Array, " 18"]:
        count = LARGEST + 1
        place = jnp.asarray(np.tile([0, 1, 1, 2], SIZE) * count, jnp.int32)  # first of its row, inner, last
        code = jnp.sum(legal_moves(state.cells) << np.arange(4, dtype=np.int32), dtype=jnp.int32)
        lines = jnp.stack([3 * count + jnp.max(state.cells), 4 * count + code])
        return jnp.concatenate([state.cells + place, lines]).astype(jnp.int32)

    def parse(
        self, span: Span, state: Game2048State, params: Game2048Params
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        return match_name(span, params.names)

    def move(
        self,
        state: Game2048State,
        action: Int[Array, ""],
        draws: Float[Array, " 2"],
        params: Game2048Params,
    ) -> Transition:
        """`transition` with its two draws in [0, 1) given, as `spawn` takes them."""
        slid, gain = slide(state.cells, action, params.row)
        moved = jnp.any(slid != state.cells)
        cells = jnp.where(moved, spawn(slid, draws, params.four_probability), state.cells)
        largest = jnp.max(cells)
        success = largest >= self.target_tile.bit_length() - 1
        doublings = jnp.round(jnp.log2((gain + 1).astype(jnp.float32)))
        score = state.score + gain
        return Transition(
            state=Game2048State(cells, score),
            reward=jnp.where(moved, jnp.float32(0.1) * doublings, params.invalid_score),
            terminated=success | ~jnp.any(legal_moves(cells)),
            success=success,
            valid=moved,
            effective=moved,
            metrics=jnp.stack([jnp.left_shift(1, largest), score]).astype(jnp.float32),
        )

    def transition(
        self, key: Array, state: Game2048State, action: Int[Array, ""], params: Game2048Params
    ) -> Transition:
        return self.move(state, action, jax.random.uniform(key, (2,), jnp.float32), params)
