"""The story of reward variance: how the rewards of prompts are spread over the phases of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ragen_jax.report.style import BLUE, MUTED, ORANGE, finish, panels, say

PHASES = ("first third", "middle third", "last third")
BINS = 20


def prompt_rewards(groups: Sequence[Mapping[str, Any]]) -> Figure:
    """Histograms of prompts' mean rewards by third of training, those without reward variance apart.

    `groups` are the rows of groups.jsonl: {"step", "mean": [..], "std": [..]} a step.
    """
    fig, axes = panels(len(PHASES), width=3.73, height=2.7)
    rows = sorted(groups, key=lambda r: r["step"])
    points = [(np.array(r["mean"], float), np.array(r["std"], float)) for r in rows]
    every = np.concatenate([m for m, _ in points]) if points else np.zeros(0)
    every = every[np.isfinite(every)]
    if not len(every):
        for axis in axes:
            say(axis, "Not recorded: groups.jsonl")
        return fig
    low, high = every.min(), every.max()
    edges = np.linspace(low - 1e-6, high + 1e-6, BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])
    cuts = [round(i * len(points) / len(PHASES)) for i in range(len(PHASES) + 1)]
    top = 0.0
    for axis, phase, start, stop in zip(axes, PHASES, cuts[:-1], cuts[1:], strict=True):
        if start == stop:
            say(axis, "No step yet")
            continue
        mean, std = (np.concatenate([p[i] for p in points[start:stop]]) for i in range(2))
        known = np.isfinite(mean) & np.isfinite(std)
        mean, std = mean[known], std[known]
        dead = std == 0
        share = np.full(len(mean), 1 / max(len(mean), 1))
        axis.hist(
            [mean[dead], mean[~dead]], edges.tolist(), weights=[share[dead], share[~dead]], stacked=True,
            color=[ORANGE, BLUE], label=["no variance", "some variance"],
        )  # fmt: skip
        top = max(top, axis.get_ylim()[1])
        steps = f"steps {rows[start]['step']} to {rows[stop - 1]['step']}"
        title = f"{phase} ({steps}): {dead.mean() if len(dead) else 0:.0%} without variance"
        finish(axis, xlabel="mean reward of a prompt", ylabel="share of prompts", title=title)
        axis.grid(visible=False, axis="x")
        if len(mean):
            axis.axvline(float(mean.mean()), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for axis in axes:
        if axis.axison:
            axis.set_ylim(0, top)
    return fig
