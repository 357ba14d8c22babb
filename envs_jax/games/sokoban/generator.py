"""Sokoban rooms on device: topology by a random walk, placement, reverse play, the player's stray steps.

The procedure of gym-sokoban's generator as RAGEN changed it, on batches. Every room is solvable by
construction, since it is reached from a solved one by moves that can be undone. A cell is
row * columns + column of the whole room, or of its interior (outer wall left out) where a docstring says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.games.sokoban.solver import DIRECTIONS, just_pulled, push_distance, reverse_reachable

TURN_PROBABILITY = 0.35
PLAYS = 8  # reverse plays of a room with several boxes; gives lengths near those of the 8 x 8 tag
CHUNK = 512  # rooms drawn by one call
MAX_ATTEMPTS = 400  # draws of one room before generation gives up
MAX_TABLE = 64 * 64  # (player, box) states of a room for which the distance table is kept

# Cells painted around the walker, as (row, column) offsets, and which of the five brushes has them: bar
# across, bar down, {left, centre, below}, {left, centre, below left, below}, {centre, right, below}.
OFFSETS = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0), (1, -1))
BRUSHES = (
    (True, True, True, False, False, False),
    (True, False, False, True, True, False),
    (True, True, False, False, True, False),
    (True, True, False, False, True, True),
    (True, False, True, False, True, False),
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rooms:
    """N rooms of `rows` x `cols` cells with `boxes` boxes; C cells in the interior."""

    floor: Bool[Array, "N rows cols"]  # not wall
    target: Int[Array, "N boxes"]  # i32 cells, ascending
    player: Int[Array, " N"]  # i32 cell
    box: Int[Array, "N boxes"]  # i32 cells
    # i16: moves to the solution by interior cells of player and box, -1 if there is none; [N, 0, 0] unknown
    distance: Int[Array, "N C C"]
    valid: Bool[Array, " N"]


def has_table(rows: int, cols: int) -> bool:
    """Whether a one-box room of this size gets an exact distance table."""
    return ((rows - 2) * (cols - 2)) ** 2 <= MAX_TABLE


def topology_draws(rows: int, cols: int) -> int:
    """How many uniform numbers `topology` takes."""
    return 3 + 3 * int(1.7 * (rows + cols))


def topology(uniform: Float[Array, " draws"], rows: int, cols: int) -> Bool[Array, "rows cols"]:
    """Floor of one room: a walk of int(1.7 * (rows + cols)) steps that paints a random brush at each step."""
    limit = jnp.asarray([rows, cols], jnp.int32)
    position = 1 + _below(uniform[:2], limit - 1)  # may start on the far wall, as there
    turns, ways, brushes = jnp.split(uniform[3:], 3)
    moves = jnp.asarray(DIRECTIONS, jnp.int32)

    def walk(carry: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        position, direction = carry
        direction = jnp.where(step[0], step[1], direction)
        position = jnp.clip(position + moves[direction], 1, limit - 2)
        return (position, direction), position

    start = (position, _below(uniform[2], 4))
    _, path = jax.lax.scan(walk, start, (turns < TURN_PROBABILITY, _below(ways, 4)))
    painted = jnp.asarray(BRUSHES)[_below(brushes, len(BRUSHES))]  # [steps, offsets]
    where = path[:, None, :] + jnp.asarray(OFFSETS, jnp.int32)
    row = where[..., 0, None] == jnp.arange(rows, dtype=jnp.int32)
    col = where[..., 1, None] == jnp.arange(cols, dtype=jnp.int32)
    floor = jnp.any(painted[..., None, None] & row[..., :, None] & col[..., None, :], axis=(0, 1))
    inside = np.zeros((rows, cols), bool)
    inside[1:-1, 1:-1] = True
    return floor & jnp.asarray(inside)


def _below(uniform: Array, limit: Array | int) -> Array:
    """Integers 0 .. limit - 1, i32, from numbers in [0, 1)."""
    return jnp.floor(uniform * limit).astype(jnp.int32)


def place(noise: Float[Array, " cells"], floor: Bool[Array, "rows cols"], count: int) -> Int[Array, " count"]:
    """`count` different floor cells, uniform; the caller checks that there are as many."""
    return jax.lax.top_k(jnp.where(floor.reshape(-1), noise, -1.0), count)[1].astype(jnp.int32)


def stray(
    uniform: Float[Array, "3 5"],
    floor: Bool[Array, "rows cols"],
    player: Int[Array, ""],
    box: Int[Array, " boxes"],
    displacement: Int[Array, ""],
) -> Int[Array, ""]:
    """Moves the player 0 to 3 random steps over free cells not visited before.

    Starts with probability 0.8 if the boxes are displaced by 1 in all, else 0.5, and goes on after each step
    with probability 0.5.
    """
    cols = floor.shape[1]
    deltas = jnp.asarray([r * cols + c for r, c in DIRECTIONS], jnp.int32)
    free = floor.reshape(-1).at[box].set(False)
    going = uniform[0, 4] < jnp.where(displacement == 1, 0.8, 0.5)
    for step in range(3):
        free = free.at[player].set(False)
        if step:
            going &= uniform[step, 4] < 0.5
        score = jnp.where(free[player + deltas], uniform[step, :4], -1.0)
        going &= jnp.max(score) >= 0.0
        player = jnp.where(going, player + deltas[jnp.argmax(score)], player)
    return player


def _interior(cell: Array, cols: int) -> Array:
    return (cell // cols - 1) * (cols - 2) + cell % cols - 1


def _whole(cell: Array, cols: int) -> Array:
    inner = cols - 2
    return (cell // inner + 1) * cols + cell % inner + 1


def _displacement(rows: int, cols: int) -> np.ndarray:
    """Manhattan distances between interior cells, i32[C, C]."""
    cell = np.stack(np.divmod(np.arange((rows - 2) * (cols - 2)), cols - 2), axis=1)
    return np.abs(cell[:, None] - cell[None, :]).sum(-1).astype(np.int32)


def _one_box(
    noise: Array,
    steps: Array,
    floor: Array,
    player: Array,
    target: Array,
    difficulty: tuple[Array, Array] | None,
) -> tuple[Array, Array, Array, Array]:
    """Start player and box (cells of the whole room), distances, validity. All with leading axis N."""
    count, rows, cols = floor.shape
    inner = floor[:, 1:-1, 1:-1]
    size = (rows - 2) * (cols - 2)
    goal = _interior(target, cols)
    distance = push_distance(inner, goal)
    if difficulty is None:
        reached = reverse_reachable(inner, _interior(player, cols), goal)
        candidates = just_pulled(reached).reshape(count, size, size)
        cells = jnp.arange(size, dtype=jnp.int32)
        bare = cells != goal[:, None]
        candidates &= bare[:, :, None] & bare[:, None, :] & (distance > 0)
        far = jnp.asarray(_displacement(rows, cols))[goal]  # [N, box]
        score = jnp.where(candidates, far[:, None, :], 0).reshape(count, -1)
        best = jnp.max(score, axis=1)
        choice = jnp.argmax(jnp.where((score == best[:, None]) & (best > 0)[:, None], noise, -1.0), axis=1)
        valid = best > 0
    else:
        flat = distance.reshape(count, -1)
        allowed = (flat >= jnp.maximum(difficulty[0], 1)) & (flat <= difficulty[1])
        choice = jnp.argmax(jnp.where(allowed, noise, -1.0), axis=1)
        valid = jnp.any(allowed, axis=1)
        best = jnp.zeros(count, jnp.int32)
    choice = choice.astype(jnp.int32)
    player, box = _whole(choice // size, cols), _whole(choice % size, cols)
    if difficulty is None:
        player = jax.vmap(stray)(steps, floor, player, box[:, None], best)
    return player, box[:, None], distance, valid


Play = tuple[Array, Array, Array, Array, Array, Array, Array]


def _many_boxes(
    noise: Array, steps: Array, floor: Array, player: Array, target: Array
) -> tuple[Array, Array, Array]:
    """Start player, boxes and validity of one room: the best state seen in random reverse plays.

    `noise` is [walks, depth, 4]. A state's score is (how often the dragged box changed) * (summed
    displacement of the boxes), 0 unless every target is bare.
    """
    cols = floor.shape[1]
    deltas = jnp.asarray([r * cols + c for r, c in DIRECTIONS], jnp.int32)
    free_cell = floor.reshape(-1)

    def play(carry: Play, noise: Array) -> tuple[Play, None]:
        player, box, last, switches, best, best_player, best_box = carry
        ahead = player + deltas
        free = free_cell[ahead] & ~jnp.any(ahead[:, None] == box, axis=1)
        pulls = jnp.any((player - deltas)[:, None] == box, axis=1)
        way = jnp.argmax(jnp.where(free, noise + 0.5 * pulls, -1.0))
        able = free[way]
        behind = player - deltas[way]
        dragged = able & (box == behind)
        moved = jnp.any(dragged)
        which = jnp.argmax(dragged).astype(jnp.int32)
        switches = switches + (moved & (which != last)).astype(jnp.int32)
        last = jnp.where(moved, which, last)
        box = jnp.where(dragged, player, box)
        player = jnp.where(able, ahead[way], player)
        apart = jnp.abs(box // cols - target // cols) + jnp.abs(box % cols - target % cols)
        bare = ~jnp.any(target == player) & ~jnp.any(target[:, None] == box)
        score = jnp.where(bare, switches * jnp.sum(apart, dtype=jnp.int32), 0)
        better = score > best
        return (
            player,
            box,
            last,
            switches,
            jnp.where(better, score, best),
            jnp.where(better, player, best_player),
            jnp.where(better, box, best_box),
        ), None

    def one_walk(noise: Array) -> tuple[Array, ...]:
        carry: Play = (player, target, jnp.int32(-1), jnp.int32(0), jnp.int32(0), player, target)
        return jax.lax.scan(play, carry, noise)[0][4:]

    score, players, layouts = jax.vmap(one_walk)(noise)
    top = jnp.argmax(score)
    box = layouts[top]
    apart = jnp.abs(box // cols - target // cols) + jnp.abs(box % cols - target % cols)
    start = stray(steps, floor, players[top], box, jnp.sum(apart, dtype=jnp.int32))
    return start, box, score[top] > 0


@partial(jax.jit, static_argnames=("rows", "cols", "boxes", "depth"))
def draw_rooms(
    key: Array,
    index: Int[Array, " N"],
    attempt: Int[Array, ""],
    difficulty: tuple[Array, Array] | None,
    *,
    rows: int,
    cols: int,
    boxes: int,
    depth: int,
) -> Rooms:
    """One attempt at each of the rooms `index`, from (key, index, attempt); `valid` says which came out."""
    one_box = boxes == 1 and has_table(rows, cols)
    plays = (((rows - 2) * (cols - 2)) ** 2,) if one_box else (PLAYS, depth, 4)
    sizes = [topology_draws(rows, cols), rows * cols, 15, math.prod(plays)]

    def draw(index: Array) -> Array:
        room = jax.random.fold_in(jax.random.fold_in(key, index), attempt)
        return jax.random.uniform(room, (sum(sizes),), jnp.float32)  # one draw: compiles fast

    shape, placement, steps, noise = jnp.split(jax.vmap(draw)(index), np.cumsum(sizes)[:-1], axis=1)
    steps, noise = steps.reshape(-1, 3, 5), noise.reshape(-1, *plays)
    floor = jax.vmap(lambda u: topology(u, rows, cols))(shape)
    cells = jax.vmap(lambda u, f: place(u, f, 1 + boxes))(placement, floor)
    player, target = cells[:, 0], jnp.sort(cells[:, 1:], axis=1)
    enough = jnp.sum(floor, axis=(1, 2)) > boxes + 1
    if one_box:
        player, box, distance, valid = _one_box(noise, steps, floor, player, target[:, 0], difficulty)
    else:
        player, box, valid = jax.vmap(_many_boxes)(noise, steps, floor, player, target)
        distance = jnp.zeros((index.shape[0], 0, 0), jnp.int16)
    return Rooms(floor=floor, target=target, player=player, box=box, distance=distance, valid=valid & enough)


def generate(
    key: Array,
    count: int,
    *,
    rows: int,
    cols: int,
    boxes: int,
    depth: int,
    difficulty: tuple[int, int] | None = None,
) -> Rooms:
    """`count` rooms, all valid; room i depends on (key, i) alone. Host loop over chunks of one compiled draw.

    Raises RuntimeError if a room fails MAX_ATTEMPTS times.
    """
    chunk = min(CHUNK, count)
    bounds = None if difficulty is None else (jnp.int32(difficulty[0]), jnp.int32(difficulty[1]))
    pending = np.arange(count, dtype=np.int32)
    pool: Rooms | None = None
    for attempt in range(MAX_ATTEMPTS):
        failed = []
        for start in range(0, len(pending), chunk):
            index = pending[start : start + chunk]
            padded = np.concatenate([index, np.full(chunk - len(index), index[0], np.int32)])
            drawn = draw_rooms(
                key,
                jnp.asarray(padded),
                jnp.int32(attempt),
                bounds,
                rows=rows,
                cols=cols,
                boxes=boxes,
                depth=depth,
            )
            host = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(index)], drawn)  # noqa: B023
            if pool is None:
                pool = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape[1:]), leaf.dtype), host)
            good = host.valid
            for stored, leaf in zip(jax.tree.leaves(pool), jax.tree.leaves(host), strict=True):
                stored[index[good]] = leaf[good]
            failed.append(index[~good])
        pending = np.concatenate(failed)
        if not len(pending):
            return jax.tree.map(jnp.asarray, pool)
    raise RuntimeError(f"{len(pending)} of {count} rooms were not found in {MAX_ATTEMPTS} attempts each")
