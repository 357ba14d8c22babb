"""Benchmarks' own arithmetic and bookkeeping; what they time is not timed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import gradients, presets, update
from ragen_jax.rl.gradient_analysis import Bucket
from ragen_jax.training.config import Config, config_to_yaml, load_config
from ragen_jax.training.trainer import RunResult

QUIET = Console(quiet=True)


# -- update ------------------------------------------------------------------------------------------------------------
def test_line_leaves_out_the_point_at_zero() -> None:
    intercept, slope = update.line({0.0: 99.0, 0.125: 1.5, 0.25: 2.0, 0.5: 3.0, 1.0: 5.0})
    assert (intercept, slope) == (pytest.approx(1.0), pytest.approx(4.0))


@pytest.mark.parametrize("fraction", update.FRACTIONS)
def test_masks_keep_the_fraction(fraction: float) -> None:
    assert update.mask(16, fraction).sum() == 16 * fraction


def test_a_difference_of_the_sides_is_refused() -> None:
    ours = {"actor/pg_loss": 0.01, "actor/grad_norm": 20.0}
    assert update.difference(ours, {"actor/pg_loss": 0.01005}) == pytest.approx(5e-5)
    with pytest.raises(ValueError, match=r"actor/grad_norm is 20 here and 20\.5 in PyTorch"):
        update.difference(ours, {"actor/pg_loss": 0.01, "actor/grad_norm": 20.5})
    with pytest.raises(ValueError, match="nan in PyTorch"):
        update.difference(ours, {"actor/pg_loss": float("nan")})


@pytest.mark.slow
@pytest.mark.parity
def test_pytorch_finds_the_same_update(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight groups in two minibatches, GRPO and PPO: losses, entropies and gradient norms, checked before timing."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    update.main(["--groups", "8", "--slots", "32", "--rounds", "1"])
    assert " ".join(capsys.readouterr().out.split()).count("from PyTorch's;") == 2


# -- presets -----------------------------------------------------------------------------------------------------------
class Trainer:
    """Stands in for `train`: keeps the configurations, leaves the files of a run, is interrupted at one of them."""

    def __init__(self, interrupted_at: str = "") -> None:
        self.interrupted_at = interrupted_at
        self.seen: dict[str, Config] = {}
        self.resumed: list[str] = []

    def __call__(self, config: Config, *, resume: Path | None = None, console: Any) -> RunResult:
        name = config.run.name
        if resume is None:
            self.seen[name] = config
        else:
            self.resumed.append(name)
        run_dir = Path(config.run.dir) / name
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(config_to_yaml(config))
        level = {"success": 0.5, "low": 0.45, "high": 0.55}
        stopped = "interrupted" if name == self.interrupted_at and resume is None else None
        steps = config.training.total_training_steps
        summary = {
            "stopped": stopped,
            "before": level,
            "after": {**level, "success": 0.6, "high": 0.7},
            "steps": steps,
        }
        (run_dir / "summary.json").write_text(json.dumps(summary))
        rows: list[dict[str, Any]] = [{"step": 0}]
        for step in range(1, steps + 1):
            rows.append(
                {"step": step, "rollout/effective_kept_ratio": 1 / step, "reward_variance/mean": float(step)}
            )
            rows[-1]["timing_s/step"] = 2.0
        for row, value in ((rows[min(1, steps)], 0.75), (rows[-1], 0.25)):
            row["collapse_first_turn_sample/mi_estimate"] = value
            row["collapse_first_turn_sample/conditional_entropy_est"] = 2 * value
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        return RunResult(run_dir, summary, stopped)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, list[str]]:
    """Folder, configuration and overrides of a study whose runs are not run."""
    monkeypatch.setattr(presets, "write_report", lambda run_dir: run_dir)
    return (
        tmp_path / "study",
        presets.CONFIGS / "easy_sokoban.yaml",
        ["training.total_training_steps=10", "run.seed=3"],
    )


def test_presets_share_a_warm_start_and_differ_as_named(task: tuple[Path, Path, list[str]]) -> None:
    trainer = Trainer()
    cells = presets.make_all(*task, 2, QUIET, trainer)
    assert cells is not None
    assert len(cells) == 8
    warm = trainer.seen.pop("warm_start")
    assert warm.training.total_training_steps == 0
    assert warm.warm_start.steps > 0
    for cell, config in zip(cells, trainer.seen.values(), strict=True):
        assert config.run.name == cell.name == f"{cell.preset}-filter-{cell.filter}"
        assert config.model.path == str(task[0] / "warm_start")
        assert config.warm_start.steps == config.warm_start.reading_steps == 0
        assert (config.training.total_training_steps, config.run.seed) == (10, 3)
        assert config.rollout.filters == (cell.filter == "on")
        assert config.rollout.rollout_filter_value == (0.9 if cell.filter == "on" else 1.0)
        assert config.rollout.max_num_gen_batches == (2 if cell.name == "dapo-filter-on" else 1)
        assert config.algorithm == load_config(presets.CONFIGS / f"{cell.preset}.yaml").algorithm
        assert config.env == warm.env


def test_presets_go_on_where_they_were_interrupted(task: tuple[Path, Path, list[str]]) -> None:
    trainer = Trainer("grpo-filter-on")
    assert presets.make_all(*task, 2, QUIET, trainer) is None
    assert list(trainer.seen)[-1] == "grpo-filter-on"
    assert len(trainer.seen) == 5
    assert presets.make_all(*task, 2, QUIET, trainer) is not None
    assert trainer.resumed == ["grpo-filter-on"]
    assert len(trainer.seen) == 9
    assert presets.make_all(*task, 2, QUIET, Trainer()) is not None  # nothing is left to do


def test_presets_refuse_the_folder_of_another_study(task: tuple[Path, Path, list[str]]) -> None:
    folder, config, overrides = task
    assert presets.make_all(*task, 2, QUIET, Trainer("ppo-filter-on")) is None
    others = [*overrides, "optim.lr=0.5", "env.max_turns=3"]
    with pytest.raises(ValueError, match=r"warm_start holds a run with other env\.max_turns, optim\.lr;"):
        presets.make_all(folder, config, others, 2, QUIET, Trainer())


def test_presets_table_and_plot(task: tuple[Path, Path, list[str]]) -> None:
    cells = presets.make_all(*task, 2, QUIET, Trainer())
    assert cells is not None
    outcomes = [presets.outcome(cell) for cell in cells]
    o = outcomes[0]
    assert o.kept == pytest.approx(np.mean([1 / s for s in range(1, 11)]))
    assert (o.mi, o.entropy, o.variance) == ((0.75, 0.25), (1.5, 0.5), (1.5, 9.5))
    assert (o.steps, o.seconds) == (10, 20.0)
    columns, rows = presets.table(outcomes)
    assert all(len(row) == len(columns) for row in rows)
    assert rows[1][:4] == ["ppo", "on", "0.500 [0.450, 0.550]", "0.600 [0.450, 0.700]"]
    axes = presets.plot(outcomes).axes
    assert [t.get_text() for t in axes[0].get_xticklabels()] == list(presets.PRESETS)


# -- gradients ---------------------------------------------------------------------------------------------------------
def test_gradient_rows_and_trend() -> None:
    def bucket(name: str, task: float, reg: float) -> Bucket:
        norms = {"task": task, "kl": 0.5, "entropy": 0.25, "reg": reg}
        interval = (0.5, 0.25, 0.75)
        return Bucket(name, (1, 2, 3), (0.3, 0.1, 0.5), norms, interval, interval, interval, interval)

    buckets = [bucket("bucket_1", 0.0, 0.6), bucket("bucket_2", 2.0, 0.7), bucket("all", 1.0, 0.65)]
    rows = gradients.rows_of(20, buckets)
    assert [row[1] for row in rows] == ["Q1", "Q2", "all"]
    assert all(len(row) == len(gradients.COLUMNS) for row in rows)
    assert rows[1][3:8] == ["0.300", "2", "0.5", "0.25", "0.5 [0.25, 0.75]"]
    assert gradients.trend(20, buckets) == "Step 20, lowest to highest bucket: task 0 to 2, reg 0.6 to 0.7."
