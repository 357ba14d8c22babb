"""Splits by content: what decides the split of a row is a hash of what it says, so equal rows never fall apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")

SHARES = (("train", 90), ("validation", 5), ("test", 5))  # percent


def bucket(content: str, count: int) -> int:
    """A number in 0 .. count - 1 that depends on the text alone."""
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def split_of(content: str) -> str:
    """ "train", "validation" or "test", in the shares of `SHARES`."""
    place = bucket(content, 100)
    for name, share in SHARES:
        if place < share:
            return name
        place -= share
    raise AssertionError("the shares sum to 100")


def halves(
    items: Iterable[T], content: Callable[[T], str], count: int, limit: int
) -> dict[str, tuple[T, ...]]:
    """The first `count` items each for "train" and "eval" of a generator; no content appears twice.

    Raises ValueError when `limit` items were looked at and there are not enough.
    """
    kept: dict[str, dict[Hashable, T]] = {"train": {}, "eval": {}}
    for looked, item in enumerate(items):
        text = content(item)
        half = kept["train" if bucket(text, 2) == 0 else "eval"]
        if len(half) < count:
            half.setdefault(text, item)
        if all(len(h) == count for h in kept.values()):
            break
        if looked >= limit:
            break
    short = min(len(h) for h in kept.values())
    if short < count:
        raise ValueError(f"the source gave {short} different items of {count} that are needed in each split")
    return {name: tuple(half.values()) for name, half in kept.items()}
