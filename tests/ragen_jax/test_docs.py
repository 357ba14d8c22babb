"""Pages that are made from the source are those of this source."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import envs_jax
from ragen_jax.training.config import Config, config_to_dict

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    found = importlib.util.spec_from_file_location("build_configuration", DOCS / "build_configuration.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_configuration_page_is_of_this_source(builder: ModuleType) -> None:
    assert builder.PAGE.read_text() == builder.build(), "out of date: run `make docs`"


def test_configuration_page_has_every_field(builder: ModuleType) -> None:
    listed = set(
        re.findall(r"^\| `([a-z_]+\.[a-z_.]+)` \| `.*?` \| \S.* \|$", builder.PAGE.read_text(), re.M)
    )
    for section, values in config_to_dict(Config()).items():
        assert {f"{section}.{name}" for name in values} <= listed
    ours = [t for t in envs_jax.registered() if envs_jax.spec(t).factory.__module__.startswith("envs_jax.")]
    assert ours
    for tag in ours:
        env, _ = envs_jax.make(tag, num_levels=2)
        fields = [*dataclasses.fields(env.env), *dataclasses.fields(env.config)]
        assert {f"env.{field.name}" for field in fields} <= listed


def test_names_that_are_compared_exist(builder: ModuleType) -> None:
    page = builder.PAGE.read_text()
    for names in builder.OTHER_NAMES:
        first, *others = names.replace("*", "").split(", ")
        section = first.rpartition(".")[0]
        for name in (first, *(f"{section}.{other}" for other in others)):
            assert f"| `{name}" in page, name


def test_links_between_pages_lead_somewhere() -> None:
    for page in (*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
