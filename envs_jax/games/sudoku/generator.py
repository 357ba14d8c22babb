"""Sudoku puzzles under `jit`: random full grids by depth-first search, then cells taken out while logic solves them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.games.sudoku.solver import fill_singles, units_of_cells

SEARCH_STEPS = 512  # of one search for a full grid of 9 x 9; nineteen of twenty end within
MAX_SEARCHES = 200  # of one grid before generation gives up
MAX_MASKS = 2000  # draws of the empty cells of one grid before generation gives up
LANES = 512  # drawn for at a time

Search = tuple[Array, Array, Array, Array, Array]  # steps, cell, digits, digits tried, digits of each unit
Propose = Callable[[Array, Array], tuple[Array, Array]]  # keys, lanes -> values, whether they are good


def _redraw(
    keys: Array, width: int, propose: Propose, limit: int
) -> tuple[Int[Array, "N S"], Bool[Array, " N"]]:
    """For each key the first good proposal of up to `limit`, and whether there was one.

    Proposal a of lane i depends on (key i, a) alone; only lanes that still need one are drawn for, LANES at a time.
    """
    count = keys.shape[0]

    def draw(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, value, good = carry
        waiting = ~good & (number < limit)
        slots = jnp.nonzero(waiting, size=min(LANES, count), fill_value=count)[0].astype(jnp.int32)
        lanes = jnp.minimum(slots, count - 1)
        new, found = propose(jax.vmap(jax.random.fold_in)(keys[lanes], number[lanes]), lanes)
        taken = jnp.where(found, slots, count)
        return (
            number.at[slots].add(jnp.uint32(1), mode="drop"),
            value.at[taken].set(new, mode="drop"),
            good.at[taken].set(True, mode="drop"),
        )

    carry = (jnp.zeros(count, jnp.uint32), jnp.zeros((count, width), jnp.int32), jnp.zeros(count, bool))
    carry = jax.lax.while_loop(lambda c: jnp.any(~c[2] & (c[0] < limit)), draw, carry)
    return carry[1], carry[2]


def _search(key: Array, box: int) -> tuple[Int[Array, " S"], Bool[Array, ""]]:
    """One depth-first search over the cells in reading order, digits tried in random order: the grid, whether full."""
    n = box * box
    own = jnp.asarray(units_of_cells(box))
    order = jax.random.uniform(key, (n * n, n), jnp.float32)
    digits = jnp.arange(n, dtype=jnp.int32)
    one = jnp.int32(1)

    def step(carry: Search) -> Search:
        number, cell, grid, tried, used = carry
        mine, old = own[cell], grid[cell]
        used = used.at[mine].add(-jnp.where(old < 0, 0, one << jnp.maximum(old, 0)))  # as it comes back here
        taken = used[mine[0]] | used[mine[1]] | used[mine[2]] | tried[cell]
        free = (taken >> digits) & 1 == 0
        found = jnp.any(free)
        first = jnp.argmax(jnp.where(free, order[cell], -1.0)).astype(jnp.int32)
        digit = jnp.where(found, first, -1)
        bit = jnp.where(found, one << jnp.maximum(digit, 0), 0)
        tried = tried.at[cell].set(
            jnp.where(found, tried[cell] | bit, 0)
        )  # one that is left behind starts anew
        ahead = jnp.where(found, 1, -1).astype(jnp.int32)
        return number + one, cell + ahead, grid.at[cell].set(digit), tried, used.at[mine].add(bit)

    start: Search = (
        jnp.int32(0),
        jnp.int32(0),
        jnp.full(n * n, -1, jnp.int32),
        jnp.zeros(n * n, jnp.int32),
        jnp.zeros(3 * n, jnp.int32),
    )
    out = jax.lax.while_loop(lambda c: (c[0] < SEARCH_STEPS) & (c[1] < n * n), step, start)
    return out[2] + 1, out[1] == n * n


def full_grids(keys: Array, box: int) -> tuple[Int[Array, "N S"], Bool[Array, " N"]]:
    """A random full grid for each key, i32 digits 1..n, and whether one was found within MAX_SEARCHES searches."""
    propose = lambda keys, lanes: jax.vmap(lambda k: _search(k, box))(keys)  # noqa: E731
    return _redraw(keys, box**4, propose, MAX_SEARCHES)


@functools.partial(jax.jit, static_argnames=("count", "box", "empty"))
def generate_puzzles(
    key: Array, *, count: int, box: int, empty: int
) -> tuple[Int[Array, "N S"], Int[Array, "N S"], Bool[Array, " N"]]:
    """Draws `count` puzzles with `empty` empty cells each.

    The empty cells are drawn until singles solve the puzzle (`fill_singles`), which proves that its solution is the
    only one. Puzzle i depends on (key, i) alone.

    Returns:
        Given digits i8 (0 empty), solutions i8, and whether each puzzle was found.
    """
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count, dtype=jnp.uint32))
    grid_keys, mask_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    solution, complete = full_grids(grid_keys, box)

    def propose(keys: Array, lanes: Array) -> tuple[Array, Array]:
        noise = jax.vmap(lambda k: jax.random.uniform(k, (box**4,), jnp.float32))(keys)
        kept = jnp.sum(noise[:, :, None] > noise[:, None], axis=2, dtype=jnp.int32) >= empty
        given = jnp.where(kept, solution[lanes], 0)
        return given, jnp.all(fill_singles(given, box) == solution[lanes], axis=1)

    given, found = _redraw(mask_keys, box**4, propose, MAX_MASKS)
    return given.astype(jnp.int8), solution.astype(jnp.int8), found & complete
