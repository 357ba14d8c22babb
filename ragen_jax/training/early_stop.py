"""The rules by which a run ends itself, on the host, from one step's metrics. Each has a name and settings."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_jax.training.checkpoints import HostState
from ragen_jax.training.config import Config

RULES = (
    "empty_filtered_steps",
    "reward_variance_collapse",
    "low_validation_success",
    "skipped_updates",
    "nonfinite",
)


def early_stop(config: Config, host: HostState, metrics: dict[str, float]) -> str | None:
    """Why to stop after this step, or None. Counts in `host` and logs under early_stopped/ and rollout/.

    Called once a step, after its evaluation, if it has one.
    """
    reasons = dict(_reasons(config, host, metrics))
    for name in RULES[:3]:
        if name in reasons:
            metrics[f"early_stopped/{name}"] = 1.0
    return next(iter(reasons.values()), None)


def _reasons(config: Config, host: HostState, metrics: dict[str, float]) -> Iterator[tuple[str, str]]:
    empty = bool(metrics["rollout/empty_after_filter"])
    host.empty_steps = host.empty_steps + 1 if empty else 0
    metrics["rollout/consecutive_empty_after_filter_steps"] = float(host.empty_steps)
    limit = config.rollout.rollout_filter_empty_stop_steps
    if limit and host.empty_steps >= limit:
        yield (
            "empty_filtered_steps",
            f"the filter kept nothing for {limit} steps (rollout.rollout_filter_empty_stop_steps)",
        )
    yield from _reward_variance(config, host, metrics, empty=empty)
    yield from _validation(config, host, metrics)
    skips = config.training.max_skipped_updates
    if metrics["train/skipped_updates"] >= skips:
        yield (
            "skipped_updates",
            f"{skips} optimiser steps had gradients that are not finite (training.max_skipped_updates); "
            f"see rollouts/gradient_{host.step:06d}.jsonl",
        )
    if metrics["train/nonfinite_count"]:
        yield (
            "nonfinite",
            f"{metrics['train/nonfinite_count']:.0f} episodes have a reward or log-prob that is not finite; "
            f"see rollouts/nonfinite_{host.step:06d}.jsonl",
        )


def _reward_variance(
    config: Config, host: HostState, metrics: dict[str, float], *, empty: bool
) -> Iterator[tuple[str, str]]:
    rule, value = config.early_stop, metrics.get("rollout/in_group_reward_std")
    if not rule.reward_variance_ratio or value is None or config.rollout.group_size == 1:
        return
    if host.base_count < rule.reward_variance_base_steps:
        if not empty:
            host.base_sum, host.base_count = host.base_sum + value, host.base_count + 1
        return
    base = host.base_sum / host.base_count
    host.low_variance_steps = host.low_variance_steps + 1 if value < rule.reward_variance_ratio * base else 0
    if host.low_variance_steps >= rule.reward_variance_steps:
        yield (
            "reward_variance_collapse",
            f"reward variance was below {rule.reward_variance_ratio:g} of its first value {base:.3g} for "
            f"{rule.reward_variance_steps} steps (early_stop.reward_variance_ratio)",
        )


def _validation(config: Config, host: HostState, metrics: dict[str, float]) -> Iterator[tuple[str, str]]:
    rule, name = config.early_stop, f"val-env/{config.env.tag}/success"
    freq = config.evaluation.test_freq  # an evaluation because a run ends would not be there had it gone on
    if not rule.validation_success or name not in metrics or not freq or host.step % freq:
        return
    host.low_validations = host.low_validations + 1 if metrics[name] < rule.validation_success else 0
    if host.low_validations >= rule.validation_count:
        yield (
            "low_validation_success",
            f"held-out success was below {rule.validation_success:g} in {rule.validation_count} evaluations "
            "(early_stop.validation_success)",
        )
