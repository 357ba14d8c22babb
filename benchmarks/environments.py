"""Steps per second of the environments against the Python loops they replace, and of every tag beside its best peer.

    python -m benchmarks.environments [--record] [--rounds 7] [--batch 1024] [--tags Bandit Sokoban ...]

Every contender runs once in each round, in turn, so that a busy machine slows all of them; shown are medians
over the rounds, and the median over the rounds of the ratio to the baseline of the same round. No contender
draws images or resets: finished episodes go on (loops, plain transitions) or idle at full cost (turns).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import random
import re
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from benchmarks._qwen import qwen_tokenizer
from benchmarks._table import report
from envs_jax.core import Environment, Span, Tokenizer
from envs_jax.games.frozen_lake import FrozenLake
from envs_jax.games.sokoban import Sokoban
from envs_jax.games.sokoban.env import SYMBOLS
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.phrases import PhraseTable, join
from envs_jax.turn import TurnEnv

Contender = Callable[[], float]  # runs for a moment and returns steps per second
SPAN = 0.1  # seconds that a contender runs for in a round
STEPS = 64  # steps of one compiled rollout
Answers = Callable[[random.Random, str], str]  # random numbers, text of a state -> one action
TURN_TOKENS = 64


def timed(run: Callable[[], Any], steps: int) -> float:
    """Steps per second of `run`, which makes `steps` of them, repeated for SPAN seconds."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < SPAN:
        jax.block_until_ready(run())
        count += steps
    return count / spent


def compare(contenders: dict[str, Contender | None], baseline: str, rounds: int) -> list[list[Any]]:
    """Rows (name, median steps/s, median ratio to the baseline); "not installed" for None."""
    live = {name: run for name, run in contenders.items() if run is not None}
    for run in live.values():
        run()  # compile, fill caches
    speeds: dict[str, list[float]] = {name: [] for name in live}
    for _ in range(rounds):
        for name, run in live.items():
            speeds[name].append(run())
    rows: list[list[Any]] = []
    for name in contenders:
        if name not in live:
            rows.append([name, "not installed", ""])
            continue
        ratio = "not installed"
        if baseline in live:
            pairs = zip(speeds[name], speeds[baseline], strict=True)
            ratio = f"{statistics.median(a / b for a, b in pairs):,.1f}x"
        rows.append([name, float(statistics.median(speeds[name])), ratio])
    return rows


# -- in JAX -------------------------------------------------------------------------------------------------
def random_actions(env: Environment, params: Any, states: Any, answers: Answers | None, batch: int) -> Any:
    """Actions with leading axes [STEPS, batch]: ids of names, or what `parse` reads in random answers."""
    if env.action_names:
        count = len(env.action_names)
        return jax.random.randint(jax.random.key(1), (STEPS, batch), 0, count, jnp.int32)
    rng = random.Random(0)
    width = env.answer_bytes
    phrases = env.phrases()
    data, lengths = np.zeros((STEPS, batch, width), np.uint8), np.zeros((STEPS, batch), np.int32)
    shown = np.asarray(jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(states, params)).tolist()
    for lane, ids in enumerate(shown):
        text = "".join(phrases[i] for i in ids if i >= 0)
        for step in range(STEPS):
            said = answers(rng, text) if answers else rng.choice(re.findall(r"\w+", text))
            raw = (said.lower() if env.folds_case else said).encode()
            data[step, lane, : len(raw[:width])] = list(raw[:width])
            lengths[step, lane] = len(raw)
    parse = jax.vmap(lambda span, state: env.parse(span, state, params)[0])
    every = jax.jit(jax.vmap(parse, in_axes=(0, None)))
    return every(Span(jnp.asarray(data), jnp.asarray(lengths)), states)


def rollout(
    env: Environment, batch: int, tokenizer: Tokenizer | None = None, answers: Answers | None = None
) -> Contender:
    """A compiled scan of random actions, with a tokenizer also the tokens of each observation.

    Every output enters a sum, so that none is optimised away.
    """
    params = env.init_params(jax.random.key(0))
    table = None if tokenizer is None else PhraseTable.build(list(env.phrases()), tokenizer)
    capacity = 0
    levels = jnp.arange(batch, dtype=jnp.int32) % env.num_levels
    state = jax.vmap(env.level, in_axes=(0, None))(levels, params)
    if table is not None:
        ids = jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(state, params)
        longest = jnp.max(jnp.sum(jnp.where(ids >= 0, table.lengths[jnp.maximum(ids, 0)], 0), axis=1))
        capacity = int(longest) + 16
    actions = random_actions(env, params, state, answers, batch)
    keys = jax.random.split(jax.random.key(2), STEPS)

    @jax.jit
    def run(state: Any, actions: Any, keys: Any, params: Any, table: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            state, total = carry
            action, key = x
            lanes = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(batch, dtype=jnp.uint32))
            out = jax.vmap(env.transition, in_axes=(0, 0, 0, None))(lanes, state, action, params)
            total = total + out.reward + out.terminated + out.success + out.effective + out.metrics.sum(-1)
            if table is not None:

                def tokens(state: Any) -> Any:
                    ids, length, overflow = join(table, env.observe(state, params), capacity)
                    return jnp.sum(ids, dtype=jnp.int32) + length + overflow

                total = total + jax.vmap(tokens)(out.state)
            return (out.state, total), None

        return jax.lax.scan(step, (state, jnp.zeros(batch, jnp.float32)), (actions, keys))[0]

    return lambda: timed(lambda: run(state, actions, keys, params, table), batch * STEPS)


def responses(tokenizer: Tokenizer, count: int, names: tuple[str, ...], seed: int) -> list[list[int]]:
    """`count` responses of exactly TURN_TOKENS ids with two random actions each."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        first, second = rng.choice(names, 2)
        tail = tokenizer.encode(f"</think><answer>{first} || {second}</answer>")
        words = tokenizer.encode("The box must go to the target, so I walk around it and push it there. " * 8)
        out.append(words[: TURN_TOKENS - len(tail)] + tail)
    if any(len(ids) != TURN_TOKENS for ids in out):
        raise ValueError("this tokenizer needs more than a turn for the two actions")
    return out


def turns(env: TurnEnv, params: Any, tokenizer: Tokenizer, batch: int) -> Contender:
    """A compiled scan of four full turns."""
    count = 4
    ids = np.asarray(responses(tokenizer, count * batch, env.env.action_names, 0), np.int32)
    tokens = jnp.asarray(ids.reshape(count, batch, TURN_TOKENS))
    length = jnp.full(batch, TURN_TOKENS, jnp.int32)

    @jax.jit
    def run(tokens: Any, params: Any) -> Any:
        level = jnp.arange(batch, dtype=jnp.int32)
        state, first = jax.vmap(env.reset, in_axes=(0, None))(level, params)
        keys = jax.random.split(jax.random.key(0), batch)

        def step(carry: Any, tokens: Any) -> Any:
            state, total = carry
            state, out = jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, length, params)
            total = total + out.reward + out.penalty + out.obs_tokens.sum(-1) + out.obs_len
            return (state, total), None

        return jax.lax.scan(step, (state, first.obs_tokens.sum(-1).astype(jnp.float32)), tokens)[0]

    return lambda: timed(lambda: run(tokens, params), batch * count)


# -- in Python ----------------------------------------------------------------------------------------------
def gymnasium_lake(success_rate: float) -> Contender | None:
    if importlib.util.find_spec("gymnasium") is None:
        return None
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    env = FrozenLakeEnv(map_name="4x4", is_slippery=True, success_rate=success_rate)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 4, 1000).tolist()

    def run() -> None:
        for action in actions:
            env.step(action)

    return lambda: timed(run, len(actions))


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


def gym_sokoban_steps(tokenizer: Tokenizer | None) -> Contender | None:
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

    return lambda: timed(run, 8 * len(rooms))


def gym_sokoban_turns(tokenizer: Tokenizer) -> Contender | None:
    """Decode, parse, two steps, text, encode: what a Python agent loop does in each turn."""
    if gym_sokoban_class() is None:
        return None
    rooms = gym_sokoban_rooms(64)
    ids = responses(tokenizer, len(rooms), ("Up", "Down", "Left", "Right"), 0)
    pattern = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
    names = {"up": 1, "down": 2, "left": 3, "right": 4}

    def run() -> None:
        for gym, response in zip(rooms, ids, strict=True):
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

    return lambda: timed(run, len(rooms))


def jumanji_rollout(env: Any, batch: int, actions: Any) -> Contender:
    """A compiled scan of a jumanji environment, without resets. `actions`: leading axes [STEPS, batch]."""
    state, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), batch))

    @jax.jit
    def run(state: Any, actions: Any) -> Any:
        def step(carry: Any, action: Any) -> Any:
            state, total = carry
            state, out = jax.vmap(env.step)(state, action)
            return (state, total + out.reward + out.discount), None

        return jax.lax.scan(step, (state, jnp.zeros(batch, jnp.float32)), actions)[0]

    return lambda: timed(lambda: run(state, actions), batch * STEPS)


def jumanji_actions(batch: int, *sizes: int) -> Any:
    """Uniform actions i32[STEPS, batch, len(sizes)], without the last axis for a single size."""
    out = jax.random.randint(jax.random.key(1), (STEPS, batch, len(sizes)), 0, jnp.asarray(sizes), jnp.int32)
    return out[..., 0] if len(sizes) == 1 else out


def jumanji_sokoban(batch: int) -> Contender | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.routing.sokoban import Sokoban as Other
    from jumanji.environments.routing.sokoban.generator import ToyGenerator

    return jumanji_rollout(Other(generator=ToyGenerator()), batch, jumanji_actions(batch, 4))


def jumanji_2048(batch: int) -> Contender | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.game_2048 import Game2048 as Other

    return jumanji_rollout(Other(), batch, jumanji_actions(batch, 4))


def jumanji_cube(batch: int) -> Contender | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.rubiks_cube import RubiksCube as Other
    from jumanji.environments.logic.rubiks_cube.generator import ScramblingGenerator

    env = Other(generator=ScramblingGenerator(cube_size=2, num_scrambles_on_reset=5), time_limit=10**9)
    return jumanji_rollout(env, batch, jumanji_actions(batch, 6, 1, 2))


def jumanji_sudoku(batch: int) -> Contender | None:
    if importlib.util.find_spec("jumanji") is None:
        return None
    from jumanji.environments.logic.sudoku import Sudoku as Other

    return jumanji_rollout(Other(), batch, jumanji_actions(batch, 9, 9, 9))


# -- every tag beside its best peer -------------------------------------------------------------------------
# The best public peer of a tag that the package index has: its name, and what runs it at a batch size. A peer in plain
# Python takes the batch size and may ignore it.
PEERS: dict[str, tuple[str, Callable[[int], Contender | None]]] = {
    "FrozenLake": ("gymnasium FrozenLake, loop", lambda batch: gymnasium_lake(0.8)),
    "SimpleSokoban": ("jumanji Sokoban 10 x 10", jumanji_sokoban),
    "game_2048": ("jumanji Game2048", jumanji_2048),
    "rubikscube": ("jumanji RubiksCube 2 x 2", jumanji_cube),
    "SimpleSudoku": ("jumanji Sudoku", jumanji_sudoku),
}


def placement(rng: random.Random, state: str) -> str:
    return ",".join(str(rng.randint(1, 9)) for _ in range(3))


HOST: tuple[str, ...] = ()  # tags that run programs outside of JAX and are measured by other means

# What an agent says, for tags whose actions are neither a fixed set of names nor words of the state's text.
ANSWERS: dict[str, Answers] = {"SimpleSudoku": placement, "MediumSudoku": placement}


def every_tag(tags: Sequence[str], batch: int, tokenizer: Tokenizer, rounds: int) -> list[list[Any]]:
    """Rows (tag, steps/s of the transition, with observation tokens, peer, its steps/s, ratio of the transition)."""
    rows = []
    for tag in tags:
        spec = envs_jax.spec(tag)
        env = spec.factory(**spec.env)
        name, peer = PEERS.get(tag, ("", lambda batch: None))
        answers = ANSWERS.get(tag)
        contenders: dict[str, Contender | None] = {
            "peer": peer(batch),
            "transition": rollout(env, batch, answers=answers),
            "text": rollout(env, batch, tokenizer, answers),
        }
        found = {row[0]: row[1:] for row in compare(contenders, "peer", rounds)}
        none = "" if name else "-"
        rows.append(
            [tag, found["transition"][0], found["text"][0], name or "-", none or found["peer"][0],
             none or found["transition"][1]]
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--record", action="store_true", help="append the tables to RESULTS.md")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--tags", nargs="*", help="only the table of these tags (none named: of all)")
    options = parser.parse_args()
    batch, rounds = options.batch, options.rounds
    tokenizer = qwen_tokenizer() or ByteTokenizer()
    spoken = "Qwen" if len(tokenizer.token_bytes()) > 1000 else "bytes (dashscope is not installed)"
    levels = max(batch, 4096)
    notes = f"Batch {batch}, medians of {rounds} interleaved rounds, tokenizer: {spoken}."

    tags = options.tags or [t for t in envs_jax.registered() if t not in HOST]
    rows = every_tag(tags, batch, tokenizer, rounds)
    columns = ["tag", "transition", "with observation tokens", "peer", "peer's", "transition against peer"]
    report("Every tag, steps/s", columns, rows, notes, options.record)
    if options.tags is not None:
        return

    lake = {
        "envs_jax FrozenLake, transition": rollout(FrozenLake(num_levels=levels), batch),
        "envs_jax FrozenLake, with observation tokens": rollout(
            FrozenLake(num_levels=levels), batch, tokenizer
        ),
        "gymnasium FrozenLake, loop": gymnasium_lake(0.8),
    }
    rows = compare(lake, "gymnasium FrozenLake, loop", rounds)
    report("FrozenLake, steps/s", ["", "steps/s", "against gymnasium"], rows, notes, options.record)

    coord = Sokoban(observation_format="grid_coord", num_levels=levels)
    raw = "gym-sokoban step, loop, no image"
    steps: dict[str, Contender | None] = {
        "envs_jax CoordSokoban, transition": rollout(coord, batch),
        "jumanji Sokoban 10 x 10, transition": jumanji_sokoban(batch),
        raw: gym_sokoban_steps(None),
    }
    rows = compare(steps, raw, rounds)
    report("Sokoban transition, steps/s", ["", "steps/s", "against gym-sokoban"], rows, notes, options.record)

    text = "gym-sokoban step, text and tokenizer, loop"
    said: dict[str, Contender | None] = {
        "envs_jax CoordSokoban, with observation tokens": rollout(coord, batch, tokenizer),
        text: gym_sokoban_steps(tokenizer),
    }
    rows = compare(said, text, rounds)
    report("Sokoban with text, steps/s", ["", "steps/s", "against the loop"], rows, notes, options.record)

    env, params = envs_jax.make(
        "CoordSokoban", tokenizer, num_levels=levels, max_response_tokens=TURN_TOKENS, length_hint=120
    )
    loop = "gym-sokoban: decode, parse, 2 steps, text, encode, loop"
    both: dict[str, Contender | None] = {
        f"envs_jax CoordSokoban, turn of {TURN_TOKENS} tokens": turns(env, params, tokenizer, batch),
        loop: gym_sokoban_turns(tokenizer),
    }
    rows = compare(both, loop, rounds)
    report("Sokoban turns/s", ["", "turns/s", "against the loop"], rows, notes, options.record)


if __name__ == "__main__":
    main()
