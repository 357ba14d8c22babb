"""The 2 x 2 x 2 Rubik's cube: bring every face to one colour. A turn is one permutation of 24 stickers.

The permutations follow from turning the eight corners in space, so every one of them is a move of the real cube.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.text.actions import NameTable, match_name

FACES = ("Up", "Left", "Front", "Right", "Back", "Down")
COLOURS = ("W", "O", "G", "R", "B", "Y")  # of the solved faces, in their order
ACTIONS = ("U", "U'", "D", "D'", "L", "L'", "R", "R'", "F", "F'", "B", "B'")  # 4 * axis + 2 * side + prime
STICKERS = 24
MAX_DEPTH = 100
MAX_ATTEMPTS = 1000  # draws of one scramble before generation gives up

# Of each face: outward normal, and the directions in which its columns and rows are read, looking at it from outside
# (x right, y up, z toward the reader; the net is Up over Front, Left and Right beside it, Back beyond Right).
_VIEWS = {
    "Up": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "Left": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "Front": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "Right": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "Back": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
    "Down": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
}


@functools.cache
def turn_table() -> np.ndarray:
    """i32[12, 24]: sticker s of the cube after action a is sticker `table[a, s]` before. Faces are read row by row."""
    normals, places = [], []
    for face in FACES:
        normal, right, down = (np.asarray(v) for v in _VIEWS[face])
        for row in (-1, 1):
            for column in (-1, 1):
                normals.append(normal)
                places.append(normal + column * right + row * down)
    where = {(tuple(p), tuple(n)): s for s, (p, n) in enumerate(zip(places, normals, strict=True))}
    table = np.tile(np.arange(STICKERS, dtype=np.int32), (len(ACTIONS), 1))
    for action, name in enumerate(ACTIONS):
        axis = np.asarray(next(view[0] for face, view in _VIEWS.items() if face[0] == name[0]))
        sign = (
            1 if name.endswith("'") else -1
        )  # a turn is clockwise as seen from outside: -90 degrees about the normal
        for s, (place, normal) in enumerate(zip(places, normals, strict=True)):
            if place @ axis > 0:
                turned = [axis * (v @ axis) + sign * np.cross(axis, v) for v in (place, normal)]
                table[action, where[tuple(turned[0]), tuple(turned[1])]] = s
    return table


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RubiksCubeParams:
    """Traced parameters: N scrambled cubes, how they were scrambled, and the turns."""

    start: Int[Array, "N 24"]  # i8 colours
    scramble: Int[Array, "N depth"]  # i8 actions that made `start` of the solved cube
    turns: Int[Array, "12 24"]  # i32
    names: NameTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RubiksCubeState:
    """Colours of the stickers."""

    stickers: Int[Array, " 24"]  # i32


def solved_faces(stickers: Int[Array, " 24"]) -> Bool[Array, " 6"]:
    """Which faces have one colour."""
    face = stickers.reshape(6, 4)
    return jnp.all(face == face[:, :1], axis=1)


Attempt = tuple[Array, Array, Array, Array]  # number, scramble, start, valid


@functools.partial(jax.jit, static_argnames=("count", "depth"))
def generate_scrambles(
    key: Array, turns: Int[Array, "12 24"], *, count: int, depth: int
) -> tuple[Int[Array, "N depth"], Int[Array, "N 24"], Bool[Array, " N"]]:
    """Draws `count` scrambles of `depth` turns: the actions, the cubes that they lead to, and whether unsolved.

    A turn has another axis than the one before it (on this cube U and D' together only turn it as a whole). A scramble
    that solves the cube is drawn again. Scramble i depends on (key, i) alone.
    """
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count, dtype=jnp.uint32))
    whole = jnp.repeat(jnp.arange(6, dtype=jnp.int32), 4)

    def draw(key: Array) -> tuple[Array, Array]:
        axis_key, turn_key = jax.random.split(key)
        first = jax.random.randint(axis_key, (depth,), 0, 6, jnp.int32)
        steps = jnp.where(jnp.arange(depth) == 0, first % 3, first % 2 + 1)
        axes = jnp.cumsum(steps, dtype=jnp.int32) % 3
        actions = 4 * axes + jax.random.randint(turn_key, (depth,), 0, 4, jnp.int32)
        return actions, jax.lax.scan(lambda cube, a: (cube[turns[a]], None), whole, actions)[0]

    def attempt(carry: Attempt) -> Attempt:
        number, scramble, start, valid = carry
        actions, cubes = jax.vmap(draw)(jax.vmap(lambda k: jax.random.fold_in(k, number))(keys))
        found = ~jnp.all(jax.vmap(solved_faces)(cubes), axis=1)
        return (
            number + jnp.uint32(1),
            jnp.where(valid[:, None], scramble, actions),
            jnp.where(valid[:, None], start, cubes),
            valid | found,
        )

    carry: Attempt = (
        jnp.uint32(0),
        jnp.zeros((count, depth), jnp.int32),
        jnp.tile(whole, (count, 1)),
        jnp.zeros(count, bool),
    )
    carry = jax.lax.while_loop(lambda c: (c[0] < MAX_ATTEMPTS) & ~jnp.all(c[3]), attempt, carry)
    return carry[1].astype(jnp.int8), carry[2].astype(jnp.int8), carry[3]


@dataclass(frozen=True)
class RubiksCube(Environment):
    """A scrambled 2 x 2 x 2 cube.

    Actions (i32): quarter turns by their usual letters, 0 U, 1 U', 2 D, 3 D', 4 L, 5 L', 6 R, 7 R', 8 F, 9 F', 10 B,
    11 B'. Reward 1 and the end of the episode (success) when every face has one colour, else 0. `metric_names`: number
    of faces of one colour. A level is never solved at its start, and at most `scramble_depth` turns from it.

    RAGEN's B does not turn a layer of the cube but breaks three corners; here all twelve are real turns.

    Fields:
        scramble_depth: turns of a scramble, 1..100.
    """

    scramble_depth: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.scramble_depth <= MAX_DEPTH:
            raise ConfigError("scramble_depth", self.scramble_depth, f"must be in 1..{MAX_DEPTH}")
        if self.num_levels < 1:
            raise ConfigError("num_levels", self.num_levels, "must be positive")

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("solved_faces",)

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def reward_range(self) -> tuple[float, float]:
        return (0.0, 1.0)

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        return (
            "You hold a scrambled 2 x 2 x 2 Rubik's cube. Turn its layers until every face has one colour. "
            "The letters U, D, L, R, F and B turn the up, down, left, right, front or back layer by a quarter, "
            "clockwise as seen from outside that face; with ' it is counterclockwise. "
            "Each face is shown as two rows of two stickers, as you see it from outside: Left, Front, Right and Back "
            "with Up above them, Up with Back above it, Down with Front above it. "
            f"Colours: {', '.join(COLOURS)}."
        )

    def phrases(self) -> Sequence[str]:
        rows = [f"{a} {b}\n" for a in COLOURS for b in COLOURS]
        return [*(f"{face}:\n" for face in FACES), *rows]

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> RubiksCubeParams:
        """Draws the scrambles; raises RuntimeError if one still solves the cube after MAX_ATTEMPTS draws."""
        turns = jnp.asarray(turn_table())
        scramble, start, valid = generate_scrambles(
            key, turns, count=self.num_levels, depth=self.scramble_depth
        )
        if not bool(jnp.all(valid)):
            raise RuntimeError(
                f"{int(jnp.sum(~valid))} scrambles solved the cube in {MAX_ATTEMPTS} draws each"
            )
        return RubiksCubeParams(start, scramble, turns, NameTable.build(ACTIONS, self.answer_bytes))

    def level(self, index: Int[Array, ""], params: RubiksCubeParams) -> RubiksCubeState:
        return RubiksCubeState(params.start[index].astype(jnp.int32))

    def observe(self, state: RubiksCubeState, params: RubiksCubeParams) -> Int[Array, " 18"]:
        pairs = state.stickers.reshape(6, 2, 2)
        rows = 6 + 6 * pairs[:, :, 0] + pairs[:, :, 1]
        titles = jnp.arange(6, dtype=jnp.int32)[:, None]
        return jnp.concatenate([titles, rows], axis=1).reshape(-1).astype(jnp.int32)

    def parse(
        self, span: Span, state: RubiksCubeState, params: RubiksCubeParams
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        return match_name(span, params.names)

    def transition(
        self, key: Array, state: RubiksCubeState, action: Int[Array, ""], params: RubiksCubeParams
    ) -> Transition:
        stickers = state.stickers[params.turns[action]]
        faces = solved_faces(stickers)
        success = jnp.all(faces)
        return Transition(
            state=RubiksCubeState(stickers),
            reward=success.astype(jnp.float32),
            terminated=success,
            success=success,
            valid=jnp.ones((), bool),
            effective=jnp.any(stickers != state.stickers),
            metrics=jnp.sum(faces, dtype=jnp.int32).astype(jnp.float32)[None],
        )
