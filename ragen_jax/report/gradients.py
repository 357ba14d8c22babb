"""Figures of the gradient analysis: norms by reward variance, and signal against noise."""

from __future__ import annotations

import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragen_jax.report.rollouts import spread
from ragen_jax.report.style import BLUE, GREEN, MUTED, ORANGE, SERIES, finish, panels, say
from ragen_jax.report.table import MetricsTable

MOST = 4  # steps drawn in one figure


def bucket_names(table: MetricsTable) -> list[str]:
    """bucket_1, bucket_2, .. that were analysed, in order."""
    found = {m.group(1) for n in table.names("grad_snr/") if (m := re.match(r"grad_snr/bucket_(\d+)/", n))}
    return [f"bucket_{i}" for i in sorted(map(int, found))]


def gradient_norms(table: MetricsTable) -> Figure:
    """Norm of the mean task gradient and of the mean regulariser gradient by the bucket's reward std, some steps."""
    fig, (left, right) = panels(2, height=2.9)
    names = bucket_names(table)
    steps = spread(sorted(table.columns.get("grad_norm/all/task", {})), MOST)
    if not names or not steps:
        say(left, "Not recorded: grad_norm/<bucket>/task")
        say(right, "Not recorded: grad_norm/<bucket>/reg")
        return fig
    for index, step in enumerate(steps):
        colour = SERIES[index % len(SERIES)]
        for axes, part in ((left, "task"), (right, "reg")):
            points = [
                (
                    table.columns[f"grad_norm/{b}/reward_std_mean"].get(step),
                    table.columns[f"grad_norm/{b}/{part}"].get(step),
                )
                for b in names
            ]
            x, y = np.array([p for p in points if None not in p], float).reshape(-1, 2).T
            axes.plot(x, y, color=colour, marker="o", markersize=4, label=f"step {step}")
    top = max(left.get_ylim()[1], right.get_ylim()[1])
    for axes, title in ((left, "task"), (right, "KL and entropy")):
        axes.set_ylim(0, top)
        finish(axes, xlabel="reward std within a prompt, mean of the bucket", ylabel="norm", title=title)
    return fig


def gradient_snr(table: MetricsTable) -> Figure:
    """Signal over noise, and signal, noise and regulariser squared: over steps, or by bucket when there is one step."""
    fig, (left, right) = panels(2, height=2.9)
    names = bucket_names(table)
    steps = sorted({s for b in names for s in table.columns.get(f"grad_snr/{b}/snr", {})})
    if not names or not steps:
        for axes in (left, right):
            say(axes, "Not recorded: grad_snr/<bucket>/snr")
        return fig
    if len(steps) == 1:
        _by_bucket(table, names, steps[0], left, right)
        return fig
    for index, bucket in enumerate(names):
        colour = SERIES[index % len(SERIES)]
        end = {0: " (lowest)", len(names) - 1: " (highest)"}.get(index, "") if len(names) > 1 else ""
        label = bucket.replace("bucket_", "Q") + end
        at, value, low, high = table.together(*(f"grad_snr/{bucket}/snr{e}" for e in ("", "_low", "_high")))
        left.plot(at, value, color=colour, marker="o", markersize=3, label=label)
        left.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
        at, value = table.together(f"grad_snr/{bucket}/signal_sq")
        right.plot(at, value, color=colour, marker="o", markersize=3, label=label)
    at, value = table.together("grad_snr/all/reg_sq")
    right.plot(at, value, color=MUTED, linestyle=(0, (4, 2)), label="regularisers, all prompts")
    for axes, unit in ((left, "|signal|² / noise of a prompt"), (right, "squared norm")):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        finish(axes, ylabel=unit)
    return fig


def _by_bucket(table: MetricsTable, names: list[str], step: int, left: Axes, right: Axes) -> None:
    x = np.arange(len(names))
    labels = [n.replace("bucket_", "Q") for n in names]

    def triple(name: str) -> np.ndarray:
        ends = ("", "_low", "_high")
        rows = [[table.columns[f"grad_snr/{b}/{name}{e}"].get(step, np.nan) for e in ends] for b in names]
        return np.array(rows, float).T

    value, low, high = triple("snr")
    left.errorbar(
        x, value, [np.maximum(value - low, 0), np.maximum(high - value, 0)], color=BLUE, fmt="o", capsize=3
    )
    left.axhline(0, color=MUTED, linewidth=0.8)
    for name, colour, label in (
        ("signal_sq", BLUE, "signal"), ("noise_trace", ORANGE, "noise of a prompt"), ("reg_sq", GREEN, "regularisers"),
    ):  # fmt: skip
        value, low, high = triple(name)
        errors = [np.maximum(value - low, 0), np.maximum(high - value, 0)]
        right.errorbar(x, value, errors, color=colour, fmt="o", capsize=3, label=label)
    right.set_yscale("symlog", linthresh=max(1e-12, float(np.nanmax(np.abs(triple("noise_trace")))) * 1e-4))
    for axes, unit in ((left, "|signal|² / noise of a prompt"), (right, "squared norm")):
        axes.set_xticks(x, labels)
        finish(axes, xlabel="bucket of reward variance, lowest first", ylabel=unit)
