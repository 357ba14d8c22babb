"""Collectives of a compiled program, read from its text."""

from __future__ import annotations

import re
from collections import Counter

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_WIDTH = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8,
}  # fmt: skip
# `%name = SHAPE kind(` or `kind-start(`; a -done refers to what its -start has counted.
_CALL = re.compile(rf"= (\S.*?) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


def collectives(text: str) -> dict[str, tuple[int, int]]:
    """{kind: (call sites, bytes of their results on one device)} of a program's HLO text.

    A site in a loop's body counts once, whatever the number of rounds.
    """
    sites: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for shape, kind, start in _CALL.findall(text):
        arrays = [_bytes(*found) for found in _ARRAY.findall(shape)]
        # A start's type holds operands, then results, then counters: the largest array is a result.
        total = max(arrays, default=0) if start else sum(arrays)
        sites[kind] += 1
        size[kind] += total
    return {kind: (sites[kind], size[kind]) for kind in KINDS if sites[kind]}


def _bytes(dtype: str, dimensions: str) -> int:
    total = _WIDTH.get(dtype, 0)
    for n in filter(None, dimensions.split(",")):
        total *= int(n)
    return total
