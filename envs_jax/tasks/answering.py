"""What the tasks share whose action is a whole answer."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from envs_jax.core import Environment
from envs_jax.errors import ConfigError


@dataclass(frozen=True)
class AnswerTask(Environment):
    """An environment whose action is all that an answer holds. It pays between 0 and 1, unless it says otherwise."""

    @property
    def splits_actions(self) -> bool:
        return False

    @property
    def reward_range(self) -> tuple[float, float]:
        return (0.0, 1.0)

    def _check_least(self, **least: int) -> None:
        """Raises ConfigError for the first of these fields that is below its least value."""
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ConfigError(name, getattr(self, name), f"use a number of at least {value}")


def shuffled_rows(key: Array, rows: int, levels: int) -> Int[Array, " levels"]:
    """The row of each level, i32: rows 0 .. `rows` - 1 in a random order, over again where levels go on."""
    return jax.random.permutation(key, rows)[jnp.arange(levels) % rows].astype(jnp.int32)
