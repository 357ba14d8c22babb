"""Every preset with and without the filter, from one warm start, on one task.

    python -m benchmarks.presets [--dir runs/presets] [--config configs/easy_sokoban.yaml] [--record]

The warm start is made once, as a run without training steps, and the eight runs begin from it. What is finished is not
run again, what was interrupted is gone on with. DAPO's dynamic sampling belongs to its filter and is cut to
`--batches` a step; without the filter there is nothing to replace. Success is on held-out levels, the same in all runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks._table import report
from ragen_jax.arguments import split_overrides
from ragen_jax.report import write_report
from ragen_jax.report.style import BLUE, MUTED, ORANGE, finish, panels, style, to_png
from ragen_jax.training.config import Config, config_to_dict, load_config
from ragen_jax.training.diagnosis import FAMILIES
from ragen_jax.training.metrics import read_jsonl
from ragen_jax.training.run_dir import read_run_config, resumed_config
from ragen_jax.training.trainer import RunResult, train

CONFIGS = Path(__file__).parents[1] / "configs"
PRESETS = ("ppo", "grpo", "dapo", "dr_grpo")
FILTERS = ("off", "on")
Train = Callable[..., RunResult]


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    preset: str
    filter: str
    run_dir: Path

    @property
    def name(self) -> str:
        return self.run_dir.name


def finished(run_dir: Path) -> bool:
    """Whether the run came to an end of its own."""
    path = run_dir / "summary.json"
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["stopped"] != "interrupted"


def differences(a: Config, b: Config) -> list[str]:
    """Dotted names of the fields that differ."""
    trees = config_to_dict(a), config_to_dict(b)
    names = {(section, name) for tree in trees for section, fields in tree.items() for name in fields}
    one, other = ({(s, n): tree[s].get(n) for s, n in names} for tree in trees)
    return sorted(".".join(name) for name in names if one[name] != other[name])


def make(
    run_dir: Path, files: list[Path], overrides: list[str], console: Console, run: Train = train
) -> bool:
    """Runs, or goes on with, what is not finished. False: interrupted.

    Raises ValueError for a run that is there with another configuration, finished or not.
    """
    config = load_config(files, [*overrides, f"run.dir={run_dir.parent}", f"run.name={run_dir.name}"])
    there = (run_dir / "config.yaml").exists()
    if there and (other := differences(read_run_config(run_dir), config)):
        raise ValueError(f"{run_dir} holds a run with other {', '.join(other)}; choose another --dir")
    if finished(run_dir):
        console.print(f"{run_dir}: finished before")
        return True
    console.print(f"{run_dir}")
    if there:
        result = run(resumed_config(run_dir, []), resume=run_dir, console=console)
    else:
        result = run(config, console=console)
    if result.stopped == "interrupted":
        return False
    write_report(run_dir)
    return True


def make_all(
    folder: Path, task: Path, overrides: list[str], batches: int, console: Console, run: Train = train
) -> list[Cell] | None:
    """The warm start, and the runs from it. None: interrupted."""
    warm = folder / "warm_start"
    if not make(warm, [task], [*overrides, "training.total_training_steps=0"], console, run):
        return None
    cells = []
    for preset in PRESETS:
        for kind in FILTERS:
            cell = Cell(preset, kind, folder / f"{preset}-filter-{kind}")
            files = [task, CONFIGS / f"{preset}.yaml", CONFIGS / f"filter_{kind}.yaml"]
            own = [f"model.path={warm}", "warm_start.steps=0", "warm_start.reading_steps=0"]
            if preset == "dapo" and kind == "on":
                own.append(f"rollout.max_num_gen_batches={batches}")
            if not make(cell.run_dir, files, [*overrides, *own], console, run):
                return None
            cells.append(cell)
    return cells


@dataclass(frozen=True)
class Outcome:
    """Numbers of one run: pairs are (first, last)."""

    cell: Cell
    before: dict[str, float]
    after: dict[str, float]
    kept: float  # mean share of prompts learned from
    mi: tuple[float, float]
    entropy: tuple[float, float]
    variance: tuple[float, float]  # mean reward std within a prompt, over a fifth of the steps at each end
    steps: int
    seconds: float  # rollouts, updates and diagnoses
    stopped: str | None


def outcome(cell: Cell) -> Outcome:
    """What a finished run's own files say."""
    summary = json.loads((cell.run_dir / "summary.json").read_text(encoding="utf-8"))
    rows = [r for r in read_jsonl(cell.run_dir / "metrics.jsonl") if r["step"]]
    family = FAMILIES["first_turn"]

    def ends(name: str, share: float) -> tuple[float, float]:
        values = [r[name] for r in rows if r.get(name) is not None]
        if not values:
            return float("nan"), float("nan")
        few = max(1, round(len(values) * share))
        return float(np.mean(values[:few])), float(np.mean(values[-few:]))

    return Outcome(
        cell, summary["before"], summary["after"], ends("rollout/effective_kept_ratio", 1.0)[0],
        ends(f"{family}/mi_estimate", 0.0), ends(f"{family}/conditional_entropy_est", 0.0),
        ends("reward_variance/mean", 0.2), summary["steps"],
        float(np.sum([r["timing_s/step"] for r in rows])), summary["stopped"],
    )  # fmt: skip


def table(outcomes: list[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows."""
    columns = [
        "preset", "filter", "success before", "success after", "kept", "MI-Est", "H(Z|X)", "reward std",
        "steps", "s a step",
    ]  # fmt: skip

    def level(x: dict[str, float]) -> str:
        return f"{x['success']:.3f} [{x['low']:.3f}, {x['high']:.3f}]"

    def pair(x: tuple[float, float]) -> str:
        return f"{x[0]:.3f} to {x[1]:.3f}"

    rows: list[list[Any]] = []
    for o in outcomes:
        stopped = "" if o.stopped is None else f", {o.stopped}"
        values = [level(o.before), level(o.after), f"{o.kept:.2f}", pair(o.mi), pair(o.entropy)]
        values += [pair(o.variance), f"{o.steps}{stopped}", f"{o.seconds / max(1, o.steps):.2f}"]
        rows.append([o.cell.preset, o.cell.filter, *values])
    return columns, rows


def plot(outcomes: list[Outcome]) -> Figure:
    """Held-out success after training with its interval, and the share of prompts that was learned from."""
    fig, (left, right) = panels(2, width=4.4)
    before = outcomes[0].before
    left.axhspan(before["low"], before["high"], color=MUTED, alpha=0.15, linewidth=0, label="before RL")
    presets = list(dict.fromkeys(o.cell.preset for o in outcomes))
    for kind, colour, shift in (("off", ORANGE, -0.12), ("on", BLUE, 0.12)):
        found = [o for o in outcomes if o.cell.filter == kind]
        x = np.array([presets.index(o.cell.preset) for o in found]) + shift
        y, low, high = (np.array([o.after[n] for o in found]) for n in ("success", "low", "high"))
        left.errorbar(x, y, [y - low, high - y], color=colour, fmt="o", capsize=3, label=f"filter {kind}")
        right.bar(x, [o.kept for o in found], width=0.22, color=colour, label=f"filter {kind}")
    for axes, label in ((left, "held-out success after RL"), (right, "share of prompts learned from")):
        axes.set_xticks(range(len(presets)), presets)
        axes.set_ylim(0, 1.02)
        finish(axes, xlabel="", ylabel=label)
    return fig


def main(argv: list[str] | None = None) -> int:
    others, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path("runs/presets"), help="folder of the nine runs")
    parser.add_argument(
        "--config", type=Path, default=CONFIGS / "easy_sokoban.yaml", help="task and warm start"
    )
    parser.add_argument("--batches", type=int, default=2, help="most batches a step of DAPO with the filter")
    parser.add_argument("--record", action="store_true", help="append the table to benchmarks/RESULTS.md")
    args = parser.parse_args(others)
    cells = make_all(args.dir, args.config, overrides, args.batches, Console())
    if cells is None:
        print("Interrupted. The same command goes on.")
        return 130
    outcomes = [outcome(cell) for cell in cells]
    columns, rows = table(outcomes)
    config = load_config(args.config, overrides)
    report(
        f"Presets with and without the filter: {config.env.tag}, {config.training.total_training_steps} steps of "
        f"{config.rollout.env_groups} x {config.rollout.group_size} episodes, one warm start, seed {config.run.seed}",
        columns,
        rows,
        notes=f"Success on {config.evaluation.levels} held-out levels, the same in all runs, 95% Wilson intervals. "
        "MI-Est and H(Z|X) in nats a token, reward std within a prompt: at the first and the last steps.",
        record=args.record,
    )
    with style():
        path = args.dir / "presets.png"
        path.write_bytes(to_png(plot(outcomes), "Presets with and without the filter"))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
