"""What a filter ranks: one score a group (prompt level) or one a member (trajectory level)."""

from __future__ import annotations

from typing import Literal, get_args

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ragen_jax.estimators.rewards import CONSTANT_TOL, reward_variance

Metric = Literal[
    "reward_variance", "reward_std", "reward", "reward_sum", "entropy", "entropy_variance", "entropy_std", "length"
]  # fmt: skip
Level = Literal["prompt", "trajectory"]

_SPREADS = ("reward_variance", "reward_std", "entropy_variance", "entropy_std")


def filter_scores(values: Float[Array, "P G"], metric: Metric, level: Level = "prompt") -> Float[Array, " N"]:
    """Scores for `select_groups` from what the metric is about: rewards, mean token entropies or lengths, [P, G].

    Prompt level, N = P: the standard deviation (ddof 1) of the group for reward_variance and entropy_variance (also
    called reward_std, entropy_std), its sum for reward_sum, its mean for the others. Trajectory level, N = P G, group
    by group: the distance to the group's mean for the two variances, the value itself for the others. A group whose
    values differ by no more than 1e-5 scores exactly 0 in the variances; one with a value that is not finite is NaN.

    Raises:
        ValueError: an unknown name, values not two-dimensional, or a variance of groups of one.
    """
    for name, value, kinds in (("metric", metric, Metric), ("level", level, Level)):
        if value not in get_args(kinds):
            raise ValueError(f"{name} must be one of {get_args(kinds)}, got {value!r}")
    values = jnp.asarray(values, jnp.float32)
    if values.ndim != 2:
        raise ValueError(f"values must have shape [prompts, group], got {values.shape}")
    if level == "prompt":
        if metric in _SPREADS:
            return reward_variance(values)
        return values.sum(axis=1) if metric == "reward_sum" else values.mean(axis=1)
    whole = jnp.where(jnp.isfinite(values).all(axis=1, keepdims=True), values, jnp.nan)
    if metric not in _SPREADS:
        return whole.reshape(-1)
    low = whole.min(axis=1, keepdims=True)
    shifted = whole - low
    distance = jnp.abs(shifted - shifted.mean(axis=1, keepdims=True))
    constant = shifted.max(axis=1, keepdims=True) <= CONSTANT_TOL
    return jnp.where(constant, 0.0, distance).reshape(-1)
