"""Rows of DeepCoder's published data in the styles of its four sources, and problems as one text each.

Tests come as JSON, in the styles of PrimeIntellect (`type`, `fn_name`), LiveCodeBench (`testtype`, `metadata`), TACO
(one object of `inputs` and `outputs`) and Codeforces (`input` and `output` alone). Other formats are refused by name.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from envs_jax.datasets.table import RowError, field, text_field
from envs_jax.tasks.deepcoder.problems import Case, Problem
from envs_jax.tasks.deepcoder.sandbox import values
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest, StdinTest
from envs_jax.text.chat import CHAT_FORMATS

CONTROL = tuple(sorted({token for chat in CHAT_FORMATS.values() for token in chat.required}))
_STDIN = ("stdin", "stdin_stdout")
_CALLS = ("functional", "function_call")


def _decoded(value: Any, name: str) -> Any:
    """JSON text decoded; what is decoded already stays."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("malformed", f"{name} is not JSON ({type(error).__name__})") from None


def _literal(text: str) -> Any:
    """A value written as JSON or as a Python literal; other text stands for itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _text(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise RowError("unknown test format", f"{what} of a program is {type(value).__name__}, not text")
    return value


def _call(name: Any, given: Any, wanted: Any) -> Case:
    if not isinstance(name, str) or not name.isidentifier():
        raise RowError("unknown test format", f"function name {name!r}")
    if isinstance(given, str):  # LiveCodeBench: a line for each argument
        arguments = tuple(_literal(line) for line in given.split("\n") if line.strip())
        return Case(CallTest(name, arguments), _literal(wanted) if isinstance(wanted, str) else wanted)
    if not isinstance(given, list):
        raise RowError("unknown test format", f"arguments are {type(given).__name__}, not a list")
    # Here an expected value may stand in a list of its own.
    return Case(CallTest(name, tuple(given)), wanted, wrapped=True)


def _case(test: Any, metadata: Any) -> Case:
    if not isinstance(test, Mapping) or "input" not in test or "output" not in test:
        raise RowError("unknown test format", f"a test is {_keys(test)}")
    kind = test.get("testtype", test.get("type", "stdin"))
    if kind in _STDIN:
        return Case(StdinTest(_text(test["input"], "input")), _text(test["output"], "output"))
    if kind in _CALLS:
        own = test.get("metadata")
        sources = [m for m in (own, metadata) if isinstance(m, Mapping)]
        name = test.get("fn_name") or next((m["func_name"] for m in sources if m.get("func_name")), None)
        return _call(name, test["input"], test["output"])
    raise RowError("unknown test format", f"tests of type {kind!r}")


def _keys(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object of {', '.join(sorted(map(str, value))) or 'nothing'}"
    return type(value).__name__


def read_tests(tests: Any, metadata: Any = None) -> tuple[Case, ...]:
    """Cases of a row's decoded `tests`; raises RowError for a format that is not known, and for none at all."""
    if isinstance(tests, Mapping):
        given, wanted = tests.get("inputs"), tests.get("outputs")
        if not isinstance(given, list) or not isinstance(wanted, list):
            raise RowError("unknown test format", f"tests are {_keys(tests)}")
        if len(given) != len(wanted):
            raise RowError("unknown test format", f"{len(given)} inputs for {len(wanted)} outputs")
        name = tests.get("fn_name")
        cases = tuple(
            _call(name, i if isinstance(i, list) else [i], o)
            if name
            else Case(StdinTest(_text(i, "input")), _text(o, "output"))
            for i, o in zip(given, wanted, strict=True)
        )
    elif isinstance(tests, list):
        cases = tuple(_case(test, metadata) for test in tests)
    else:
        raise RowError("unknown test format", f"tests are {_keys(tests)}")
    if not cases:
        raise RowError("no tests", "the list of tests is empty")
    return cases


def parse_row(record: Any, name: str = "") -> Problem:
    """A problem from a published row (`problem`, `tests`, and where there are `starter_code`, `metadata`)."""
    question = text_field(record, "problem")
    starter = record.get("starter_code") or ""
    if not isinstance(starter, str):
        raise RowError("wrong type", f"starter_code is {type(starter).__name__}, text expected")
    metadata = _decoded(record.get("metadata"), "metadata")
    cases = read_tests(_decoded(field(record, "tests", (str, list, dict)), "tests"), metadata)
    statement = question
    if starter.strip():
        statement += f"\nYour code begins with:\n{starter.strip()}"
    for token in CONTROL:
        if token in statement:
            raise RowError("control token", f"the problem contains {token!r}")
    lines = [line.rstrip() for line in statement.split("\n")]
    return Problem(name, "\n".join(lines).strip() + "\n", cases, starter)


# -- as one text: what the prepared data set holds ---------------------------------------------------------
def dump_cases(cases: tuple[Case, ...]) -> str:
    """JSON of cases."""
    return json.dumps(
        [
            {"kind": "stdin", "input": c.given.text, "output": c.expected}
            if isinstance(c.given, StdinTest)
            else {
                "kind": "call", "name": c.given.name, "input": values.dumps(list(c.given.arguments)),
                "output": values.dumps(c.expected), "wrapped": c.wrapped,
            }
            for c in cases
        ]
    )  # fmt: skip


def load_cases(text: str) -> tuple[Case, ...]:
    """The cases of `dump_cases`."""
    return tuple(
        Case(StdinTest(c["input"]), c["output"])
        if c["kind"] == "stdin"
        else Case(
            CallTest(c["name"], tuple(values.loads(c["input"]))), values.loads(c["output"]), c["wrapped"]
        )
        for c in json.loads(text)
    )
