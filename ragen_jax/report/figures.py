"""The figures of a report in their order, with what is written around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ragen_jax.report import gradients, phases, plots
from ragen_jax.report.regime_plane import regime_plane
from ragen_jax.report.run_directory import Run, read_run
from ragen_jax.report.style import style, to_png


@dataclass(frozen=True)
class FigureOf:
    """A figure with what is written around it."""

    key: str
    title: str
    caption: str
    draw: Callable[[Run], Figure]
    wide: bool = False
    needs: str = ""  # a metric's name, as a pattern: without it the figure is left out, not drawn empty


FIGURES: Sequence[FigureOf] = (
    FigureOf(
        "success_summary",
        "Before, after and baselines",
        "Success on held-out levels, with 95 % intervals.",
        lambda run: plots.success_summary(run.table, run.baselines),
    ),
    FigureOf(
        "success",
        "Success",
        "On levels never trained on; the band is the 95 % Wilson interval. Baselines are dashed: “blind” "
        "acts without reading its input, so only what lies clear above it shows that the state is read.",
        lambda run: plots.success(run.table, run.baselines),
        wide=True,
    ),
    FigureOf(
        "regime_plane",
        "Regime",
        "Where the run went, by step. Entropy tells whether reasoning varies, mutual information whether "
        "it varies with the input. Only the second tells template collapse from diverse reasoning. High "
        "is at least half of what the run began with, and for mutual information at least a tenth of its "
        "ceiling.",
        lambda run: regime_plane(run.table),
    ),
    FigureOf(
        "mutual_information",
        "Mutual information of input and reasoning",
        "MI-Seq-Est by how the pairs are sampled. It cannot exceed its ceiling, the entropy of the sampled "
        "prompts; zero means that the reasoning would be as likely after any other prompt.",
        lambda run: plots.mutual_information(run.table),
    ),
    FigureOf(
        "retrieval",
        "Naming the prompt from its reasoning",
        "How often a trace is most likely after its own prompt, against guessing.",
        lambda run: plots.retrieval(run.table),
    ),
    FigureOf(
        "entropy",
        "Entropy",
        "Token entropy is of the policy's next-token distribution; H(Z|X) and H(Z) are of whole traces, by "
        "length. The gap between H(Z) and H(Z|X) is the mutual information.",
        lambda run: plots.entropy(run.table),
    ),
    FigureOf(
        "information_per_token",
        "Mutual information by length and by spread",
        "MI-Est divides by the length of each trace; the z-score by the spread of log p(Z) between traces.",
        lambda run: plots.information_per_token(run.table),
        wide=True,
    ),
    FigureOf(
        "reward_variance",
        "Reward variance within prompts",
        "The task gradient of a prompt is made of the difference of its episodes' rewards; where there is "
        "none, only regularisers train.",
        lambda run: plots.reward_variance(run.table),
    ),
    FigureOf(
        "prompt_rewards",
        "Rewards of prompts over training",
        "Mean reward of each prompt in the first, middle and last third of training. Prompts at the ends are always "
        "lost or always won and have no variance to learn from.",
        lambda run: phases.prompt_rewards(run.groups),
        wide=True,
    ),
    FigureOf(
        "kept",
        "Prompts kept by the filter",
        "Share of each step's prompts that the update used.",
        lambda run: plots.kept(run.table),
    ),
    FigureOf(
        "gradient_norms",
        "Gradients by reward variance",
        "Norm of the mean gradient of each bucket of prompts, on one scale: of the task, and of the regularisers (KL "
        "and entropy). Norms include sampling noise; the next figure does not.",
        lambda run: gradients.gradient_norms(run.table),
        wide=True,
        needs="grad_norm/",
    ),
    FigureOf(
        "gradient_snr",
        "Signal and noise of the task gradient",
        "Unbiased estimates from independent halves of each group, with 95 % intervals over prompts. Noise is that of "
        "one prompt's gradient. A value below zero means that no signal was found.",
        lambda run: gradients.gradient_snr(run.table),
        wide=True,
        needs="grad_snr/",
    ),
    FigureOf(
        "training_reward",
        "Reward of training episodes",
        "Mean over prompts, penalties included.",
        lambda run: plots.training_reward(run.table),
    ),
    FigureOf(
        "reasoning_length",
        "Length of reasoning",
        "Tokens between the think tags.",
        lambda run: plots.reasoning_length(run.table),
    ),
    FigureOf(
        "valid_thinking",
        "Valid thinking",
        "Turns whose reasoning is closed and not empty. Only these are diagnosed.",
        lambda run: plots.valid_thinking(run.table),
    ),
    FigureOf(
        "optimisation",
        "Optimisation",
        "Health of the update.",
        lambda run: plots.optimisation(run.table),
        wide=True,
    ),
    FigureOf(
        "timing",
        "Where the time goes",
        "Steps that compile may exceed the plot.",
        lambda run: plots.timing(run.table),
        wide=True,
    ),
)


def figures_of(run: Run) -> list[FigureOf]:
    """The figures of a run: all but those of an analysis that it did without."""
    return [f for f in FIGURES if not f.needs or run.table.names(f.needs)]


def save_plots(run_dir: str | Path, out: str | Path | None = None) -> list[Path]:
    """Writes every figure as a PNG into `out` (default: plots/ in the run directory) and returns their paths.

    Raises:
        FileNotFoundError: the run directory does not exist.
    """
    run = read_run(run_dir, max_rollouts=0)
    folder = Path(run_dir) / "plots" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style():
        for figure in figures_of(run):
            path = folder / f"{figure.key}.png"
            path.write_bytes(to_png(figure.draw(run), figure.title))
            paths.append(path)
    return paths
