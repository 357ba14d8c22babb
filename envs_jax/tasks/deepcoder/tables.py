"""Tables of problems by the names that the environment's `dataset` knows, each read once in a process."""

from __future__ import annotations

import functools

from envs_jax.datasets.tfds_source import builder, read_split
from envs_jax.errors import ConfigError, suggestion
from envs_jax.tasks.deepcoder import codeio, generator, human_eval
from envs_jax.tasks.deepcoder.problems import Problem
from envs_jax.tasks.deepcoder.published import load_cases
from envs_jax.tasks.deepcoder.sandbox.pool import Limits, pool_for

DATASETS = ("generated", "human_eval", "reasoning_gym/codeio", "tfds/deepcoder")
SPLIT_NAMES = {"train": "train", "eval": "validation"}
Splits = dict[str, tuple[Problem, ...]]  # train and eval


def _prepared(data_dir: str | None, count: int) -> Splits:
    """The first `count` problems of each split of the data set that `tfds_source.prepare` has made."""
    out: Splits = {}
    known = builder("deepcoder", data_dir).info.splits
    for ours, theirs in SPLIT_NAMES.items():
        missing = known and theirs not in known  # too few problems for a validation split
        rows = [] if missing else read_split("deepcoder", theirs, data_dir, count)
        out[ours] = tuple(
            Problem(r["name"], r["statement"], load_cases(r["tests"]), r["starter"]) for r in rows
        )
    return out


@functools.lru_cache(maxsize=8)
def load(dataset: str, data_dir: str | None, count: int, sandbox: tuple[Limits, str, int]) -> Splits:
    """The problems of a data set by split, of a large one at most `count` a split.

    `sandbox`: arguments of `pool_for`, for data sets whose tests are made by running code.

    Raises ConfigError for a name that is not known, and for a data set that is not there.
    """
    if dataset == "generated":
        return generator.generated()
    if dataset == "human_eval":
        return human_eval.problems()
    if dataset == "tfds/deepcoder":
        return _prepared(data_dir, count)
    if dataset == "reasoning_gym/codeio":
        return codeio.problems(count, pool_for(*sandbox))
    raise ConfigError("dataset", dataset, suggestion(dataset, DATASETS))
