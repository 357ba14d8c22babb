"""The compiled programs of a run. Each compiles once a configuration; every table and parameter is an argument."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from envs_jax.mixture import as_mixture
from ragen_jax.estimators import (
    chance_std_over_mean,
    filter_scores,
    reward_variance,
    reward_variance_stats,
    select_groups,
    selection_stats,
)
from ragen_jax.models import Params
from ragen_jax.models.lora import LoraConfig
from ragen_jax.rl import Objective, overlong_penalty, policy_params, row_entropy, update
from ragen_jax.rollout import RolloutSpec, StopTable, Trajectories, rollout
from ragen_jax.training.diagnosis import diagnose
from ragen_jax.training.sections import RolloutSection


@partial(jax.jit, static_argnames=("spec", "group_size", "lora", "objective"))
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
    objective: Objective | None = None,
) -> Trajectories:
    """Episodes; with the `objective`'s penalty on long turns, when given, beside the environment's own penalties."""
    traj = rollout(
        policy_params(trainable, base, lora), spec, env_params, stops, key, levels, group_size=group_size,
        temperature=temperature, group_ids=group_ids,
    )  # fmt: skip
    if objective is None or not objective.overlong_buffer_share:
        return traj
    limits = as_mixture(spec.env, levels.shape[0]).response_limits(group_size)
    extra = overlong_penalty(traj, objective, jnp.asarray(limits)[:, None])
    return replace(traj, penalty=traj.penalty + jnp.where(traj.taken, extra, 0.0))


@partial(jax.jit, static_argnames=("spec", "lora"))
def diagnosis_program(
    trainable: dict[str, Any], base: Params | None, traj: Trajectories, key: Array, ema: Any, temperature: float, *,
    spec: Any, lora: LoraConfig | None,
) -> Any:  # fmt: skip
    return diagnose(policy_params(trainable, base, lora), traj, key, ema, spec=spec, temperature=temperature)


update_program = jax.jit(update, static_argnames=("spec",), donate_argnames=("state",))


entropy_program = jax.jit(row_entropy, static_argnames=("spec",))


@partial(jax.jit, static_argnames=("section", "shares"))
def filter_program(
    traj: Trajectories,
    entropy: Float[Array, "B"] | None = None,
    *,
    section: RolloutSection,
    shares: tuple[tuple[str, int], ...] = (),
) -> tuple[Bool[Array, "B"], dict[str, Float[Array, ""]], dict[str, Array]]:
    """Which rows to learn from, what the rollout was like, and each group's numbers: level, mean, std, share kept.

    `entropy` [B] is needed by the metrics entropy and entropy_variance. The groups of a mixture are chosen from
    together; `shares` are its tags and their groups, in the batch's order.
    """
    size = traj.group_size
    scores = traj.score.reshape(-1, size)
    groups = scores.shape[0]
    metrics = episode_metrics(traj) | tag_metrics(traj, shares)
    spread = reward_variance(scores) if size > 1 else jnp.where(jnp.isfinite(scores[:, 0]), 0.0, jnp.nan)
    finite = jnp.repeat(jnp.isfinite(spread), size)
    if not section.filters:
        ranked, keep = spread, finite
    else:
        metric, values = section.rollout_filter_metric, scores
        if metric.startswith("entropy"):
            if entropy is None:
                raise ValueError(f"rollout.rollout_filter_metric {metric} needs the rows' entropies")
            values = entropy.reshape(-1, size)
        elif metric == "length":
            values = jnp.sum(traj.loss_mask, axis=1).reshape(-1, size).astype(jnp.float32)
        ranked = filter_scores(values, metric, section.rollout_filter_level)
        chosen = select_groups(
            ranked, strategy=section.rollout_filter_strategy, value=section.rollout_filter_value,
            type=section.rollout_filter_type, include_zero=section.rollout_filter_include_zero,
            top_p_prob_mode=section.rollout_filter_top_p_prob_mode,
            selection_eps=section.rollout_filter_selection_eps, eps_mode=section.rollout_filter_eps_mode,
        )  # fmt: skip
        keep = (chosen if chosen.shape[0] == groups * size else jnp.repeat(chosen, size)) & finite
    if size > 1:
        metrics |= {f"reward_variance/{n}": v for n, v in reward_variance_stats(scores).items()}
    if size > 2:
        metrics["reward_variance/std_over_mean_chance"] = chance_std_over_mean(scores)
    if section.rollout_filter_adaptive:
        ratio = metrics["reward_variance/std_over_mean"]
        active = ~(
            (ratio > 0) & (ratio < section.rollout_filter_adaptive)
        )  # 0: nothing varies, nothing to learn
        keep = jnp.where(active, keep, finite)
        metrics["rollout/filter_active"] = active.astype(jnp.float32)
    share = jnp.mean(keep.reshape(-1, size).astype(jnp.float32), axis=1)
    per_group = {"std": spread, "max": jnp.max(scores, axis=1), "mean": jnp.mean(scores, axis=1)}
    for name, value in per_group.items():
        metrics[f"rollout/in_group_reward_{name}"] = jnp.mean(value)
        total = jnp.sum(jnp.where(share > 0, value * share, 0.0))
        metrics[f"rollout/chosen_in_group_reward_{name}"] = total / jnp.maximum(jnp.sum(share), 1e-6)
    units = keep if ranked.shape[0] == keep.shape[0] else share > 0
    metrics |= {f"rollout/{n}": v for n, v in selection_stats(ranked, units).items()}
    numbers = {"level": traj.level[::size], "mean": per_group["mean"], "std": spread, "kept": share}
    return keep, metrics, numbers


@jax.jit
def refill_program(
    traj: Trajectories, keep: Bool[Array, "B"], more: Trajectories, more_keep: Bool[Array, "B"]
) -> tuple[Trajectories, Bool[Array, "B"]]:
    """The kept groups of two batches, those of the first one first, up to the size of one; then dropped ones."""
    size = traj.group_size
    whole = jnp.concatenate([keep, more_keep])
    order = jnp.argsort(~whole[::size], stable=True)[: keep.shape[0] // size]
    rows = (order[:, None] * size + jnp.arange(size)).reshape(-1)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[rows], traj, more)
    return both, whole[rows]


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
