"""Orbax checkpoints of a run: the training state and everything that resuming exactly needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from ragen_jax.estimators import CollapseEma
from ragen_jax.parallel import Barrier, OthersFailed, gathered, is_first, on_first, several
from ragen_jax.rl import TrainState

_WRITERS = Barrier(needs_all="async_")
"""Of the threads that write. Those of Orbax's names with async_ say that a process's part of a step is whole."""


class CheckpointError(ValueError):
    """A checkpoint is missing or belongs to another model. The message names the path and the remedy."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RunState:
    """Arrays that change from step to step. Random numbers need no entry: they are addressed by (seed, step, ...)."""

    train: TrainState
    ema: dict[str, CollapseEma]


@dataclass
class HostState:
    """Host-side values that change from step to step."""

    step: int = 0
    entropy_threshold: float | None = None  # of the regime, from the first diagnosis
    mi_threshold: float | None = None
    empty_steps: int = 0
    base_sum: float = 0.0  # of reward variance, over the first steps that kept something
    base_count: int = 0
    low_variance_steps: int = 0
    low_validations: int = 0
    skipped: int = 0  # optimiser steps left out up to now
    base_fingerprint: str | None = None  # of the frozen weights under adapters, which no checkpoint holds
    best_success: float | None = None  # of the evaluations up to now

    def improves(self, success: float | None) -> bool:
        """Notes the success of an evaluation; whether none before it had as much."""
        if success is None or (self.best_success is not None and success <= self.best_success):
            return False
        self.best_success = success
        return True

    def plain(self) -> dict[str, Any]:
        return dict(vars(self))


def _abstract(tree: Any) -> Any:
    """What to restore and where: each leaf's own sharding, by default the first device."""
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def of(x: Any) -> jax.ShapeDtypeStruct:
        placed = getattr(x, "sharding", None) or one
        return jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=placed)

    return jax.tree.map(of, tree)


def _success(metrics: dict[str, float]) -> float:
    return metrics["success"]


def _kept(newest: int, best: int) -> policies.PreservationPolicy:
    """Of equally good ones the later ones."""
    return policies.AnyPreservationPolicy(
        [
            policies.LatestN(newest),
            policies.BestN(get_metric_fn=_success, n=best, keep_checkpoints_without_metrics=False),
        ]
    )


class Checkpoints:
    """Checkpoints under `<run_dir>/checkpoints`. A step that was not written whole does not exist for Orbax.

    The `keep` newest ones stay, and besides them the `keep_best` whose evaluation had most success.
    """

    def __init__(self, run_dir: Path, keep: int = 2, keep_best: int = 0, *, read_only: bool = False) -> None:
        self.directory = (run_dir / "checkpoints").absolute()
        if read_only and not self.directory.is_dir():
            raise CheckpointError(f"{self.directory}: no checkpoints are there")
        policy = None if read_only else _kept(keep, keep_best)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, best_fn=_success if keep_best else None, create=not read_only,
            read_only=read_only, save_interval_steps=0 if read_only else 1, cleanup_tmp_directories=not read_only,
            async_options=ocp.AsyncOptions(barrier_sync_fn=_WRITERS) if several() else None,
        )  # fmt: skip
        self._open()

    def _open(self) -> None:
        # Named handlers, so that what a checkpoint holds can be asked before anything is restored.
        handlers = {"state": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.directory, options=self._options, item_handlers=handlers)

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: RunState, host: HostState, success: float | None = None) -> str | None:
        """Starts writing step `host.step`; returns once the arrays are copied. `success`: this step's, if evaluated.

        Returns what went wrong, if anything, in writing this checkpoint or the one before it; what was cut off is
        removed, and the checkpoints that were whole stay. With several processes all must call, and if one could not
        write its part, the step is removed and all return that.
        """
        problem = self._attempt(self._manager.wait_until_finished)
        full = self._attempt(self._try_folder)
        if full:
            return full
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host.plain()))
        metrics = None if success is None else {"success": success}
        return self._attempt(lambda: self._manager.save(host.step, args=args, metrics=metrics)) or problem

    def _try_folder(self) -> None:
        """Raises OSError where the step's folder cannot be made, for which Orbax's other processes wait minutes."""
        if is_first():
            folder = self.directory / "writable"
            folder.mkdir(exist_ok=True)
            folder.rmdir()

    def _attempt(self, action: Callable[[], Any]) -> str | None:
        said = ""
        try:
            action()
        except OthersFailed:  # they say why
            pass
        except Exception as error:  # of a thread that writes: whatever the file system and its library raise
            if several() and isinstance(error, jax.errors.JaxRuntimeError):
                raise  # a process is gone
            said = " ".join(str(error).split())[:200] or type(error).__name__
        failures = {process: words for process, words in enumerate(gathered(said)) if words}
        if not failures:
            return None
        on_first(self._remove_cut_off)
        self._open()
        newest = self._manager.latest_step()
        words = "; ".join(f"process {p}: {words}" if several() else words for p, words in failures.items())
        return (
            f"a checkpoint could not be written ({words}); training goes on, and would resume from "
            f"{'nothing' if newest is None else f'step {newest}'}"
        )

    def _remove_cut_off(self) -> None:
        for folder in self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def restore(
        self, like: RunState, step: int | None = None, *, base: str | None = None
    ) -> tuple[RunState, HostState]:
        """The newest step, or `step`. `base`: fingerprint of the weights under its adapters.

        Raises CheckpointError when there is none, it is not one of `like`'s shapes, or its adapters are of other base
        weights.
        """
        step = self.latest() if step is None else step
        if step is None or step not in self._manager.all_steps():
            found = ", ".join(map(str, self._manager.all_steps())) or "none"
            raise CheckpointError(f"{self.directory}: no checkpoint of step {step}; there are: {found}")
        try:
            stored = self._manager.item_metadata(step).state
            have = sorted(tuple(x.shape) for x in jax.tree.leaves(stored.tree))
        except Exception as e:  # Orbax fails in many ways on files that are missing, cut short or foreign
            raise self._damaged(step, e) from e
        want = sorted(tuple(jnp.shape(x)) for x in jax.tree.leaves(like))
        if have != want:
            raise CheckpointError(
                f"{self.directory}, step {step}: holds {len(have)} arrays that are not those of this model "
                f"({len(want)} arrays); the model or the algorithm in the configuration is another one"
            )
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(_abstract(like)), host=ocp.args.JsonRestore()
                ),
            )
            host = HostState(**restored.host)
        except Exception as e:
            raise self._damaged(step, e) from e
        if None not in (base, host.base_fingerprint) and base != host.base_fingerprint:
            raise CheckpointError(
                f"{self.directory}, step {step}: its adapters are of base weights {host.base_fingerprint}, but "
                f"model.path now holds weights {base}; restore the files that the run was trained on"
            )
        return restored.state, host

    def _damaged(self, step: int, error: Exception) -> CheckpointError:
        others = [s for s in self._manager.all_steps() if s != step]
        remedy = (
            f"delete the folder of that step to go on from step {max(others)}"
            if others
            else "start another run"
        )
        words = " ".join(str(error).split())[:200]
        return CheckpointError(f"{self.directory}, step {step}: cannot be read ({words}); {remedy}")

    def wait(self) -> str | None:
        """Blocks until everything started is on disk; returns what went wrong, as `save` does."""
        return self._attempt(self._manager.wait_until_finished)

    def close(self) -> None:
        self._manager.close()


def is_run(path: str | Path) -> bool:
    """Whether `path` is a run directory."""
    return (Path(path) / "config.yaml").is_file()


def latest_step(run_dir: Path) -> int | None:
    """The newest whole checkpoint of a run, None without any. Changes nothing on disk."""
    if not (run_dir / "checkpoints").is_dir():
        return None
    checkpoints = Checkpoints(run_dir, read_only=True)
    try:
        return checkpoints.latest()
    finally:
        checkpoints.close()


def save_tree(path: Path, tree: Any) -> None:
    """Writes a tree of arrays once, whole or not at all."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), tree, force=True)


def load_tree(path: Path, like: Any) -> Any:
    """Reads what `save_tree` wrote."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path.absolute(), _abstract(like))
