"""Teachers: what they say is true, what they do is as good as promised."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.text.byte_tokenizer import ByteTokenizer
from ragen_jax.training.teachers import BASELINES, baseline_actions, demonstrations, has_teacher, vocabulary
from ragen_jax.training.warm_start import Dialogues, play

STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
LEVELS = 96
TAGS = ("FrozenLake", "CoordSokoban")


@functools.cache
def made(tag: str):
    options = {"success_rate": 1.0} if tag == "FrozenLake" else {}
    return envs_jax.make(tag, num_levels=LEVELS, style="brief", max_response_tokens=256, **options)


@functools.cache
def starts(tag: str):
    env, params = made(tag)
    return jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jnp.arange(LEVELS), params)[0]


def played(tag: str, speak) -> Dialogues:
    env, params = made(tag)
    return play(env, params, ByteTokenizer(), speak, jnp.arange(LEVELS), jax.random.key(3))


def grid(tag: str, row: int) -> list[str]:
    """Rows of symbols of a state, as the agent reads them."""
    env, params = made(tag)
    text = env.render(jax.tree.map(lambda leaf: leaf[row], starts(tag)), params)
    return text.split("Grid Map:\n")[-1].splitlines()


def find(board: list[str], symbols: str) -> tuple[int, int]:
    return next((r, c) for r, line in enumerate(board) for c, s in enumerate(line) if s in symbols)


@pytest.mark.parametrize("skill", [0.0, 1.0])
def test_lake_reasoning_is_true(skill: float) -> None:
    env, params = made("FrozenLake")
    texts = demonstrations(env, params, starts("FrozenLake"), jax.random.key(0), skill)
    pattern = re.compile(
        r"\((\d),(\d)\)\D+\((\d),(\d)\)\. Left (\w+), Down (\w+), Right (\w+), Up (\w+)\. "
        r"[\w ]+?((?:Left|Down|Right|Up)(?: then (?:Left|Down|Right|Up))*)\.</think><answer>(.*)</answer>"
    )
    for row, text in enumerate(texts):
        found = pattern.search(text)
        assert found, text
        board, numbers = grid("FrozenLake", row), [int(x) for x in found.groups()[:4]]
        player, goal = find(board, "P"), find(board, "G")
        assert tuple(numbers) == (*player, *goal)
        for name, said in zip(STEPS, found.groups()[4:8], strict=True):
            r, c = player[0] + STEPS[name][0], player[1] + STEPS[name][1]
            inside = 0 <= r < 4 and 0 <= c < 4
            assert said == ({"_": "ice", "O": "hole", "G": "goal"}[board[r][c]] if inside else "edge")
        assert found[9].replace(" then ", " || ") == found[10]
        assert len(text.split()) < 40


def test_sokoban_reasoning_is_true() -> None:
    env, params = made("CoordSokoban")
    texts = demonstrations(env, params, starts("CoordSokoban"), jax.random.key(0), 0.5)
    pattern = re.compile(
        r"\((\d),(\d)\)\D+\((\d),(\d)\)\D+\((\d),(\d)\)\. Up (\w+), Down (\w+), Left (\w+), Right (\w+)\. "
        r"[\w ]+?((?:Left|Down|Right|Up)(?: then (?:Left|Down|Right|Up))*)\.</think><answer>(.*)</answer>"
    )
    for row, text in enumerate(texts):
        found = pattern.search(text)
        assert found, text
        board, numbers = grid("CoordSokoban", row), tuple(int(x) for x in found.groups()[:6])
        assert numbers == (*find(board, "PS"), *find(board, "X"), *find(board, "OS"))
        for name, said in zip(("Up", "Down", "Left", "Right"), found.groups()[6:10], strict=True):
            r, c = numbers[0] + STEPS[name][0], numbers[1] + STEPS[name][1]
            assert said == {"#": "wall", "_": "empty", "X": "box", "O": "target"}[board[r][c]]
        assert found[11].replace(" then ", " || ") == found[12]


@pytest.mark.parametrize("tag", TAGS)
def test_wordings_vary_and_are_in_the_vocabulary(tag: str) -> None:
    env, params = made(tag)
    texts = demonstrations(env, params, starts(tag), jax.random.key(1), 0.5)
    assert len({text.split("(")[0] for text in texts}) == 3
    words = set(re.findall(r" ?[A-Za-z]+", " ".join(vocabulary(env, params))))
    for text in texts:
        said = text.split("</think>")[0]
        assert {w.strip() for w in re.findall(r" ?[A-Za-z]+", said)} <= {w.strip() for w in words}


@pytest.mark.parametrize("tag", TAGS)
def test_success_grows_with_skill(tag: str) -> None:
    """A perfect teacher solves what its ten actions allow; every answer of any teacher is executed."""
    env, params = made(tag)
    score = []
    for skill in (0.0, 0.6, 1.0):
        speak = lambda states, key, skill=skill: demonstrations(env, params, states, key, skill)  # noqa: E731
        score.append(played(tag, speak).success.mean())
    solvable = np.mean(optimal_lengths(tag) <= 10)
    assert score[2] == solvable
    assert score[0] < score[1] < score[2]


def optimal_lengths(tag: str) -> np.ndarray:
    env, params = made(tag)
    state = starts(tag).env
    if tag == "FrozenLake":
        return np.asarray(params.env.distance)[np.arange(LEVELS), np.asarray(state.cell)]
    return np.asarray(jax.vmap(env.env.distance_left, in_axes=(0, None))(state, params.env))


@pytest.mark.parametrize("tag", TAGS)
def test_baselines_are_ordered(tag: str) -> None:
    env, params = made(tag)
    score = {}
    for kind in BASELINES:

        def speak(states, key, kind=kind) -> list[str]:
            return [
                f"-</think><answer>{a}</answer>" for a in baseline_actions(env, params, states, key, kind)
            ]

        score[kind] = played(tag, speak).success.mean()
    assert score["optimal"] == np.mean(optimal_lengths(tag) <= 10)
    assert score["random"] < score["blind"] < score["optimal"]


@pytest.mark.parametrize("tag", TAGS)
def test_rows_do_not_depend_on_each_other(tag: str) -> None:
    env, params = made(tag)
    few = jax.tree.map(lambda leaf: leaf[:7], starts(tag))
    for speak in (
        lambda states, key: demonstrations(env, params, states, key, 0.5),
        lambda states, key: baseline_actions(env, params, states, key, "blind"),
    ):
        whole = speak(starts(tag), jax.random.key(5))
        assert speak(few, jax.random.key(5)) == whole[:7]
        assert speak(starts(tag), jax.random.key(6)) != whole


def test_blind_sokoban_sees_no_inner_walls() -> None:
    """Where no inner wall is in the way, blind is optimal; elsewhere it may run into one."""
    env, params = made("CoordSokoban")
    blind = baseline_actions(env, params, starts("CoordSokoban"), jax.random.key(0), "blind")
    bumps = 0
    for row, answer in enumerate(blind):
        board = grid("CoordSokoban", row)
        r, c = find(board, "PS")
        dr, dc = STEPS[answer.split(" || ")[0]]
        assert 0 < r + dr < 5, "the outer wall is seen"
        assert 0 < c + dc < 5, "the outer wall is seen"
        bumps += board[r + dr][c + dc] == "#"
    assert bumps > 0


def test_without_reasoning_and_with_one_action() -> None:
    env, params = envs_jax.make(
        "FrozenLake", num_levels=4, style="brief", enable_think=False, max_actions_per_turn=1
    )
    states, _ = jax.vmap(env.reset, in_axes=(0, None))(jnp.arange(4), params)
    for text in demonstrations(env, params, states, jax.random.key(0), 1.0):
        assert re.fullmatch(r"(Left|Down|Right|Up)</answer>", text)


def test_environments_without_a_teacher() -> None:
    env, params = envs_jax.make("Bandit")
    assert not has_teacher(env)
    assert vocabulary(env, params) == []
    states, _ = jax.vmap(env.reset, in_axes=(0, None))(jnp.arange(2), params)
    with pytest.raises(ValueError, match="no scripted teacher"):
        demonstrations(env, params, states, jax.random.key(0), 1.0)
    env, params = made("FrozenLake")
    with pytest.raises(ValueError, match="kind"):
        baseline_actions(env, params, starts("FrozenLake"), jax.random.key(0), "best")
