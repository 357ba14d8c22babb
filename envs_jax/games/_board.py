"""What the board games share: coordinate blocks and fragment lists."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from envs_jax.errors import ConfigError, suggestion

OBSERVATION_FORMATS = ("grid", "coord", "grid_coord")


def check_format(observation_format: str) -> None:
    """Raises ConfigError unless the format is one of OBSERVATION_FORMATS."""
    if observation_format not in OBSERVATION_FORMATS:
        remedy = suggestion(str(observation_format), OBSERVATION_FORMATS)
        raise ConfigError("observation_format", observation_format, remedy)


def size_line(rows: int, cols: int) -> str:
    """First line of a coordinate block."""
    return f"Board size: {rows} rows x {cols} cols (zero-indexed).\n"


def header(observation_format: str, rows: int, cols: int) -> str:
    """Everything before the first coordinate list: titles and the board size. Empty for the grid format."""
    if observation_format == "grid":
        return ""
    return ("Coordinates:\n" if observation_format == "grid_coord" else "") + size_line(rows, cols)


def coordinate_sentence(rows: int, cols: int) -> str:
    """One sentence of the instruction: how to read (row, column)."""
    return (
        f"Positions are also given as (row, column), counted from 0: (0, 0) is the top left cell and "
        f"({rows - 1}, {cols - 1}) the bottom right one; Down adds 1 to the row, Right adds 1 to the column."
    )


def compact(ids: Int[Array, " F"]) -> Int[Array, " F"]:
    """Moves the ids >= 0 to the front in order; the rest becomes -1."""
    present = ids >= 0
    slot = jnp.where(present, jnp.cumsum(present, dtype=jnp.int32) - 1, ids.shape[0])
    return jnp.full_like(ids, -1).at[slot].set(ids, mode="drop")
