"""Chooses the rollouts that a report embeds: few enough to send in a page, of every part of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_TEXT = 20_000  # characters of one text field
MAX_TOTAL = 6_000_000  # characters of all


@dataclass(frozen=True)
class RolloutSample:
    """Embedded rollouts, and how many there are on disk."""

    rollouts: tuple[dict[str, Any], ...] = ()
    total: int = 0  # in the files that were read
    files: int = 0
    files_read: int = 0
    cut_texts: int = 0  # texts shortened to MAX_TEXT


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced, first and last among them."""
    if len(items) <= count:
        return list(items)
    if count <= 1:
        return list(items[-1:])[:count]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def choose(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` rows in their order, half successes and half failures as far as there are enough."""
    won = [i for i, row in enumerate(rows) if row.get("success")]
    lost = [i for i, row in enumerate(rows) if not row.get("success")]
    n_won = min(len(won), max(count - len(lost), (count + 1) // 2))
    n_lost = min(len(lost), count - n_won)
    return [rows[i] for i in sorted(won[:n_won] + lost[:n_lost])]


def read_rollouts(
    folder: Path,
    read_lines: Callable[[Path, list[str]], Iterator[dict[str, Any]]],
    notes: list[str],
    *,
    limit: int = 200,
    max_total: int = MAX_TOTAL,
) -> RolloutSample:
    """Reads <split>_<step>.jsonl files; keeps at most `limit` rollouts and `max_total` characters.

    Files are taken evenly over the steps of each split, first and last included, and each gives the same
    number, half of them successes where possible. Texts longer than `MAX_TEXT` are cut, with a mark.
    """
    paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    splits: dict[str, list[Path]] = {}
    for path in paths:
        splits.setdefault(re.sub(r"_\d+$", "", path.stem), []).append(path)
    taken: list[Path] = []
    if limit > 0:
        per_split = max(2, limit // (8 * max(len(splits), 1)))
        taken = [p for group in splits.values() for p in spread(sorted(group, key=_step_of), per_split)]
        taken = taken[:limit]
    quota = limit // len(taken) if taken else 0
    kept: list[dict[str, Any]] = []
    total = cut = characters = 0
    for path in taken:
        rows = [row for row in read_lines(path, notes) if isinstance(row.get("turns"), list)]
        total += len(rows)
        for row in choose(rows, quota):
            short, shortened, size = _shorten(row)
            if characters + size > max_total:
                notes.append(
                    f"{path.name}: further rollouts were left out, the page is at its limit of text."
                )
                break
            characters += size
            cut += shortened
            kept.append(short)
    kept.sort(
        key=lambda r: (str(r.get("split")), r.get("step") or 0, r.get("group") or 0, r.get("member") or 0)
    )
    return RolloutSample(tuple(kept), total=total, files=len(paths), files_read=len(taken), cut_texts=cut)


def _step_of(path: Path) -> int:
    found = re.search(r"_(\d+)$", path.stem)
    return int(found.group(1)) if found else 0


def _shorten(value: Any) -> tuple[Any, int, int]:
    """(value with long texts cut, number of texts cut, characters that remain)."""
    if isinstance(value, str):
        if len(value) <= MAX_TEXT:
            return value, 0, len(value)
        return (
            value[:MAX_TEXT] + f"\n[{len(value) - MAX_TEXT} more characters are not in this page]",
            1,
            MAX_TEXT,
        )
    if isinstance(value, float) and not math.isfinite(value):
        return None, 0, 4
    if isinstance(value, list):
        parts = [_shorten(v) for v in value]
        return [p[0] for p in parts], sum(p[1] for p in parts), sum(p[2] for p in parts)
    if isinstance(value, dict):
        named = {k: _shorten(v) for k, v in value.items()}
        parts = list(named.values())
        return {k: p[0] for k, p in named.items()}, sum(p[1] for p in parts), sum(p[2] + 8 for p in parts)
    return value, 0, 8
