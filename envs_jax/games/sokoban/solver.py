"""Exact search over (player, box) for one box, as boolean dilations on whole batches of rooms.

A room's floor is given over its interior, a x b cells (the outer wall left out). Sets of states are
bool[N, a, b, a, b]: player row, player column, box row, box column.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # Up, Down, Left, Right: the order of the actions


def shifted(states: Array, rows: int, cols: int, *, axis: int) -> Array:
    """`out[.., r, c, ..] = states[.., r + rows, c + cols, ..]` over axes (axis, axis + 1), False outside."""
    out = states
    for at, step in ((axis, rows), (axis + 1, cols)):
        if step:
            padding = [(0, 0)] * out.ndim
            padding[at] = (max(-step, 0), max(step, 0))
            length = out.shape[at]
            out = jax.lax.slice_in_dim(jnp.pad(out, padding), max(step, 0), max(step, 0) + length, axis=at)
    return out


def _box_ahead(a: int, b: int, rows: int, cols: int) -> np.ndarray:
    """bool[a, b, a, b]: the box stands one step (rows, cols) from the player."""
    row, col = np.arange(a), np.arange(b)
    same_row = row[:, None] + rows == row[None, :]
    same_col = col[:, None] + cols == col[None, :]
    return same_row[:, None, :, None] & same_col[None, :, None, :]


def legal_states(floor: Bool[Array, "N a b"]) -> Bool[Array, "N a b a b"]:
    """States with player and box on two different floor cells."""
    _, a, b = floor.shape
    same = jnp.asarray(_box_ahead(a, b, 0, 0))
    return floor[:, :, :, None, None] & floor[:, None, None, :, :] & ~same


def push_distance(floor: Bool[Array, "N a b"], target: Int[Array, " N"]) -> Int[Array, "N C C"]:
    """Fewest moves that bring the box to the target, for every (player, box) state.

    Breadth-first search backwards from all solved states, over plain steps and pushes undone.

    Args:
        floor: cells that are not wall.
        target: interior cell, row * b + column.

    Returns:
        i16[N, C, C] with C = a * b, indexed by player cell and box cell; 0 where solved, -1 where there is no
        solution or no such state.
    """
    count, a, b = floor.shape
    legal = legal_states(floor)
    cells = jnp.arange(a * b, dtype=jnp.int32).reshape(a, b)
    at_target = cells == target[:, None, None]
    reached = legal & at_target[:, None, None, :, :]
    ahead = [jnp.asarray(_box_ahead(a, b, *d)) for d in DIRECTIONS]

    def grow(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        reached, distance, step, _ = carry
        before = jnp.zeros_like(reached)
        for push, (rows, cols) in zip(ahead, DIRECTIONS, strict=True):
            walked = shifted(reached, rows, cols, axis=1)
            before |= jnp.where(push, shifted(walked, rows, cols, axis=3), walked)
        new = before & legal & ~reached
        return reached | new, jnp.where(new, step, distance), step + jnp.int16(1), jnp.any(new)

    distance = jnp.where(reached, 0, -1).astype(jnp.int16)
    carry = (reached, distance, jnp.int16(1), jnp.bool_(True))
    return jax.lax.while_loop(lambda c: c[3], grow, carry)[1].reshape(count, a * b, a * b)


def just_pulled(reached: Bool[Array, "N a b a b"]) -> Bool[Array, "N a b a b"]:
    """States that one pull leads to from a state of `reached`: the player steps away and the box follows."""
    _, a, b, _, _ = reached.shape
    pulled = jnp.zeros_like(reached)
    for rows, cols in DIRECTIONS:
        behind = jnp.asarray(_box_ahead(a, b, -rows, -cols))
        pulled |= behind & shifted(shifted(reached, -rows, -cols, axis=1), -rows, -cols, axis=3)
    return pulled


def reverse_reachable(
    floor: Bool[Array, "N a b"], player: Int[Array, " N"], box: Int[Array, " N"]
) -> Bool[Array, "N a b a b"]:
    """States that reverse play reaches: the player steps to a free cell and drags a box standing behind it.

    `player` and `box` are interior cells. A box behind the player always follows, as in gym-sokoban.
    """
    _, a, b = floor.shape
    legal = legal_states(floor)
    cells = jnp.arange(a * b, dtype=jnp.int32).reshape(a, b)
    reached = legal & (cells == player[:, None, None])[:, :, :, None, None]
    reached &= (cells == box[:, None, None])[:, None, None, :, :]

    def grow(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, _ = carry
        new = just_pulled(reached)
        for rows, cols in DIRECTIONS:
            # One step on the box would be two steps from where the player was: there it is dragged instead.
            dragged = jnp.asarray(_box_ahead(a, b, -2 * rows, -2 * cols))
            new |= shifted(reached, -rows, -cols, axis=1) & ~dragged
        new &= legal & ~reached
        return reached | new, jnp.any(new)

    return jax.lax.while_loop(lambda c: c[1], grow, (reached, jnp.bool_(True)))[0]
