"""Figures of a run, each a function of its metrics. A figure whose metrics were not recorded says so in its
place.

    table = MetricsTable.from_records(records)
    with style():
        figure = success(table, baselines)

`ragen_jax.report.figures` lists them with titles and captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragen_jax.report.style import (
    BLUE,
    FOREGROUND,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    TEAL,
    finish,
    panels,
    say,
)
from ragen_jax.report.table import FAMILIES, MetricsTable, Series

Baselines = Mapping[str, Mapping[str, float]]

FEW, MANY = 25, 60  # points up to which each is marked, beyond which curves are averaged
BASELINE_COLOURS = {"random": MUTED, "blind": RED, "teacher": GREEN}


def success(table: MetricsTable, baselines: Baselines | None = None) -> Figure:
    """Held-out success by environment with its 95 % interval, beside the baselines' levels."""
    fig, (axes,) = panels(width=11.2, height=3.6)
    tags = table.environments()
    drawn = False
    for colour, tag in zip(_cycle(len(tags)), tags, strict=True):
        label = "success, held out" if len(tags) == 1 else tag
        drawn |= _banded(axes, table, f"val-env/{tag}/success", colour, label)
    if not drawn:
        say(axes, "Not recorded: val-env/<tag>/success")
        return fig
    for name, level in (baselines or {}).items():
        colour = BASELINE_COLOURS.get(name, PURPLE)
        axes.axhline(level["success"], color=colour, linewidth=1.2, linestyle=(0, (5, 3)), label=name)
        if _known(level, "low", "high"):
            axes.axhspan(level["low"], level["high"], color=colour, alpha=0.07, linewidth=0)
    axes.set_ylim(-0.02, 1.02)
    finish(axes, ylabel="share of episodes solved")
    return fig


def success_summary(table: MetricsTable, baselines: Baselines | None = None) -> Figure:
    """Success before and after training and of the baselines, as points with intervals."""
    rows = [(name, level, BASELINE_COLOURS.get(name, PURPLE)) for name, level in (baselines or {}).items()]
    tags = table.environments()
    for tag in tags:
        series = table.series(f"val-env/{tag}/success")
        at = f" {tag}" if len(tags) > 1 else ""
        ends = [("before", 0), ("after", -1)] if len(series) > 1 else [("recorded", -1)] * len(series)
        rows += [(f"{when}{at}", table.level(series, i), BLUE) for when, i in ends]
    fig, (axes,) = panels(width=4.6, height=max(1.6, 0.5 + 0.33 * len(rows)))
    if not rows:
        say(axes, "Not recorded: val-env/<tag>/success, baselines.json")
        return fig
    for y, (_, level, colour) in enumerate(rows):
        if _known(level, "low", "high"):
            axes.plot([level["low"], level["high"]], [y, y], color=colour, alpha=0.45, linewidth=4)
        axes.plot(level["success"], y, "o", color=colour, markersize=7)
        right = level["success"] < 0.8
        edge = level["high" if right else "low"] if _known(level, "low", "high") else level["success"]
        axes.annotate(
            f"{level['success']:.2f}", (edge, y), textcoords="offset points", xytext=(8 if right else -8, 0),
            ha="left" if right else "right", va="center", fontsize=8, color=FOREGROUND,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(visible=False, axis="y")
    finish(axes, xlabel="share of episodes solved")
    return fig


def mutual_information(table: MetricsTable) -> Figure:
    """MI-Seq-Est of every sampling family with interval and ceiling."""
    fig, (axes,) = panels()
    if not _beside(axes, table, "mi_seq_estimate", "mi_upper_bound", "ceiling"):
        return fig
    axes.axhline(0, color=MUTED, linewidth=0.8)
    finish(axes, ylabel="nats a trace")
    return fig


def information_per_token(table: MetricsTable) -> Figure:
    """MI-Est (nats a token) and its z-score with a moving average, by sampling family."""
    fig, (left, right) = panels(2, height=2.9)
    _by_family(left, table, "mi_estimate", "nats a token", "MI-Est")
    _by_family(right, table, "mi_zscore_ema", "standard deviations", "MI z-score, averaged")
    return fig


def retrieval(table: MetricsTable) -> Figure:
    """Accuracy of naming the prompt from its reasoning, with interval and chance level."""
    fig, (axes,) = panels()
    if not _beside(axes, table, "retrieval_accuracy", "retrieval_chance_level", "chance"):
        return fig
    axes.set_ylim(-0.02, 1.02)
    finish(axes, ylabel="share named rightly")
    return fig


def entropy(table: MetricsTable) -> Figure:
    """Token entropy, and H(Z|X) and H(Z) from cross-scores, all in nats a token."""
    fig, (axes,) = panels()
    drawn = _curve(axes, table.series("actor/entropy"), FOREGROUND, "token entropy")
    for colour, (family, label) in zip(SERIES, FAMILIES.items(), strict=False):
        drawn |= _curve(axes, table.series(f"{family}/conditional_entropy_est"), colour, f"H(Z|X), {label}")
        series = table.series(f"{family}/reasoning_entropy_est")
        drawn |= _curve(axes, series, colour, f"H(Z), {label}", linestyle=(0, (4, 2)))
    if not drawn:
        say(axes, "Not recorded: actor/entropy, <family>/conditional_entropy_est")
        return fig
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    finish(axes, ylabel="nats a token")
    return fig


def reward_variance(table: MetricsTable) -> Figure:
    """Within-prompt standard deviation of rewards: mean over prompts, spread and range."""
    fig, (axes,) = panels()
    mean = table.series("reward_variance/mean")
    if not len(mean):
        mean = table.series("rollout/in_group_reward_std")
    if not _curve(axes, mean, BLUE, "mean over prompts"):
        say(axes, "Not recorded: reward_variance/mean")
        return fig
    steps, middle, spread = table.together("reward_variance/mean", "reward_variance/std")
    if len(steps):
        low = np.maximum(middle - spread, 0)
        label = "± one standard deviation"
        high = middle + spread
        if len(steps) > MANY:
            low, high = smoothed(low), smoothed(high)
        axes.fill_between(steps, low, high, color=BLUE, alpha=0.15, linewidth=0, label=label)
    for name in ("max", "min"):
        _curve(
            axes,
            table.series(f"reward_variance/{name}"),
            MUTED,
            "largest and smallest" if name == "max" else None,
        )
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    finish(axes, ylabel="reward, std within a prompt")
    return fig


def kept(table: MetricsTable) -> Figure:
    """Share of prompts that the filter kept."""
    fig, (axes,) = panels()
    if not _curve(axes, table.series("rollout/filter_kept_ratio"), BLUE, "kept"):
        say(axes, "Not recorded: rollout/filter_kept_ratio")
        return fig
    steps, zero, count, ratio = table.together(
        "rollout/filter_zero_count", "rollout/filter_kept_count", "rollout/filter_kept_ratio"
    )
    some = ratio > 0
    if some.any():
        groups = np.median(count[some] / ratio[some])
        label = "without any reward variance"
        _curve(axes, Series("zero", steps, zero / groups), ORANGE, label)
    _curve(axes, table.series("rollout/effective_kept_ratio"), TEAL, "used, of all rolled out")
    axes.set_ylim(-0.02, 1.02)
    finish(axes, ylabel="share of prompts")
    return fig


def reasoning_length(table: MetricsTable) -> Figure:
    """Mean length of reasoning."""
    return _single(table, "collapse/reasoning_length", "tokens a turn", TEAL, bottom=0)


def valid_thinking(table: MetricsTable) -> Figure:
    """Share of turns whose reasoning is closed and not empty."""
    return _single(table, "collapse/valid_thinking_rate", "share of turns", GREEN, bottom=-0.02, top=1.02)


def training_reward(table: MetricsTable) -> Figure:
    """Mean reward of training episodes, with the mean of each prompt's best."""
    fig, (axes,) = panels()
    mean = _curve(axes, table.series("rollout/in_group_reward_mean"), BLUE, "mean")
    best = _curve(axes, table.series("rollout/in_group_reward_max"), ORANGE, "best of each prompt")
    if not (mean or best):
        say(axes, "Not recorded: rollout/in_group_reward_mean")
        return fig
    finish(axes, ylabel="reward an episode")
    return fig


def optimisation(table: MetricsTable) -> Figure:
    """Gradient norm, KL divergence to the sampling policy, and share of clipped tokens."""
    names = [
        ("actor/grad_norm", "gradient norm", "before clipping"),
        ("actor/ppo_kl", "KL to the sampler", "nats a token"),
        ("actor/pg_clipfrac", "clipped", "share of tokens"),
    ]
    fig, axes = panels(3, width=3.73, height=2.7)
    for axis, colour, (name, title, unit) in zip(axes, SERIES, names, strict=False):
        if _curve(axis, table.series(name), colour, None):
            finish(axis, ylabel=unit, title=title)
        else:
            say(axis, f"Not recorded: {name}")
    return fig


def timing(table: MetricsTable) -> Figure:
    """Seconds of each step, by part."""
    fig, (axes,) = panels(width=11.2, height=3.0)
    parts = [n for n in table.names("timing_s/") if len(table.series(n))]
    parts = [n for n in parts if n.split("/")[1] not in ("step", "total")]
    if not parts:
        say(axes, "Not recorded: timing_s/*")
        return fig
    steps = sorted({s for n in parts for s in table.series(n).steps})
    base = np.zeros(len(steps))
    width = 0.9 * (min(np.diff(steps)) if len(steps) > 1 else 1.0)
    for colour, name in zip(_cycle(len(parts)), parts, strict=True):
        series = table.series(name)
        at = dict(zip(series.steps, series.values, strict=True))
        values = np.array([at.get(s, 0.0) for s in steps])
        label = name.removeprefix("timing_s/")
        axes.bar(steps, values, width, bottom=base, color=colour, alpha=0.85, linewidth=0, label=label)
        base += values
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.15 * np.quantile(base, 0.98))  # the first step's compilation would dwarf the rest
    finish(axes, ylabel="seconds a step")
    return fig


def _cycle(count: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(count)]


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred moving average over a twelfth of the points; at the ends over those of them that there are."""
    half = max(1, len(values) // 24)
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    start, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[stop] - total[start]) / (stop - start)


def _curve(axes: Axes, series: Series, colour: str, label: str | None, **options: Any) -> bool:
    """Draws a series; False if it is empty. Few points are marked, many are faint under their average."""
    if not len(series):
        return False
    values = series.values
    if len(series) > MANY:
        axes.plot(series.steps, values, color=colour, linewidth=0.7, alpha=0.35)
        values = smoothed(values)
    marker = "o" if len(series) <= FEW else None
    axes.plot(series.steps, values, color=colour, label=label, marker=marker, markersize=3, **options)
    return True


def _banded(axes: Axes, table: MetricsTable, name: str, colour: str, label: str) -> bool:
    """Draws a series with its interval; False if it is empty."""
    drawn = _curve(axes, table.series(name), colour, label)
    steps, low, high = table.together(f"{name}_low", f"{name}_high")
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    return drawn


def _beside(axes: Axes, table: MetricsTable, metric: str, bound: str, label: str) -> bool:
    """Draws a metric of every family with its interval, beside its bound as a dotted line; False if none is there."""
    dotted: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (2, 2))}
    drawn = False
    for colour, (family, name) in zip(SERIES, FAMILIES.items(), strict=False):
        if _banded(axes, table, f"{family}/{metric}", colour, name):
            drawn = True
            at = table.series(f"{family}/{bound}")
            axes.plot(at.steps, at.values, color=colour, **dotted)
    if drawn:
        axes.plot([], [], color=MUTED, label=label, **dotted)
    else:
        say(axes, f"Not recorded: <family>/{metric}")
    return drawn


def _by_family(axes: Axes, table: MetricsTable, metric: str, unit: str, title: str) -> None:
    drawn = False
    for colour, (family, label) in zip(SERIES, FAMILIES.items(), strict=False):
        drawn |= _curve(axes, table.series(f"{family}/{metric}"), colour, label)
    if not drawn:
        say(axes, f"Not recorded: <family>/{metric}")
        return
    axes.axhline(0, color=MUTED, linewidth=0.8)
    finish(axes, ylabel=unit, title=title)


def _single(
    table: MetricsTable,
    name: str,
    unit: str,
    colour: str,
    *,
    bottom: float | None = None,
    top: float | None = None,
) -> Figure:
    fig, (axes,) = panels()
    if not _curve(axes, table.series(name), colour, None):
        say(axes, f"Not recorded: {name}")
        return fig
    axes.set_ylim(bottom=bottom, top=top)
    finish(axes, ylabel=unit)
    return fig


def _known(level: Mapping[str, float], *names: str) -> bool:
    return all(isinstance(level.get(n), (int, float)) and np.isfinite(level[n]) for n in names)
