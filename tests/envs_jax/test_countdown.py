"""Countdown: instances against brute force in Python, scores against Python's own parser."""

from __future__ import annotations

import functools
import itertools
import random
import re
from fractions import Fraction
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speak import answer, babble, play
from test_expressions import mutated
from test_expressions import reference as python_value

import envs_jax
from envs_jax.core import Span
from envs_jax.errors import ConfigError
from envs_jax.tasks.countdown import Countdown, CountdownParams
from envs_jax.tasks.countdown_instances import are_solvable, pad

LEVELS = 64


# -- by brute force -----------------------------------------------------------------------------------------
def sign_solution(numbers: list[int], target: int) -> str | None:
    """An expression of + and - that gives the target."""
    for signs in itertools.product("+-", repeat=len(numbers)):
        text = "".join(f"{s}{n}" for s, n in zip(signs, numbers, strict=True))
        if sum(int(s + str(n)) for s, n in zip(signs, numbers, strict=True)) == target:
            return text
    return None


@functools.cache
def makeable(numbers: tuple[Fraction, ...]) -> frozenset[Fraction]:
    """Every value of the numbers, each used once: pairs are joined until one number is left."""
    if len(numbers) == 1:
        return frozenset(numbers)
    found: set[Fraction] = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
        for value in (a + b, a - b, a * b, *([a / b] if b else [])):
            found |= makeable(tuple(sorted((*rest, value))))
    return frozenset(found)


def instances(params: CountdownParams) -> list[tuple[list[int], int]]:
    numbers, count, target = jax.device_get((params.numbers, params.count, params.target))
    return [(n[:c].tolist(), int(t)) for n, c, t in zip(numbers, count, target, strict=True)]


@functools.cache
def drawn(**settings: Any) -> list[tuple[list[int], int]]:
    return instances(Countdown(num_levels=LEVELS, **settings).init_params(jax.random.key(1)))


# -- instances ----------------------------------------------------------------------------------------------
def test_generated_instances_are_solvable_with_signs_and_within_their_ranges() -> None:
    rows = drawn()
    assert {len(n) for n, _ in rows} == {3, 4}
    assert all(1 <= x <= 99 for n, _ in rows for x in n)
    assert all(10 <= t <= 100 for _, t in rows)
    assert all(sign_solution(n, t) for n, t in rows)
    assert len({(tuple(n), t) for n, t in rows}) == LEVELS


def test_generated_instances_are_solvable_with_all_operations() -> None:
    rows = drawn(operations="+-*/", number_range=(1, 30))[:24]
    assert all(t in makeable(tuple(sorted(map(Fraction, n)))) for n, t in rows)
    assert sum(sign_solution(n, t) is None for n, t in rows) > 6


def test_solvers_equal_brute_force() -> None:
    rng = random.Random(0)
    cases = []
    for _ in range(120):
        drawn_numbers = [rng.randint(0, 12) for _ in range(rng.randint(2, 4))]
        signed = abs(sum(rng.choice((1, -1)) * n for n in drawn_numbers))
        cases.append((drawn_numbers, signed if rng.random() < 0.4 else rng.randint(0, 60)))
    cases += [
        ([8, 3, 8, 3], 24),
        ([5, 5, 5, 1], 24),
        ([1, 3, 4, 6], 24),
        ([6, 6], 1),
        ([0, 7], 0),
        ([0, 0], 1),
    ]
    numbers = pad([n for n, _ in cases], 4)
    count = np.asarray([len(n) for n, _ in cases], np.int32)
    target = np.asarray([t for _, t in cases], np.int32)
    full = np.asarray(are_solvable(numbers, count, target, operations="+-*/", sizes=(2, 4)))
    signs = np.asarray(are_solvable(numbers, count, target, operations="+-", sizes=(2, 4)))
    assert full.tolist() == [t in makeable(tuple(sorted(map(Fraction, n)))) for n, t in cases]
    assert signs.tolist() == [sign_solution(n, t) is not None for n, t in cases]
    assert 40 < int(signs.sum()) < int(full.sum()) < 110


def test_five_numbers() -> None:
    cases = [([1, 1, 1, 1, 1], 5), ([2, 2, 2, 2, 2], 32), ([1, 1, 1, 1, 1], 7), ([7, 1, 1, 3, 1], 59)]
    found = are_solvable(
        pad([n for n, _ in cases], 5),
        np.full(len(cases), 5, np.int32),
        np.asarray([t for _, t in cases], np.int32),
        operations="+-*/",
        sizes=(5, 5),
    )
    assert found.tolist() == [t in makeable(tuple(sorted(map(Fraction, n)))) for n, t in cases]
    assert found.tolist()[:3] == [True, True, False]


def test_pools_differ_between_splits_and_an_instance_depends_on_its_index_alone() -> None:
    few = instances(Countdown(num_levels=8).init_params(jax.random.key(1)))
    assert few == drawn()[:8]
    _, train = envs_jax.make("Countdown", num_levels=LEVELS)
    _, held_out = envs_jax.make("Countdown", num_levels=LEVELS, split="eval")
    assert not {str(i) for i in instances(train.env)} & {str(i) for i in instances(held_out.env)}


def test_an_impossible_range_is_named() -> None:
    with pytest.raises(RuntimeError, match="number_range"):
        Countdown(num_levels=2, number_range=(2, 2), target_range=(99, 99)).init_params(jax.random.key(0))


# -- scores -------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=8)
def judge(reference_rules: bool) -> Any:
    env = Countdown(num_levels=1, size_range=(3, 4), reference_rules=reference_rules)

    def one(
        data: jax.Array, length: jax.Array, numbers: jax.Array, count: jax.Array, target: jax.Array
    ) -> Any:
        params = CountdownParams(
            numbers=numbers[None], count=count[None], target=target[None],
            fragments=jnp.zeros((1, 5), jnp.int32), score=jnp.float32(1.0), format_score=jnp.float32(0.1),
        )  # fmt: skip
        return env.transition(jax.random.key(0), env.level(jnp.int32(0), params), Span(data, length), params)

    return jax.jit(jax.vmap(one))


def judged(texts: list[str], cases: list[tuple[list[int], int]], reference_rules: bool = False) -> Any:
    rows = 2000
    data, length = np.zeros((rows, 128), np.uint8), np.zeros(rows, np.int32)
    for row, text in enumerate(texts):
        raw = text.encode()
        length[row] = len(raw)
        data[row, : len(raw[:128])] = np.frombuffer(raw[:128], np.uint8)
    more = cases + [([1, 1, 1], 3)] * (rows - len(cases))
    out = judge(reference_rules)(
        data, length, pad([n for n, _ in more], 4), np.asarray([len(n) for n, _ in more], np.int32),
        np.asarray([t for _, t in more], np.int32),
    )  # fmt: skip
    return jax.device_get(jax.tree.map(lambda x: x[: len(texts)], out))


def expected_reward(text: str, numbers: list[int], target: int, reference_rules: bool) -> float:
    used = sorted(map(int, re.findall("[0-9]+", text)))
    if used != sorted(numbers):
        return 0.0
    value = python_value(text)
    if not isinstance(value, Fraction):
        return 0.1 if reference_rules else 0.0
    hit = abs(value - target) < Fraction(1, 100_000) if reference_rules else value == target
    return 1.0 if hit else 0.1


def answers(count: int) -> tuple[list[str], list[tuple[list[int], int]]]:
    """Right, nearly right and mutated answers to random instances."""
    rng = random.Random(5)
    texts, cases = [], []
    pool = drawn()
    while len(texts) < count:
        numbers, target = rng.choice(pool)
        used = rng.sample(numbers, len(numbers))
        kind = rng.random()
        if kind < 0.3:
            text = sign_solution(used, target) or ""
        else:
            text = str(used[0])
            for n in used[1:]:
                text = f"{text} {rng.choice('+-*/')} {n}"
                text = f"({text})" if rng.random() < 0.4 else text
        if rng.random() < 0.3:
            text = mutated(rng, text)
        if rng.random() < 0.2 and isinstance(value := python_value(text), Fraction) and value >= 0:
            target = int(value)
        if 0 < len(text) <= 96:
            texts.append(text)
            cases.append((numbers, target))
    return texts, cases


@pytest.mark.parametrize("reference_rules", [False, True])
def test_scores_equal_python_on_2000_answers(reference_rules: bool) -> None:
    texts, cases = answers(2000)
    out = judged(texts, cases, reference_rules)
    wanted = [expected_reward(t, n, g, reference_rules) for t, (n, g) in zip(texts, cases, strict=True)]
    wrong = [
        (t, c, w, float(r))
        for t, c, w, r in zip(texts, cases, wanted, out.reward, strict=True)
        if abs(w - r) > 1e-6
    ]
    assert not wrong
    assert {0.0, 0.1, 1.0} == set(wanted)
    assert (out.success == [w == 1.0 for w in wanted]).all()
    assert (out.effective == [w > 0 for w in wanted]).all()
    assert not out.metrics[:, 2].any()
    assert out.terminated.all()


EXPLOITS = ["3, 5, 7", "3 5 7", "[3, 5, 7]", "I used 3 and 5 and 7", "3**5**7", "7//3*5", "3.5+7", "3+5+7=15 ",
            "7 if 3 else 5", "(3)(5)(7)", "3+5+/7", "7/(5-3-2)", "003+5+7"]  # fmt: skip


def test_exploits_earn_nothing_by_default_and_are_paid_by_the_published_rules() -> None:
    cases = [([3, 5, 7], 100)] * len(EXPLOITS)
    assert judged(EXPLOITS, cases).reward.tolist() == [0.0] * len(EXPLOITS)
    paid = judged(EXPLOITS, cases, reference_rules=True).reward.round(3).tolist()
    # These two use other digits: 15, and 2.
    assert paid == [0.0 if "15" in t or "2" in t else pytest.approx(0.1) for t in EXPLOITS]


def test_published_tolerance() -> None:
    texts = ["1/99/98/97", "1/99/98*97", "1*(99-98)*97"]  # 1.06e-6, about 0.01, 97
    cases = [([1, 99, 98, 97], 0)] * 3
    paid = judged(texts, cases, reference_rules=True)
    assert paid.reward.tolist() == [1.0, pytest.approx(0.1), pytest.approx(0.1)]
    assert judged(texts, cases).reward.tolist() == [pytest.approx(0.1)] * 3


def test_an_answer_too_long_to_be_read_is_told_and_earns_nothing() -> None:
    text = "3+5+7" + " " * 130 + "+0"
    out = judged([text], [([3, 5, 7], 15)])
    assert out.reward.tolist() == [0.0]
    assert out.metrics[0].tolist() == [0.0, 0.0, 1.0]


# -- through the protocol ----------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [{}, {"enable_think": True, "style": "brief"}])
def test_a_perfect_agent_always_succeeds(settings: dict[str, Any]) -> None:
    env, params = envs_jax.make("Countdown", num_levels=LEVELS, max_response_tokens=80, **settings)
    rows = instances(params.env)
    (out,), _ = play(env, params, lambda level, _: answer(sign_solution(*rows[level]) or ""), 1)
    assert out.success.all()
    assert out.terminated.all()
    assert (out.reward == 1.0).all()
    assert (out.penalty == 0.0).all()


@pytest.mark.parametrize("reference_rules", [False, True])
def test_random_text_stays_within_the_bounds(reference_rules: bool) -> None:
    env, params = envs_jax.make(
        "Countdown", num_levels=LEVELS, max_response_tokens=80, reference_rules=reference_rules
    )
    outs, _ = play(env, params, babble("0123456789+-*/() .", 0), 3)
    low, high = env.env.reward_range
    for out in outs:
        assert np.isfinite(out.reward).all()
        assert (low <= out.reward).all()
        assert (out.reward <= high).all()
    assert not outs[0].success.all()


def test_an_empty_answer_is_no_action_and_is_fined() -> None:
    env, params = envs_jax.make("Countdown", num_levels=4, max_response_tokens=80)
    (out,), _ = play(env, params, lambda *_: answer("  "), 1)
    assert not out.terminated.any()
    assert out.penalty.tolist() == [pytest.approx(-0.1)] * 4


# -- text ---------------------------------------------------------------------------------------------------
def states(env: Countdown) -> list[list[str]]:
    params = env.init_params(jax.random.key(0))
    phrases = env.phrases()
    assert len(set(phrases)) == len(phrases)
    out = []
    for level in range(env.num_levels):
        state = env.level(jnp.int32(level), params)
        for outcome in range(4):
            seen = env.observe(
                jax.tree.map(jnp.asarray, type(state)(state.level, jnp.int32(outcome))), params
            )
            out.append([phrases[i] for i in seen.tolist() if i >= 0])
    return out


def test_text_names_the_instance_and_borders_are_pretoken_borders() -> None:
    env = Countdown(num_levels=12)
    rows = instances(env.init_params(jax.random.key(0)))
    for index, fragments in enumerate(states(env)):
        numbers, target = rows[index // 4]
        first, *told = "".join(fragments).splitlines()
        assert first == f"Target: {target}, nums: {numbers}"
        points = [[], ["0"], ["0.1"], ["1"]][index % 4]
        assert told == [f"Your answer earned {p} points." for p in points]
        canonical.assert_borders(fragments)


@pytest.mark.parity
def test_fragments_are_canonical_for_qwen() -> None:
    for fragments in states(Countdown(num_levels=24, target_range=(10, 3000), number_range=(1, 1200))):
        apart = [token for text in fragments for token in canonical.qwen_encode(text)]
        assert apart == canonical.qwen_encode("".join(fragments))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("dataset", {"dataset": "generate"}),
        ("operations", {"operations": "+*"}),
        ("operations", {"operations": "any"}),
        ("operations", {"operations": "+-*/", "number_range": (1, 1000)}),
        ("size_range", {"size_range": (4, 3)}),
        ("number_range", {"number_range": (-1, 3)}),
        ("format_score", {"format_score": 2.0}),
        ("on_bad_row", {"on_bad_row": "ignore"}),
        ("num_levels", {"num_levels": 0}),
    ],
)
def test_settings_are_checked(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Countdown(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 4)])
def test_buffers_hold_the_longest_instance(sizes: tuple[int, int]) -> None:
    env = Countdown(size_range=sizes, number_range=(8, 11), target_range=(99, 100), num_levels=2)
    said = env.phrases()
    lengths = np.asarray([len(p) for p in said])
    start, later = env.state_tokens(lengths, None)
    texts = [
        f"Target: {target}, nums: {list(numbers)}\n"
        for target in (99, 100)
        for size in range(sizes[0], sizes[1] + 1)
        for numbers in itertools.product(range(8, 12), repeat=size)
    ]
    assert start == max(map(len, texts))
    assert later - start == max(len(p) for p in said if p.startswith("Your answer"))
