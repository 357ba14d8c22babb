"""Cuts an answer into actions and looks names up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8

from envs_jax.core import Span
from envs_jax.errors import ConfigError
from envs_jax.text.scan import first_true, is_space, last_true, occurrences, running_max


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NameTable:
    """Lower-case names as bytes: name i is `data[i, :length[i]]`, zeros beyond."""

    data: UInt8[Array, "n A"]
    length: Int[Array, " n"]

    @staticmethod
    def build(names: Sequence[str], width: int) -> NameTable:
        """Table of `names` for spans of `width` bytes; ASCII letters are lower-cased."""
        rows = [name.encode().lower() for name in names]
        longest = max(map(len, rows))
        if longest > width:
            raise ConfigError(
                "answer_bytes", width, f"the longest action name has {longest} bytes; use at least that"
            )
        data = np.zeros((len(rows), width), np.uint8)
        for row, name in zip(data, rows, strict=True):
            row[: len(name)] = np.frombuffer(name, np.uint8)
        return NameTable(jnp.asarray(data), jnp.asarray([len(r) for r in rows], jnp.int32))


def check_separator(separator: str) -> None:
    """Raises unless occurrences of `separator` can be told apart in parallel.

    That holds for a repeated character ("||") and for strings of which no proper prefix is a suffix.
    """
    sep = separator.encode()
    if not sep:
        raise ConfigError("action_sep", separator, "give at least one character")
    overlaps = any(sep.startswith(sep[i:]) for i in range(1, len(sep)))
    if overlaps and len(set(sep)) > 1:
        raise ConfigError(
            "action_sep", separator, 'it overlaps with itself; use one such as "||", ";" or "->"'
        )


def _separators(
    data: UInt8[Array, " N"], inside: Bool[Array, " N"], stop: Int[Array, ""], sep: bytes
) -> Bool[Array, " N"]:
    """Where `str.split` would cut: the first byte of each separator inside the region."""
    slots = jnp.arange(data.shape[0], dtype=jnp.int32)
    found = inside & occurrences(data, sep) & (slots + len(sep) <= stop)
    if len(sep) > 1 and len(set(sep)) == 1:  # "|||" is one separator and a bar: count along the run
        other = running_max(jnp.where(inside & (data == sep[0]), -1, slots))
        found &= (slots - other - 1) % len(sep) == 0
    return found


def split_actions(
    data: UInt8[Array, " N"],
    start: Int[Array, ""],
    stop: Int[Array, ""],
    *,
    separator: str | None,
    max_actions: int,
    width: int,
    fold_case: bool = True,
) -> tuple[Span, Int[Array, ""]]:
    """The first K non-empty pieces of `data[start:stop]`, as `str.split(separator)` and `str.strip()` give
    them.

    Args:
        data: bytes of the response.
        start, stop: the answer; an empty region gives no pieces.
        separator: None for an answer that is one action.
        max_actions: K.
        width: A, bytes kept of each piece.
        fold_case: whether ASCII letters are lower-cased.

    Returns:
        Spans with leading axis K (zeros beyond the length; length 0 for missing
        pieces), and how many pieces there are, at most K. Whitespace is ASCII.
    """
    n = data.shape[0]
    slots = jnp.arange(n, dtype=jnp.int32)
    inside = (slots >= start) & (slots < stop)
    visible = inside & ~is_space(data)
    cuts = jnp.zeros((n,), bool)
    step = 0
    if separator is not None:
        sep = separator.encode()
        cuts, step = _separators(data, inside, stop, sep), len(sep)
        covered = cuts
        for i in range(1, step):
            covered |= jnp.pad(cuts, (i, 0))[:n]
        visible &= ~covered

    cursor = jnp.asarray(start, jnp.int32)
    firsts, lengths = [], []
    for _ in range(max_actions):
        first = first_true(visible & (slots >= cursor))
        cut = first_true(cuts & (slots >= first))
        last = last_true(visible & (slots >= first) & (slots < cut))
        firsts.append(first)
        lengths.append(jnp.maximum(last - first + 1, 0))
        cursor = cut + step
    first_, length_ = jnp.stack(firsts), jnp.stack(lengths)
    columns = jnp.arange(width, dtype=jnp.int32)
    pieces = data.at[first_[:, None] + columns].get(mode="fill", fill_value=0)
    pieces = jnp.where(columns < length_[:, None], lower(pieces) if fold_case else pieces, 0).astype(
        jnp.uint8
    )
    return Span(pieces, length_), jnp.sum(length_ > 0, dtype=jnp.int32)


def lower(data: UInt8[Array, " ..."]) -> UInt8[Array, " ..."]:
    """ASCII letters in lower case, other bytes as they are."""
    return jnp.where((data >= 65) & (data <= 90), data + 32, data).astype(jnp.uint8)


def match_name(span: Span, table: NameTable) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Index of the first name that equals the span, and whether there is one (else index 0)."""
    same = jnp.all(table.data == span.data, axis=1) & (table.length == span.length)
    at = first_true(same)
    found = at < table.length.shape[0]
    return jnp.where(found, at, 0), found
