"""Countdown instances from tables: the published file by tensorflow-datasets, and reasoning-gym's generator.

Published rows are `{"target": 98, "nums": [44, 19, 35]}`, as parquet or as JSON lines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from envs_jax.datasets import reasoning_gym
from envs_jax.datasets.splits import halves
from envs_jax.datasets.table import RowError, check_rows, field, number
from envs_jax.datasets.tfds_source import read_split
from envs_jax.errors import ConfigError, suggestion

DATASETS = ("tfds/countdown", "reasoning_gym/countdown")
LARGEST = 10**9 - 1  # numbers of more digits are not read in answers
MAX_NUMBERS = 8
SPLIT_NAMES = {"train": "train", "eval": "validation"}


@dataclass(frozen=True)
class Instance:
    """Numbers to use once each, and what they should make."""

    numbers: tuple[int, ...]
    target: int

    @property
    def content(self) -> str:
        """The same for instances that differ in the order of their numbers alone."""
        return f"{sorted(self.numbers)} -> {self.target}"


def parse_instance(record: Any) -> Instance:
    """An instance from a decoded row; raises RowError."""
    target = field(record, "target", int)
    numbers = field(record, "nums", (list, tuple))
    if not 1 <= len(numbers) <= MAX_NUMBERS:
        raise RowError("out of range", f"{len(numbers)} numbers, 1 to {MAX_NUMBERS} expected")
    for name, value in [("target", target), *(("nums", n) for n in numbers)]:
        if not isinstance(value, int) or isinstance(value, bool):
            raise RowError("wrong type", f"{name} holds {value!r}, int expected")
        if not 0 <= value <= LARGEST:
            raise RowError("out of range", f"{name} holds {value}, 0 to {LARGEST} expected")
    return Instance(tuple(numbers), target)


@functools.lru_cache(maxsize=8)
def load_countdown(
    dataset: str, data_dir: str | None, count: int, seed: int, on_bad_row: str
) -> dict[str, tuple[Instance, ...]]:
    """At most `count` instances for each of "train" and "eval".

    Args:
        dataset: one of DATASETS.
        data_dir: of tensorflow-datasets; None for its default.
        count: for each split.
        seed: of generators.
        on_bad_row: "refuse" or "skip".
    """
    if dataset == "reasoning_gym/countdown":

        def instances() -> Iterator[Instance]:
            for item in reasoning_gym.items("countdown", seed):
                meta = item["metadata"]
                yield Instance(tuple(meta["numbers"]), meta["target"])

        return halves(instances(), lambda i: i.content, count, limit=100 * count)
    if dataset == "tfds/countdown":
        tables = {}
        for split, name in SPLIT_NAMES.items():
            rows = read_split("countdown", name, data_dir, count)
            source = f"{dataset}, {name}"
            tables[split] = check_rows(
                number(rows), parse_instance, source=source, on_bad_row=on_bad_row, place="row"
            ).rows
        return tables
    raise ConfigError("dataset", dataset, suggestion(dataset, ("generated", *DATASETS)))
