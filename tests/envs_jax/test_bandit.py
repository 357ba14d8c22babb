"""The two-armed bandit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.games.bandit import TEST_PAIRS, TRAIN_PAIRS, Bandit
from envs_jax.text.byte_tokenizer import ByteTokenizer


def text_of_level(env: envs_jax.TurnEnv, params: envs_jax.TurnParams, level: int) -> str:
    return env.render(env.reset(jnp.int32(level), params)[0], params)


def test_names_are_the_published_ones() -> None:
    assert (len(TRAIN_PAIRS), len(TEST_PAIRS)) == (12, 8)
    names = [n for pair in TRAIN_PAIRS + TEST_PAIRS for n in pair]
    assert len(set(names)) == 40
    assert ("Nurse", "StartupFounder") in TRAIN_PAIRS
    assert ("CivilServant", "StartupAccelerator") in TEST_PAIRS


@pytest.mark.parametrize(("tag", "pairs"), [("Bandit", TRAIN_PAIRS), ("BanditTest", TEST_PAIRS)])
def test_levels_are_every_pair_in_both_orders(tag: str, pairs: tuple[tuple[str, str], ...]) -> None:
    env, params = envs_jax.make(tag)
    texts = [text_of_level(env, params, i) for i in range(env.num_levels)]
    expected = {f"The arms are {a} and {b}.\n" for p in pairs for a, b in (p, p[::-1])}
    assert set(texts) == expected
    assert len(texts) == len(expected)


@pytest.mark.parametrize("level", [0, 1])
def test_arms_pay_what_is_published(level: int) -> None:
    env, params = envs_jax.make("Bandit", max_response_tokens=40)
    rows = 4000
    tokenizer = ByteTokenizer()

    @jax.jit
    def pull(keys: jax.Array, tokens: jax.Array, length: jax.Array) -> envs_jax.TimeStep:
        state, _ = env.reset(jnp.int32(level), params)
        return jax.vmap(env.step, in_axes=(0, None, None, None, None))(keys, state, tokens, length, params)[1]

    keys = jax.random.split(jax.random.key(level), rows)
    for name, mean, risky in (("Teacher", 0.1, False), ("trader", 0.25, True)):
        ids = tokenizer.encode(f"</think><answer>{name}</answer>")
        out = pull(keys, jnp.zeros(40, jnp.int32).at[: len(ids)].set(jnp.asarray(ids)), jnp.int32(len(ids)))
        values = sorted(set(np.asarray(out.reward).round(4).tolist()))
        assert values == ([0.0, 1.0] if risky else [pytest.approx(0.1, abs=1e-4)])
        spread = 4 * (0.25 * 0.75 / rows) ** 0.5 if risky else 1e-6
        assert float(out.reward.mean()) == pytest.approx(mean, abs=spread)
        assert out.terminated.all()
        assert (out.success == risky).all()
        assert (out.penalty == 0).all()
        assert (out.obs_len == 0).all()


def test_only_this_levels_names_are_known_and_the_pull_is_told() -> None:
    env = Bandit()
    params = env.init_params(jax.random.key(0))
    state = env.level(jnp.int32(2), params)  # Nurse, StartupFounder

    def parse(name: str) -> tuple[int, bool]:
        data = (
            jnp.zeros(env.answer_bytes, jnp.uint8)
            .at[: len(name)]
            .set(jnp.asarray(list(name.encode()), jnp.uint8))
        )
        action, known = env.parse(envs_jax.Span(data, jnp.int32(len(name))), state, params)
        return int(action), bool(known)

    assert parse("nurse") == (0, True)
    assert parse("startupfounder") == (1, True)
    assert not parse("teacher")[1]
    assert not parse("nurs")[1]
    phrases = env.phrases()
    assert len(set(phrases)) == len(phrases)
    for action, texts in (
        (0, {"Nurse paid 0.1 points.\n"}),
        (1, {f"StartupFounder paid {p} points.\n" for p in (0, 1)}),
    ):
        told = set()
        for seed in range(30):
            after = env.transition(jax.random.key(seed), state, jnp.int32(action), params).state
            told.add("".join(phrases[i] for i in env.observe(after, params).tolist() if i >= 0))
        assert told == texts
