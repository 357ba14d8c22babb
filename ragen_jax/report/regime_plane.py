"""The path of a run through the plane of entropy and mutual information, with the four regimes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ragen_jax.estimators.regimes import (
    COMPRESSED,
    DIVERSE,
    LOW_ENTROPY_COLLAPSE,
    REGIME_NAMES,
    TEMPLATE_COLLAPSE,
    regime,
    regime_thresholds,
)
from ragen_jax.report.style import BLUE, FOREGROUND, GREEN, MUTED, ORANGE, RED, STEPS, finish, panels, say
from ragen_jax.report.table import FAMILIES, MetricsTable

SOURCES = (
    *((f"{family}/conditional_entropy_est", family, "H(Z|X), nats a token") for family in FAMILIES),
    *(("actor/entropy", family, "token entropy, nats") for family in FAMILIES),
)


@dataclass(frozen=True)
class RegimePath:
    """Points of a run in the plane, one at least, and what counts as high there."""

    steps: np.ndarray
    entropy: np.ndarray
    mi: np.ndarray
    entropy_name: str
    entropy_threshold: float
    mi_threshold: float
    ceiling: float | None

    def code(self, index: int) -> int:
        """Regime of a point, see `ragen_jax.estimators.regime`."""
        thresholds = {"entropy_threshold": self.entropy_threshold, "mi_threshold": self.mi_threshold}
        return int(regime(self.entropy[index], self.mi[index], **thresholds))


def regime_path(table: MetricsTable) -> RegimePath | None:
    """The first recorded pair of entropy and MI-Est, or None.

    Thresholds are those of `collapse/regime`: `regime_thresholds` of the run's first values, unless the run
    recorded `collapse/entropy_threshold` and `collapse/mi_threshold`.
    """
    for entropy_name, family, label in SOURCES:
        steps, entropy, mi = table.together(entropy_name, f"{family}/mi_estimate")
        if not len(steps):
            continue
        default = [float(x) for x in regime_thresholds(float(entropy[0]), float(mi[0]))]
        recorded = [table.series(f"collapse/{name}_threshold").last for name in ("entropy", "mi")]
        entropy_threshold, mi_threshold = (
            d if r is None else r for d, r in zip(default, recorded, strict=True)
        )
        ceiling = table.series(f"{family}/mi_upper_bound_per_token").last
        return RegimePath(steps, entropy, mi, label, entropy_threshold, mi_threshold, ceiling)
    return None


def regime_plane(table: MetricsTable) -> Figure:
    """Entropy on x, MI-Est on y, points coloured by step, quadrants named."""
    fig, (axes,) = panels(height=3.7)
    path = regime_path(table)
    if path is None:
        say(
            axes,
            "Not recorded: <family>/mi_estimate with\n<family>/conditional_entropy_est or actor/entropy",
        )
        return fig
    right = 1.12 * max(path.entropy.max(), 2 * path.entropy_threshold, 1e-6)
    top = 1.24 * max(path.mi.max(), path.ceiling or 0.0, 2 * path.mi_threshold, 1e-6)
    bottom = min(0.0, 1.15 * path.mi.min())
    axes.set_xlim(min(0.0, 1.15 * path.entropy.min()), right)
    axes.set_ylim(bottom, top)
    axes.axvline(path.entropy_threshold, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.axhline(path.mi_threshold, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    if path.ceiling is not None:
        axes.axhline(path.ceiling, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            "ceiling", (right, path.ceiling), textcoords="offset points", xytext=(-3, 2), ha="right",
            fontsize=7.5, color=MUTED,
        )  # fmt: skip
    left, middle, split = axes.get_xlim()[0], path.entropy_threshold, path.mi_threshold
    for code, colour, (x0, x1), (y0, y1) in (
        (DIVERSE, GREEN, (middle, right), (split, top)),
        (TEMPLATE_COLLAPSE, RED, (middle, right), (bottom, split)),
        (COMPRESSED, BLUE, (left, middle), (split, top)),
        (LOW_ENTROPY_COLLAPSE, ORANGE, (left, middle), (bottom, split)),
    ):
        axes.fill([x0, x1, x1, x0], [y0, y0, y1, y1], color=colour, alpha=0.06, linewidth=0)
        at_right, at_top = x1 == right, y1 == top
        axes.annotate(
            REGIME_NAMES[code], (x1 if at_right else x0, y1 if at_top else y0), textcoords="offset points",
            xytext=(-5 if at_right else 5, -5 if at_top else 5), ha="right" if at_right else "left",
            va="top" if at_top else "bottom", color=colour, fontsize=8.5,
        )  # fmt: skip
    axes.plot(path.entropy, path.mi, color=MUTED, linewidth=0.9, alpha=0.6)
    points = axes.scatter(path.entropy, path.mi, c=path.steps, cmap=STEPS, s=26, zorder=3, linewidths=0)
    for index in (0, -1) if len(path.steps) > 1 else (0,):
        point = (path.entropy[index], path.mi[index])
        outer = point[0] > 0.6 * right
        axes.annotate(
            f"step {int(path.steps[index])}", point, ha="right" if outer else "left", va="center",
            textcoords="offset points", xytext=(-7 if outer else 7, 0), fontsize=8, color=FOREGROUND,
        )  # fmt: skip
    axes.grid(visible=False)
    if len(path.steps) > 1:
        bar = fig.colorbar(points, ax=axes, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        bar.set_label("step", color=MUTED, fontsize=8)
    finish(axes, xlabel=path.entropy_name, ylabel="MI-Est, nats a token", legend=False)
    return fig
