"""Advantages: from rewards to what multiplies each sampled token's log-prob. All float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators import reward_variance


def grpo_advantages(
    scores: Float[Array, "P G"], *, norm_by_std: bool = True, tol: float = 1e-5
) -> Float[Array, "P G"]:
    """(R - mean_g) / (std_g + 1e-6) per group, std with ddof 1 (Shao et al. 2024); without the std, Dr.GRPO's form.

    A group whose rewards span no more than `tol` gets exactly 0: in float32, sixteen rewards of 10.9 have a standard
    deviation of about 1e-6, and dividing by it would make advantages of rounding noise.
    """
    scores = scores.astype(jnp.float32)
    centred = scores - jnp.mean(scores, axis=1, keepdims=True)
    spread = jnp.max(scores, axis=1, keepdims=True) - jnp.min(scores, axis=1, keepdims=True)
    if norm_by_std:
        centred = centred / (reward_variance(scores, tol=tol)[:, None] + 1e-6)
    return jnp.where(spread > tol, centred, 0.0)


def token_rewards(
    reward: Float[Array, "B T"], turn_end: Int[Array, "B T"], taken: Bool[Array, "B T"], slots: int
) -> Float[Array, "B L"]:
    """Each turn's reward at the slot of its last sampled token, 0 elsewhere."""
    rows = jnp.arange(reward.shape[0])[:, None]
    where = jnp.where(taken, turn_end, slots)
    return jnp.zeros((reward.shape[0], slots), jnp.float32).at[rows, where].add(reward, mode="drop")


def gae_advantages(
    rewards: Float[Array, "B L"],
    values: Float[Array, "B L"],
    mask: Bool[Array, "B L"],
    *,
    gamma: float,
    lam: float,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Generalised advantage estimation (Schulman et al. 2016) over sampled tokens only; given tokens are skipped.

    `values[b, s]` is the critic's estimate before the token in slot s. Returns advantages and returns (advantage +
    value), both 0 outside `mask`. The value after the last sampled token is 0.
    """

    def backward(
        carry: tuple[Array, Array], x: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        next_value, next_adv = carry
        r, v, m = x
        adv = r + gamma * next_value - v + gamma * lam * next_adv
        return (jnp.where(m, v, next_value), jnp.where(m, adv, next_adv)), jnp.where(m, adv, 0.0)

    zero = jnp.zeros(rewards.shape[0], jnp.float32)
    _, adv = jax.lax.scan(backward, (zero, zero), (rewards.T, values.T, mask.T), reverse=True)
    adv = adv.T
    return adv, jnp.where(mask, adv + values, 0.0)


def whiten(x: Float[Array, "B L"], mask: Bool[Array, "B L"]) -> Float[Array, "B L"]:
    """Mean 0 and unbiased variance 1 over the masked entries, 0 elsewhere; unchanged in scale if all are equal."""
    n = jnp.sum(mask)
    mean = jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(n, 1)
    var = jnp.sum(jnp.where(mask, jnp.square(x - mean), 0.0)) / jnp.maximum(n - 1, 1)
    return jnp.where(mask, (x - mean) * jax.lax.rsqrt(var + 1e-8), 0.0)
