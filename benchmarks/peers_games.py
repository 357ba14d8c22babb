"""The games' public peers: gymnasium, gym-sokoban and gym-bandits, stepped in a loop as they are made to be; and
jumanji and gymnax, compiled.

A peer is `None` where its package is not installed. A loop plays `steps` steps a call, and with a tokenizer also writes
and encodes the text of each new state.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import random
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.core import Tokenizer
from envs_jax.games.bandit import TRAIN_PAIRS
from envs_jax.games.sokoban import Sokoban
from envs_jax.games.sokoban.env import SYMBOLS

Loop = tuple[Callable[[], Any], int]  # what plays, and how many steps a call of it plays
STEPS = 16  # of one compiled rollout


# -- loops in Python ----------------------------------------------------------------------------------------
def gym_bandits_steps(tokenizer: Tokenizer | None) -> Loop | None:
    """Two arms of gym-bandits; its text is that of Bandit."""
    if importlib.util.find_spec("gym_bandits") is None:
        return None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from gym_bandits.envs import MultiarmedBanditsEnv

    env = MultiarmedBanditsEnv(nr_arms=2)
    rng = random.Random(0)
    draws = [(pair, rng.randint(0, 1)) for pair in rng.choices(TRAIN_PAIRS, k=500)]

    def run() -> None:
        for pair, action in draws:
            points = env.step(action)[1]
            if tokenizer is not None:
                tokenizer.encode(f"{pair[action]} paid {points[0]:.1f} points.\n")

    return run, len(draws)


def gymnasium_lake(tokenizer: Tokenizer | None) -> Loop | None:
    """FrozenLake of gymnasium; its text is its own ("ansi")."""
    if importlib.util.find_spec("gymnasium") is None:
        return None
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    env = FrozenLakeEnv(render_mode="ansi", map_name="4x4", is_slippery=True, success_rate=0.8)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 4, 500).tolist()

    def run() -> None:
        for action in actions:
            env.step(action)
            if tokenizer is not None:
                tokenizer.encode(env.render())

    return run, len(actions)


@functools.cache
def gym_sokoban_class() -> Any:
    """gym-sokoban's environment class, or None. A stub stands in for pkg_resources, which is gone."""
    if importlib.util.find_spec("gym_sokoban") is None:
        return None
    if "pkg_resources" not in sys.modules and importlib.util.find_spec("pkg_resources") is None:
        stub = types.ModuleType("pkg_resources")
        stub.resource_filename = lambda package, name: str(  # type: ignore[attr-defined]
            Path(sys.modules[package].__file__ or "").parent / name
        )
        sys.modules["pkg_resources"] = stub
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from gym_sokoban.envs.sokoban_env import SokobanEnv
    return SokobanEnv


def gym_sokoban_rooms(count: int) -> list[Any]:
    """gym-sokoban environments with this project's rooms in them, without drawing."""
    env = Sokoban(num_levels=count)
    params = jax.tree.map(np.asarray, env.init_params(jax.random.key(0)))
    out = []
    for level in range(count):
        fixed = np.where(params.wall[level], 0, 1)
        fixed[params.target[level, 0]] = 2
        room = fixed.copy()
        room[params.box[level, 0]], room[params.player[level]] = 4, 5
        gym = gym_sokoban_class()((6, 6), max_steps=10**9, num_boxes=1, reset=False)
        gym.render = lambda mode="rgb_array", **_: None
        gym.room_fixed, gym.room_state = fixed.reshape(6, 6), room.reshape(6, 6)
        gym.player_position = np.argwhere(gym.room_state == 5)[0]
        gym.num_env_steps, gym.boxes_on_target = 0, 0
        out.append(gym)
    return out


LABELS = ((2, "Targets"), (4, "Boxes"), (3, "Boxes on target"), (5, "Player"), (6, "Player on target"))


def describe(gym: Any) -> str:
    """The text of a CoordSokoban state, as a Python environment writes it."""
    shown = np.where((gym.room_state == 5) & (gym.room_fixed == 2), 6, gym.room_state).tolist()
    lines = [f"Coordinates:\nBoard size: {len(shown)} rows x {len(shown[0])} cols (zero-indexed).\n"]
    for code, label in LABELS:
        cells = [f"({r}, {c})" for r, row in enumerate(shown) for c, v in enumerate(row) if v == code]
        if cells:
            lines.append(f"{label}: {', '.join(cells)}\n")
    lines.append("Grid Map:\n")
    lines += ["".join(SYMBOLS[value] for value in row) + "\n" for row in shown]
    return "".join(lines)


def gym_sokoban_steps(tokenizer: Tokenizer | None) -> Loop | None:
    """gym-sokoban without drawing, in this project's rooms; its text is that of CoordSokoban."""
    if gym_sokoban_class() is None:
        return None
    rooms = gym_sokoban_rooms(64)
    actions = np.random.default_rng(0).integers(1, 5, (8, len(rooms))).tolist()

    def run() -> None:
        for row in actions:
            for gym, action in zip(rooms, row, strict=True):
                gym.step(action)
                if tokenizer is not None:
                    tokenizer.encode(describe(gym))

    return run, 8 * len(rooms)


def gym_sokoban_turns(tokenizer: Tokenizer, responses: list[list[int]]) -> Loop | None:
    """Decode, parse, two steps, text, encode: what a Python agent loop does in each turn. One response a room."""
    if gym_sokoban_class() is None:
        return None
    rooms = gym_sokoban_rooms(len(responses))
    pattern = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
    names = {"up": 1, "down": 2, "left": 3, "right": 4}

    def run() -> None:
        for gym, response in zip(rooms, responses, strict=True):
            found = pattern.search("<think>" + tokenizer.decode(response))
            reward = 0.0
            for word in found[2].split("||")[:2] if found else ():
                action = names.get(word.strip().lower())
                if action is not None:
                    reward += gym.step(action)[1]
            tokenizer.encode(
                f"<|im_end|>\n<|im_start|>user\nReward:\n{round(reward, 1)}\n\n"
                f"Turn 2:\nState:\n{describe(gym)}"
                "You have 8 actions left. Reply in exactly this form and write nothing outside it: <think> "
                "[Your thoughts] </think> <answer> [your answer] </answer> Any other form is not counted. "
                "Stay within 120 words (tokens).<|im_end|>\n<|im_start|>assistant\n<think>"
            )

    return run, len(rooms)


# -- in JAX, compiled ---------------------------------------------------------------------------------------
def jumanji_rollout(env: Any, batch: int, actions: Any) -> Loop:
    """A compiled scan of a jumanji environment, without resets. `actions`: leading axes [STEPS, batch]."""
    state, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), batch))

    @jax.jit
    def run(state: Any, actions: Any) -> Any:
        def step(carry: Any, action: Any) -> Any:
            state, total = carry
            state, out = jax.vmap(env.step)(state, action)
            return (state, total + out.reward + out.discount), None

        return jax.lax.scan(step, (state, jnp.zeros(batch, jnp.float32)), actions)[0]

    return lambda: jax.block_until_ready(run(state, actions)), batch * STEPS


def uniform_actions(batch: int, *sizes: int) -> Any:
    """Uniform actions i32[STEPS, batch, len(sizes)], without the last axis for a single size."""
    out = jax.random.randint(jax.random.key(1), (STEPS, batch, len(sizes)), 0, jnp.asarray(sizes), jnp.int32)
    return out[..., 0] if len(sizes) == 1 else out


def jumanji_sokoban(batch: int) -> Loop | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.routing.sokoban import Sokoban as Other
    from jumanji.environments.routing.sokoban.generator import ToyGenerator

    return jumanji_rollout(Other(generator=ToyGenerator()), batch, uniform_actions(batch, 4))


def jumanji_2048(batch: int) -> Loop | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.game_2048 import Game2048 as Other

    return jumanji_rollout(Other(), batch, uniform_actions(batch, 4))


def jumanji_cube(batch: int) -> Loop | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.rubiks_cube import RubiksCube as Other
    from jumanji.environments.logic.rubiks_cube.generator import ScramblingGenerator

    env = Other(generator=ScramblingGenerator(cube_size=2, num_scrambles_on_reset=5), time_limit=10**9)
    return jumanji_rollout(env, batch, uniform_actions(batch, 6, 1, 2))


def jumanji_sudoku(batch: int) -> Loop | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.sudoku import Sudoku as Other

    return jumanji_rollout(Other(), batch, uniform_actions(batch, 9, 9, 9))


def gymnax_rollout(env: Any, batch: int, actions: Any) -> Loop:
    """A compiled scan of a gymnax environment, without resets; a key a step and lane, as ours."""
    params = env.default_params
    _, start = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(jax.random.key(0), batch), params)
    keys = jax.random.split(jax.random.key(2), STEPS)

    @jax.jit
    def run(state: Any, actions: Any, keys: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            state, total = carry
            action, key = x
            lanes = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(batch, dtype=jnp.uint32))
            out = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(lanes, state, action, params)
            _, state, reward, done, _ = out
            return (state, total + reward + done), None

        return jax.lax.scan(step, (state, jnp.zeros(batch, jnp.float32)), (actions, keys))[0]

    # Some leaves start as Python's weak numbers, which a scan may not change the type of.
    first = (jax.random.key(0), jax.tree.map(lambda x: x[0], start), actions[0, 0], params)
    stepped = jax.eval_shape(env.step_env, *first)[1]
    start = jax.tree.map(lambda x, like: x.astype(like.dtype), start, stepped)
    return lambda: jax.block_until_ready(run(start, actions, keys)), batch * STEPS


def gymnax_lake(batch: int) -> Loop | None:
    if importlib.util.find_spec("gymnax") is None:
        return None
    from gymnax.environments.misc.frozen_lake import FrozenLake as Other

    env = Other(map_name="4x4", is_slippery=True, success_rate=0.8)
    return gymnax_rollout(env, batch, uniform_actions(batch, 4))


def gymnax_bandit(batch: int) -> Loop | None:
    if importlib.util.find_spec("gymnax") is None:
        return None
    from gymnax.environments.misc.bernoulli_bandit import BernoulliBandit as Other

    return gymnax_rollout(Other(), batch, uniform_actions(batch, 2))
