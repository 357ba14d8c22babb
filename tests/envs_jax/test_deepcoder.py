"""DeepCoder: judging, generated problems, and whole episodes through the protocol."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import speak

import envs_jax
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder import env as env_module
from envs_jax.tasks.deepcoder import generator
from envs_jax.tasks.deepcoder.env import DeepCoder
from envs_jax.tasks.deepcoder.problems import (
    Case,
    Problem,
    extract_code,
    judge,
    program,
    same_output,
    same_value,
)
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, Job, Outcome, SandboxError, StdinTest

LEVELS = 48
FAST: dict[str, Any] = {
    "max_tests": 2,
    "test_seconds": 60.0,
    "total_seconds": 120.0,
}  # tests share busy machines


@functools.cache
def made() -> tuple[envs_jax.TurnEnv, envs_jax.TurnParams]:
    return envs_jax.make("DeepCoder", num_levels=LEVELS, max_turns=2, **FAST)


@functools.cache
def starts() -> envs_jax.TurnState:
    """First states of every level."""
    env, params = made()
    return jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jnp.arange(LEVELS), params)[0]


def problem_of(level: int) -> Problem:
    env, params = made()
    assert isinstance(env.env, DeepCoder)
    return env.env.problems[int(params.env.problem[level])]


# -- judging ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("Try this:\n```py\nx = 1\n```\nor rather\n```\nx = 2\n```\ndone", "x = 2\n"),
        ("  ```python\nif x:\n    y()\n  ```", "if x:\n    y()\n"),
        ("```python\nprint(1)", "print(1)"),
        ("s = '```'", "s = '```'"),
        ("```", "```"),
    ],
)
def test_code_is_found(answer: str, code: str) -> None:
    assert extract_code(answer) == code


def test_starters() -> None:
    call = (Case(CallTest("f", ()), 1),)
    method = Problem("m", "", call, "class Solution:\n    def f(self):\n")
    assert program(method, "        return 1") == "class Solution:\n    def f(self):\n        return 1"
    assert program(method, "class Solution:\n    def f(self): return 1").count("class") == 1
    assert program(method, "def f(): return 1") == "def f(): return 1"
    assert program(method, "a b") == "a b"
    helper = Problem("h", "", call, 'import math\ndef f():\n    """One."""\n')
    assert program(helper, "def f(): return math.pi").startswith("import math\n")
    assert program(helper, "    return math.pi").endswith('"""One."""\n    return math.pi')


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("1 2\n", "1 2", True), ("1 2 \n\n", "1 2", True), ("1\n2", "1 2", False), ("1.0", "1", True),
        ("1e2", "100", True), ("0.3", "0.30000001", False), ("yes", "Yes", False), ("", "", True), ("", "0", False),
        ("  a\n b", "a\nb", True), ("nan", "NaN", False), ("a  b", "a b", True), ("1 x", "1 y", False),
    ],
)  # fmt: skip
def test_printed_text(given: str, wanted: str, same: bool) -> None:
    assert same_output(given, wanted) is same


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        (1, 1, True), (1, True, False), (True, True, True), (0, False, False), (1.0, 1, True), (1, 1.0000001, True),
        (1.1, 1, False), ([1, (2,)], (1, [2]), True), ([1], [1, 2], False), ("1", 1, False), (None, None, True),
        (None, 0, False), ({"a": [1]}, {"a": (1,)}, True), ({"a": 1}, {"b": 1}, False), ({1, 2}, {2, 1}, True),
        (float("inf"), float("inf"), True), (float("nan"), float("nan"), True), (10**400, 1.5, False),
        (10**400, 10**400 + 1, False), ([], (), True), ("", [], False), (b"x", b"x", True), (1j, 1j, True),
    ],
)  # fmt: skip
def test_values(given: Any, wanted: Any, same: bool) -> None:
    assert same_value(given, wanted) is same


def test_equal_programs_run_once_and_missing_ones_never() -> None:
    problem = Problem("p", "", (Case(StdinTest("1"), "1"), Case(StdinTest("2"), "4")))
    other = replace(problem, name="q")
    seen: list[Job] = []

    def run(jobs: list[Job]) -> list[list[Outcome]]:
        seen.extend(jobs)
        return [[Outcome("ok", "1\n"), Outcome("ok", "2\n")] for _ in jobs]

    rows = [problem, problem, other, problem, problem]
    verdicts = judge(rows, ["x", "x", "x", None, "```\nx\n```"], run)
    assert [(v.passed, v.total) for v in verdicts] == [(1, 2), (1, 2), (1, 2), (0, 2), (1, 2)]
    assert [j.code for j in seen] == ["x", "x", "x\n"]
    assert (verdicts[0].failure, verdicts[3].failure) == ("wrong", "no program")


# -- generated problems -------------------------------------------------------------------------------------
def digits(n: int, base: int) -> list[int]:
    return [n] if n < base else [*digits(n // base, base), n % base]


# What each family asks for, derived in another way than its own source.
ORACLES: dict[str, Callable[..., Any]] = {
    "sum_of_multiples": lambda k, x: sum(v for v in x if v // k * k == v),
    "count_above": lambda k, x: len([v for v in x if not v <= k]),
    "rotate": lambda k, x: functools.reduce(lambda y, _: y[1:] + y[:1], range(k), x),
    "shift_letters": lambda k, x: x.translate(
        {ord(a): "abcdefghijklmnopqrstuvwxyz"[(i + k) % 26] for i, a in enumerate("abcdefghijklmnopqrstuvwxyz")}
    ),
    "every_kth": lambda k, x: [v for i, v in enumerate(x, 1) if i % k == 0],
    "in_base": lambda k, n: "".join("0123456789abcdefghij"[d] for d in digits(n, k)),
    "clamp": lambda k, x: np.clip(np.array(x, int), -k, k).tolist(),
    "best_window": lambda k, x: int(np.convolve(x, np.ones(k, int), "valid").max()),
    "power": lambda k, n: n**k % 1000007,
    "without_letter": lambda k, x: "".join(c for c in x if c != k),
    "count_letter": lambda k, x: len(x.split(k)) - 1,
    "longest_run": lambda k, x: max(map(len, re.findall("x*", "".join("x" if v == k else "-" for v in x)))),
    "pairs_with_sum": lambda k, x: sum(x[i] + x[j] == k for j in range(len(x)) for i in range(j)),
    "recurrence": lambda k, n: n if n < 2 else ORACLES["recurrence"](k, n - 1) + k * ORACLES["recurrence"](k, n - 2),
    "chunk_sums": lambda k, x: [sum(x[i] for i in range(len(x)) if i // k == c) for c in range(-(-len(x) // k))],
    "has_difference": lambda k, x: any(abs(a - b) == k for a in x for b in x),
    "long_words": lambda k, x: " ".join([w for w in x.split(" ") if not w.startswith(k)][::-1]),
    "next_multiple": lambda k, n: next(v for v in range(n + 1, n + k + 1) if v % k == 0),
    "mask": lambda k, x: re.sub(rf"(?s)(.{{{k - 1}}}).", r"\1*", x),
    "digit_sum": lambda k, n: sum(digits(n, k)),
    "kth_smallest": lambda k, x: min(v for v in x if sum(w <= v for w in x) >= k),
}  # fmt: skip


def test_families_ask_what_they_say() -> None:
    assert set(ORACLES) == {f.name for f in generator.FAMILIES}
    assert len(generator.FAMILIES) >= 15
    for family in generator.FAMILIES:
        for k in family.parameters:
            tests = generator._tests(family, k)
            for arguments, result in tests:
                assert ORACLES[family.name](k, *arguments) == result, (family.name, k, arguments)
            assert len(tests) == generator.TESTS
            most = max(sum(repr(r) == repr(result) for _, r in tests) for _, result in tests)
            assert most <= generator.TESTS // 2, "a constant answer passes no more than half"


def test_problems_of_the_splits_are_apart() -> None:
    splits = generator.generated()
    statements = [p.statement for problems in splits.values() for p in problems]
    assert len(set(statements)) == len(statements) == 504
    kinds = {split: {p.name.rpartition("/")[0] for p in problems} for split, problems in splits.items()}
    assert not kinds["train"] & kinds["eval"]
    for problems in splits.values():
        assert {p.name.split("/")[0] for p in problems} == set(ORACLES)
        assert {p.name.split("/")[2] for p in problems} == {"function", "program"}
    again = generator.generated()
    assert again == splits


# -- episodes -----------------------------------------------------------------------------------------------
def test_a_perfect_agent_always_succeeds_and_an_episode_ends_with_its_program() -> None:
    env, params = made()
    fence = ("", "```python\n", "")

    def agent(level: int, turn: int) -> str:
        opening = fence[level % 3]
        code = problem_of(level).solution if turn == 0 else "1 / 0"
        return speak.answer(f"{opening}{code}{'```' if opening else ''}")

    first, second = speak.play(env, params, agent, 2)[0]
    assert first.success.all()
    assert (first.reward == 1).all()
    assert first.terminated.all()
    assert not first.truncated.any()
    assert (first.info.metrics == 2).all()
    assert second.success.all()
    assert (second.reward == 0).all()
    assert (second.info.n_executed == 0).all()


def test_the_reward_is_the_share_of_tests_that_pass() -> None:
    env, params = envs_jax.make(
        "DeepCoder", num_levels=8, all_or_nothing=False, test_seconds=60.0, total_seconds=120.0
    )
    strict, strict_params = envs_jax.make(
        "DeepCoder", num_levels=8, all_or_nothing=True, test_seconds=60.0, total_seconds=120.0
    )
    problems = [env.env.problems[int(i)] for i in params.env.problem]

    def half(level: int, turn: int) -> str:
        """Right on some tests, wrong on the first one."""
        case = problems[level].cases[0]
        if isinstance(case.given, CallTest):
            name = case.given.name
            wrong = f"_right = {name}\ndef {name}(*a):\n"
            wrong += f"    return 'no' if a == {case.given.arguments!r} else _right(*a)"
            return speak.answer(f"{problems[level].solution}\n{wrong}")
        reader = f"import io, sys\nt = sys.stdin.read()\nif t == {case.given.text!r}: sys.exit()\n"
        return speak.answer(f"{reader}sys.stdin = io.StringIO(t)\n{problems[level].solution}")

    out = speak.play(env, params, half, 1)[0][0]
    np.testing.assert_allclose(out.reward, np.full(8, 5 / 6), rtol=1e-6)
    assert not out.success.any()
    assert out.terminated.all()
    assert (out.info.metrics == np.array([5, 6])).all()
    out = speak.play(strict, strict_params, half, 1)[0][0]
    assert not out.reward.any()


def test_random_text_stays_within_the_bounds() -> None:
    env, params = made()
    alphabet = "printsd(input)=+0123456789 \n:'xyzABC\u00e9"
    for out in speak.play(env, params, speak.babble(alphabet, 1), 2)[0]:
        assert (out.reward >= 0).all()
        assert (out.reward <= 1).all()
        assert not out.info.obs_overflow.any()


def test_nothing_runs_without_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    env, params = envs_jax.make("DeepCoder", num_levels=4, max_program_bytes=64, **FAST)
    calls: list[list[str]] = []

    def run(self: Any, jobs: list[Job]) -> list[list[Outcome]]:
        calls.append([job.code for job in jobs])
        return [[Outcome("ok", "x")] * len(job.tests) for job in jobs]

    monkeypatch.setattr(env_module.Pool, "run", run)
    said = [
        "no tags at all",
        speak.answer("   "),
        speak.answer("print('Too Long')" + "#" * 64),
        speak.answer("Print(1)"),
    ]
    out = speak.play(env, params, lambda level, turn: said[level], 1)[0][0]
    assert calls == [["Print(1)"]], "one call for the batch, letters as they were written"
    assert out.penalty.tolist() == pytest.approx([-0.1, -0.1, -0.1, 0.0])
    assert out.terminated.tolist() == [False, False, False, True]


def test_a_failing_sandbox_stops_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    env, params = made()

    def run(self: Any, jobs: list[Job]) -> list[list[Outcome]]:
        raise SandboxError("no room in the kernel")

    monkeypatch.setattr(env_module.Pool, "run", run)
    with pytest.raises(Exception, match="no room in the kernel"):
        speak.play(env, params, lambda level, turn: speak.answer("x"), 1)


def test_one_crossing_for_a_batch_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    env, params = made()
    crossings = []
    inner = env_module._judge_rows
    monkeypatch.setattr(env_module, "_judge_rows", lambda *a: crossings.append(np.shape(a[3])) or inner(*a))
    tokens, lengths = speak.encode([speak.answer("print(1)")] * 6, env.config.max_response_tokens)
    levels = jnp.arange(6).reshape(2, 3)
    state = jax.vmap(jax.vmap(env.reset, in_axes=(0, None)), in_axes=(0, None))(levels, params)[0]
    keys = jax.random.split(jax.random.key(0), (2, 3))
    step = jax.jit(jax.vmap(jax.vmap(env.step, in_axes=(0, 0, 0, 0, None)), in_axes=(0, 0, 0, 0, None)))
    out = step(keys, state, tokens.reshape(2, 3, -1), lengths.reshape(2, 3), params)[1]
    assert out.terminated.shape == (2, 3)
    assert out.terminated.all()
    assert crossings == [(2, 3)]


def test_levels_are_a_shuffled_pool_of_the_split() -> None:
    env = DeepCoder(num_levels=300, **FAST)
    a, b = (env.init_params(jax.random.key(k)).problem.tolist() for k in (0, 1))
    assert a != b
    assert len(set(a)) == 300
    held_out = env.init_params(jax.random.key(0), "eval").problem.tolist()
    assert not set(a) & set(held_out)
    assert len(held_out) == 300
    assert len(set(held_out)) == 102


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dataset": "humaneval"}, "dataset"),
        ({"sandbox": "docker"}, "sandbox"),
        ({"max_tests": 0}, "max_tests"),
        ({"cpu_seconds": 0}, "cpu_seconds"),
        ({"workers": -1}, "workers"),
        ({"num_levels": 0}, "num_levels"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        envs_jax.make("DeepCoder", **fields)
    assert caught.value.field == name


# -- text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chat", ["chatml", "llama3", "plain"])
@pytest.mark.parametrize("style", ["full", "brief"])
def test_borders_are_pretoken_borders(style: str, chat: str) -> None:
    from envs_jax.text.chat import CHAT_FORMATS

    env, params = made()
    env = replace(env, config=replace(env.config, style=style), chat=CHAT_FORMATS[chat])
    # The Llama 3 format begins a message with two newlines; only GPT-2's pattern cuts between them.
    kinds = ["qwen2", "llama3"] if chat == "llama3" and style == "brief" else list(canonical.PRETOKENIZERS)
    specials = "|".join(re.escape(s) for c in CHAT_FORMATS.values() for s in c.required)
    phrases = env.phrases()
    for fragments in np.asarray(jax.vmap(env.first_fragments, in_axes=(0, None))(starts(), params)):
        runs: list[list[str]] = [[]]
        for i in fragments[fragments >= 0]:
            head, *others = re.split(specials, phrases[i])
            runs[-1].append(head)
            runs += [[part] for part in others]
        for kind in kinds:
            for run in runs:
                whole = canonical.split(kind, "".join(run))
                assert whole == [piece for part in run for piece in canonical.split(kind, part)]


def test_prompts_say_what_to_write() -> None:
    env, params = made()
    shown = np.asarray(jax.vmap(env.env.observe, in_axes=(0, None))(starts().env, params.env))
    texts = ["".join(env.env.phrases()[i] for i in row) for row in shown]
    assert len(set(texts)) == LEVELS
    for level, text in enumerate(texts):
        function = isinstance(problem_of(level).cases[0].given, CallTest)
        assert text.startswith("Write a Python function " if function else "Write a Python program ")
        assert ("Example input:" in text) is not function
        assert text.endswith("\n")
        assert "\n\n" not in text


def test_buffers_hold_every_statement_of_both_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those beyond the levels that sizes are measured on, and those of the other split."""
    case = Case(StdinTest(""), "1")
    problems = [Problem(str(i), f"Print {i}.\n", (case,), "", "print(1)") for i in range(600)]
    problems[599] = replace(problems[599], statement="Print " + "one " * 400 + "\n")
    splits = {"train": tuple(problems[:500]), "eval": tuple(problems[500:])}
    monkeypatch.setattr(env_module.tables, "load", lambda *_: splits)
    lengths = np.asarray([len(p) for p in DeepCoder(num_levels=500).phrases()])
    assert DeepCoder(num_levels=500).state_tokens(lengths, None) == (6 + 1600 + 1,) * 2
