"""Sokoban in words: which phrases there are, and which of them a state says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.games._board import coordinate_sentence, header

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
MEANINGS = ("wall", "empty", "target", "box on target", "box", "player", "player on target")
PIECE = 6  # interior cells of a row that one phrase covers at most: 7 ** 6 phrases


@dataclass(frozen=True)
class SokobanText:
    """The phrase table of one room size, vocabulary and format, as offsets into `phrases`."""

    rows: int
    cols: int
    boxes: int
    symbols: tuple[str, ...]
    observation_format: str

    @property
    def shows_grid(self) -> bool:
        return self.observation_format != "coord"

    @property
    def shows_coordinates(self) -> bool:
        return self.observation_format != "grid"

    @property
    def pieces(self) -> int:
        """Phrases per row. More than one only for rooms wider than 8 cells, whose rows are then cut."""
        return -(-(self.cols - 2) // PIECE)

    @property
    def piece_cells(self) -> int:
        """Interior cells of each piece; the last may have fewer."""
        return -(-(self.cols - 2) // self.pieces)

    @property
    def _cells(self) -> int:
        return (self.rows - 2) * (self.cols - 2)

    @property
    def _ends(self) -> int:
        """Forms of a coordinate: followed by a comma or by the end of the line. One box has no comma."""
        return 1 if self.boxes == 1 else 2

    # Layout of `phrases`: header, five labels with a first coordinate, later coordinates, title, row pieces.
    def label(self, code: int) -> int:
        """Phrase of the label of cell kind `code` (TARGET .. PLAYER_ON_TARGET) with interior cell 0."""
        before = 1 + self._cells * self._ends * (min(code, PLAYER) - TARGET)
        return before + (self._cells if code == PLAYER_ON_TARGET else 0)

    @property
    def later(self) -> int:
        """First phrase of the coordinates after the first of a list."""
        return self.label(PLAYER_ON_TARGET) + self._cells

    @property
    def top(self) -> int:
        """Phrase of the grid's title with the wall above, or the first row piece where there is no title."""
        return self.later + (2 * self._cells if self.boxes > 1 else 0) if self.shows_coordinates else 0

    def top_row(self) -> np.ndarray:
        """Phrases of the wall above, i32."""
        return np.asarray([self.top], np.int32) if self.shows_coordinates else self.piece_bases()

    @property
    def _piece_tables(self) -> list[tuple[str, int, str]]:
        """Text before, interior cells, text after, for the different pieces of a row in order."""
        wall, full = self.symbols[WALL], self.piece_cells
        last = self.cols - 2 - full * (self.pieces - 1)
        if self.pieces == 1:
            return [(wall, last, wall + "\n")]
        middle = [("", full, "")] if self.pieces > 2 else []
        return [(wall, full, ""), *middle, ("", last, wall + "\n")]

    def piece_bases(self) -> np.ndarray:
        """First phrase of each piece of a row, i32[pieces]; it is the piece that is all wall."""
        sizes = [7**cells for _, cells, _ in self._piece_tables]
        starts = self.top + self.shows_coordinates + np.concatenate([[0], np.cumsum(sizes)[:-1]])
        which = [min(i, 1) for i in range(self.pieces - 1)] + [len(sizes) - 1]
        return starts[which].astype(np.int32)

    def phrases(self) -> Sequence[str]:
        """All phrases in the order of the offsets."""
        out: list[str] = []
        if self.shows_coordinates:
            out.append(header(self.observation_format, self.rows, self.cols))
            places = [f"({r}, {c})" for r in range(1, self.rows - 1) for c in range(1, self.cols - 1)]
            ends = ("\n",) if self.boxes == 1 else (",", "\n")
            for name in ("Targets", "Boxes on target", "Boxes"):
                out += [f"{name}: {place}{end}" for place in places for end in ends]
            for name in ("Player", "Player on target"):
                out += [f"{name}: {place}\n" for place in places]
            if self.boxes > 1:
                out += [f" {place}{end}" for place in places for end in ends]
        if self.shows_grid:
            if self.shows_coordinates:
                out.append("Grid Map:\n" + self.symbols[WALL] * self.cols + "\n")
            for before, cells, after in self._piece_tables:
                # The first cell is the lowest digit of the number, so it changes fastest.
                texts = [""]
                for _ in range(cells):
                    texts = [a + b for b, a in itertools.product(self.symbols, texts)]
                out += [before + text + after for text in texts]
        return out

    def instruction(self) -> str:
        """Task, legend of the symbols in use, coordinates; each only where it applies."""
        many = self.boxes > 1
        parts = [
            "You are the player in a warehouse. "
            + ("Push every box onto a target. " if many else "Push the box onto the target. ")
            + "Walking into a box pushes it one cell further if nothing stands behind it. A box cannot be "
            "pulled, and neither you nor a box can go through a wall" + (" or another box." if many else ".")
        ]
        if self.shows_grid:
            pairs = ", ".join(f"{s} {word}" for s, word in zip(self.symbols, MEANINGS, strict=True))
            parts.append(f"Legend of the map: {pairs}.")
        if self.shows_coordinates:
            parts.append(coordinate_sentence(self.rows, self.cols))
        return "\n".join(parts)

    # -- on device -------------------------------------------------------------------------------------------
    def row_codes(self, codes: np.ndarray) -> np.ndarray:
        """Phrase of each interior row piece, i32[N, rows - 2, pieces], from cell codes [N, rows, cols]."""
        count = codes.shape[0]
        inner = np.zeros((count, self.rows - 2, self.pieces * self.piece_cells), np.int64)
        inner[:, :, : self.cols - 2] = codes[:, 1:-1, 1:-1]
        digits = inner.reshape(count, self.rows - 2, self.pieces, self.piece_cells)
        weights = 7 ** np.arange(self.piece_cells, dtype=np.int64)
        return ((digits * weights).sum(-1) + self.piece_bases()).astype(np.int32)

    def rows_of(
        self,
        row_base: Int[Array, "rows pieces"],
        player: Int[Array, ""],
        box: Int[Array, " boxes"],
        on_target: Bool[Array, " boxes"],
    ) -> Int[Array, " rows*pieces"]:
        """Row phrases of a state: those of the empty room plus what player and boxes change.

        In the numbers that stand for cells the player adds 4 (floor to player, target to player on target), a
        box adds 3 on floor and 1 on a target.
        """
        cells = jnp.concatenate([player[None], box])
        added = jnp.concatenate([jnp.full(1, 4, jnp.int32), jnp.where(on_target, 1, 3).astype(jnp.int32)])
        column = cells % self.cols - 1
        weights = jnp.asarray(7 ** np.arange(self.piece_cells), jnp.int32)
        slot = (cells // self.cols - 1) * self.pieces + column // self.piece_cells
        slots = jnp.arange((self.rows - 2) * self.pieces, dtype=jnp.int32)
        change = jnp.where(slot[:, None] == slots, (added * weights[column % self.piece_cells])[:, None], 0)
        return row_base.reshape(-1) + jnp.sum(change, axis=0, dtype=jnp.int32)

    def _place(self, cell: Array) -> Array:
        return (cell // self.cols - 1) * (self.cols - 2) + cell % self.cols - 1

    def _list(self, code: int, cells: Int[Array, " n"], listed: Bool[Array, " n"]) -> Int[Array, " n"]:
        """Phrases of one list of coordinates in ascending order, -1 for cells not listed."""
        place, label = self._place(cells), self.label(code)
        if self.boxes == 1:
            return jnp.where(listed, label + place, -1).astype(jnp.int32)
        rank = jnp.cumsum(listed, dtype=jnp.int32)
        last = (rank == jnp.sum(listed, dtype=jnp.int32)).astype(jnp.int32)
        base = jnp.where(rank == 1, label, self.later)
        return jnp.where(listed, base + place * 2 + last, -1).astype(jnp.int32)

    def coordinates_of(
        self,
        player: Int[Array, ""],
        box: Int[Array, " boxes"],
        target: Int[Array, " boxes"],
        on_target: Bool[Array, " boxes"],
    ) -> Int[Array, " n"]:
        """Header, lists of bare targets, boxes, boxes on targets, and the player; -1 stands in between."""
        if self.boxes > 1:  # ascending: a rank by comparison is cheaper than a sort
            rank = jnp.sum(box[:, None] > box[None, :], axis=1)
            chosen = rank[None, :] == jnp.arange(self.boxes)[:, None]
            box = jnp.sum(jnp.where(chosen, box, 0), axis=1, dtype=jnp.int32)
            on_target = jnp.any(chosen & on_target, axis=1)
        bare = ~jnp.any(target[:, None] == box, axis=1) & (target != player)
        label = jnp.where(jnp.any(target == player), self.label(PLAYER_ON_TARGET), self.label(PLAYER))
        return jnp.concatenate(
            [
                jnp.zeros(1, jnp.int32),
                self._list(TARGET, target, bare),
                self._list(BOX, box, ~on_target),
                self._list(BOX_ON_TARGET, box, on_target),
                (label + self._place(player)).astype(jnp.int32)[None],
            ]
        )
