"""Figure 3 of the paper on FrozenLake: gradients of prompts by reward variance, over training, with signal and noise.

    python -m benchmarks.gradients [RUN] [--steps 0 20 40] [--plots docs] [--record] [--algorithm.kl_loss_coef 0.1 ...]

RUN is a run with checkpoints; without one the quickstart is trained for 40 steps, with a checkpoint every 20. Each
checkpoint is probed on training levels with episodes of its own, and is left as it is. As in the paper the probe weighs
entropy and KL (k3) with 0.001 each, whatever the run was trained with; and GRPO's advantages are not divided by the
group's standard deviation, which would make buckets alike. Overrides change the probe, not the run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._table import report
from ragen_jax.arguments import split_overrides
from ragen_jax.report.gradients import gradient_norms, gradient_snr
from ragen_jax.report.style import style, to_png
from ragen_jax.report.table import MetricsTable
from ragen_jax.rl.gradient_analysis import Bucket
from ragen_jax.training.checkpoints import Checkpoints
from ragen_jax.training.config import load_config
from ragen_jax.training.gradients import as_metrics, probe
from ragen_jax.training.policy import load_policy
from ragen_jax.training.trainer import train

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
PROBE = (
    "algorithm.entropy_coeff=0.001", "algorithm.use_kl_loss=true", "algorithm.kl_loss_type=k3",
    "algorithm.kl_loss_coef=0.001", "algorithm.norm_adv_by_std_in_grpo=false",
)  # fmt: skip
COLUMNS = [
    "step", "bucket", "prompts", "reward std", "|task|", "|KL|", "|entropy|", "|signal|^2", "noise trace",
    "|reg|^2", "|signal|^2 / noise",
]  # fmt: skip


def quickstart(run_dir: Path) -> Path:
    """The quickstart's first 40 steps, trained unless they are there."""
    if not (run_dir / "summary.json").exists():
        own = [
            f"run.dir={run_dir.parent}", f"run.name={run_dir.name}", "training.total_training_steps=40",
            "run.save_freq=20", "run.keep_checkpoints=3", "evaluation.test_freq=0", "diagnosis.compute_freq=0",
        ]  # fmt: skip
        train(load_config(QUICKSTART, own), console=Console())
    return run_dir


def checkpoint_steps(run_dir: Path) -> list[int]:
    checkpoints = Checkpoints(run_dir, read_only=True)
    try:
        return checkpoints.all_steps()
    finally:
        checkpoints.close()


def interval(x: tuple[float, float, float]) -> str:
    return f"{x[0]:.3g} [{x[1]:.2g}, {x[2]:.2g}]"


def rows_of(step: int, buckets: list[Bucket]) -> list[list[Any]]:
    """One row a bucket; norms are of mean gradients, what is squared is free of their bias."""
    rows: list[list[Any]] = []
    for b in buckets:
        norms = [f"{b.norms[part]:.3g}" for part in ("task", "kl", "entropy")]
        estimates = [interval(x) for x in (b.signal, b.noise, b.reg, b.snr)]
        name = b.name.replace("bucket_", "Q")
        rows.append([step, name, len(b.prompts), f"{b.reward_std[0]:.3f}", *norms, *estimates])
    return rows


def trend(step: int, buckets: list[Bucket]) -> str:
    """How the task's and the regulariser's norms differ between the buckets of lowest and of highest variance."""
    low, high = buckets[0], buckets[-2]
    parts = [f"{part} {low.norms[part]:.3g} to {high.norms[part]:.3g}" for part in ("task", "reg")]
    return f"Step {step}, lowest to highest bucket: {', '.join(parts)}."


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="run directory (default: runs/gradients, made)")
    parser.add_argument("--steps", type=int, nargs="+", help="checkpoints (default: all)")
    parser.add_argument("--groups", type=int, default=64, help="prompts of a probe")
    parser.add_argument("--members", type=int, default=16, help="episodes a prompt")
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--plots", type=Path, help="folder of the plots (default: the run's)")
    parser.add_argument("--record", action="store_true", help="append the table to benchmarks/RESULTS.md")
    others, own = split_overrides(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(others)
    run_dir = args.run or quickstart(Path("runs/gradients"))
    sizes = {"env_groups": args.groups, "group_size": args.members, "num_buckets": args.buckets}
    overrides = [f"gradients.{name}={value}" for name, value in sizes.items()]
    overrides += [*PROBE, *own]
    rows, notes, records = [], [], []
    for step in args.steps or checkpoint_steps(run_dir):
        policy = load_policy(str(run_dir), overrides, step=step)
        buckets = probe(policy)
        rows += rows_of(step, buckets)
        notes.append(trend(step, buckets))
        records.append({"step": step, **as_metrics(buckets)})
    objective = policy.setup.config.algorithm
    probed = ", ".join([*PROBE, *own])
    report(
        f"Gradients by reward variance: {policy.setup.env.tag}, {objective.adv_estimator}, {args.groups} prompts x "
        f"{args.members} episodes",
        COLUMNS,
        rows,
        notes=f"Probed with {probed}. 95% bootstrap intervals over prompts. {' '.join(notes)}",
        record=args.record,
    )
    folder = args.plots or run_dir
    folder.mkdir(parents=True, exist_ok=True)
    table = MetricsTable.from_records(records)
    with style():
        for name, draw in (("gradient_norms", gradient_norms), ("gradient_snr", gradient_snr)):
            path = folder / f"{name}.png"
            path.write_bytes(to_png(draw(table), f"{policy.setup.env.tag}, {objective.adv_estimator}"))
            print(path)


if __name__ == "__main__":
    main()
