"""Tables of problems by the names that the environment's `dataset` knows, each read once in a process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from envs_jax.errors import ConfigError, suggestion
from envs_jax.tasks.deepcoder import generator
from envs_jax.tasks.deepcoder.problems import Problem

Splits = dict[str, tuple[Problem, ...]]  # train and eval


def _generated(data_dir: Path | None, on_bad_row: str) -> Splits:
    return generator.generated()


def _human_eval(data_dir: Path | None, on_bad_row: str) -> Splits:
    from envs_jax.tasks.deepcoder import human_eval

    return human_eval.problems()


def _deepcoder(data_dir: Path | None, on_bad_row: str) -> Splits:
    from envs_jax.datasets import deepcoder

    if data_dir is None:
        remedy = "name the folder that holds the published files (see envs_jax.datasets.deepcoder)"
        raise ConfigError("data_dir", data_dir, remedy)
    return deepcoder.splits(data_dir, on_bad_row=on_bad_row)


SOURCES: dict[str, Callable[[Path | None, str], Splits]] = {
    "generated": _generated, "human_eval": _human_eval, "deepcoder": _deepcoder,
}  # fmt: skip


@functools.lru_cache(maxsize=8)
def load(dataset: str, data_dir: str | None, on_bad_row: str) -> Splits:
    """The problems of a data set by split. Raises ConfigError for a name that is not known, or a missing folder."""
    if dataset not in SOURCES:
        raise ConfigError("dataset", dataset, suggestion(dataset, SOURCES))
    return SOURCES[dataset](None if data_dir is None else Path(data_dir), on_bad_row)
