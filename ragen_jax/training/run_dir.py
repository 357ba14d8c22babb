"""A run's directory: refused, made, and read back."""

from __future__ import annotations

import os
from pathlib import Path

from envs_jax.errors import ConfigError
from ragen_jax.training.config import Config, config_to_yaml, load_config, with_overrides
from ragen_jax.training.metrics import write_atomically
from ragen_jax.training.setup import Setup


def read_run_config(run_dir: Path) -> Config:
    """The resolved configuration of an existing run. Raises ConfigError where there is none."""
    path = run_dir / "config.yaml"
    if not path.exists():
        raise ConfigError("run", str(run_dir), "is not a run directory (no config.yaml)")
    return load_config(path)


_MAY_CHANGE = ("training.total_training_steps", "evaluation.test_freq", "run.save_freq", "run.rollout_freq")


def resumed_config(run_dir: Path, overrides: list[str]) -> Config:
    """A run's configuration with the few overrides that leave what was trained so far as it is.

    Raises ConfigError for any other override.
    """
    for item in overrides:
        name = item.partition("=")[0]
        if name not in _MAY_CHANGE and not name.startswith("parallel."):
            remedy = (
                f"cannot change in a resumed run; only {', '.join(_MAY_CHANGE)} and the mesh (parallel) can"
            )
            raise ConfigError(name, item.partition("=")[2], remedy)
    return with_overrides(read_run_config(run_dir), overrides)


def check_new(config: Config) -> Path:
    """The directory of a run that is not there yet. Raises ConfigError for one that is in use or cannot be made."""
    run_dir = Path(config.run.dir) / config.run.name
    if (run_dir / "config.yaml").exists():
        raise ConfigError(
            "run.name", config.run.name,
            f"{run_dir} holds a run already; choose another run.name, or go on with it: "
            f"ragen-jax train --resume {run_dir}",
        )  # fmt: skip
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise ConfigError(
            "run.name", config.run.name, f"{run_dir} exists and is no run; choose another run.name"
        )
    place = next(p for p in run_dir.absolute().parents if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ConfigError(
            "run.dir", config.run.dir, f"nothing can be written in {place}; choose another folder"
        )
    return run_dir


def make_run_dir(run_dir: Path, setup: Setup) -> None:
    """Makes the directory with the tokenizer and config.yaml, which comes last: it is what makes it a run."""
    run_dir.mkdir(parents=True, exist_ok=True)
    setup.tokenizer.save(run_dir / "tokenizer")
    write_atomically(run_dir / "config.yaml", config_to_yaml(setup.config))
