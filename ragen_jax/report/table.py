"""A run's metrics as named series over steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FAMILIES = {
    "collapse_first_turn_sample": "first turn",
    "collapse_trajectory_sample": "any turn of an episode",
    "collapse_turn_sample": "any turn",
}
"""How the pairs of a diagnosis were sampled: prefix of its metrics, and what it is called."""


@dataclass(frozen=True)
class Series:
    """Values of one metric where it was recorded and finite, by increasing step."""

    name: str
    steps: np.ndarray  # f64[n]
    values: np.ndarray  # f64[n]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def first(self) -> float | None:
        """Value at the earliest step, None if there is none."""
        return float(self.values[0]) if len(self) else None

    @property
    def last(self) -> float | None:
        """Value at the latest step, None if there is none."""
        return float(self.values[-1]) if len(self) else None


@dataclass(frozen=True)
class MetricsTable:
    """Metrics of a run: for each step the last value recorded of each name.

    `gaps` counts, by name, the steps whose last value is null, NaN or infinite; such values are in no series.
    """

    columns: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    gaps: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def from_records(records: Iterable[Mapping[str, Any]]) -> MetricsTable:
        """Builds the table from records {"step": int, name: number or null, ..}.

        Records of one step are merged, the later value wins (a resumed run logs some steps twice). Entries
        that are not numbers are left out; records without an integer step too.
        """
        columns: dict[str, dict[int, float]] = {}
        for record in records:
            step = record.get("step")
            if isinstance(step, bool) or not isinstance(step, (int, float)) or not float(step).is_integer():
                continue
            for name, value in record.items():
                if name == "step" or isinstance(value, (str, list, dict)):
                    continue
                columns.setdefault(name, {})[int(step)] = math.nan if value is None else float(value)
        gaps = {n: sum(not math.isfinite(v) for v in c.values()) for n, c in columns.items()}
        return MetricsTable(columns=columns, gaps={n: g for n, g in gaps.items() if g})

    def names(self, pattern: str = "") -> list[str]:
        """Names that match the regular expression from their start, sorted."""
        return sorted(name for name in self.columns if re.match(pattern, name))

    def series(self, name: str) -> Series:
        """The finite values of `name`; empty if it was never recorded."""
        points = sorted((s, v) for s, v in self.columns.get(name, {}).items() if math.isfinite(v))
        steps, values = zip(*points, strict=True) if points else ((), ())
        return Series(name, np.array(steps, float), np.array(values, float))

    def together(self, *names: str) -> tuple[np.ndarray, ...]:
        """(steps, values of each name) at the steps where all of them are finite."""
        columns = [self.columns.get(n, {}) for n in names]
        steps = sorted(set.intersection(*(set(c) for c in columns)) if columns else ())
        steps = [s for s in steps if all(math.isfinite(c[s]) for c in columns)]
        return (np.array(steps, float), *(np.array([c[s] for s in steps], float) for c in columns))

    def environments(self) -> list[str]:
        """Tags with held-out success, sorted."""
        return [m.group(1) for name in self.names() if (m := re.fullmatch(r"val-env/(.+)/success", name))]

    def level(self, series: Series, index: int) -> dict[str, float]:
        """A point of a curve of success as baselines are recorded: success, and low and high where they are known."""
        level = {"success": float(series.values[index])}
        for end in ("low", "high"):
            value = self.columns.get(f"{series.name}_{end}", {}).get(int(series.steps[index]))
            if value is not None and math.isfinite(value):
                level[end] = value
        return level

    @property
    def last_step(self) -> int | None:
        """Largest step that recorded anything."""
        return max((max(c) for c in self.columns.values() if c), default=None)
