"""One process of a run of several on this machine: python hosts_run.py PORT PROCESSES PROCESS FOLDER ACTION ...

Actions: `train STEPS [DIE_AFTER]`, `resume STEPS`, `differ`. Process 0 prints a digest of the final parameters.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
from micro_run import micro_config
from rich.console import Console

from ragen_jax import parallel
from ragen_jax.training import trainer
from ragen_jax.training.checkpoints import Checkpoints
from ragen_jax.training.run_dir import resumed_config


def config(folder: Path, steps: int, seed: int = 0):
    return micro_config(
        folder, run={"seed": seed}, warm_start={"steps": 0},
        training={"total_training_steps": steps, "micro_batch_size": 4}, evaluation={"test_freq": 0},
    )  # fmt: skip


def digest(tree) -> str:
    """Of every parameter, whole; all processes must call."""
    leaves = jax.tree.leaves(tree)
    if parallel.several():
        from jax.experimental import multihost_utils

        leaves = multihost_utils.process_allgather(leaves, tiled=True)
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def main() -> None:
    port, processes, process, folder, action, *rest = sys.argv[1:]
    if int(processes) > 1:
        parallel.start(
            coordinator=f"127.0.0.1:{port}", processes=int(processes), process=int(process), timeout=120
        )
    place = Path(folder)
    final = {}
    save = Checkpoints.save

    def saving(self, state, host, success=None):
        problem = save(self, state, host, success)
        final["state"] = state
        if action == "train" and len(rest) > 1 and host.step == int(rest[1]):
            self.wait()
            if process == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        return problem

    Checkpoints.save = saving  # type: ignore[method-assign]
    quiet = Console(quiet=True)
    try:
        if action == "resume":
            overrides = [f"training.total_training_steps={rest[0]}"]
            run = place / "run"
            trainer.train(resumed_config(run, overrides), resume=run, console=quiet)
        else:
            seed = int(process) if action == "differ" else 0
            trainer.train(config(place, int(rest[0]), seed), console=quiet)
    except trainer.LostProcess as error:
        print(f"LOST {error}", flush=True)
        os._exit(3)
    except ValueError as error:
        print(f"REFUSED {error}", flush=True)
        sys.exit(2)
    found = digest(final["state"].train)
    if process == "0":
        print(f"DIGEST {found}", flush=True)


if __name__ == "__main__":
    main()
