"""MetaMathQA: checks and rewards against plain Python; generated problems against formulas by hand."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speak import answer, babble, play

import envs_jax
from envs_jax.datasets import word_problems
from envs_jax.datasets.questions import Question, load_questions, normalised
from envs_jax.errors import ConfigError
from envs_jax.tasks import metamathqa
from envs_jax.tasks.metamathqa import MetaMathQA

LEVELS = 48


@functools.cache
def made(**settings: Any) -> tuple[envs_jax.TurnEnv, envs_jax.TurnParams]:
    return envs_jax.make("MetaMathQA", num_levels=LEVELS, max_response_tokens=160, **settings)


def labels(env: envs_jax.TurnEnv, split: str = "train") -> list[str]:
    task = env.env
    assert isinstance(task, MetaMathQA)
    rows = task._questions[split]
    return [rows[i % len(rows)].answer for i in range(task.num_levels)]


# -- generated problems -------------------------------------------------------------------------------------
def formulas() -> dict[str, Callable[..., Fraction]]:
    """What the numbers of a question give, by words that only its template has."""
    half = Fraction(1, 2)
    return {
        "boxes with": lambda b, e, g: b * e - g,
        "of the same": lambda c, p, x: c * p + x,
        "of change": lambda p, c, n: n - c * p,
        "drives at": lambda v, h, s: v * h + s,
        "is cut into": lambda n, a, b, *_: (n - a - b) / n,
        "fills a tank": lambda a, b, *_: 1 / a + 1 / b,
        "cheaper": lambda p, o: p * (100 - o) / 100,
        "times as old": lambda a, t, y: a * t + y,
        "A garden is": lambda a, b: a * b,
        "puts a fence": lambda a, b, c: 2 * (a + b) * c,
        "mean score": lambda *xs: sum(xs[:-1], Fraction(0)) / (len(xs) - 1),
        "for overtime": lambda w, h, o: w * h + w * o * 3 * half,
        "at noon": lambda s, f, r: s - f + r,
        "a ribbon of": lambda w, p, q, *_: w * (q - p) / q,
    }


def test_generated_answers_follow_from_the_questions() -> None:
    seen: dict[str, int] = {}
    kinds = {"whole": 0, "decimal": 0, "fraction": 0}
    for index in range(1500):
        question, text = word_problems.problem(3, index)
        (name,) = [words for words in formulas() if words in question]
        numbers = [Fraction(n) for n in re.findall(r"-?[0-9]+(?:\.[0-9]+)?", question)]
        assert formulas()[name](*numbers) == Fraction(text), question
        seen[name] = seen.get(name, 0) + 1
        kinds["fraction" if "/" in text else "decimal" if "." in text else "whole"] += 1
        assert not re.search(r"\.[0-9]*0$", text)
        assert "/" not in text or str(Fraction(text)) == text
    assert len(seen) == len(word_problems.TEMPLATES) == len(formulas()) >= 12
    assert min(seen.values()) > 50
    assert min(kinds.values()) > 100


def test_splits_share_no_question_and_seeds_differ() -> None:
    found = load_questions("generated", None, 600, 0, 2048, 64, "refuse")
    train, held_out = ({row.question for row in found[split]} for split in ("train", "eval"))
    assert len(train) == len(held_out) == 600
    assert not train & held_out
    other = load_questions("generated", None, 600, 1, 2048, 64, "refuse")
    assert len({row.question for row in other["train"]} & train) < 60
    _, first = made()
    _, second = envs_jax.make("MetaMathQA", num_levels=LEVELS, split="eval")
    assert not set(np.asarray(first.env.phrase).tolist()) & set(np.asarray(second.env.phrase).tolist())


# -- answers and rewards ------------------------------------------------------------------------------------
def test_a_perfect_agent_always_succeeds() -> None:
    env, params = made()
    right = labels(env)
    (out,), _ = play(env, params, lambda level, _: answer(f" {right[level]}\n"), 1)
    assert out.success.all()
    assert out.terminated.all()
    assert (out.reward == 1.0).all()


def test_try_k_pays_one_over_two_to_the_k() -> None:
    env, params = made()
    right = labels(env)

    def agent(level: int, turn: int) -> str:
        return answer(right[level] if turn == level % 6 else "no idea")

    outs, _ = play(env, params, agent, 5)
    total = np.zeros(LEVELS)
    for turn, out in enumerate(outs):
        live = np.arange(LEVELS) % 6 >= turn
        assert (out.reward == np.where(live & (np.arange(LEVELS) % 6 == turn), 0.5**turn, 0.0)).all()
        assert (out.info.metrics[live, 0] == turn).all()
        total += out.reward
    assert (outs[-1].success == (np.arange(LEVELS) % 6 < 5)).all()
    assert (outs[-1].terminated != outs[-1].truncated).all()
    assert total.tolist() == [0.5 ** (i % 6) if i % 6 < 5 else 0.0 for i in range(LEVELS)]


def test_a_wrong_answer_is_told() -> None:
    env, params = made()
    outs, _ = play(env, params, lambda *_: answer("0.123"), 1)
    text = env.text_of(params, outs[0].obs_tokens[0, : outs[0].obs_len[0]].tolist())
    assert "Your answer is incorrect. Think again.\n" in text


def varied(rng: random.Random, text: str) -> str:
    """`text` as it is, in another form, or changed."""
    forms = ["{}", "{}", " {} ", "{}.0", "{}%", "${}", r"\boxed{{{}}}", "{}1", "-{}", "x{}", "{}."]
    text = rng.choice(forms).format(text)
    if rng.random() < 0.2:
        text = " ".join(text)
    return text.upper() if rng.random() < 0.2 else text


def test_string_check_equals_pythons() -> None:
    env, params = made()
    right, rng = labels(env), random.Random(2)
    said = [varied(rng, text) for text in right]
    (out,), _ = play(env, params, lambda level, _: answer(said[level]), 1)
    wanted = [
        "".join(a.lower().split()) == "".join(b.lower().split()) for a, b in zip(said, right, strict=True)
    ]
    assert out.success.tolist() == wanted
    assert 5 < sum(wanted) < LEVELS - 5


def test_numeric_check_takes_equal_numbers() -> None:
    env, params = made(answer_check="numeric")
    right = labels(env)

    def agent(level: int, _: int) -> str:
        value = Fraction(right[level])
        forms = [
            f"{value.numerator * 3}/{value.denominator * 3}",
            rf"\boxed{{\frac{{{value.numerator}}}{{{value.denominator}}}}}",
            f"${right[level]}$.",
            f"{(value + Fraction(1, 10**6)).numerator}/{(value + Fraction(1, 10**6)).denominator}",
        ]
        return answer(forms[level % 4])

    (out,), _ = play(env, params, agent, 1)
    assert out.success.tolist() == [i % 4 != 3 for i in range(LEVELS)]
    strict, strict_params = made()
    (out,), _ = play(strict, strict_params, agent, 1)
    assert not out.success.any()


def test_long_answers_are_told_and_wrong() -> None:
    env, params = made()
    right = labels(env)
    (out,), _ = play(env, params, lambda level, _: answer("1" * 130 if level else right[0]), 1)
    assert out.info.metrics[:, 1].tolist() == [0.0] + [1.0] * (LEVELS - 1)
    assert out.success.tolist() == [True] + [False] * (LEVELS - 1)
    assert not out.info.text_overflow.any()


@pytest.mark.parametrize("answer_check", ["string", "numeric"])
def test_random_text_stays_within_the_bounds(answer_check: str) -> None:
    env, params = made(answer_check=answer_check)
    outs, _ = play(env, params, babble("0123456789./-%$ abc{}\\é", 1), 5)
    low, high = env.env.reward_range
    for out in outs:
        assert np.isfinite(out.reward).all()
        assert (low <= out.reward).all()
        assert (out.reward <= high).all()
    assert (outs[-1].terminated | outs[-1].truncated).all()


def test_normalising_is_of_ascii_alone() -> None:
    assert normalised(" \\Frac{ 1 }{ B }\t") == "\\frac{1}{b}"
    assert normalised("É\u00a0x") == "É\u00a0x"


# -- text ---------------------------------------------------------------------------------------------------
def test_questions_are_shown_whole_and_borders_are_pretoken_borders() -> None:
    env, params = made(chat="plain")
    phrases = env.env.phrases()
    assert len(set(phrases)) == len(phrases)
    for level in range(LEVELS):
        state = env.reset(jnp.int32(level), params)[0]
        question = env.env._questions["train"][level].question
        assert env.render(state, params) == question + "\n"
        fragments = [env.phrases()[i] for i in env.first_fragments(state, params).tolist() if i >= 0]
        canonical.assert_borders(fragments)


@pytest.mark.parity
def test_fragments_are_canonical_for_qwen() -> None:
    env, params = made(chat="plain")
    for level in range(LEVELS):
        state = env.reset(jnp.int32(level), params)[0]
        fragments = [env.phrases()[i] for i in env.first_fragments(state, params).tolist() if i >= 0]
        apart = [token for text in fragments for token in canonical.qwen_encode(text)]
        assert apart == canonical.qwen_encode("".join(fragments))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("dataset", {"dataset": "tfds/metamath"}),
        ("answer_check", {"answer_check": "exact"}),
        ("on_bad_row", {"on_bad_row": "ignore"}),
        ("max_question_bytes", {"max_question_bytes": 0}),
        ("num_levels", {"num_levels": 0}),
    ],
)
def test_settings_are_checked(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        MetaMathQA(**settings)
    assert caught.value.field == field


def test_dtypes_do_not_depend_on_x64() -> None:
    env = MetaMathQA(num_levels=4, answer_check="numeric")
    params = env.init_params(jax.random.key(0))
    span = envs_jax.Span(jnp.zeros(env.answer_bytes, jnp.uint8), jnp.int32(0))

    def step(params: Any, span: Any) -> Any:
        return env.transition(jax.random.key(0), env.level(jnp.int32(0), params), span, params)

    plain = jax.eval_shape(step, params, span)
    with jax.enable_x64(True):
        wide = jax.eval_shape(step, params, span)
    assert jax.tree.map(lambda x: x.dtype, plain) == jax.tree.map(lambda x: x.dtype, wide)


def test_buffers_hold_every_question_of_both_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those beyond the levels that sizes are measured on, and those of the other split."""
    rows = [Question(f"How many are {i} and 1?", str(i + 1)) for i in range(600)]
    rows[400] = Question("word " * 300 + "?", "7")
    table = {"train": tuple(rows[:500]), "eval": (*rows[500:], Question("long " * 330 + "?", "8"))}
    monkeypatch.setattr(metamathqa, "load_questions", lambda *_: table)
    env, params = envs_jax.make("MetaMathQA", num_levels=500, max_response_tokens=64)
    for split, level, words in (("train", 400, 300), ("eval", 100, 330)):
        pool = envs_jax.new_levels(env, params, split=split)
        step = env.reset(jnp.int32(level), pool)[1]
        assert not step.info.obs_overflow
        text = env.text_of(pool, step.obs_tokens[: int(step.obs_len)])
        assert text.count("word ") + text.count("long ") == words
        assert text.endswith("<think>")
