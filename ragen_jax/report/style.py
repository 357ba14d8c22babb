"""One look for every plot. Colours are names of CSS variables in a page, and their light values in a PNG."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

FOREGROUND = "#20242c"
MUTED = "#667080"
RULE = "#d9dee7"
BLUE = "#2463b4"
ORANGE = "#c4570d"
GREEN = "#15803d"
PURPLE = "#8a45b0"
RED = "#b3263c"
TEAL = "#0d7490"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, TEAL, RED)

# Steps from first to last, to be seen on light and dark.
STEPS = LinearSegmentedColormap.from_list("steps", ["#3f6fd8", "#8a58c8", "#d9577f", "#f0a340"])

VARIABLES = {
    FOREGROUND: "--fg",
    MUTED: "--muted",
    RULE: "--rule",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PURPLE: "--purple",
    RED: "--red",
    TEAL: "--teal",
}

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": FOREGROUND,
    "text.parse_math": False,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9,
    "axes.titlecolor": FOREGROUND,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": MUTED,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
}


def style() -> Any:
    """Context manager in which figures are to be built and saved."""
    return mpl.rc_context(_RC)


def panels(count: int = 1, *, width: float = 5.6, height: float = 3.1) -> tuple[Figure, list[Axes]]:
    """A figure of `count` axes side by side; `width` and `height` (inches) are of one of them."""
    fig = Figure(figsize=(width * count, height))
    return fig, list(fig.subplots(1, count, squeeze=False)[0])


def finish(
    axes: Axes, *, xlabel: str = "step", ylabel: str = "", title: str = "", legend: bool = True
) -> None:
    """Labels, whole-numbered steps, and a legend above the plot if there is anything to name."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if xlabel == "step":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    handles, labels = axes.get_legend_handles_labels()
    columns = _legend_columns(axes, labels) if legend and handles else 0
    if columns:
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2,
            handlelength=1.6, columnspacing=1.2,
        )  # fmt: skip
    if title:
        rows = -(-len(labels) // columns) if columns else 0
        axes.set_title(title, pad=6 + 14 * rows)


def _legend_columns(axes: Axes, labels: list[str]) -> int:
    """How many entries of a legend fit side by side."""
    figure = axes.get_figure(root=True)
    width = 5.6 if figure is None else figure.get_figwidth() / len(figure.axes)
    return max(1, min(len(labels), int(width / (0.5 + 0.07 * max(map(len, labels))))))


def say(axes: Axes, text: str) -> None:
    """Writes `text` in place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, wrap=True)


def to_svg(fig: Figure, salt: str) -> str:
    """The figure as an <svg> element for a page: colours as CSS variables, ids made unique by `salt`."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)}
    svg = re.sub(r' id="([^"]*)"', lambda m: m.group() if m.group(1) in used else "", svg)  # the rest repeat
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'").strip()


def to_png(fig: Figure, title: str) -> bytes:
    """The figure as a PNG on white with `title` above it."""
    buffer = io.BytesIO()
    fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    fig.savefig(buffer, format="png", dpi=150, transparent=False, facecolor="white")
    return buffer.getvalue()
