"""Gradient analysis within a run and as a probe of a checkpoint; neither changes what it looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax.errors import ConfigError
from ragen_jax.models import Params
from ragen_jax.rl.gradient_analysis import Bucket, analyse_gradients
from ragen_jax.rollout import Trajectories
from ragen_jax.training.checkpoints import load_tree
from ragen_jax.training.config import load_config
from ragen_jax.training.policy import Policy
from ragen_jax.training.programs import rollout_program
from ragen_jax.training.setup import Setup, draw_levels

_GRADIENTS = 8  # address of the analysis's random numbers within a step
_LEVELS = 1 << 20  # number of the analysis's batch of levels within a step


def gradient_batch(
    setup: Setup, trainable: dict[str, Any], base: Params | None, key: jax.Array, step: int
) -> Trajectories:
    """Episodes of the analysis alone, `gradients.env_groups` by `gradients.group_size`, training levels."""
    section, rollout = setup.config.gradients, setup.config.rollout
    groups = section.env_groups or rollout.env_groups
    levels, ids = setup.everywhere((draw_levels(setup, step, _LEVELS, groups), jnp.arange(groups)))
    return rollout_program(
        trainable, base, *setup.tables("train"), jax.random.fold_in(key, _GRADIENTS), levels, rollout.temperature, ids,
        spec=setup.rollout_spec, group_size=section.group_size or rollout.group_size, lora=setup.config.model.lora,
        objective=setup.config.algorithm,
    )  # fmt: skip


def analyse(
    setup: Setup, trainable: dict[str, Any], base: Params | None, reference: Params | None, key: jax.Array,
    step: int, own: Trajectories | None = None,
) -> list[Bucket]:  # fmt: skip
    """Buckets on the step's `own` batch, or on one of the analysis's own where its sizes are set or `own` is None."""
    section = setup.config.gradients
    separate = own is None or section.env_groups is not None or section.group_size is not None
    traj = gradient_batch(setup, trainable, base, key, step) if separate else own
    assert traj is not None
    return analyse_gradients(
        trainable, traj, spec=setup.gradient_spec, base=base, reference=reference,
        temperature=setup.config.rollout.temperature, key=jax.random.fold_in(key, _GRADIENTS + 1),
    )  # fmt: skip


def probe(policy: Policy) -> list[Bucket]:
    """Buckets of a policy as it is, on a batch of its own."""
    setup = policy.setup
    objective, trainable = setup.config.algorithm, dict(policy.trainable)
    if objective.uses_critic:
        if policy.critic is None:
            raise ConfigError(
                "algorithm.adv_estimator", objective.adv_estimator, "the policy comes without a critic"
            )
        trainable["critic"] = policy.critic
    reference = _reference(policy) if objective.uses_reference else None
    key = jax.random.fold_in(jax.random.key(setup.config.run.seed), 1)
    return analyse(setup, trainable, policy.base, reference, key, 0)


def _reference(policy: Policy) -> Params:
    """The policy before RL: what a run kept, the base under adapters, or the model that training began with."""
    if policy.base is not None:
        return policy.base
    if policy.run_dir is None:
        return policy.trainable["policy"]
    kept = policy.run_dir / "reference"
    if kept.is_dir():
        return load_tree(kept, policy.setup.params)
    if load_config(policy.run_dir / "config.yaml").warm_start.steps:
        raise ConfigError(
            "algorithm.use_kl_loss", True,
            f"{policy.run_dir} kept no reference policy, as it was trained without a KL; leave the KL out",
        )  # fmt: skip
    return policy.setup.params


def as_metrics(buckets: list[Bucket]) -> dict[str, float]:
    """One flat dictionary, as it is logged."""
    out: dict[str, float] = {}
    for bucket in buckets:
        out |= bucket.metrics()
    return out


def write_plots(buckets: list[Bucket], folder: Path, title: str) -> list[Path]:
    """gradient_norms.png and gradient_snr.png of one probe."""
    from ragen_jax.report.gradients import gradient_norms, gradient_snr
    from ragen_jax.report.style import style, to_png
    from ragen_jax.report.table import MetricsTable

    table = MetricsTable.from_records([{"step": 0, **as_metrics(buckets)}])
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style():
        for name, draw in (("gradient_norms", gradient_norms), ("gradient_snr", gradient_snr)):
            path = folder / f"{name}.png"
            path.write_bytes(to_png(draw(table), title))
            paths.append(path)
    return paths
