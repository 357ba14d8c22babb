"""A programming problem, and how an answer to it is judged. Host code, without JAX."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from envs_jax.tasks.deepcoder.sandbox import values
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, Job, Outcome, StdinTest

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """One test: what the program is given, and what must come out (text for a whole program, else a value).

    `wrapped`: the expected value may stand in a list of its own.
    """

    given: StdinTest | CallTest
    expected: Any
    wrapped: bool = False


@dataclass(frozen=True)
class Problem:
    """What is asked, and the tests. `solution` is a program that passes, where one is known."""

    name: str
    statement: str
    cases: tuple[Case, ...]
    starter: str = ""
    solution: str = ""


@dataclass(frozen=True)
class Verdict:
    """Tests passed of all, and how the first one that failed did so ("" if none failed)."""

    passed: int
    total: int
    failure: str


def extract_code(answer: str) -> str:
    """The last fenced block of an answer, or the answer itself if it has none. An open fence is left out."""
    blocks = _FENCED.findall(answer)
    if blocks:
        return str(blocks[-1])
    head, fence, rest = answer.strip().partition("\n")
    return rest if head.startswith("```") and fence else answer


def program(problem: Problem, answer: str) -> str:
    """The program that is run: the code, after the problem's starter where that helps.

    Code that brings the class or the function itself stands alone, unless the starter is a whole function, whose
    imports and helpers it may need. Other code goes on from the starter if the two together can be parsed.
    """
    code = extract_code(answer)
    starter = problem.starter.rstrip()
    given = problem.cases[0].given if problem.cases else None
    name = given.name if isinstance(given, CallTest) else ""
    brings = re.search(rf"\bclass\s+Solution\b|\bdef\s+{re.escape(name)}\b", code)
    if not starter or (brings and ("class Solution" in starter or not _parses(starter))):
        return code
    whole = f"{starter}\n{code}"
    return whole if _parses(whole) else code


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _same_number(given: str, wanted: str) -> bool:
    try:
        return Decimal(given) == Decimal(wanted)
    except InvalidOperation:
        return False


def same_output(given: str, wanted: str) -> bool:
    """Whether two printed texts agree: line by line without outer whitespace, word by word, numbers by their value."""
    lines, others = (t.strip().split("\n") for t in (given, wanted))
    if len(lines) != len(others):
        return False
    for line, other in zip(lines, others, strict=True):
        if line.strip() == other.strip():
            continue
        words, wanteds = line.split(), other.split()
        if len(words) != len(wanteds):
            return False
        if not all(a == b or _same_number(a, b) for a, b in zip(words, wanteds, strict=True)):
            return False
    return True


def same_value(given: Any, wanted: Any) -> bool:
    """Whether two values agree. Both are plain data of this process.

    Lists and tuples are alike, truth values are no numbers, and where a fraction is involved numbers may differ by a
    millionth, absolutely or relatively.
    """
    if isinstance(given, bool) or isinstance(wanted, bool):
        return isinstance(given, bool) and isinstance(wanted, bool) and given == wanted
    if isinstance(given, (int, float)) and isinstance(wanted, (int, float)):
        if isinstance(given, int) and isinstance(wanted, int):
            return given == wanted
        try:
            a, b = float(given), float(wanted)
        except OverflowError:
            return False
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(given, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(given) == len(wanted) and all(map(same_value, given, wanted))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(same_value(given[k], v) for k, v in wanted.items())
    if isinstance(given, (set, frozenset)) and isinstance(wanted, (set, frozenset)):
        return given == wanted
    return type(given) is type(wanted) and bool(given == wanted)


def passes(case: Case, outcome: Outcome) -> bool:
    """Whether a test's outcome is the expected one."""
    if outcome.status != "ok":
        return False
    if isinstance(case.given, StdinTest):
        return same_output(outcome.text, case.expected)
    try:
        given = values.loads(outcome.text)
        alone = case.wrapped and isinstance(case.expected, list) and len(case.expected) == 1
        return same_value(given, case.expected) or (alone and same_value(given, case.expected[0]))
    except (ValueError, RecursionError):
        return False


def judge(
    problems: Sequence[Problem],
    answers: Sequence[str | None],
    run: Callable[[list[Job]], list[list[Outcome]]],
) -> list[Verdict]:
    """A verdict on each answer to the problem beside it. Equal programs are run once.

    Args:
        problems, answers: of equal length; None is no answer, and nothing is run for it.
        run: runs jobs, as `Pool.run`.
    """
    jobs: list[Job] = []
    known: dict[tuple[int, str], int] = {}
    places: list[int | None] = []
    for problem, answer in zip(problems, answers, strict=True):
        if answer is None:
            places.append(None)
            continue
        code = program(problem, answer)
        place = known.setdefault((id(problem), code), len(jobs))
        if place == len(jobs):
            jobs.append(Job(code, tuple(case.given for case in problem.cases)))
        places.append(place)
    outcomes = run(jobs)
    verdicts = []
    for problem, at in zip(problems, places, strict=True):
        total = len(problem.cases)
        if at is None:
            verdicts.append(Verdict(0, total, "no program"))
            continue
        good = [passes(case, out) for case, out in zip(problem.cases, outcomes[at], strict=True)]
        first = next((o for o, ok in zip(outcomes[at], good, strict=True) if not ok), None)
        failure = (
            "" if first is None else "wrong" if first.status == "ok" else f"{first.status}: {first.text}"
        )
        verdicts.append(Verdict(sum(good), total, failure))
    return verdicts
