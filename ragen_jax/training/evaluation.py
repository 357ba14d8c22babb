"""Success on held-out levels, with intervals, beside what simpler policies reach on the same levels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.models import Params
from ragen_jax.rollout import Trajectories, Truncation
from ragen_jax.training.metrics import wilson_interval
from ragen_jax.training.programs import rollout_program
from ragen_jax.training.setup import Setup
from ragen_jax.training.teachers import BASELINES, baseline_actions, has_teacher
from ragen_jax.training.warm_start import play


@dataclass(frozen=True)
class Evaluation:
    """Metrics under `val-env/<tag>/`, and the first batch's episodes."""

    metrics: dict[str, float]
    episodes: Trajectories

    def success(self, tag: str) -> dict[str, float]:
        ends = {"success": "", "low": "_low", "high": "_high"}
        return {name: self.metrics[f"val-env/{tag}/success{end}"] for name, end in ends.items()}


def evaluate(setup: Setup, trainable: dict[str, Any], base: Params | None) -> Evaluation:
    """Plays every held-out level once, `evaluation.batch_size` at a time. The same draws at every call."""
    section, tag = setup.config.evaluation, setup.env.tag
    key = setup.everywhere(jax.random.fold_in(jax.random.key(setup.config.run.seed), 2**31 - 1))
    spec = replace(setup.rollout_spec, truncation=Truncation())
    sums: dict[str, Any] = {}
    first = None
    for start in range(0, section.levels, section.batch_size):
        ids = jnp.arange(start, start + section.batch_size)
        ids, levels = setup.everywhere((ids, ids % setup.env.num_levels))
        traj = rollout_program(
            trainable, base, *setup.tables("eval"), key, levels, section.temperature, ids,
            spec=spec, group_size=1, lora=setup.config.model.lora,
        )  # fmt: skip
        first = traj if first is None else first
        counts = {
            "success": jnp.sum(traj.success), "reward": jnp.sum(traj.score), "turns": jnp.sum(traj.turns),
            "num_actions": jnp.sum(traj.executed), "format_ok": jnp.sum(traj.format_ok),
            "valid_thinking": jnp.sum((traj.think_end > traj.think_start) & traj.taken),
        }  # fmt: skip
        sums = counts if not sums else {n: sums[n] + v for n, v in counts.items()}
    host = {n: float(v) for n, v in jax.device_get(sums).items()}
    assert first is not None
    low, high = wilson_interval(int(host["success"]), section.levels)
    name = f"val-env/{tag}"
    metrics = {
        f"{name}/success": host["success"] / section.levels, f"{name}/success_low": low, f"{name}/success_high": high,
        f"{name}/reward": host["reward"] / section.levels,
        f"{name}/num_actions": host["num_actions"] / section.levels,
        f"{name}/format_ok": host["format_ok"] / max(host["turns"], 1),
        f"{name}/valid_thinking_rate": host["valid_thinking"] / max(host["turns"], 1),
    }  # fmt: skip
    return Evaluation(metrics, first)


def baselines(setup: Setup) -> dict[str, dict[str, float]]:
    """Success of scripted policies on the same held-out levels: {name: {success, low, high, n}}. Empty without any."""
    if not has_teacher(setup.env):
        return {}
    count = setup.config.evaluation.levels
    levels = jnp.arange(count) % setup.env.num_levels
    out = {}
    opening = "" if setup.env.config.enable_think is False else "-</think><answer>"
    for index, kind in enumerate(BASELINES):

        def speak(states: Any, key: jax.Array, kind: str = kind) -> list[str]:
            actions = baseline_actions(setup.env, setup.eval, states, key, kind)
            return [f"{opening}{a}</answer>" for a in actions]

        played = play(setup.env, setup.eval, setup.tokenizer, speak, levels, jax.random.key(index))
        wins = int(np.sum(played.success))
        low, high = wilson_interval(wins, count)
        out[kind] = {"success": wins / count, "low": low, "high": high, "n": count}
    return out
