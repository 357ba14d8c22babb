"""The agent's protocol against a plain Python reference, and its rules as compiled code."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dial
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.errors import ConfigError
from envs_jax.registry import EnvSpec
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.turn import TurnConfig, TurnEnv

TOKENIZER = ByteTokenizer()
T = 72
WORDS = ["Inc", "inc", "INC", "DEC", "dec", "Draw", "Stop", "Even", "even", "fly", "inc dec", "", " ", "é"]

envs_jax.register("Dial", EnvSpec(dial.Dial))


@functools.partial(jax.jit, static_argnums=0)
def reset_rows(env: TurnEnv, levels: jax.Array, params: Any) -> Any:
    return jax.vmap(env.reset, in_axes=(0, None))(levels, params)


@functools.partial(jax.jit, static_argnums=0)
def step_rows(env: TurnEnv, keys: jax.Array, state: Any, tokens: jax.Array, n: jax.Array, params: Any) -> Any:
    return jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, n, params)


def random_response(rng: random.Random) -> str:
    kind = rng.random()
    names = [rng.choice(WORDS) for _ in range(rng.randint(0, 5))]
    weights = [3, 1, 1, 1] if kind < 0.7 else [1, 1, 1, 1]
    separators = rng.choices(["||", " || ", "|||", "|"], weights, k=len(names))
    answer = "".join(n + s for n, s in zip(names, separators, strict=True)).rstrip("|")
    if kind < 0.8:
        return (
            f"{rng.choice(['', 'so', ' '])}</think>{rng.choice(['', ' ', chr(10)])}<answer>{answer}</answer>"
        )
    return rng.choice(
        ["so", "a</think>", "</think><answer>inc", f"<answer>{answer}</answer>", f"{answer}</answer>"]
    )


def encode(texts: list[str]) -> tuple[jax.Array, jax.Array]:
    tokens = np.zeros((len(texts), T), np.int32)
    lengths = np.zeros(len(texts), np.int32)
    for i, text in enumerate(texts):
        ids = [*TOKENIZER.encode(text), TOKENIZER.eos_ids[0]][:T]
        tokens[i, : len(ids)], lengths[i] = ids, len(ids)
    return jnp.asarray(tokens), jnp.asarray(lengths)


def shown(env: TurnEnv, step: Any, i: int) -> str:
    return TOKENIZER.decode(np.asarray(step.obs_tokens[i, : step.obs_len[i]]).tolist())


@pytest.mark.parametrize(
    ("overrides", "style"),
    [
        ({"max_turns": 5, "max_actions_per_turn": 2, "max_actions_per_traj": 6}, "full"),
        (
            {"max_turns": 7, "max_actions_per_turn": 4, "max_actions_per_traj": 9, "enable_think": False},
            "full",
        ),
        (
            {"max_turns": 2, "max_actions_per_turn": 1, "max_actions_per_traj": 10, "format_penalty": -0.5},
            "brief",
        ),
    ],
)
def test_episodes_equal_the_python_reference(overrides: dict[str, Any], style: str) -> None:
    env, params = envs_jax.make("Dial", style=style, max_response_tokens=T, **overrides)
    rng = random.Random(str(overrides))
    rows = 384
    refs = [
        dial.Reference(
            level=i % 3,
            turns=env.config.max_turns,
            per_turn=env.config.max_actions_per_turn,
            per_episode=env.config.max_actions_per_traj,
            penalty=env.config.format_penalty,
            separator=env.config.action_sep,
            think=env.config.enable_think,
        )
        for i in range(rows)
    ]
    k = env.config.max_actions_per_turn
    draws_of = jax.jit(
        jax.vmap(lambda key: jax.vmap(lambda j: dial.draw(jax.random.fold_in(key, j)))(jnp.arange(k)))
    )
    state, first = reset_rows(env, jnp.arange(rows) % 3, params)
    assert {shown(env, first, i).count("<think>") for i in range(rows)} != {0} or not env.config.enable_think
    seen = {"terminated": 0, "truncated": 0, "success": 0, "warned": 0, "stopped": 0}
    for turn in range(env.config.max_turns + 1):
        keys = jax.vmap(lambda i, t=turn: jax.random.fold_in(jax.random.key(t), i))(jnp.arange(rows))
        texts = [random_response(rng) for _ in range(rows)]
        old = state
        state, out = jax.device_get(step_rows(env, keys, state, *encode(texts), params))
        draws = np.asarray(draws_of(keys))
        for i, ref in enumerate(refs):
            was_over = ref.terminated or ref.truncated
            want = ref.play(texts[i], draws[i])
            info = out.info
            assert out.reward[i] == pytest.approx(want["reward"], abs=1e-6), texts[i]
            assert out.penalty[i] == pytest.approx(want["penalty"]), texts[i]
            assert (out.terminated[i], out.truncated[i]) == (ref.terminated, ref.truncated)
            assert out.success[i] == ref.success
            assert (info.n_actions[i], info.n_valid[i]) == (want["kept"], want["valid"]), texts[i]
            assert (info.n_executed[i], info.n_effective[i]) == (want["executed"], want["effective"])
            assert info.actions_left[i] == ref.per_episode - ref.used
            assert info.format_ok[i] == want["format_ok"], texts[i]
            assert state.env.value[i] == ref.value
            if want["executed"]:
                assert info.metrics[i, 0] == ref.value
            assert not info.text_overflow[i]
            assert not info.obs_overflow[i]
            text = shown(env, out, i)
            assert bool(text) == bool(want["shown"])
            if want["shown"]:
                check_text(env, ref, text, want, style)
                seen["warned"] += want["warn"]
            if was_over:
                seen["stopped"] += 1
                before = jax.tree.map(lambda x, i=i: np.asarray(x)[i], old)
                after = jax.tree.map(lambda x, i=i: x[i], state)
                assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.all(a == b)), before, after))
    for ref in refs:
        assert ref.terminated != ref.truncated
        seen["terminated"] += ref.terminated
        seen["truncated"] += ref.truncated
        seen["success"] += ref.success
    assert min(v for name, v in seen.items() if name != "success" or style == "full") > 5, seen


def check_text(env: TurnEnv, ref: dial.Reference, text: str, want: dict[str, float], style: str) -> None:
    state = f"The dial is at {ref.value}.\n"
    opening = "<think>" if ref.think else "<answer>"
    head, close = "<|im_end|>\n<|im_start|>user\n", f"<|im_end|>\n<|im_start|>assistant\n{opening}"
    if style == "brief":
        assert text == head + state + close
        return
    number = f"{want['reward']:.1f}".removesuffix(".0").replace("-0", "-0")
    start = f"{head}Reward:\n{number}\n\nTurn {ref.turn + 1}:\nState:\n{state}"
    assert text.startswith(start), text
    rest = text.removeprefix(start)
    left = f"You have {ref.per_episode - ref.used} actions left. "
    assert rest.startswith(left) != bool(want["warn"])
    assert left in rest
    assert rest.endswith(close)
    assert ("<think> [Your thoughts] </think> <answer> [your answer] </answer>" in rest) == ref.think
    assert "<answer> [your answer] </answer>" in rest
    assert f"{env.config.length_hint} words (tokens)" in rest


def test_think_span_in_tokens() -> None:
    pieces = [
        "I",
        " think",
        ".</",
        "think",
        ">",
        "</",
        "</think>",
        "<answer>",
        "Inc",
        "</answer>",
        " ",
        "\n",
        "x</think>",
    ]

    class Pieces(ByteTokenizer):
        vocab_size = 256 + 4 + len(pieces)  # type: ignore[assignment]

        def token_bytes(self) -> list[bytes]:
            return [*super().token_bytes(), *(p.encode() for p in pieces)]

    env, params = envs_jax.make("Dial", Pieces(), max_response_tokens=12)
    parse = jax.jit(env.parse_response)
    first = 260
    id_of = {p: first + i for i, p in enumerate(pieces)}
    special = 257

    def spans(*said: str | int) -> tuple[bool, int, bool]:
        ids = [s if isinstance(s, int) else id_of[s] for s in said]
        tokens = jnp.zeros(12, jnp.int32).at[: len(ids)].set(jnp.asarray(ids, jnp.int32))
        out = parse(tokens, jnp.int32(len(ids)), params)
        return bool(out.think_valid), int(out.think_end), bool(out.format_ok)

    good = ("<answer>", "Inc", "</answer>")
    assert spans("I", " think", "</think>", *good) == (True, 2, True)
    assert spans("I", " think", ".</", "think", ">", *good) == (
        True,
        2,
        True,
    )  # the straddling token is left out
    assert spans("I", " think", special, "</", "think", ">", *good) == (True, 3, True)
    assert spans("I", "</think>", "Inc") == (True, 1, False)  # closed thought, no answer
    assert spans("I", "</think>", "I", "</think>", *good) == (True, 3, True)  # the match of the whole form
    assert spans("I", " think") == (False, 0, False)  # never closed
    assert spans("</think>", *good) == (False, 0, True)  # empty
    assert spans(" ", "\n", "</think>", *good) == (False, 0, True)  # only whitespace
    assert spans("x</think>", *good) == (False, 0, True)  # nothing before the straddling token
    assert spans(" ", "x</think>", *good) == (False, 0, True)


def play(env: TurnEnv, params: Any, *texts: str) -> Any:
    """The first turn of level 0, one row per text."""
    state, _ = reset_rows(env, jnp.zeros(len(texts), jnp.int32), params)
    keys = jax.random.split(jax.random.key(0), len(texts))
    return step_rows(env, keys, state, *encode(list(texts)), params)[1]


def test_long_text_and_long_observation_are_flagged() -> None:
    env, params = envs_jax.make("Dial", response_bytes=40, max_response_tokens=T)
    assert env.response_bytes == 40
    out = play(env, params, *("</think><answer>inc</answer>" + "x" * extra for extra in (12, 13)))
    assert out.info.text_overflow.tolist() == [False, True]
    assert out.info.n_executed.tolist() == [1, 1]

    with pytest.raises(ConfigError, match="prompt_capacity = 100: observations have up to"):
        envs_jax.make("Dial", prompt_capacity=100)
    with pytest.raises(ConfigError, match="obs_capacity = 60: observations have up to"):
        envs_jax.make("Dial", obs_capacity=60)
    small = replace(env, prompt_capacity=100, obs_capacity=60)
    _, first = reset_rows(small, jnp.zeros(1, jnp.int32), params)
    assert first.obs_tokens.shape == (1, 100)
    assert first.info.obs_overflow.all()
    out = play(small, params, "</think><answer>dec</answer>", "</think><answer>stop</answer>")
    assert out.obs_tokens.shape == (2, 60)
    assert out.info.obs_overflow.tolist() == [True, False]  # an ended episode shows nothing
    assert 0 < int(out.obs_len[0]) <= 60
    assert int(out.obs_len[1]) == 0
    assert not out.obs_tokens[1].any()


def test_reward_that_the_table_lacks_is_flagged() -> None:
    env, params = envs_jax.make("Dial", max_response_tokens=T)
    for pay, text, flagged in (
        (0.3, "0.3", False),
        (0.34, "0.3", True),
        (5.0, "2.6", True),
        (np.nan, "0.4", True),
    ):
        dear = replace(
            params, env=(params.env[0], jnp.float32(pay))
        )  # traced, so the environment is the same
        state, _ = reset_rows(env, jnp.ones(1, jnp.int32), dear)
        _, out = step_rows(
            env,
            jax.random.split(jax.random.key(0), 1),
            state,
            *encode(["</think><answer>inc</answer>"]),
            dear,
        )
        assert bool(out.info.obs_overflow[0]) == flagged
        if not np.isnan(pay):
            assert f"Reward:\n{text}\n" in shown(env, out, 0)


def test_ids_outside_the_vocabulary_are_silent() -> None:
    env, params = envs_jax.make("Dial", max_response_tokens=T)
    tokens, n = encode(["</think><answer>inc</answer>"])
    tokens = jnp.concatenate([jnp.asarray([-1, 10**6, env.vocab_size], jnp.int32), tokens[0]])
    out = jax.jit(env.parse_response)(tokens, n[0] + 3, params)
    assert bool(out.format_ok)
    assert out.actions.data[0, :3].tobytes() == b"inc"


# -- rules of compiled code ------------------------------------------------------------------------------
ALL_TAGS = envs_jax.registered()
ONE_EACH = ("Bandit", "CoordFrozenLake", "CoordSokoban", "Dial")  # where a program is compiled


ROWS = 32


def make(tag: str, **overrides: Any) -> tuple[TurnEnv, Any]:
    return envs_jax.make(tag, num_levels=16, max_response_tokens=T, **overrides)


def a_name(env: TurnEnv) -> str:
    return env.env.action_names[0] if env.env.action_names else "Teacher"


def zero_state(env: TurnEnv, params: Any) -> Any:
    shapes = jax.eval_shape(env.reset, jnp.int32(0), params)[0]
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def describe(x: Any) -> Any:
    return jax.tree.map(lambda a: f"{a.shape} {a.dtype} {a.weak_type}", x)


@pytest.mark.parametrize("tag", ONE_EACH)
def test_same_leaves_with_and_without_x64(tag: str) -> None:
    kinds = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            env, params = make(tag)
            level, length = jnp.int32(0), jnp.int32(9)
            state, first = jax.eval_shape(env.reset, level, params)
            tokens = jnp.zeros(T, jnp.int32)
            after, out = jax.eval_shape(env.step, jax.random.key(0), state, tokens, length, params)
            assert describe(after) == describe(state)  # a scan over turns can carry the state
            assert describe(out.info) == describe(first.info)
            kinds.append(describe((state, first, out)))
    assert kinds[0] == kinds[1]
    for kind in jax.tree.leaves(kinds[0]):
        assert kind.endswith(" False"), "weak type"
        assert kind.split()[-2] in ("bool", "int8", "int32", "uint8", "uint32", "float32")


def test_same_values_with_x64() -> None:
    values = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            env, params = make("Dial")
            state, first = reset_rows(env, jnp.arange(ROWS) % 16, params)
            rng = random.Random(2)
            said = encode([random_response(rng) for _ in range(ROWS)])
            values.append(
                (first, step_rows(env, jax.random.split(jax.random.key(5), ROWS), state, *said, params))
            )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), *jax.device_get(values)))


def constants(jaxpr: Any) -> Iterator[Any]:
    """Constants and literals of a closed jaxpr and of everything inside it."""
    yield from jaxpr.consts
    for eqn in jaxpr.jaxpr.eqns:
        for atom in eqn.invars:
            if hasattr(atom, "val"):
                yield atom.val
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            if hasattr(value, "jaxpr"):
                yield from constants(value)


@pytest.mark.parametrize("tag", ALL_TAGS)
def test_no_tables_in_the_program(tag: str) -> None:
    env, params = make(tag)
    state = zero_state(env, params)
    tokens, n = encode(["x"])
    for program in (
        jax.make_jaxpr(env.reset)(jnp.int32(0), params),
        jax.make_jaxpr(env.step)(jax.random.key(0), state, tokens[0], n[0], params),
    ):
        sizes = [np.asarray(c).nbytes for c in constants(program) if hasattr(c, "nbytes")]
        assert max(sizes, default=0) <= 4096
    # The walker does see a closed-over table, also inside an inner program.
    table = jnp.arange(5000)
    inner = jax.make_jaxpr(lambda i: jax.lax.scan(lambda c, _: (c + table[i], None), 0, None, length=2))(3)
    assert max(np.asarray(c).nbytes for c in constants(inner) if hasattr(c, "nbytes")) > 4096


@pytest.mark.parametrize("tag", ALL_TAGS)
def test_second_make_is_equal_and_does_not_trace_again(tag: str) -> None:
    traces = []

    def step(env: TurnEnv, *args: Any) -> Any:
        traces.append(env.tag)
        return env.step(*args)

    compiled = jax.jit(step, static_argnums=0)
    tokens, n = encode(["x</think><answer>y</answer>"])
    made = []
    for seed in (0, 0, 1):
        env, params = make(tag, prompt_capacity=2000, obs_capacity=900, seed=seed)
        state = zero_state(env, params)
        compiled.lower(env, jax.random.key(seed), state, tokens[0], n[0], params)
        made.append(env)
    assert traces == [tag]
    assert made[0] == made[1] == made[2]
    assert hash(made[0]) == hash(made[1])


@pytest.mark.parametrize("tag", ONE_EACH)
def test_group_shares_its_level_and_rows_do_not_touch(tag: str) -> None:
    env, params = make(tag)
    levels = jnp.asarray([3, 3, 5, 3] * (ROWS // 4), jnp.int32)
    _, first = reset_rows(env, levels, params)
    assert np.array_equal(first.obs_tokens[0], first.obs_tokens[1])
    assert np.array_equal(first.obs_tokens[0], first.obs_tokens[3])
    assert not np.array_equal(first.obs_tokens[0], first.obs_tokens[2])
    assert jax.tree.all(jax.tree.map(lambda a: bool(np.array_equal(a[2], a[6])), first))
    drawn = jax.vmap(env.draw_level)(jax.random.split(jax.random.key(1), 200))
    assert drawn.dtype == jnp.int32
    assert set(drawn.tolist()) == set(range(16))


@pytest.mark.parametrize("tag", ONE_EACH)
def test_buffers_hold_what_random_play_shows(tag: str) -> None:
    env, params = make(tag)
    rng = random.Random(tag)
    rows = ROWS
    state, first = reset_rows(env, jnp.arange(rows) % 16, params)
    names = env.env.action_names or ("Teacher", "Trader", "Nurse")
    assert not first.info.obs_overflow.any()
    for turn in range(env.config.max_turns):
        texts = [f"</think><answer>{rng.choice(names)}||{rng.choice(names)}</answer>" for _ in range(rows)]
        texts[::7] = [""] * len(texts[::7])
        state, out = step_rows(
            env, jax.random.split(jax.random.key(turn), rows), state, *encode(texts), params
        )
        assert not out.info.obs_overflow.any()
        assert (out.obs_len <= env.obs_capacity).all()
        text = env.text_of(params, out.obs_tokens[1, : out.obs_len[1]])
        row = jax.tree.map(lambda x: x[1], state)
        assert env.render(row, params) in text or not text
    assert (state.terminated ^ state.truncated).all()
    assert re.search("[A-Za-z#_]", env.render(jax.tree.map(lambda x: x[0], state), params))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", 0),
        ("max_actions_per_turn", 0),
        ("max_actions_per_traj", 0),
        ("max_response_tokens", -1),
        ("length_hint", 0),
        ("response_bytes", 3),
        ("format_penalty", 0.1),
        ("style", "long"),
        ("action_sep", ""),
    ],
)
def test_config_errors_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        TurnConfig(**{field: value})
    assert caught.value.field == field
    assert caught.value.value == value
