"""The compiled programs of a run. Each compiles once a configuration; every table and parameter is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ragen_jax.estimators import reward_variance, reward_variance_stats, select_groups, selection_stats
from ragen_jax.models import Params
from ragen_jax.models.lora import LoraConfig
from ragen_jax.rl import policy_params, update
from ragen_jax.rollout import RolloutSpec, StopTable, Trajectories, rollout
from ragen_jax.training.config import RolloutSection
from ragen_jax.training.diagnosis import diagnose


@partial(jax.jit, static_argnames=("spec", "group_size", "lora"))
def rollout_program(
    trainable: dict[str, Any],
    base: Params | None,
    env_params: Any,
    stops: StopTable,
    key: Array,
    levels: Array,
    temperature: float,
    group_ids: Array | None = None,
    *,
    spec: RolloutSpec,
    group_size: int,
    lora: LoraConfig | None,
) -> Trajectories:
    return rollout(
        policy_params(trainable, base, lora), spec, env_params, stops, key, levels, group_size=group_size,
        temperature=temperature, group_ids=group_ids,
    )  # fmt: skip


@partial(jax.jit, static_argnames=("spec", "lora"))
def diagnosis_program(
    trainable: dict[str, Any], base: Params | None, traj: Trajectories, key: Array, ema: Any, temperature: float, *,
    spec: Any, lora: LoraConfig | None,
) -> Any:  # fmt: skip
    return diagnose(policy_params(trainable, base, lora), traj, key, ema, spec=spec, temperature=temperature)


update_program = jax.jit(update, static_argnames=("spec",), donate_argnames=("state",))


@dataclass(frozen=True)
class FilterSpec:
    """Static settings of the filter, by RAGEN's names without their prefix."""

    strategy: str
    value: float
    type: str
    include_zero: bool
    top_p_prob_mode: str
    selection_eps: float

    @staticmethod
    def of(section: RolloutSection) -> FilterSpec:
        return FilterSpec(
            section.rollout_filter_strategy, section.rollout_filter_value, section.rollout_filter_type,
            section.rollout_filter_include_zero, section.rollout_filter_top_p_prob_mode,
            section.rollout_filter_selection_eps,
        )  # fmt: skip


@partial(jax.jit, static_argnames=("spec", "filters", "shares"))
def filter_program(
    traj: Trajectories, *, spec: FilterSpec, filters: bool, shares: tuple[tuple[str, int], ...] = ()
) -> tuple[Bool[Array, "P"], dict[str, Float[Array, ""]]]:
    """Which groups to keep by the variance of their rewards, and what the rollout was like.

    The groups of a mixture are chosen from together; `shares` are its tags and their groups, in the batch's order.
    """
    scores = traj.score.reshape(-1, traj.group_size)
    metrics = episode_metrics(traj) | tag_metrics(traj, shares)
    if traj.group_size == 1:
        return jnp.ones(scores.shape[0], bool), metrics
    spread = reward_variance(scores)
    keep = jnp.isfinite(spread)
    if filters:
        keep = select_groups(
            spread, strategy=spec.strategy, value=spec.value, type=spec.type, include_zero=spec.include_zero,  # type: ignore[arg-type]
            top_p_prob_mode=spec.top_p_prob_mode, selection_eps=spec.selection_eps,  # type: ignore[arg-type]
        )  # fmt: skip
    per_group = {"std": spread, "max": jnp.max(scores, axis=1), "mean": jnp.mean(scores, axis=1)}
    kept = jnp.maximum(jnp.sum(keep), 1)
    for name, value in per_group.items():
        metrics[f"rollout/in_group_reward_{name}"] = jnp.mean(value)
        metrics[f"rollout/chosen_in_group_reward_{name}"] = jnp.sum(jnp.where(keep, value, 0.0)) / kept
    metrics |= {f"rollout/{n}": v for n, v in selection_stats(spread, keep).items()}
    metrics |= {f"reward_variance/{n}": v for n, v in reward_variance_stats(scores).items()}
    return keep, metrics


def tag_metrics(traj: Trajectories, shares: tuple[tuple[str, int], ...]) -> dict[str, Float[Array, ""]]:
    """The episodes' metrics for each tag of a mixture, and the share of its groups with a success."""
    metrics: dict[str, Array] = {}
    start = 0
    for tag, groups in shares:
        stop = start + groups * traj.group_size
        rows = jax.tree.map(lambda x, i=start, j=stop: x[i:j], traj)
        start = stop
        own = {name.removeprefix("train/"): value for name, value in episode_metrics(rows).items()}
        any_success = jnp.any(rows.success.reshape(groups, traj.group_size), axis=1)
        own[f"pass@{traj.group_size}"] = jnp.mean(any_success.astype(jnp.float32))
        metrics |= {f"train/{tag}/{name}": value for name, value in own.items()}
    return metrics


def episode_metrics(traj: Trajectories) -> dict[str, Float[Array, ""]]:
    """Means over episodes and turns, and counts of what overflowed."""
    turns = jnp.maximum(jnp.sum(traj.taken), 1)
    sampled = jnp.sum(traj.loss_mask)

    def rate(x: Array) -> Array:
        return jnp.mean(x.astype(jnp.float32))

    return {
        "train/success": rate(traj.success),
        "train/reward": jnp.mean(traj.score),
        "train/turns": rate(traj.turns),
        "train/num_actions": rate(jnp.sum(traj.executed, axis=1)),
        "train/action_is_effective": jnp.sum(traj.effective) / jnp.maximum(jnp.sum(traj.executed), 1),
        "train/format_ok": jnp.sum(traj.format_ok) / turns,
        "train/penalty": jnp.mean(jnp.sum(traj.penalty, axis=1)),
        "train/response_length": sampled / turns,
        "train/truncated": rate(traj.truncated),
        "train/overflow_count": jnp.sum(traj.overflow).astype(jnp.float32),
        "train/nonfinite_count": jnp.sum(
            ~jnp.isfinite(traj.score) | ~jnp.all(jnp.isfinite(traj.logprob), axis=1)
        ).astype(jnp.float32),
    }
