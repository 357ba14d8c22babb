"""Rooms: solvable, distributed as published, reproducible."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sokoban_reference as reference

import envs_jax.games.sokoban.generator as generator
from envs_jax.games.sokoban import Sokoban


def lengths(env: Sokoban, params) -> np.ndarray:
    """Shortest solution of every level, from the table."""
    levels = jax.vmap(env.level, in_axes=(0, None))(jnp.arange(env.num_levels, dtype=jnp.int32), params)
    return np.asarray(jax.vmap(env.distance_left, in_axes=(0, None))(levels, params))


def test_lengths_follow_the_published_histogram() -> None:
    """RAGEN, 6 x 6, one box: mean 4.1, median 4, 33 % <= 2, 75 % <= 5, 99 % <= 10, 10.7 floor cells."""
    env = Sokoban(num_levels=2000)
    params = env.init_params(jax.random.key(0))
    found = lengths(env, params)
    assert found.min() >= 1
    assert abs(found.mean() - 4.1) < 0.2
    assert np.median(found) == 4
    for bound, share in ((2, 0.33), (5, 0.75), (10, 0.99)):
        assert abs(np.mean(found <= bound) - share) < 0.03, bound
    assert bool(jnp.any(params.player[:, None] == params.target)), "stray steps may end on the target"
    assert abs(float(jnp.mean(jnp.sum(~params.wall, axis=1))) - 10.7) < 0.3


@pytest.mark.parametrize(("dim", "boxes", "depth", "rooms"), [((6, 6), 1, 300, 60), ((6, 6), 2, 100, 40)])
def test_levels_are_solvable_and_well_formed(
    dim: tuple[int, int], boxes: int, depth: int, rooms: int
) -> None:
    env = Sokoban(dim_room=dim, num_boxes=boxes, search_depth=depth, num_levels=rooms)
    params = env.init_params(jax.random.key(1))
    for index in range(rooms):
        state = jax.tree.map(np.asarray, env.level(jnp.int32(index), params))
        fixed, room = reference.room_arrays(env, params, state)
        assert (fixed == reference.TARGET).sum() == boxes
        assert (room == reference.BOX).sum() == boxes, "no box starts on a target"
        assert (room == reference.PLAYER).sum() == 1
        edge = np.ones(dim, bool)
        edge[1:-1, 1:-1] = False
        assert np.all(fixed[edge] == reference.WALL)
        assert reference.shortest(fixed, room) > 0


def test_two_boxes_of_the_larger_tag() -> None:
    """RAGEN's 8 x 8 rooms, two boxes, depth 10: shortest solutions of mean 5.75, 99.7 % <= 10."""
    env = Sokoban(dim_room=(8, 8), num_boxes=2, search_depth=10, num_levels=60)
    params = env.init_params(jax.random.key(2))
    levels = [jax.tree.map(np.asarray, env.level(jnp.int32(i), params)) for i in range(60)]
    found = np.asarray([reference.shortest(*reference.room_arrays(env, params, s)) for s in levels])
    assert found.min() >= 1
    assert abs(found.mean() - 5.75) < 0.9
    assert found.max() <= 13  # ten steps of reverse play and three stray ones


@pytest.mark.parametrize("bounds", [(1, 1), (6, 8), (12, 20)])
def test_difficulty_bounds_the_length(bounds: tuple[int, int]) -> None:
    env = Sokoban(num_levels=100, difficulty=bounds)
    params = env.init_params(jax.random.key(3))
    found = lengths(env, params)
    assert found.min() >= bounds[0]
    assert found.max() <= bounds[1]
    assert len(set(found.tolist())) == len(set(range(bounds[0], bounds[1] + 1)) & set(found.tolist()))
    state = jax.tree.map(np.asarray, env.level(jnp.int32(7), params))
    assert reference.shortest(*reference.room_arrays(env, params, state)) == found[7]


def test_levels_depend_on_key_and_index_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the size of the pool nor that of the chunks changes a level."""
    large = Sokoban(num_levels=90).init_params(jax.random.key(4))
    monkeypatch.setattr(generator, "CHUNK", 32)
    small = Sokoban(num_levels=40).init_params(jax.random.key(4))
    other = Sokoban(num_levels=40).init_params(jax.random.key(5))
    for name in ("wall", "target", "player", "box", "distance", "row_base"):
        np.testing.assert_array_equal(getattr(small, name), getattr(large, name)[:40])
    assert np.any(np.asarray(small.wall) != np.asarray(other.wall))


def test_impossible_request_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "MAX_ATTEMPTS", 2)
    with pytest.raises(RuntimeError, match="8 of 8 rooms"):
        Sokoban(dim_room=(4, 4), difficulty=(90, 99), num_levels=8).init_params(jax.random.key(0))


def test_topology_has_the_reference_shape() -> None:
    """Every painted cell is inside, floor is connected, and each brush paints what its name says."""
    uniform = jax.random.uniform(jax.random.key(6), (200, generator.topology_draws(7, 9)))
    floors = np.asarray(jax.vmap(lambda u: generator.topology(u, 7, 9))(uniform))
    for floor in floors:
        cells = set(map(tuple, np.argwhere(floor).tolist()))
        queue = [next(iter(cells))]
        seen = set(queue)
        while queue:
            r, c = queue.pop()
            for dr, dc in reference.MOVES:
                if (r + dr, c + dc) in cells - seen:
                    seen.add((r + dr, c + dc))
                    queue.append((r + dr, c + dc))
        assert seen == cells
        assert all(1 <= r <= 5 and 1 <= c <= 7 for r, c in cells)
    drawn = [
        {o for o, has in zip(generator.OFFSETS, brush, strict=True) if has} for brush in generator.BRUSHES
    ]
    assert drawn == [
        {(0, -1), (0, 0), (0, 1)},
        {(-1, 0), (0, 0), (1, 0)},
        {(0, -1), (0, 0), (1, 0)},
        {(0, -1), (0, 0), (1, -1), (1, 0)},
        {(0, 0), (0, 1), (1, 0)},
    ]
