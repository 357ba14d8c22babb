"""The cube's turns against a model of its corners, group theory and jumanji; scrambles solved by search."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import text_agent

import envs_jax
from envs_jax.games.rubiks_cube import ACTIONS, COLOURS, FACES, RubiksCube, turn_table

TABLE = turn_table()
INDEX = {name: i for i, name in enumerate(ACTIONS)}
# The stickers of each corner, written down from a picture of the net: U 0-3, L 4-7, F 8-11, R 12-15, B 16-19, D 20-23.
CORNERS = {
    "ULB": (0, 4, 17), "URB": (1, 13, 16), "ULF": (2, 5, 8), "URF": (3, 12, 9),
    "DLF": (20, 7, 10), "DRF": (21, 14, 11), "DLB": (22, 6, 19), "DRB": (23, 15, 18),
}  # fmt: skip
# Where a clockwise turn takes the corners of its face: each to the next.
CYCLES = {
    "U": ("ULF", "ULB", "URB", "URF"), "D": ("DLF", "DRF", "DRB", "DLB"), "L": ("ULB", "ULF", "DLF", "DLB"),
    "R": ("URF", "URB", "DRB", "DRF"), "F": ("ULF", "URF", "DRF", "DLF"), "B": ("URB", "ULB", "DLB", "DRB"),
}  # fmt: skip


def after(moves: Iterable[str]) -> np.ndarray:
    """Which sticker stands where after a sequence of turns."""
    cube = np.arange(24)
    for name in moves:
        cube = cube[TABLE[INDEX[name]]]
    return cube


def order(moves: list[str]) -> int:
    return next(n for n in range(1, 200) if np.array_equal(after(moves * n), np.arange(24)))


def inverse(name: str) -> str:
    return name[0] if name.endswith("'") else f"{name}'"


def test_turns_equal_the_model_of_corners() -> None:
    """A turn moves the four corners of its face around it, whole, and nothing else."""
    face = {s: "ULFRBD"[s // 4] for s in range(24)}
    for name, cycle in CYCLES.items():
        cube = after([name])
        for corner, there in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            assert {int(cube[s]) for s in CORNERS[there]} == set(CORNERS[corner])
            own = next(s for s in CORNERS[corner] if face[s] == name)
            assert face[int(np.flatnonzero(cube == own)[0])] == name, "stickers of the turned face stay on it"
        still = [s for corner, stickers in CORNERS.items() if corner not in cycle for s in stickers]
        assert np.array_equal(cube[still], still)


def test_orders() -> None:
    for name in ACTIONS:
        assert order([name]) == 4
        assert order([name, inverse(name)]) == 1
    axis = {"U": 0, "D": 0, "L": 1, "R": 1, "F": 2, "B": 2}
    for a, b in itertools.permutations(ACTIONS, 2):
        commutator = [a, b, inverse(a), inverse(b)]
        assert order(commutator) == (1 if axis[a[0]] == axis[b[0]] else 6), commutator
    assert order(["R", "U", "R'", "U'"]) == 6
    assert order(["R", "U"]) == 15


@pytest.mark.parity
def test_turns_equal_jumanji() -> None:
    utils = pytest.importorskip("jumanji.environments.logic.rubiks_cube.utils")
    moves = utils.generate_all_moves(cube_size=2)  # faces x (clockwise, counterclockwise, half turn)
    theirs = "UFRBLD"
    faces = [theirs.index(face) for face in "ULFRBD"]
    cube = jnp.arange(24, dtype=jnp.int8).reshape(6, 2, 2)  # in our order of faces
    for name in ACTIONS:
        move = moves[3 * theirs.index(name[0]) + name.endswith("'")]
        there = move(cube[np.argsort(faces)])
        np.testing.assert_array_equal(np.asarray(there)[faces].reshape(-1), after([name]))


def test_scrambles() -> None:
    env = RubiksCube(scramble_depth=5, num_levels=400)
    params = jax.device_get(env.init_params(jax.random.key(0)))
    axes = params.scramble // 4
    assert np.all(axes[:, 1:] != axes[:, :-1])
    assert set(np.unique(params.scramble)) == set(range(12))
    for actions, start in zip(params.scramble, params.start, strict=True):
        assert np.array_equal(start, after(ACTIONS[a] for a in actions) // 4)
        assert any(len(set(face)) > 1 for face in start.reshape(6, 4).tolist())
    assert len({tuple(row) for row in params.start.tolist()}) > 350
    few = RubiksCube(scramble_depth=5, num_levels=7).init_params(jax.random.key(0))
    np.testing.assert_array_equal(few.start, params.start[:7])
    other = RubiksCube(scramble_depth=5, num_levels=7).init_params(jax.random.key(1))
    assert np.any(np.asarray(other.start) != np.asarray(few.start))


def text_of(stickers) -> str:
    out = ""
    for name, face in zip(FACES, np.asarray(stickers).reshape(6, 2, 2).tolist(), strict=True):
        out += f"{name}:\n" + "".join(" ".join(COLOURS[c] for c in row) + "\n" for row in face)
    return out


def test_text_and_transitions() -> None:
    env = RubiksCube(scramble_depth=3, num_levels=40)
    params = env.init_params(jax.random.key(2))
    phrases, key = env.phrases(), jax.random.key(0)
    step = jax.jit(
        jax.vmap(jax.vmap(env.transition, in_axes=(None, None, 0, None)), in_axes=(None, 0, None, None))
    )
    state = jax.vmap(env.level, in_axes=(0, None))(jnp.arange(40), params)
    out = jax.device_get(step(key, state, jnp.arange(12), params))
    seen = np.asarray(jax.vmap(env.observe, in_axes=(0, None))(state, params))
    for level, stickers in enumerate(np.asarray(state.stickers)):
        pieces = [phrases[i] for i in seen[level]]
        assert "".join(pieces) == text_of(stickers)
        canonical.assert_borders(pieces)
        for a, name in enumerate(ACTIONS):
            there = stickers[after([name])]
            whole = [len(set(face)) == 1 for face in there.reshape(6, 4).tolist()]
            assert np.array_equal(out.state.stickers[level, a], there)
            assert out.reward[level, a] == all(whole)
            assert (out.success[level, a], out.terminated[level, a]) == (all(whole), all(whole))
            assert out.metrics[level, a, 0] == sum(whole)
            assert out.effective[level, a] == (not np.array_equal(there, stickers))


@functools.cache
def solutions(depth: int) -> dict[tuple[int, ...], tuple[str, ...]]:
    """A shortest way to a solved cube from every cube at most `depth` turns away, found from the solved ones."""
    whole = np.repeat(np.arange(6), 4)
    solved = {tuple(whole.tolist())}
    while True:  # turned as a whole: both layers of an axis together
        more = solved | {
            tuple(np.asarray(cube)[after(pair)].tolist())
            for cube in solved
            for pair in (("U", "D'"), ("L", "R'"), ("F", "B'"))
        }
        if more == solved:
            break
        solved = more
    assert len(solved) == 24
    known: dict[tuple[int, ...], tuple[str, ...]] = dict.fromkeys(solved, ())
    edge = list(solved)
    for _ in range(depth):
        found = []
        for cube in edge:
            for name in ACTIONS:
                before = tuple(np.asarray(cube)[TABLE[INDEX[inverse(name)]]].tolist())
                if before not in known:
                    known[before] = (name, *known[cube])
                    found.append(before)
        edge = found
    return known


def solver(states: list[str]) -> list[str]:
    answers = []
    for state in states:
        letters = [w for line in state.splitlines() if ":" not in line for w in line.split()]
        way = solutions(3)[tuple(COLOURS.index(c) for c in letters)]
        answers.append(" || ".join(way))
    return answers


@pytest.mark.parametrize("depth", [1, 3])
def test_search_solves_every_level_from_its_text(depth: int) -> None:
    env, params = envs_jax.make("rubikscube", num_levels=48, scramble_depth=depth)
    played = text_agent.play(env, params, solver, 48)
    assert played["success"].mean() == 1.0
    assert played["reward"].tolist() == [1.0] * 48
    assert played["executed"].max() <= depth
    assert played["turns"].max() == 1


@pytest.mark.parametrize("bad", [{"scramble_depth": 0}, {"scramble_depth": 101}, {"num_levels": 0}])
def test_bad_configuration_names_the_field(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RubiksCube(**bad)
