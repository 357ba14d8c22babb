"""The loop: roll out, diagnose, filter, update, log. A thin shell around the compiled programs."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from envs_jax.errors import ConfigError
from ragen_jax.estimators import REGIME_NAMES, UNKNOWN, regime, regime_thresholds
from ragen_jax.models import Params
from ragen_jax.parallel import anyone, check_same, is_first, on_first, several
from ragen_jax.rl import init_state
from ragen_jax.rl.layout import abstract, laid_out
from ragen_jax.rollout import Trajectories
from ragen_jax.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    HostState,
    RunState,
    latest_step,
    load_tree,
    save_tree,
)
from ragen_jax.training.config import (
    Config,
    config_to_dict,
    config_to_yaml,
    off_policy_warning,
)
from ragen_jax.training.diagnosis import FAMILIES, empty_ema
from ragen_jax.training.early_stop import early_stop
from ragen_jax.training.evaluation import evaluate
from ragen_jax.training.gradients import analyse, as_metrics
from ragen_jax.training.metrics import (
    JsonLines,
    MetricsWriter,
    Silent,
    check_loggers,
    merge,
    write_atomically,
)
from ragen_jax.training.preparation import Preparation, prepare, warm_start
from ragen_jax.training.programs import (
    diagnosis_program,
    entropy_program,
    filter_program,
    refill_program,
    rollout_program,
    update_program,
)
from ragen_jax.training.records import episode_records, first_rows, write_records
from ragen_jax.training.run_dir import check_new, make_run_dir, read_run_config
from ragen_jax.training.setup import Setup, build, draw_levels
from ragen_jax.training.shell import Clock, Interrupted, interruptible, progress_bar
from ragen_jax.training.summary import summarise

_DIAGNOSE = 7  # address of the diagnosis's random numbers within a step


class LostProcess(RuntimeError):
    """Another process of the run is gone, so this one cannot go on. Ends without waiting for the others."""

    def __init__(self, run_dir: Path, error: Exception) -> None:
        # Read by name: Orbax would wait for the process that is gone.
        whole = [int(p.name) for p in (run_dir / "checkpoints").glob("*") if p.name.isdigit()]
        step = max(whole, default=None)
        remedy = (
            "start it anew" if step is None else f"go on from step {step}: ragen-jax train --resume {run_dir}"
        )
        words = " ".join(str(error).split())[:200]
        super().__init__(
            f"process {jax.process_index()} of {jax.process_count()}: another process of the run is gone ({words}); "
            f"end what is left of the run on every host and {remedy}"
        )


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its directory, the summary (also in summary.json), and why it stopped if it did early."""

    run_dir: Path
    summary: dict[str, Any]
    stopped: str | None


def train(
    config: Config | None = None, *, resume: Path | None = None, console: Console | None = None
) -> RunResult:
    """Runs or resumes a training run.

    A resumed run continues from its newest checkpoint and equals, bit for bit on one mesh, a run that was never
    interrupted. SIGINT or SIGTERM, in any process, ends the run after the step in hand, with a checkpoint.

    With several processes all must call this alike; files are written by the first. Raises ValueError (ConfigError and
    its kin) before any long work; nothing that exists is changed then. Raises LostProcess when another process is gone.
    """
    console = (console or Console()) if is_first() else Console(quiet=True)
    if resume is not None:
        run_dir, config = resume, config or read_run_config(resume)
    elif config is None:
        raise ConfigError("config", None, "give a configuration, or a run to resume")
    else:
        run_dir = Path(config.run.dir) / config.run.name
    check_same(
        {name: str(section) for name, section in config_to_dict(config).items()} | {"--resume": str(run_dir)}
    )
    if resume is None:
        on_first(partial(check_new, config))
    check_loggers(wandb=config.run.wandb)
    setup = build(config, run_dir=resume)
    begun = resume is not None and latest_step(run_dir) is not None
    with console.status("playing the baselines and the teacher"):
        preparation = None if begun else prepare(setup)
    if resume is None:
        on_first(partial(make_run_dir, run_dir, setup))
    warning = off_policy_warning(config)
    if warning:
        console.print(f"Warning: {warning}")
    with progress_bar(console) as progress, interruptible() as interrupted:
        try:
            return _Run(setup, run_dir, progress).go(preparation, interrupted)
        except jax.errors.JaxRuntimeError as error:
            if not several():
                raise
            raise LostProcess(run_dir, error) from error


class _Run:
    """State of the shell around one run."""

    def __init__(self, setup: Setup, run_dir: Path, progress: Progress) -> None:
        self.setup, self.config, self.run_dir, self.progress = setup, setup.config, run_dir, progress
        run = setup.config.run
        self.checkpoints = Checkpoints(run_dir, run.keep_checkpoints, run.keep_best_checkpoints)
        self.lora = setup.config.model.lora
        self.base = setup.params if self.lora is not None else None
        self.reference: Params | None = None
        self.groups: JsonLines | Silent = Silent()
        self.started = time.monotonic()
        self.key = jax.random.fold_in(jax.random.key(setup.config.run.seed), 1)

    # -- start -------------------------------------------------------------------------------------------------------
    def _make_state(self, params: Params, key: jax.Array) -> RunState:
        critic = self.config.algorithm.uses_critic
        state = init_state(
            self.setup.model, params, self.config.optim, lora=self.lora, critic=critic, key=key,
            form=self.config.critic,
        )  # fmt: skip
        return RunState(state, empty_ema(self.setup.diagnosis_spec.families))

    def _fresh(self, params: Params) -> RunState:
        key = self.setup.everywhere(jax.random.fold_in(self.key, 2**31 - 1))
        return laid_out(self._make_state, self.setup.model, params, key)

    def _like(self) -> RunState:
        """What a checkpoint holds: shapes, and where each array is to lie."""
        shapes = jax.eval_shape(self._make_state, self.setup.params, self.key)
        return abstract(shapes, self.setup.model)

    def _keep_reference(self, params: Params | None) -> None:
        """The KL term's reference: the policy before RL. `params` None: read back what was kept."""
        if not self.config.algorithm.uses_reference:
            return
        if self.lora is not None:
            self.reference = self.base
            return
        path = self.run_dir / "reference"
        if params is not None:
            save_tree(path, params)
        self.reference = load_tree(path, self.setup.params)

    def go(self, preparation: Preparation | None, interrupted: Interrupted) -> RunResult:
        """The whole run; `preparation` None: from the newest checkpoint."""
        state, host = None, HostState()
        if preparation is None:
            state, host = self.checkpoints.restore(self._like(), base=self.setup.base_fingerprint)
            self._keep_reference(None)
            if is_first():
                write_atomically(self.run_dir / "config.yaml", config_to_yaml(self.config))
        resume_step = None if state is None else host.step
        writer: MetricsWriter | Silent = Silent()
        if is_first():
            writer = MetricsWriter(
                self.run_dir, tensorboard=self.config.run.tensorboard, wandb=self.config.run.wandb,
                config=config_to_dict(self.config), name=self.config.run.name, resume_step=resume_step,
            )  # fmt: skip
            self.groups = JsonLines(self.run_dir / "groups.jsonl", resume_step)
        self.started -= writer.seconds
        try:
            if preparation is not None:
                state = self._begin(preparation, host, writer)
            assert state is not None
            stopped = self._loop(state, host, writer, interrupted)
        except jax.errors.JaxRuntimeError:
            if not several():  # else closing would wait for a process that is gone
                self.checkpoints.close()
            raise
        except BaseException:
            self.checkpoints.close()
            raise
        finally:
            writer.close()
            self.groups.close()
        self.checkpoints.close()
        return RunResult(self.run_dir, self._summary(stopped, host), stopped)

    def _begin(self, preparation: Preparation, host: HostState, writer: MetricsWriter | Silent) -> RunState:
        host.base_fingerprint = self.setup.base_fingerprint
        if preparation.baselines and is_first():
            write_atomically(self.run_dir / "baselines.json", json.dumps(preparation.baselines, indent=1))
        params, loss = self.setup.params, None
        if preparation.phases:
            params, loss = warm_start(self.setup, preparation.phases, self.progress)
        self._keep_reference(params)
        state = self._fresh(params)
        metrics = self._evaluate(state, 0)
        if loss is not None:
            metrics["warm_start/loss"] = loss
        writer.write(0, {"time": time.monotonic() - self.started, **metrics})
        host.improves(self._success(metrics))
        self._save(state, host, metrics)
        return state

    def _success(self, metrics: dict[str, float]) -> float | None:
        """On the held-out levels, where the metrics are of a step with an evaluation."""
        return metrics.get(f"val-env/{self.setup.env.tag}/success")

    def _save(self, state: RunState, host: HostState, metrics: dict[str, float]) -> None:
        """Starts a checkpoint; one that cannot be written is reported, and training goes on."""
        problem = self.checkpoints.save(state, host, self._success(metrics))
        if problem:
            self._say(f"step {host.step}: {problem}")

    # -- one step ----------------------------------------------------------------------------------------------------
    def _loop(
        self, state: RunState, host: HostState, writer: MetricsWriter | Silent, interrupted: Interrupted
    ) -> str | None:
        config, total = self.config, self.config.training.total_training_steps
        task = self.progress.add_task("training", total=total, completed=host.step, note="")
        stopped = "interrupted" if anyone(interrupted.flag) else None
        while host.step < total and stopped is None:
            step = host.step + 1
            state, metrics = self._step(state, host, step)
            host.step = step
            due = step == total or (config.evaluation.test_freq and step % config.evaluation.test_freq == 0)
            if due:
                metrics |= self._evaluate(state, step)
            stopped = early_stop(config, host, metrics)
            last = step == total or stopped is not None
            if last and not due:
                metrics |= self._evaluate(state, step)
            if anyone(interrupted.flag) and stopped is None:
                stopped = "interrupted"
            writer.write(step, {"time": time.monotonic() - self.started, **metrics})
            better = host.improves(self._success(metrics)) and config.run.keep_best_checkpoints
            if last or stopped or better or (config.run.save_freq and step % config.run.save_freq == 0):
                self._save(state, host, metrics)
            self.progress.update(task, completed=step, note=self._note(metrics))
        problem = self.checkpoints.wait()
        if problem:
            self._say(f"step {host.step}: {problem}")
        return stopped

    def _step(self, state: RunState, host: HostState, step: int) -> tuple[RunState, dict[str, float]]:
        setup, config = self.setup, self.config
        key = setup.everywhere(jax.random.fold_in(self.key, step))
        temperature = config.rollout.temperature
        clock = Clock()
        batch = self._collect(state, key, step)
        traj, keep, device = batch.traj, batch.keep, batch.metrics
        clock.lap("rollout", keep)
        freq = config.diagnosis.compute_freq
        due = bool(freq and setup.diagnosis_spec.families and (step == 1 or step % freq == 0))
        ema = state.ema
        if due:
            found, ema, _ = diagnosis_program(
                state.train.trainable, self.base, batch.first, jax.random.fold_in(key, _DIAGNOSE), state.ema,
                temperature, spec=setup.diagnosis_spec, lora=self.lora,
            )  # fmt: skip
            device.append(found)
            clock.lap("diagnosis", found)
        analysed = config.gradients.every and (step - 1) % config.gradients.every == 0
        if analysed:
            buckets = analyse(setup, state.train.trainable, self.base, self.reference, key, step, batch.first)
            clock.lap("gradients", ())
        after, tally = update_program(
            state.train, traj, keep, spec=setup.update_spec, base=self.base, reference=self.reference,
            temperature=temperature,
        )  # fmt: skip
        found_on_device = (device, tally, after.updates, after.skipped, keep, batch.groups)
        parts, tally, updates, skipped, kept, groups = jax.device_get(found_on_device)
        clock.lap("update", ())
        # A step that keeps nothing leaves everything that is carried on as it was, moving averages too.
        state = RunState(after, ema if kept.any() else state.ema)
        metrics = merge(parts[: len(groups)])
        for part in parts[len(groups) :]:
            metrics |= {n: float(v) for n, v in part.items()}
        metrics |= tally.means() | clock.metrics() | (as_metrics(buckets) if analysed else {})
        metrics |= {"train/updates": float(updates), "train/skipped_updates": float(skipped)}
        metrics["rollout/empty_after_filter"] = float(not kept.any())
        metrics["rollout/effective_kept_ratio"] = float(kept.sum()) / (len(groups) * len(kept))
        metrics["rollout/num_gen_batches"] = float(len(groups))
        self.groups.write(step, {n: [float(x) for g in groups for x in g[n]] for n in groups[0]})
        if not kept.any():
            self._say(f"step {step}: the filter kept nothing; nothing was learned")
        if due:
            metrics |= self._regime(metrics, host)
        if int(skipped) > host.skipped:
            self._keep_broken(traj, np.flatnonzero(tally.nonfinite), step, int(skipped) - host.skipped)
        host.skipped = int(skipped)
        if metrics["train/nonfinite_count"]:
            self._keep_nonfinite(batch.all, step)
        if config.run.rollout_freq and (step == 1 or step % config.run.rollout_freq == 0):
            rows = first_rows(setup.env, traj, config.run.rollouts_kept)
            records = episode_records(traj, setup.env, setup.train, rows, step=step, split="train", keep=kept)
            if is_first():
                write_records(self.run_dir, records)
        return state, metrics

    def _collect(self, state: RunState, key: jax.Array, step: int) -> _Batch:
        """Rolls out and filters; with dynamic sampling again, until a whole batch of groups is kept."""
        setup, section = self.setup, self.config.rollout
        traj = keep = None
        everything, metrics, groups = [], [], []
        for number in range(section.max_num_gen_batches):
            ids = jnp.arange(section.env_groups) + number * section.env_groups
            levels, ids = setup.everywhere((draw_levels(setup, step, number), ids))
            more = rollout_program(
                state.train.trainable, self.base, *setup.tables("train"), key, levels,
                section.temperature, ids, spec=setup.rollout_spec, group_size=section.group_size, lora=self.lora,
                objective=self.config.algorithm,
            )  # fmt: skip
            entropy = None
            if section.filters and section.rollout_filter_metric.startswith("entropy"):
                entropy = entropy_program(
                    state.train.trainable,
                    self.base,
                    more,
                    spec=setup.update_spec,
                    temperature=section.temperature,
                )
            more_keep, found, numbers = filter_program(more, entropy, section=section, shares=setup.shares)
            everything.append(more)
            metrics.append(found)
            groups.append(numbers)
            if traj is None:
                traj, keep = more, more_keep
            else:
                traj, keep = refill_program(traj, keep, more, more_keep)
            if section.max_num_gen_batches > 1 and bool(keep.all()):
                break
        assert traj is not None
        assert keep is not None
        return _Batch(traj, keep, everything, metrics, groups)

    def _regime(self, metrics: dict[str, float], host: HostState) -> dict[str, float]:
        """Regime of the first family diagnosed, against thresholds from the run's own first diagnosis.

        Entropy is high from half of its first value on. MI-Est is high from half of its first value on, but not below a
        tenth of its ceiling, so that a run that starts near 0 cannot pass for one that has kept what it had.
        """
        family = FAMILIES[self.setup.diagnosis_spec.families[0]]
        entropy, mi = metrics[f"{family}/conditional_entropy_est"], metrics[f"{family}/mi_estimate"]
        if not (math.isfinite(entropy) and math.isfinite(mi)):
            return {"collapse/regime": float(UNKNOWN)}
        if host.entropy_threshold is None or host.mi_threshold is None:
            ceiling = metrics[f"{family}/mi_upper_bound_per_token"]
            entropy_low, mi_low = regime_thresholds(entropy, mi)
            _, floor = regime_thresholds(entropy, mi, mi_upper_bound=ceiling, mi_fraction=0.1)
            host.entropy_threshold, host.mi_threshold = float(entropy_low), max(float(mi_low), float(floor))
        code = regime(
            jnp.float32(entropy), jnp.float32(mi),
            entropy_threshold=host.entropy_threshold, mi_threshold=host.mi_threshold,
        )  # fmt: skip
        return {
            "collapse/regime": float(code),
            "collapse/entropy_threshold": host.entropy_threshold,
            "collapse/mi_threshold": host.mi_threshold,
        }

    def _evaluate(self, state: RunState, step: int) -> dict[str, float]:
        begun = time.monotonic()
        result = evaluate(self.setup, state.train.trainable, self.base)
        each = -(-self.config.run.rollouts_kept // len(result.episodes))
        records = []
        for part, traj in result.episodes:
            rows = first_rows(part.env, traj, each)
            records += episode_records(traj, part.env, part.eval, rows, step=step, split="eval")
        if is_first():
            write_records(self.run_dir, records)
        return result.metrics | {"timing_s/eval": time.monotonic() - begun}

    def _keep_nonfinite(self, batches: list[Any], step: int) -> None:
        """Keeps the episodes with a reward or log-prob that is not finite, at most `rollouts_kept`."""
        kept: list[dict[str, Any]] = []
        for traj in batches:
            reward, logprob = jax.device_get(
                (jnp.isfinite(traj.score), jnp.all(jnp.isfinite(traj.logprob), axis=1))
            )
            rows = np.flatnonzero(~(reward & logprob))[: self.config.run.rollouts_kept - len(kept)].tolist()
            records = episode_records(
                traj, self.setup.env, self.setup.train, rows, step=step, split="nonfinite"
            )
            for row, record in zip(rows, records, strict=True):
                record["nonfinite"] = [
                    n for n, ok in (("reward", reward[row]), ("logprob", logprob[row])) if not ok
                ]
            kept += records
        if is_first():
            write_records(self.run_dir, kept)

    def _keep_broken(self, traj: Any, rows: np.ndarray, step: int, steps: int) -> None:
        """Keeps the episodes of microbatches whose gradient was not finite, at most `rollouts_kept`, and says so."""
        note = f"step {step}: {steps} optimiser step(s) left out, as the gradient was not finite"
        if len(rows):
            chosen = rows[: self.config.run.rollouts_kept].tolist()
            records = episode_records(
                traj, self.setup.env, self.setup.train, chosen, step=step, split="gradient"
            )
            if is_first():
                note += f"; {write_records(self.run_dir, records).name} has the episodes"
        self._say(note)

    def _say(self, text: str) -> None:
        self.progress.console.print(text)

    def _note(self, metrics: dict[str, float]) -> str:
        parts = [
            f"success {metrics['train/success']:.2f}",
            f"kept {metrics.get('rollout/filter_kept_ratio', 1):.2f}",
        ]
        if "collapse/regime" in metrics:
            parts.append(REGIME_NAMES[int(metrics["collapse/regime"])])
        return "  ".join(parts)

    # -- end ---------------------------------------------------------------------------------------------------------
    def _summary(self, stopped: str | None, host: HostState) -> dict[str, Any]:
        if not is_first():
            return {"steps": host.step, "stopped": stopped}
        summary = summarise(self.run_dir, self.setup.env.tag) | {"stopped": stopped}
        write_atomically(self.run_dir / "summary.json", json.dumps(summary, indent=1))
        return summary


@dataclass(frozen=True)
class _Batch:
    """What a step learns from, and of each batch that was rolled out for it: episodes, metrics, groups' numbers."""

    traj: Trajectories
    keep: jax.Array  # by row
    all: list[Trajectories]
    metrics: list[dict[str, Any]]
    groups: list[dict[str, Any]]

    @property
    def first(self) -> Trajectories:
        """The first batch, before any choice among groups."""
        return self.all[0]


__all__ = ["CheckpointError", "LostProcess", "RunResult", "train"]
