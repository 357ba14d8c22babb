"""Reads a run directory, whole or interrupted. What could not be read is said in `Run.notes`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ragen_jax.report.rollouts import RolloutSample, read_rollouts
from ragen_jax.report.table import MetricsTable


@dataclass(frozen=True)
class Run:
    """Everything that a report shows."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)  # nested, as in config.yaml
    table: MetricsTable = field(default_factory=MetricsTable)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # name: success, low, high, n
    summary: Mapping[str, Any] = field(default_factory=dict)
    rollouts: RolloutSample = field(default_factory=RolloutSample)
    groups: tuple[Mapping[str, Any], ...] = ()  # a step each: level, mean, std and kept share of its prompts
    notes: tuple[str, ...] = ()

    def setting(self, dotted: str) -> Any:
        """The configuration's value under a dotted name, None if it has none."""
        value: Any = self.config
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def read_json_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file.

    Lines that are no object are noted; a last line without its end is noted as that of an interrupted run.
    """
    bad = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if isinstance(value, dict):
                yield value
            elif line.endswith("\n"):
                bad += 1
            else:
                notes.append(
                    f"{path.name}: the last line is cut short (an interrupted run); it was left out."
                )
    if bad:
        notes.append(f"{path.name}: {bad} line(s) could not be read and were left out.")


def read_run(run_dir: str | Path, *, max_rollouts: int = 200) -> Run:
    """Reads config.yaml, metrics.jsonl, groups.jsonl, baselines.json, summary.json, rollouts/*.jsonl: those there are.

    Raises:
        FileNotFoundError: the directory does not exist.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run directory at {folder}")
    notes: list[str] = []
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        table = MetricsTable.from_records(read_json_lines(metrics, notes))
    else:
        table = MetricsTable()
        notes.append("metrics.jsonl is missing: there are no curves.")
    for name, count in sorted(table.gaps.items()):
        notes.append(f"{name}: {count} value(s) are missing or not finite and are left out of its curve.")
    config = _mapping(folder / "config.yaml", notes)
    baselines = _mapping(folder / "baselines.json", notes)
    summary = _mapping(folder / "summary.json", notes)
    by_step = _group_rows(folder / "groups.jsonl", notes)
    rollouts = read_rollouts(folder / "rollouts", read_json_lines, notes, limit=max_rollouts)
    return Run(
        name=folder.resolve().name,
        config=config,
        table=table,
        baselines={n: b for n, b in baselines.items() if _is_baseline(b)},
        summary=summary,
        rollouts=rollouts,
        groups=by_step,
        notes=tuple(notes),
    )


def _group_rows(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    """Rows of groups.jsonl, one a step, the last one written; rows of another form are noted and left out."""
    if not path.is_file():
        return ()
    rows, bad = {}, 0
    for row in read_json_lines(path, notes):
        step, mean, std = row.get("step"), row.get("mean"), row.get("std")
        if (
            isinstance(step, int)
            and isinstance(mean, list)
            and isinstance(std, list)
            and len(mean) == len(std)
        ):
            rows[step] = {"step": step, "mean": [_number(x) for x in mean], "std": [_number(x) for x in std]}
        else:
            bad += 1
    if bad:
        notes.append(f"{path.name}: {bad} line(s) are of another form and were left out.")
    return tuple(rows[step] for step in sorted(rows))


def _number(x: Any) -> float:
    return float(x) if isinstance(x, (int, float)) else float("nan")


def _is_baseline(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("success"), (int, float))


def _mapping(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append(f"{path.name} is missing.")
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        value = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError):
        value = None
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} could not be read.")
    return {}
