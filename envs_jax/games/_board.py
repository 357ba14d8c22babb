"""What the board games share: action names in bytes, coordinate lists, fragment lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8

from envs_jax.core import Span

OBSERVATION_FORMATS = ("grid", "coord", "grid_coord")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NameTable:
    """Lower-case ASCII names, padded with zero bytes to the longest, and their lengths in bytes."""

    data: UInt8[Array, "K A"]
    length: Int[Array, " K"]


def name_table(names: Sequence[str]) -> NameTable:
    """Table of `names` for `match_name`. Names must be ASCII."""
    encoded = [name.lower().encode("ascii") for name in names]
    data = np.zeros((len(encoded), max(map(len, encoded))), np.uint8)
    for row, name in zip(data, encoded, strict=True):
        row[: len(name)] = list(name)
    return NameTable(jnp.asarray(data), jnp.asarray([len(name) for name in encoded], jnp.int32))


def match_name(span: Span, table: NameTable) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Index of the name that equals the span (trimmed, lower case), and whether there is one (if not, 0)."""
    width, given = table.data.shape[1], span.data.shape[0]
    data = jnp.pad(span.data, (0, max(0, width - given)))[:width]
    inside = jnp.arange(width, dtype=jnp.int32) < table.length[:, None]
    equal = jnp.all((table.data == data) | ~inside, axis=1) & (table.length == span.length)
    return jnp.argmax(equal).astype(jnp.int32), jnp.any(equal)


def check_format(observation_format: str) -> None:
    """Raises ValueError unless the format is one of OBSERVATION_FORMATS."""
    if observation_format not in OBSERVATION_FORMATS:
        raise ValueError(
            f"observation_format must be one of {', '.join(OBSERVATION_FORMATS)}, got {observation_format!r}"
        )


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
