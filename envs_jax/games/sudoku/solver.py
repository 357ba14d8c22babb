"""Sudoku by logic alone: cells with one candidate left, and digits with one cell left in a row, column or box."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int


@functools.cache
def units(box: int) -> np.ndarray:
    """i32[3 n, n]: cells of the n = box * box rows, then the columns, then the boxes. A cell is row * n + column."""
    n = box * box
    cells = np.arange(n * n, dtype=np.int32).reshape(n, n)
    boxes = cells.reshape(box, box, box, box).swapaxes(1, 2).reshape(n, n)
    return np.concatenate([cells, cells.T, boxes])


@functools.cache
def units_of_cells(box: int) -> np.ndarray:
    """i32[n * n, 3]: the row, column and box of each cell, as indices into `units`."""
    n = box * box
    row, column = np.divmod(np.arange(n * n, dtype=np.int32), n)
    return np.stack([row, n + column, 2 * n + row // box * box + column // box], axis=1).astype(np.int32)


def fill_singles(grid: Int[Array, "B S"], box: int) -> Int[Array, "B S"]:
    """Grids with every digit filled in that follows by naked and hidden singles (0: empty), i32.

    Each digit placed is forced by the rules, so a grid that comes out full has exactly one solution, the one returned.
    One that does not may need more than singles, or have several. Grids must not break the rules.
    """
    n = box * box
    unit_cells, own = jnp.asarray(units(box)), jnp.asarray(units_of_cells(box))
    every = jnp.int32(2**n - 1)

    def fill(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        bits, _ = carry
        used = jnp.sum(
            bits[:, unit_cells], axis=2, dtype=jnp.int32
        )  # digits of a unit differ: the sum is their union
        seen = used[:, own]
        candidates = jnp.where(bits == 0, every & ~(seen[..., 0] | seen[..., 1] | seen[..., 2]), 0)
        once, more = jnp.zeros_like(used), jnp.zeros_like(used)
        for k in range(n):
            there = candidates[:, unit_cells[:, k]]
            more |= once & there
            once |= there
        only = (once & ~more)[:, own]
        hidden = candidates & (only[..., 0] | only[..., 1] | only[..., 2])
        naked = jnp.where(candidates & (candidates - 1) == 0, candidates, 0)
        found = jnp.where(naked > 0, naked, hidden)
        return bits | found, jnp.any(found > 0)

    grid = grid.astype(jnp.int32)
    start = jnp.where(grid > 0, jnp.left_shift(jnp.int32(1), jnp.maximum(grid - 1, 0)), 0)
    bits = jax.lax.while_loop(lambda c: c[1], fill, (start, jnp.bool_(True)))[0]
    digits = jnp.zeros_like(bits)
    for digit in range(1, n + 1):
        digits = jnp.where(bits == 1 << (digit - 1), digit, digits)
    return digits
