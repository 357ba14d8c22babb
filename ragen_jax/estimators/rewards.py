"""Within-prompt spread of rewards: the signal that the task gradient of a group-relative method is made of.

As in the reference implementation, "reward variance" names the sample standard deviation (ddof 1) of the
episode rewards of one prompt's group, format penalties included.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

CONSTANT_TOL = 1e-5


def reward_variance(rewards: Float[Array, "P G"], *, tol: float = CONSTANT_TOL) -> Float[Array, " P"]:
    """Standard deviation (ddof 1) of each group's rewards, >= 0, in units of reward.

    A group with max - min <= tol gives exactly 0: sums of equal rewards in float32 need not be equal, and
    their std need not be 0 where they are. NaN where a reward is NaN or infinite.

    Args:
        rewards: episode rewards, one row a prompt.
        tol: spread, in units of reward, that counts as none.

    Raises:
        ValueError: rewards not two-dimensional, or groups of one, which have no spread.
    """
    rewards = jnp.asarray(rewards)
    if rewards.ndim != 2:
        raise ValueError(f"rewards must have shape [prompts, group], got {rewards.shape}")
    group = rewards.shape[1]
    if group < 2:
        raise ValueError(
            f"reward_variance needs at least 2 rewards a group, got groups of {group}: ddof 1 leaves none"
        )
    rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
    finite = jnp.isfinite(rewards).all(axis=1)
    safe = jnp.where(finite[:, None], rewards, 0)
    low = safe.min(axis=1, keepdims=True)
    shifted = safe - low  # exact for close values, so the mean loses nothing to a large offset
    squares = jnp.square(shifted - shifted.mean(axis=1, keepdims=True)).sum(axis=1)
    std = jnp.where(shifted.max(axis=1) <= tol, 0, jnp.sqrt(squares / (group - 1)))
    return jnp.where(finite, std, jnp.nan)


def reward_variance_noise(rewards: Float[Array, "P G"]) -> Float[Array, " P"]:
    """Variance of each group's standard deviation as an estimate: jackknife over its members, reward^2.

    (G - 1) / G times the sum of squares of the standard deviations without one member each, about their mean (Efron
    1982). NaN where a reward is NaN or infinite.

    Raises:
        ValueError: rewards not two-dimensional, or groups of fewer than three.
    """
    rewards = jnp.asarray(rewards)
    if rewards.ndim != 2 or rewards.shape[1] < 3:
        raise ValueError(f"rewards must be [prompts, group of at least 3], got {rewards.shape}")
    group = rewards.shape[1]
    others = jnp.arange(group - 1)[None] + (jnp.arange(group - 1)[None] >= jnp.arange(group)[:, None])
    without_one = reward_variance(rewards[:, others].reshape(-1, group - 1)).reshape(-1, group)
    spread = without_one - without_one.mean(axis=1, keepdims=True)
    return (group - 1) / group * jnp.square(spread).sum(axis=1)


def chance_std_over_mean(rewards: Float[Array, "P G"]) -> Float[Array, ""]:
    """The Std/Mean of reward variance that its error alone would give if all prompts had the same one.

    Root of the mean of `reward_variance_noise` over the mean of `reward_variance`. Where the observed Std/Mean is not
    above it, prompts do not differ by more than chance, and choosing among them by their variance is choosing at
    random. 0 where no group varies, NaN with no group.
    """
    spread, noise = reward_variance(rewards), reward_variance_noise(rewards)
    known = jnp.isfinite(spread)
    count = known.sum()
    mean = jnp.where(known, spread, 0).sum() / jnp.maximum(count, 1)
    error = jnp.sqrt(jnp.where(known, noise, 0).sum() / jnp.maximum(count, 1))
    ratio = jnp.where(mean > 0, error / jnp.where(mean > 0, mean, 1), 0)
    return jnp.where(count > 0, ratio, jnp.nan)


def reward_variance_stats(
    rewards: Float[Array, "P G"], *, tol: float = CONSTANT_TOL
) -> dict[str, Float[Array, ""]]:
    """How `reward_variance` is spread over the groups of a batch.

    Returns:
        mean, std (population, over groups), min, max, std_over_mean (0 if the mean is 0), zero_count (groups
        of exactly 0) and nan_count (groups with a reward that is no number, left out of all the others). NaN,
        NaN, .. with no group.

    Raises:
        ValueError: as `reward_variance`.
    """
    spread = reward_variance(rewards, tol=tol)
    known = ~jnp.isnan(spread)
    count = known.sum()
    denominator = jnp.where(count > 0, count, 1)
    value = jnp.where(known, spread, 0)
    mean = value.sum() / denominator
    std = jnp.sqrt(jnp.where(known, jnp.square(value - mean), 0).sum() / denominator)
    stats = {
        "mean": mean,
        "std": std,
        "min": jnp.min(jnp.where(known, spread, jnp.inf), initial=jnp.inf),
        "max": jnp.max(jnp.where(known, spread, -jnp.inf), initial=-jnp.inf),
        "std_over_mean": jnp.where(mean > 0, std / jnp.where(mean > 0, mean, 1), 0),
    }
    stats = {name: jnp.where(count > 0, number, jnp.nan) for name, number in stats.items()}
    stats["zero_count"] = jnp.sum(known & (spread == 0)).astype(jnp.float32)
    stats["nan_count"] = jnp.sum(~known).astype(jnp.float32)
    return stats
