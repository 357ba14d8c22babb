"""Pages that are made from the source are those of this source."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import envs_jax
from envs_jax.turn import TurnConfig
from ragen_jax.training.config import Config, config_to_dict

DOCS = Path(__file__).parents[2] / "docs"


PAGE = DOCS / "configuration.md"


def test_configuration_page_is_of_this_source() -> None:
    # In a process of its own, as other tests register tags.
    command = [sys.executable, str(DOCS / "build_configuration.py"), "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=DOCS.parent, env={**os.environ, "PYTHONPATH": "."}
    )
    assert done.returncode == 0, done.stderr


def test_configuration_page_has_every_field() -> None:
    listed = set(re.findall(r"^\| `([a-z_]+\.[a-z_.]+)` \| `.*?` \| \S.* \|$", PAGE.read_text(), re.M))
    for section, values in config_to_dict(Config()).items():
        assert {f"{section}.{name}" for name in values} <= listed
    tags = [
        tag for tags in re.findall(r"^(\w+(?:, \w+)*):$", PAGE.read_text(), re.M) for tag in tags.split(", ")
    ]
    assert {"Bandit", "FrozenLake", "CoordSokoban"} <= set(tags)
    for tag in tags:
        fields = [*dataclasses.fields(envs_jax.spec(tag).factory), *dataclasses.fields(TurnConfig)]
        assert {f"env.{field.name}" for field in fields} <= listed


def test_names_that_are_compared_exist() -> None:
    page, _, table = PAGE.read_text().partition("## Names elsewhere")
    compared = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(compared) > 30
    for names in compared:
        first, *others = names.replace("*", "").split(", ")
        section = first.rpartition(".")[0]
        for name in (first, *(f"{section}.{other}" for other in others)):
            assert f"| `{name}" in page, name


def test_algorithms_page_maps_every_field() -> None:
    """Each field of `algorithm` has a row, and every configuration name in the first column exists."""
    table = (DOCS / "algorithms.md").read_text().partition("## Names elsewhere")[2]
    tree = config_to_dict(Config())
    named = set()
    for cell in re.findall(r"^\| (`.+?) \|", table, re.M):
        section, first = re.match(r"`(\w+)\.(\w+)`", cell).groups()
        prefix = re.match(r"rollout_filter", first)
        for name in [first, *re.findall(r"`(\w+)`", cell)[0:]]:
            full = f"{prefix.group()}{name}" if prefix and name.startswith("_") else name
            named.add(f"{section}.{full}")
    assert named >= {f"algorithm.{name}" for name in tree["algorithm"]}
    for name in named:
        section, _, field = name.partition(".")
        assert field in tree[section], name


def test_links_between_pages_lead_somewhere() -> None:
    for page in (*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
