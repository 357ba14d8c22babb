"""Collectives and estimated time of a compiled program, read from its text."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable

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


_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLED = re.compile(r"\b(condition|body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BOUND = re.compile(r"= s32\[\]\S* constant\((\d+)\)")


def cycles(text: str, unknown: Callable[[bool, bool], int] = lambda contains, within: 1) -> int:
    """The TPU compiler's own estimate of a program's clock cycles, of the HLO text that it gives back.

    The estimates of instructions, times the rounds of the loops around them: the bound in a loop's condition, which a
    loop that ends early does not reach, or `unknown(contains another such loop, lies within one)` where the bound is
    only known at run time. Of branches the dearest counts. Collectives and Pallas kernels have no estimate.
    """
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[1]
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            bodies[name].append(line)

    def bound(condition: str) -> int | None:
        return (
            max((int(n) for line in bodies.get(condition, ()) for n in _BOUND.findall(line)), default=0)
            or None
        )

    @functools.cache
    def contains(name: str) -> bool:
        """Whether a loop of unknown bound is somewhere below."""
        for line in bodies.get(name, ()):
            called = dict(_CALLED.findall(line))
            if "condition" in called and bound(called["condition"]) is None:
                return True
            below = [*called.values(), *_names(line)]
            if (" while(" in line or " conditional(" in line or " call(" in line) and any(
                map(contains, below)
            ):
                return True
        return False

    @functools.cache
    def total(name: str, within: bool) -> int:
        count = 0
        for line in bodies.get(name, ()):
            called = dict(_CALLED.findall(line))
            if found := _CYCLES.search(line):
                count += int(found[1])
            elif " while(" in line:
                body, rounds = called["body"], bound(called["condition"])
                inside = within or rounds is None
                rounds = unknown(contains(body), within) if rounds is None else rounds
                count += rounds * total(body, inside)
            elif " conditional(" in line:
                branches = [
                    *_names(line),
                    *(n for kind, n in called.items() if kind.endswith("_computation")),
                ]
                count += max((total(n, within) for n in branches), default=0)
            elif " call(" in line:
                count += total(called["to_apply"], within)
        return count

    return total(entry, False)


def _names(line: str) -> list[str]:
    found = _BRANCHES.search(line)
    return [n.strip().lstrip("%") for n in found[1].split(",")] if found else []
