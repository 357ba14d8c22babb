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
from ragen_jax.training.setup import Part, Setup
from ragen_jax.training.teachers import BASELINES, baseline_actions, has_teacher
from ragen_jax.training.warm_start import play


@dataclass(frozen=True)
class Evaluation:
    """Metrics under `val-env/<tag>/`, and the first batch's episodes of each environment.

    A mixture has metrics of its own beside those of its parts: over all episodes together.
    """

    metrics: dict[str, float]
    episodes: tuple[tuple[Part, Trajectories], ...]

    def success(self, tag: str) -> dict[str, float]:
        ends = {"success": "", "low": "_low", "high": "_high"}
        return {name: self.metrics[f"val-env/{tag}/success{end}"] for name, end in ends.items()}


def evaluate(setup: Setup, trainable: dict[str, Any], base: Params | None) -> Evaluation:
    """Plays every held-out level once, `evaluation.batch_size` at a time. The same draws at every call.

    In a mixture each environment by itself, `evaluation.levels` of each.
    """
    played = [(part, *_play_part(setup, part, trainable, base)) for part in setup.parts]
    levels = setup.config.evaluation.levels
    metrics: dict[str, float] = {}
    if setup.shares:
        total = {name: sum(counts[name] for _, counts, _ in played) for name in played[0][1]}
        metrics |= _means(setup.env.tag, total, levels * len(played))
    for part, counts, _ in played:
        metrics |= _means(part.env.tag, counts, levels)
    return Evaluation(metrics, tuple((part, first) for part, _, first in played))


def _play_part(
    setup: Setup, part: Part, trainable: dict[str, Any], base: Params | None
) -> tuple[dict[str, float], Trajectories]:
    """Sums over an environment's held-out levels, and the first batch of episodes."""
    section = setup.config.evaluation
    key = setup.everywhere(jax.random.fold_in(jax.random.key(setup.config.run.seed), 2**31 - 1))
    spec = replace(setup.rollout_spec, truncation=Truncation())
    tables, stops = setup.everywhere((part.eval, setup.stops))
    sums: dict[str, Any] = {}
    first = None
    for start in range(0, section.levels, section.batch_size):
        ids = jnp.arange(start, start + section.batch_size)
        ids, levels = setup.everywhere((ids, ids % part.env.num_levels))
        traj = rollout_program(
            trainable, base, tables, stops, key, levels, section.temperature, ids,
            spec=replace(spec, env=part.env), group_size=1, lora=setup.config.model.lora,
        )  # fmt: skip
        first = traj if first is None else first
        counts = {
            "success": jnp.sum(traj.success), "reward": jnp.sum(traj.score), "turns": jnp.sum(traj.turns),
            "num_actions": jnp.sum(traj.executed), "format_ok": jnp.sum(traj.format_ok),
            "valid_thinking": jnp.sum((traj.think_end > traj.think_start) & traj.taken),
        }  # fmt: skip
        sums = counts if not sums else {n: sums[n] + v for n, v in counts.items()}
    assert first is not None
    return {n: float(v) for n, v in jax.device_get(sums).items()}, first


def _means(tag: str, sums: dict[str, float], levels: int) -> dict[str, float]:
    low, high = wilson_interval(int(sums["success"]), levels)
    name, turns = f"val-env/{tag}", max(sums["turns"], 1)
    return {
        f"{name}/success": sums["success"] / levels, f"{name}/success_low": low, f"{name}/success_high": high,
        f"{name}/reward": sums["reward"] / levels, f"{name}/num_actions": sums["num_actions"] / levels,
        f"{name}/format_ok": sums["format_ok"] / turns, f"{name}/valid_thinking_rate": sums["valid_thinking"] / turns,
    }  # fmt: skip


def baselines(setup: Setup) -> dict[str, dict[str, float]]:
    """Success of scripted policies on the same held-out levels: {name: {success, low, high, n}}.

    Over all parts of a mixture together. Empty if an environment has no scripted policies.
    """
    if not all(has_teacher(part.env) for part in setup.parts):
        return {}
    levels = setup.config.evaluation.levels
    count = levels * len(setup.parts)
    out = {}
    for index, kind in enumerate(BASELINES):
        wins = sum(_baseline_wins(setup, part, kind, index) for part in setup.parts)
        low, high = wilson_interval(wins, count)
        out[kind] = {"success": wins / count, "low": low, "high": high, "n": count}
    return out


def _baseline_wins(setup: Setup, part: Part, kind: str, seed: int) -> int:
    env = part.env
    levels = jnp.arange(setup.config.evaluation.levels) % env.num_levels
    opening = "-</think><answer>" if env.config.enable_think else ""

    def speak(states: Any, key: jax.Array) -> list[str]:
        actions = baseline_actions(env, part.eval, states, key, kind)
        return [f"{opening}{a}</answer>" for a in actions]

    played = play(env, part.eval, setup.tokenizer, speak, levels, jax.random.key(seed))
    return int(np.sum(played.success))
