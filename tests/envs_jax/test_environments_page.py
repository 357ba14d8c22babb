"""docs/environments.md: its table is that of the registry, and its example runs and does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import text_agent

import envs_jax
from envs_jax.testing import RULES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "environments.md").read_text(encoding="utf-8")


def test_table_is_that_of_the_registry() -> None:
    # In a process of its own, as other tests register tags.
    command = [sys.executable, str(DOCS / "build_environments.py"), "--check"]
    environ = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(command, capture_output=True, text=True, cwd=DOCS.parent, env=environ)
    assert done.returncode == 0, done.stderr


def test_every_rule_is_explained() -> None:
    table = PAGE.partition("## The contract")[2]
    explained = [
        name for cell in re.findall(r"^\| (`.*?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(explained) == sorted(RULES)


def test_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert 55 <= len([line for line in block.splitlines() if line.strip()]) <= 80
    exec(compile(block, "environments.md", "exec", dont_inherit=True), {"__name__": "example"})
    assert "executed=" in capsys.readouterr().out
    env, params = envs_jax.make("Corridor", num_levels=16, max_turns=5)

    def agent(states: list[str]) -> list[str]:
        out = []
        for state in states:
            room, door = map(int, re.findall(r"room (\d+)", state))
            out.append(" || ".join(["Right" if door > room else "Left"] * min(2, abs(door - room))))
        return out

    played = text_agent.play(env, params, agent, 16)
    assert played["success"].mean() == 1.0
    assert played["reward"].tolist() == [1.0] * 16
