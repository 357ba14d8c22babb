"""The loop: roll out, diagnose, filter, update, log. A thin shell around the compiled programs."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from envs_jax.errors import ConfigError
from ragen_jax.estimators import REGIME_NAMES, UNKNOWN, regime, regime_thresholds
from ragen_jax.models import Params
from ragen_jax.rl import init_state
from ragen_jax.training.checkpoints import CheckpointError, Checkpoints, HostState, RunState, load_tree, save_tree
from ragen_jax.training.config import (
    Config,
    config_from_dict,
    config_to_dict,
    config_to_yaml,
    with_overrides,
)
from ragen_jax.training.diagnosis import FAMILIES, empty_ema
from ragen_jax.training.evaluation import baselines, evaluate
from ragen_jax.training.metrics import MetricsWriter, read_jsonl, write_atomically
from ragen_jax.training.programs import (
    FilterSpec,
    diagnosis_program,
    filter_program,
    rollout_program,
    update_program,
)
from ragen_jax.training.records import episode_records, write_records
from ragen_jax.training.setup import Setup, build, draw_levels
from ragen_jax.training.teachers import demonstrations
from ragen_jax.training.warm_start import imitate, play

_DIAGNOSE = 7  # address of the diagnosis's random numbers within a step


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its directory, the summary (also in summary.json), and why it stopped if it did early."""

    run_dir: Path
    summary: dict[str, Any]
    stopped: str | None


def read_run_config(run_dir: Path) -> Config:
    """The resolved configuration of an existing run."""
    path = run_dir / "config.yaml"
    if not path.exists():
        raise ConfigError("run", str(run_dir), "is not a run directory (no config.yaml)")
    return config_from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))


_MAY_CHANGE = ("training.total_training_steps", "evaluation.test_freq", "run.save_freq", "run.rollout_freq")


def resumed_config(run_dir: Path, overrides: list[str]) -> Config:
    """A run's configuration with the few overrides that leave what was trained so far as it is."""
    for item in overrides:
        name = item.partition("=")[0]
        if name not in _MAY_CHANGE:
            raise ConfigError(name, item.partition("=")[2], f"cannot change in a resumed run; only {', '.join(_MAY_CHANGE)} can")
    return with_overrides(read_run_config(run_dir), overrides)


def _new_run_dir(config: Config, setup: Setup) -> Path:
    run_dir = Path(config.run.dir) / config.run.name
    if (run_dir / "config.yaml").exists():
        raise ConfigError(
            "run.name", config.run.name,
            f"{run_dir} holds a run already; choose another run.name, or go on with it: ragen-jax train --resume {run_dir}",
        )  # fmt: skip
    run_dir.mkdir(parents=True, exist_ok=True)
    setup.tokenizer.save(run_dir / "tokenizer")
    write_atomically(run_dir / "config.yaml", config_to_yaml(config))
    return run_dir


def warm_start(setup: Setup, params: Params, progress: Progress) -> tuple[Params, float | None]:
    """Imitates the environment's teacher; returns the parameters and the last loss in nats a token."""
    section = setup.config.warm_start
    if not section.steps:
        return params, None
    seed = setup.config.run.seed
    key = jax.random.fold_in(jax.random.key(seed), 0)

    def speak(states: Any, key: jax.Array) -> list[str]:
        return demonstrations(setup.env, setup.train, states, key, section.skill)

    levels = jnp.arange(section.demonstrations) % setup.env.num_levels
    dialogues = play(setup.env, setup.train, setup.tokenizer, speak, levels, key)
    task = progress.add_task("warm start", total=section.steps, note="")
    loss = None
    for params, loss in imitate(
        params, setup.model, dialogues, steps=section.steps, batch_size=section.batch_size, lr=section.lr,
        valid_vocab=setup.tokenizer.vocab_size, seed=seed,
    ):  # fmt: skip
        progress.advance(task)
    progress.update(task, note=f"loss {float(loss):.3f}")  # type: ignore[arg-type]
    return params, float(loss)  # type: ignore[arg-type]


def train(config: Config | None = None, *, resume: Path | None = None, console: Console | None = None) -> RunResult:
    """Runs or resumes a training run.

    A resumed run continues from its newest checkpoint and equals, bit for bit on one mesh, a run that was never
    interrupted. SIGINT or SIGTERM ends the run after the step in hand, with a checkpoint.

    Raises ValueError (ConfigError and its kin) before any long work; nothing that exists is changed then.
    """
    console = console or Console()
    if resume is not None:
        config = config or read_run_config(resume)
        setup, run_dir = build(config, run_dir=resume), resume
    else:
        if config is None:
            raise ConfigError("config", None, "give a configuration, or a run to resume")
        setup = build(config)
        run_dir = _new_run_dir(config, setup)
    with _progress(console) as progress, _interruptible() as interrupted:
        return _Run(setup, run_dir, progress, console).go(resumed=resume is not None, interrupted=interrupted)


class _Run:
    """State of the shell around one run."""

    def __init__(self, setup: Setup, run_dir: Path, progress: Progress, console: Console) -> None:
        self.setup, self.config, self.run_dir = setup, setup.config, run_dir
        self.progress, self.console = progress, console
        self.checkpoints = Checkpoints(run_dir, setup.config.run.keep_checkpoints)
        self.lora = setup.config.model.lora
        self.base = setup.params if self.lora is not None else None
        self.reference: Params | None = None
        self.started = time.monotonic()
        self.key = jax.random.fold_in(jax.random.key(setup.config.run.seed), 1)

    # -- start -------------------------------------------------------------------------------------------------------
    def _fresh(self, params: Params) -> RunState:
        algorithm = self.config.algorithm
        key = jax.random.fold_in(self.key, 2**31 - 1)
        state = init_state(
            self.setup.model, params, self.config.optim, lora=self.lora, critic=algorithm.uses_critic, key=key
        )
        return RunState(state, empty_ema(self.setup.diagnosis_spec.families))

    def _keep_reference(self, params: Params | None) -> None:
        """The KL term's reference: the policy before RL. `params` None: read back what was kept."""
        if not self.config.algorithm.use_kl_loss:
            return
        if self.lora is not None:
            self.reference = self.base
            return
        path = self.run_dir / "reference"
        if params is not None:
            save_tree(path, params)
        self.reference = load_tree(path, self.setup.params)

    def go(self, *, resumed: bool, interrupted: _Interrupted) -> RunResult:
        state, host = None, HostState()
        if resumed and self.checkpoints.latest() is not None:
            state, host = self.checkpoints.restore(self._fresh(self.setup.params))
            self._keep_reference(None)
        writer = MetricsWriter(
            self.run_dir, tensorboard=self.config.run.tensorboard, wandb=self.config.run.wandb,
            config=config_to_dict(self.config), name=self.config.run.name, resume_step=host.step if state else None,
        )  # fmt: skip
        try:
            if state is None:
                state = self._begin(writer)
            stopped = self._loop(state, host, writer, interrupted)
        finally:
            writer.close()
            self.checkpoints.close()
        return RunResult(self.run_dir, self._summary(stopped), stopped)

    def _begin(self, writer: MetricsWriter) -> RunState:
        found = baselines(self.setup)
        if found:
            write_atomically(self.run_dir / "baselines.json", json.dumps(found, indent=1))
        params, loss = warm_start(self.setup, self.setup.params, self.progress)
        self._keep_reference(params)
        state = self._fresh(params)
        metrics = self._evaluate(state, 0)
        if loss is not None:
            metrics["warm_start/loss"] = loss
        writer.write(0, {"time": time.monotonic() - self.started, **metrics})
        self.checkpoints.save(state, HostState())
        return state

    # -- one step ----------------------------------------------------------------------------------------------------
    def _loop(self, state: RunState, host: HostState, writer: MetricsWriter, interrupted: _Interrupted) -> str | None:
        config, total = self.config, self.config.training.total_training_steps
        task = self.progress.add_task("training", total=total, completed=host.step, note="")
        stopped = None
        while host.step < total and stopped is None:
            step = host.step + 1
            state, metrics = self._step(state, host, step)
            host.step = step
            stopped = self._why_stop(state, host, metrics)
            last = step == total or stopped is not None
            if last or (config.evaluation.test_freq and step % config.evaluation.test_freq == 0):
                metrics |= self._evaluate(state, step)
            if interrupted.flag and stopped is None:
                stopped = "interrupted"
            writer.write(step, {"time": time.monotonic() - self.started, **metrics})
            if last or stopped or (config.run.save_freq and step % config.run.save_freq == 0):
                self.checkpoints.save(state, host)
            self.progress.update(task, completed=step, note=self._note(metrics))
        self.checkpoints.wait()
        return stopped

    def _step(self, state: RunState, host: HostState, step: int) -> tuple[RunState, dict[str, float]]:
        setup, config = self.setup, self.config
        key = jax.random.fold_in(self.key, step)
        temperature = config.rollout.temperature
        clock = _Clock()
        traj = rollout_program(
            state.train.trainable, self.base, setup.train, setup.stops, key, draw_levels(setup, step), temperature,
            spec=setup.rollout_spec, group_size=config.rollout.group_size, lora=self.lora,
        )  # fmt: skip
        keep, device = filter_program(
            traj, spec=FilterSpec.of(config.rollout), filters=config.rollout.filters
        )
        clock.lap("rollout", traj.tokens)
        freq = config.diagnosis.compute_freq
        due = bool(freq and setup.diagnosis_spec.families and (step == 1 or step % freq == 0))
        if due:
            found, ema, _ = diagnosis_program(
                state.train.trainable, self.base, traj, jax.random.fold_in(key, _DIAGNOSE), state.ema, temperature,
                spec=setup.diagnosis_spec, lora=self.lora,
            )  # fmt: skip
            device |= found
            state = replace(state, ema=ema)
            clock.lap("diagnosis", found)
        after, tally = update_program(
            state.train, traj, keep, spec=setup.update_spec, base=self.base, reference=self.reference,
            temperature=temperature,
        )  # fmt: skip
        state = replace(state, train=after)
        host_metrics, tally, updates, skipped, kept = jax.device_get((device, tally, after.updates, after.skipped, keep))
        clock.lap("update", ())
        metrics = {n: float(v) for n, v in host_metrics.items()} | tally.means() | clock.metrics()
        metrics |= {"train/updates": float(updates), "train/skipped_updates": float(skipped)}
        metrics["rollout/empty_after_filter"] = float(not kept.any())
        if due:
            metrics["collapse/regime"] = self._regime(metrics, host)
        if config.run.rollout_freq and (step == 1 or step % config.run.rollout_freq == 0):
            self._keep_rollouts(traj, setup.train, step, "train", kept)
        return state, metrics

    def _regime(self, metrics: dict[str, float], host: HostState) -> float:
        """Code of the regime by the first family diagnosed, against half of the run's own first values."""
        family = FAMILIES[self.setup.diagnosis_spec.families[0]]
        entropy, mi = metrics[f"{family}/conditional_entropy_est"], metrics[f"{family}/mi_estimate"]
        if not (math.isfinite(entropy) and math.isfinite(mi)):
            return float(UNKNOWN)
        if host.first_entropy is None or host.first_mi is None:
            host.first_entropy, host.first_mi = entropy, mi
        entropy_low, mi_low = regime_thresholds(host.first_entropy, host.first_mi)
        return float(regime(entropy, mi, entropy_threshold=entropy_low, mi_threshold=mi_low))

    def _why_stop(self, state: RunState, host: HostState, metrics: dict[str, float]) -> str | None:
        host.empty_steps = host.empty_steps + 1 if metrics["rollout/empty_after_filter"] else 0
        metrics["rollout/consecutive_empty_after_filter_steps"] = float(host.empty_steps)
        limit = self.config.rollout.rollout_filter_empty_stop_steps
        if limit and host.empty_steps >= limit:
            return f"the filter kept nothing for {limit} steps (rollout.rollout_filter_empty_stop_steps)"
        skips = self.config.training.max_skipped_updates
        if metrics["train/skipped_updates"] >= skips:
            return f"{skips} optimiser steps had gradients that are not finite (training.max_skipped_updates)"
        if metrics["train/nonfinite_count"]:
            return f"{metrics['train/nonfinite_count']:.0f} episodes have a reward or log-prob that is not finite"
        return None

    def _evaluate(self, state: RunState, step: int) -> dict[str, float]:
        begun = time.monotonic()
        result = evaluate(self.setup, state.train.trainable, self.base)
        self._keep_rollouts(result.episodes, self.setup.eval, step, "eval", None)
        return result.metrics | {"timing_s/eval": time.monotonic() - begun}

    def _keep_rollouts(self, traj: Any, params: Any, step: int, split: str, keep: np.ndarray | None) -> None:
        rows = range(min(self.config.run.rollouts_kept, traj.tokens.shape[0]))
        write_records(
            self.run_dir, episode_records(traj, self.setup.env, params, list(rows), step=step, split=split, keep=keep)
        )

    def _note(self, metrics: dict[str, float]) -> str:
        parts = [f"success {metrics['train/success']:.2f}", f"kept {metrics.get('rollout/filter_kept_ratio', 1):.2f}"]
        if "collapse/regime" in metrics:
            parts.append(REGIME_NAMES[int(metrics["collapse/regime"])])
        return "  ".join(parts)

    # -- end ---------------------------------------------------------------------------------------------------------
    def _summary(self, stopped: str | None) -> dict[str, Any]:
        summary = summarise(self.run_dir, self.setup.env.tag) | {"stopped": stopped}
        write_atomically(self.run_dir / "summary.json", json.dumps(summary, indent=1))
        return summary


def summarise(run_dir: Path, tag: str) -> dict[str, Any]:
    """First and last values of what a reader asks for first, from the run's own files."""
    rows = read_jsonl(run_dir / "metrics.jsonl")

    def ends(name: str) -> dict[str, float] | None:
        found = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
        return {"first": found[0][1], "last": found[-1][1], "last_step": found[-1][0]} if found else None

    name = f"val-env/{tag}/success"
    evaluated = [r for r in rows if r.get(name) is not None]
    out: dict[str, Any] = {"tag": tag, "steps": rows[-1]["step"] if rows else 0}
    for when, row in (("before", evaluated[:1]), ("after", evaluated[-1:])):
        out[when] = {n: row[0][f"{name}{s}"] for n, s in (("success", ""), ("low", "_low"), ("high", "_high"))} if row else None
    path = run_dir / "baselines.json"
    out["baselines"] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    first_turn = FAMILIES["first_turn"]
    out["metrics"] = {
        label: ends(metric)
        for label, metric in {
            "mi_estimate": f"{first_turn}/mi_estimate",
            "mi_seq_estimate": f"{first_turn}/mi_seq_estimate",
            "mi_upper_bound": f"{first_turn}/mi_upper_bound",
            "retrieval_accuracy": f"{first_turn}/retrieval_accuracy",
            "conditional_entropy": f"{first_turn}/conditional_entropy_est",
            "token_entropy": "actor/entropy",
            "kept_ratio": "rollout/filter_kept_ratio",
            "reward_std": "rollout/in_group_reward_std",
            "reasoning_length": "collapse/reasoning_length",
            "valid_thinking_rate": "collapse/valid_thinking_rate",
        }.items()
    }
    return out


class _Clock:
    """Wall time of the parts of a step; waits for the device at each lap."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, wait_for: Any) -> None:
        jax.block_until_ready(wait_for)
        now = time.monotonic()
        self._laps[name], self._last = now - self._last, now

    def metrics(self) -> dict[str, float]:
        laps = {f"timing_s/{n}": s for n, s in self._laps.items()}
        return laps | {"timing_s/step": sum(self._laps.values())}


class _Interrupted:
    flag = False


@contextmanager
def _interruptible() -> Iterator[_Interrupted]:
    """Turns the first SIGINT or SIGTERM into a flag; a second one interrupts at once."""
    state = _Interrupted()

    def note(number: int, frame: Any) -> None:
        if state.flag:
            raise KeyboardInterrupt
        state.flag = True

    try:
        old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        old = {}
    try:
        yield state
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console,
    )  # fmt: skip


__all__ = ["CheckpointError", "RunResult", "read_run_config", "summarise", "train"]
