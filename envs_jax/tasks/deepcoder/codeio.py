"""Code tasks of the reasoning-gym package (extra `data`): a described function, a solution, an input generator.

Tests are made by running generator and solution in the sandbox. A task is left out, and counted, when they fail there
(some need other packages) or when the solution does not pass its own tests (some draw at random).
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envs_jax.datasets.splits import bucket
from envs_jax.datasets.table import RowError, text_field
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.problems import Case, Problem, judge
from envs_jax.tasks.deepcoder.published import CONTROL
from envs_jax.tasks.deepcoder.sandbox import values
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, Job, Pool

FUNCTION = "main_solution"
TESTS = 6
HELD_OUT = 5  # one task in so many, by its text, is kept for evaluation
MAX_BYTES = 4096  # of a statement
_LOG = logging.getLogger("envs_jax.datasets")

_RECORDER = f"""
import copy as _copy, inspect as _inspect, random as _random
def _record(count):
    names, calls = list(_inspect.signature({FUNCTION}).parameters), []
    for seed in range(count):
        given = generate_inputs(_random.Random(seed))
        arguments = tuple(given[name] for name in names)
        calls.append((_copy.deepcopy(arguments), {FUNCTION}(*arguments)))
    return calls
"""


def _rows() -> Iterator[dict[str, Any]]:
    found = importlib.util.find_spec("reasoning_gym")
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    packed = next(folder.rglob("codeio.jsonl.gz"), None) if folder else None
    if packed is None:
        raise ConfigError(
            "dataset", "reasoning_gym/codeio", 'install the extra: pip install "ragen-jax[data]"'
        )
    for line in gzip.decompress(packed.read_bytes()).decode().splitlines():
        yield json.loads(line)


def _statement(row: dict[str, Any]) -> str:
    text = f"{text_field(row, 'task_description')}\n{text_field(row, 'input_output_spec')}"
    if any(token in text for token in CONTROL):
        raise RowError("control token")
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    return (
        f"Write the Python function {FUNCTION} whose parameters are the inputs.\n" + "\n".join(lines) + "\n"
    )


def _with_tests(rows: Sequence[dict[str, Any]], names: Sequence[str], pool: Pool) -> list[Problem | None]:
    """Problems of rows, None where the row's own code does not give tests that it passes."""
    jobs = [
        Job(f"from random import Random\n{r['input_generator']}\n{r['code_sample']}\n{_RECORDER}",
            (CallTest("_record", (TESTS,)),))
        for r in rows
    ]  # fmt: skip
    problems: list[Problem | None] = []
    for row, name, (outcome,) in zip(rows, names, pool.run(jobs), strict=True):
        calls = values.loads(outcome.text) if outcome.status == "ok" else []
        cases = tuple(Case(CallTest(FUNCTION, tuple(given)), result) for given, result in calls)
        problems.append(Problem(name, _statement(row), cases, solution=row["code_sample"]) if cases else None)
    known = [p for p in problems if p is not None]
    good = {
        p.name: v.passed == v.total
        for p, v in zip(known, judge(known, [p.solution for p in known], pool.run), strict=True)
    }
    return [p if p is not None and good[p.name] else None for p in problems]


def problems(count: int, pool: Pool) -> dict[str, tuple[Problem, ...]]:
    """The first usable tasks, at most `count` for train and a fifth of that for eval; no text is in both."""
    wanted = {"train": count, "eval": max(1, count // HELD_OUT)}
    kept: dict[str, dict[str, Problem]] = {"train": {}, "eval": {}}
    refused = 0
    chunk: list[tuple[str, str, dict[str, Any]]] = []

    def settle() -> None:
        nonlocal refused
        made = _with_tests([r for _, _, r in chunk], [n for _, n, _ in chunk], pool)
        for (split, _, _), problem in zip(chunk, made, strict=True):
            if problem is None:
                refused += 1
            elif len(kept[split]) < wanted[split]:
                kept[split].setdefault(problem.statement, problem)
        chunk.clear()

    for number, row in enumerate(_rows(), 1):
        try:
            statement = _statement(row)
        except RowError:
            refused += 1
            continue
        split = "eval" if bucket(statement, HELD_OUT) == 0 else "train"
        if len(statement.encode()) <= MAX_BYTES and len(kept[split]) < wanted[split]:
            chunk.append((split, f"codeio/{number}", row))
        if len(chunk) == 64:
            settle()
        if all(len(kept[s]) >= n for s, n in wanted.items()):
            break
    settle()
    if refused:
        _LOG.warning(
            "reasoning_gym/codeio: %d tasks were left out: their own code fails in the sandbox", refused
        )
    return {split: tuple(rows.values()) for split, rows in kept.items()}
