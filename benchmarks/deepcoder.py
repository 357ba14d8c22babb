"""Programs judged a second: one batched call, as the environment's step makes it.

`python -m benchmarks.deepcoder [--record]`. A batch of generated problems, each with its solution, a wrong answer, a
crash or a program that never ends, in the shares given; every test of every program is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

from benchmarks._table import report
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.generator import generated
from envs_jax.tasks.deepcoder.problems import Problem, judge
from envs_jax.tasks.deepcoder.sandbox.pool import BACKENDS, Limits, pool_for

WRONG = "def f(*a):\n    return None\nprint(0)"
CRASH = "raise ValueError('no')"
ENDLESS = "while True:\n    pass"


def batch(size: int, endless: int) -> tuple[list[Problem], list[str]]:
    """Problems and answers: half right, a quarter wrong, a quarter crashing, `endless` of the first never ending.

    No two answers to a problem are the same, so that none is judged twice.
    """
    problems = generated()["train"]
    rows = [problems[i % len(problems)] for i in range(size)]
    kinds = [p.solution if i % 4 < 2 else (WRONG, CRASH)[i % 4 - 2] for i, p in enumerate(rows)]
    answers = [f"{ENDLESS if i < endless else code}\n# {i}" for i, code in enumerate(kinds)]
    return rows, answers


def measure(backend: str, size: int, endless: int, repeats: int) -> list[Any]:
    """One row of the table."""
    pool = pool_for(Limits(), backend)
    rows, answers = batch(size, endless)
    tests = sum(len(p.cases) for p in rows)
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        verdicts = judge(rows, answers, pool.run)
        times.append(time.perf_counter() - begun)
    right = sum(v.passed == v.total for v in verdicts)
    expected = sum(p.solution in a and ENDLESS not in a for p, a in zip(rows, answers, strict=True))
    seconds = statistics.median(times)
    return [f"{backend}, {endless} never end", size, tests, seconds, size / seconds, right, expected]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="programs in the batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--record", action="store_true", help="append to benchmarks/RESULTS.md")
    args = parser.parse_args()
    rows = []
    load = os.getloadavg()[0]
    for backend in args.backends:
        try:
            rows += [measure(backend, args.size, endless, args.repeats) for endless in (0, 4)]
        except ConfigError as error:
            print(error)
    report(
        "DeepCoder: one call that judges a batch",
        ["sandbox", "programs", "tests", "seconds", "programs/s", "passed", "should pass"],
        rows,
        notes=f"Medians of {args.repeats} calls. Load average of the machine before: {load:.1f}.",
        record=args.record,
    )


if __name__ == "__main__":
    main()
