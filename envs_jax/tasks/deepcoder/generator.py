"""Small programming problems made by rule, so that the environment works with nothing downloaded.

Every family has a parameter and two forms: a function to write, and a whole program that reads and prints. The
solutions are this module's own sources; what they return is what the tests expect.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envs_jax.tasks.deepcoder.problems import Case, Problem
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, StdinTest

TESTS = 6
CANDIDATES = 60
HELD_OUT = 5  # one parameter in so many is kept for evaluation, in both forms
_WORDS = "amber birch cedar delta ember fjord grove hazel inlet jolly koala lemon maple nylon otter piano quartz rover"


@dataclass(frozen=True)
class Family:
    """`task` and `body` are templates of the parameter k; `draw` makes a test's arguments."""

    name: str
    arguments: tuple[tuple[str, str], ...]  # (name, kind): int, ints or str
    result: str  # int, ints, str or bool
    task: str
    body: str
    parameters: tuple[Any, ...]
    draw: Callable[[random.Random, Any], tuple[Any, ...]]


def _ints(
    low: int, high: int, least: int = 0, most: int = 12
) -> Callable[[random.Random, Any], tuple[Any, ...]]:
    return lambda rng, k: ([rng.randint(low, high) for _ in range(rng.randint(least, most))],)


def _int(low: int, high: int) -> Callable[[random.Random, Any], tuple[Any, ...]]:
    return lambda rng, k: (rng.randint(low, high),)


def _text(rng: random.Random, k: Any) -> tuple[str]:
    return (" ".join(rng.choice(_WORDS.split()) for _ in range(rng.randint(1, 7))),)


def _window(rng: random.Random, k: int) -> tuple[list[int]]:
    return ([rng.randint(-20, 20) for _ in range(rng.randint(k, k + 8))],)


_NUMBERS = (("numbers", "ints"),)
_N = (("n", "int"),)
_TEXT = (("text", "str"),)
_SMALL = tuple(range(2, 14))
_LETTERS = tuple("aeiourlntmbd")

FAMILIES = (
    Family(
        "sum_of_multiples",
        _NUMBERS,
        "int",
        "the sum of those of the numbers that are multiples of {k}",
        "return sum(x for x in numbers if x % {k} == 0)",
        _SMALL,
        _ints(-40, 60),
    ),
    Family(
        "count_above",
        _NUMBERS,
        "int",
        "how many of the numbers are greater than {k}",
        "return sum(x > {k} for x in numbers)",
        _SMALL,
        _ints(-5, 20),
    ),
    Family(
        "rotate",
        _NUMBERS,
        "ints",
        "the numbers rotated to the left by {k} places (the first goes to the end, {k} times)",
        "if not numbers:\n    return []\ns = {k} % len(numbers)\nreturn numbers[s:] + numbers[:s]",
        _SMALL,
        _ints(-9, 9),
    ),
    Family(
        "shift_letters",
        _TEXT,
        "str",
        "the text with every letter from a to z moved {k} places on in the alphabet, going "
        "from z back to a; other characters stay",
        'return "".join(chr((ord(c) - 97 + {k}) % 26 + 97) if "a" <= c <= "z" else c for c in text)',
        _SMALL,
        _text,
    ),
    Family(
        "every_kth",
        _NUMBERS,
        "ints",
        "the numbers at places {k}, 2 x {k}, 3 x {k} and so on, counting places from 1",
        "return numbers[{k} - 1 :: {k}]",
        _SMALL,
        _ints(-99, 99, 0, 30),
    ),
    Family(
        "in_base",
        _N,
        "str",
        "n written in base {k}, with the letters a, b, c, ... for digits above 9",
        'digits = ""\nwhile n or not digits:\n    n, d = divmod(n, {k})\n'
        '    digits = "0123456789abcdefghijklmnopqrstuvwxyz"[d] + digits\nreturn digits',
        (*range(2, 10), 11, 12, 16, 20),
        _int(0, 5000),
    ),
    Family(
        "clamp",
        _NUMBERS,
        "ints",
        "the numbers with each one above {k} replaced by {k} and each one below -{k} by -{k}",
        "return [max(-{k}, min({k}, x)) for x in numbers]",
        _SMALL,
        _ints(-20, 20),
    ),
    Family(
        "best_window",
        _NUMBERS,
        "int",
        "the largest sum of {k} numbers that stand next to one another; there are at least {k} numbers",
        "return max(sum(numbers[i : i + {k}]) for i in range(len(numbers) - {k} + 1))",
        _SMALL,
        _window,
    ),
    Family(
        "power",
        _N,
        "int",
        "n to the power of {k}, modulo 1000007",
        "return pow(n, {k}, 1000007)",
        _SMALL,
        _int(0, 2000),
    ),
    Family(
        "without_letter",
        _TEXT,
        "str",
        "the text without any letter {k}",
        'return text.replace("{k}", "")',
        _LETTERS,
        _text,
    ),
    Family(
        "count_letter",
        _TEXT,
        "int",
        "how often the letter {k} occurs in the text",
        'return text.count("{k}")',
        _LETTERS,
        _text,
    ),
    Family(
        "longest_run",
        _NUMBERS,
        "int",
        "how many times at most {k} occurs in a row, with nothing else between",
        "best = run = 0\nfor x in numbers:\n    run = run + 1 if x == {k} else 0\n    best = max(best, run)\n"
        "return best",
        _SMALL,
        lambda rng, k: ([rng.choice((k, k, k, k + 1, 0)) for _ in range(rng.randint(0, 16))],),
    ),
    Family(
        "pairs_with_sum",
        _NUMBERS,
        "int",
        "the number of pairs of places i < j whose numbers add up to {k}",
        "return sum(a + b == {k} for i, a in enumerate(numbers) for b in numbers[i + 1 :])",
        _SMALL,
        _ints(-3, 12),
    ),
    Family(
        "recurrence",
        _N,
        "int",
        "the value a(n) of the sequence with a(0) = 0, a(1) = 1 and a(i) = a(i - 1) + {k} x a(i - 2)",
        "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, b + {k} * a\nreturn a",
        _SMALL,
        _int(0, 25),
    ),
    Family(
        "chunk_sums",
        _NUMBERS,
        "ints",
        "the sums of the first {k} numbers, of the next {k}, and so on; the last sum may be of fewer",
        "return [sum(numbers[i : i + {k}]) for i in range(0, len(numbers), {k})]",
        _SMALL,
        _ints(-20, 20, 0, 20),
    ),
    Family(
        "has_difference",
        _NUMBERS,
        "bool",
        "whether two of the numbers differ by exactly {k}",
        "return any(x + {k} in numbers for x in numbers)",
        _SMALL,
        _ints(-15, 15, 0, 7),
    ),
    Family(
        "long_words",
        _TEXT,
        "str",
        "the words of the text whose first letter is not {k}, in reverse order, with single spaces between",
        'return " ".join(w for w in reversed(text.split()) if w[0] != "{k}")',
        tuple("abcdefghijkl"),
        _text,
    ),
    Family(
        "next_multiple",
        _N,
        "int",
        "the smallest multiple of {k} that is greater than n",
        "return (n // {k} + 1) * {k}",
        _SMALL,
        _int(-200, 2000),
    ),
    Family(
        "mask",
        _TEXT,
        "str",
        "the text with every {k}-th character replaced by a star (the characters at places {k}, 2 x {k} "
        "and so on, counting from 1)",
        'return "".join("*" if i % {k} == 0 else c for i, c in enumerate(text, 1))',
        _SMALL,
        _text,
    ),
    Family(
        "digit_sum",
        _N,
        "int",
        "the sum of the digits of n when it is written in base {k}",
        "total = 0\nwhile n:\n    n, d = divmod(n, {k})\n    total += d\nreturn total",
        _SMALL,
        _int(0, 9000),
    ),
    Family(
        "kth_smallest",
        _NUMBERS,
        "int",
        "the {k}-th smallest of the numbers, equal ones counted apart; there are at least {k}",
        "return sorted(numbers)[{k} - 1]",
        _SMALL,
        _window,
    ),
)

_INPUT = {"int": "a whole number", "ints": "whole numbers with spaces between, perhaps none", "str": "a text"}
_GIVEN = {"int": "a whole number", "ints": "a list of whole numbers", "str": "a text"}
_PRINT = {
    "int": "the number", "ints": "the numbers in one line, with spaces between", "str": "the text",
    "bool": "yes or no",
}  # fmt: skip
_RETURN = {
    "int": "a whole number",
    "ints": "a list of whole numbers",
    "str": "a text",
    "bool": "True or False",
}
_READ = {"int": "int(input())", "ints": "[int(x) for x in input().split()]", "str": "input()"}
_SHOW = {
    "int": "print({})", "ints": "print(*{})", "str": "print({})", "bool": 'print("yes" if {} else "no")',
}  # fmt: skip


def _line(kind: str, value: Any) -> str:
    if kind == "ints":
        return " ".join(map(str, value))
    return ("yes" if value else "no") if kind == "bool" else str(value)


def _function(family: Family, k: Any) -> str:
    names = ", ".join(name for name, _ in family.arguments)
    body = "\n".join(f"    {line}" for line in family.body.replace("{k}", str(k)).split("\n"))
    return f"def {family.name}({names}):\n{body}\n"


@functools.cache
def _tests(family: Family, k: Any) -> tuple[tuple[tuple[Any, ...], Any], ...]:
    """Arguments and results, all different in their arguments, and as different in their results as can be had.

    Of `CANDIDATES` draws one is taken for each result in turn, so that no constant answer passes more than its share.
    """
    space: dict[str, Any] = {}
    exec(_function(family, k), space)  # this module's own source
    rng = random.Random(f"{family.name} {k}")
    drawn = {repr(arguments): arguments for arguments in (family.draw(rng, k) for _ in range(CANDIDATES))}
    by_result: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}
    for arguments in drawn.values():
        result = space[family.name](*arguments)
        by_result.setdefault(repr(result), []).append((arguments, result))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_result.values()))
    return tuple(itertools.islice((test for test in in_turn if test is not None), TESTS))


def _example(family: Family, tests: Sequence[tuple[tuple[Any, ...], Any]]) -> tuple[tuple[Any, ...], Any]:
    """The first test without an empty line in its input or output."""

    def lines(test: tuple[tuple[Any, ...], Any]) -> list[str]:
        kinds = [*(kind for _, kind in family.arguments), family.result]
        return [_line(kind, value) for kind, value in zip(kinds, [*test[0], test[1]], strict=True)]

    return next(test for test in tests if all(line.strip() for line in lines(test)))


def _problem(family: Family, k: Any, form: str) -> Problem:
    task, tests = family.task.replace("{k}", str(k)), _tests(family, k)
    function, example = _function(family, k), _example(family, tests)
    kinds = [kind for _, kind in family.arguments]
    if form == "function":
        given = " and ".join(f"{name}, {_GIVEN[kind]}" for name, kind in family.arguments)
        shown = ", ".join(map(repr, example[0]))
        statement = (
            f"Write a Python function {family.name}({', '.join(n for n, _ in family.arguments)}) of {given}.\n"
            f"It returns {task}.\nThe result is {_RETURN[family.result]}.\n"
            f"Example: {family.name}({shown}) returns {example[1]!r}.\n"
        )
        cases = tuple(Case(CallTest(family.name, arguments), result) for arguments, result in tests)
        solution = function
    else:
        lines = "\n".join(
            f"Line {i} of the input is {name}: {_INPUT[kind]}."
            for i, (name, kind) in enumerate(family.arguments, 1)
        )

        def read(arguments: Sequence[Any]) -> str:
            return "".join(_line(kind, a) + "\n" for kind, a in zip(kinds, arguments, strict=True))

        statement = (
            f"Write a Python program that reads its input and prints {task}.\n{lines}\n"
            f"It prints {_PRINT[family.result]}.\n"
            f"Example input:\n{read(example[0])}Example output:\n{_line(family.result, example[1])}\n"
        )
        cases = tuple(Case(StdinTest(read(a)), _line(family.result, r) + "\n") for a, r in tests)
        inputs = ", ".join(_READ[kind] for kind in kinds)
        solution = f"{function}\n" + _SHOW[family.result].format(f"{family.name}({inputs})") + "\n"
    return Problem(f"{family.name}/{k}/{form}", _tidy(statement), cases, solution=solution)


def _tidy(text: str) -> str:
    """Without spaces at the ends of lines and without empty lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.split("\n") if line.strip())


def generated() -> dict[str, tuple[Problem, ...]]:
    """Problems by split, train and eval; no family's parameter is in both."""
    splits: dict[str, list[Problem]] = {"train": [], "eval": []}
    for number, family in enumerate(FAMILIES):
        for index, k in enumerate(family.parameters):
            split = "eval" if (index + number) % HELD_OUT == 0 else "train"
            splits[split] += [_problem(family, k, form) for form in ("function", "program")]
    return {split: tuple(problems) for split, problems in splits.items()}
