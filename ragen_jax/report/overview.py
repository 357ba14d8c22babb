"""What a report says in words and numbers: settings, sentences on the outcome, and the final table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragen_jax.estimators.regimes import REGIME_NAMES
from ragen_jax.report.regime_plane import regime_path
from ragen_jax.report.run_directory import Run
from ragen_jax.report.table import FAMILIES, MetricsTable

SETTINGS = (
    ("environment", "env.tag"),
    ("model", "model.path"),
    ("hidden size", "model.hidden_size"),
    ("layers", "model.num_hidden_layers"),
    ("advantage", "algorithm.adv_estimator"),
    ("filter", "rollout.rollout_filter_strategy"),
    ("filter value", "rollout.rollout_filter_value"),
    ("prompts a step", "rollout.env_groups"),
    ("episodes a prompt", "rollout.group_size"),
    ("learning rate", "optim.lr"),
    ("steps", "training.total_training_steps"),
    ("seed", "run.seed"),
)


@dataclass(frozen=True)
class Level:
    """A share with its 95 % interval, if one was recorded."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Row:
    """A line of the final table; `beside` says what the numbers are to be read against."""

    name: str
    first: str
    last: str
    beside: str = ""


def settings(run: Run) -> list[tuple[str, str]]:
    """(label, value) of the settings that say what the run is."""
    found = [(label, run.setting(name)) for label, name in SETTINGS]
    if run.setting("model.path"):
        found = [(label, v) for label, v in found if label not in ("hidden size", "layers")]
    tags = run.setting("env.tags")
    if tags:
        found[0] = ("environments", ", ".join(map(str, tags)))
    chips = [(label, str(value)) for label, value in found if value is not None]
    if run.table.last_step is not None:
        chips.append(("last step", str(run.table.last_step)))
    seconds = run.table.series("time").last
    if seconds is not None:
        chips.append(("duration", duration(seconds)))
    return chips


def duration(seconds: float) -> str:
    """1 h 02 min, 3 min 20 s, 12 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def baseline(run: Run, name: str) -> Level | None:
    """Level of a baseline policy."""
    record = run.baselines.get(name)
    return None if record is None else _level(record)


def success_levels(table: MetricsTable, tag: str) -> tuple[Level, Level, int, int] | None:
    """(first, last, step of first, step of last) of held-out success, None if not recorded."""
    series = table.series(f"val-env/{tag}/success")
    if not len(series):
        return None

    first, last = (_level(table.level(series, index)) for index in (0, -1))
    return first, last, int(series.steps[0]), int(series.steps[-1])


def sentences(run: Run) -> list[str]:
    """The outcome in words. Says only what intervals and thresholds allow."""
    out = []
    if run.summary.get("stopped"):
        out.append(f"The run ended early: {run.summary['stopped']}.")
    for tag in run.table.environments():
        levels = success_levels(run.table, tag)
        if levels is None:
            continue
        first, last, start, end = levels
        if start == end:
            out.append(f"Success in {tag} was {last} at step {end}; there is nothing to compare it with.")
            continue
        out.append(
            f"Success in {tag} went from {first} at step {start} to {last} at step {end}"
            f"{_moved(first, last)}."
        )
        blind = baseline(run, "blind")
        if blind is not None:
            out.append(_against_blind(last, blind))
    path = regime_path(run.table)
    if path is not None:
        before, after = REGIME_NAMES[path.code(0)], REGIME_NAMES[path.code(-1)]
        steps = f"step {int(path.steps[0])} to step {int(path.steps[-1])}"
        if before == after:
            out.append(f"Reasoning is in the regime of {after} from {steps}.")
        else:
            out.append(f"Reasoning moved from {before} to {after} ({steps}).")
    return out


def final_table(run: Run) -> list[Row]:
    """First and last value of what matters, with what each is to be read against."""
    table = run.table
    rows = []
    for tag in table.environments():
        levels = success_levels(table, tag)
        if levels is not None:
            levels_beside = "; ".join(f"{name} {baseline(run, name)}" for name in run.baselines)
            rows.append(Row(f"success, {tag}", str(levels[0]), str(levels[1]), levels_beside))
    for family, label in FAMILIES.items():
        ceiling = table.series(f"{family}/mi_upper_bound").last
        chance = table.series(f"{family}/retrieval_chance_level").last
        beside = "" if ceiling is None else f"ceiling {number(ceiling)}"
        rows += _row(table, f"{family}/mi_seq_estimate", f"mutual information, {label} (nats)", beside)
        beside = "" if chance is None else f"chance {number(chance)}"
        rows += _row(table, f"{family}/retrieval_accuracy", f"prompt named from reasoning, {label}", beside)
        rows += _row(table, f"{family}/conditional_entropy_est", f"H(Z|X), {label} (nats a token)")
    rows += _row(table, "actor/entropy", "token entropy (nats)")
    mean = table.series("rollout/filter_kept_ratio")
    beside = f"mean over the run {number(float(mean.values.mean()))}" if len(mean) else ""
    rows += _row(table, "rollout/filter_kept_ratio", "prompts kept by the filter", beside)
    rows += _row(table, "reward_variance/mean", "reward std within a prompt")
    rows += _row(table, "collapse/valid_thinking_rate", "turns with valid thinking")
    rows += _row(table, "collapse/reasoning_length", "reasoning length (tokens)")
    return rows


def number(value: Any) -> str:
    """A number at three significant digits, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return "not finite"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _row(table: MetricsTable, name: str, label: str, beside: str = "") -> list[Row]:
    series = table.series(name)
    if series.first is None or series.last is None:
        return []
    return [Row(label, number(series.first), number(series.last), beside)]


def _level(record: Mapping[str, Any]) -> Level:
    def known(name: str) -> float | None:
        value = record.get(name)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    return Level(float(record["success"]), known("low"), known("high"))


def _moved(first: Level, last: Level) -> str:
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return ""
    if last.low > first.high:
        return ", a rise that the 95 % intervals bear out"
    if last.high < first.low:
        return ", a fall that the 95 % intervals bear out"
    return "; the 95 % intervals overlap"


def _against_blind(last: Level, blind: Level) -> str:
    low = last.value if last.low is None else last.low
    high = blind.value if blind.high is None else blind.high
    if low > high:
        return f"That is clear of the blind baseline ({blind})."
    return f"That is not clear of the blind baseline ({blind}): success does not show that the input is read."
