"""Advantages: from rewards to what multiplies each sampled token's log-prob. All float32.

Outcome estimators take one score a row, [P, G], one group a prompt, and give one advantage a row. The others take
rewards by slot, [B, L], and see sampled tokens only: given tokens between them are skipped.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators import reward_variance

_Carry = tuple[Array, Array]


def grpo_advantages(
    scores: Float[Array, "P G"], *, norm_by_std: bool = True, tol: float = 1e-5
) -> Float[Array, "P G"]:
    """(R - mean_g) / (std_g + 1e-6) per group, std with ddof 1 (Shao et al. 2024); without the std, Dr.GRPO's form.

    A group whose rewards span no more than `tol` gets exactly 0: in float32, sixteen rewards of 10.9 have a standard
    deviation of about 1e-6, and dividing by it would make advantages of rounding noise. A group of one has nothing to
    be compared with: mean 0 and std 1, as in verl.
    """
    scores = scores.astype(jnp.float32)
    if scores.shape[1] == 1:
        return scores / (1.0 + 1e-6) if norm_by_std else scores
    centred = scores - jnp.mean(scores, axis=1, keepdims=True)
    spread = jnp.max(scores, axis=1, keepdims=True) - jnp.min(scores, axis=1, keepdims=True)
    if norm_by_std:
        centred = centred / (reward_variance(scores, tol=tol)[:, None] + 1e-6)
    return jnp.where(spread > tol, centred, 0.0)


def rloo_advantages(scores: Float[Array, "P G"], *, tol: float = 1e-5) -> Float[Array, "P G"]:
    """R less the mean of the group's other members (Ahmadian et al. 2024): G / (G - 1) (R - mean_g).

    `tol` and groups of one as in `grpo_advantages`.
    """
    members = scores.shape[1]
    centred = grpo_advantages(scores, norm_by_std=False, tol=tol)
    return centred if members == 1 else centred * (members / (members - 1))


def token_rewards(
    reward: Float[Array, "B T"], turn_end: Int[Array, "B T"], taken: Bool[Array, "B T"], slots: int
) -> Float[Array, "B L"]:
    """Each turn's reward at the slot of its last sampled token, 0 elsewhere."""
    rows = jnp.arange(reward.shape[0])[:, None]
    where = jnp.where(taken, turn_end, slots)
    return jnp.zeros((reward.shape[0], slots), jnp.float32).at[rows, where].add(reward, mode="drop")


def discounted_returns(
    rewards: Float[Array, "B L"], mask: Bool[Array, "B L"], *, gamma: float
) -> Float[Array, "B L"]:
    """Sum of the rewards from each sampled token on, discounted by sampled token; 0 outside `mask`."""

    def backward(after: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        r, m = x
        here = jnp.where(m, r + gamma * after, after)
        return here, jnp.where(m, here, 0.0)

    _, out = jax.lax.scan(backward, jnp.zeros(rewards.shape[0]), (rewards.T, mask.T), reverse=True)
    return out.T


def gae_advantages(
    rewards: Float[Array, "B L"],
    values: Float[Array, "B L"],
    mask: Bool[Array, "B L"],
    *,
    gamma: float,
    lam: float,
    ends: Bool[Array, "B L"] | None = None,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Generalised advantage estimation (Schulman et al. 2016) over sampled tokens only; given tokens are skipped.

    `values[b, s]` is the critic's estimate before the token in slot s. Returns advantages and returns (advantage +
    value), both 0 outside `mask`. The value after the last sampled token is 0, and after every slot in `ends`, where
    the recursion starts anew.
    """
    ends = jnp.zeros_like(mask) if ends is None else ends

    def backward(carry: _Carry, x: tuple[Array, ...]) -> tuple[_Carry, Array]:
        r, v, m, e = x
        next_value, next_adv = (jnp.where(e, 0.0, c) for c in carry)
        adv = r + gamma * next_value - v + gamma * lam * next_adv
        return (jnp.where(m, v, carry[0]), jnp.where(m, adv, carry[1])), jnp.where(m, adv, 0.0)

    zero = jnp.zeros(rewards.shape[0], jnp.float32)
    _, adv = jax.lax.scan(backward, (zero, zero), (rewards.T, values.T, mask.T, ends.T), reverse=True)
    adv = adv.T
    return adv, jnp.where(mask, adv + values, 0.0)


def bi_level_gae_advantages(
    rewards: Float[Array, "B L"],
    values: Float[Array, "B L"],
    mask: Bool[Array, "B L"],
    turn_end: Int[Array, "B T"],
    taken: Bool[Array, "B T"],
    *,
    gamma: float,
    lam: float,
    high_level_gamma: float,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """GAE over turns, then over the tokens of each turn, which ends in the turn's return (RAGEN's bi-level GAE).

    With r_k and V_k the reward and the value at the last token of turn k, A_k = r_k + gamma_H V_{k+1} - V_k +
    gamma_H lam A_{k+1}. That token's reward becomes A_k + V_k, and token-level GAE stops at it. `turn_end` says where
    turns end; a turn whose reward is 0 is a turn too. Result as of `gae_advantages`.
    """

    def at_ends(x: Array) -> Array:
        return jnp.where(taken, jnp.take_along_axis(x, turn_end, axis=1), 0.0)

    def backward(carry: _Carry, x: tuple[Array, ...]) -> tuple[_Carry, Array]:
        next_value, next_adv = carry
        r, v, t = x
        adv = r + high_level_gamma * next_value - v + high_level_gamma * lam * next_adv
        return (jnp.where(t, v, next_value), jnp.where(t, adv, next_adv)), jnp.where(t, adv + v, 0.0)

    reward, value = at_ends(rewards), at_ends(values)
    zero = jnp.zeros(rewards.shape[0], jnp.float32)
    _, returns = jax.lax.scan(backward, (zero, zero), (reward.T, value.T, taken.T), reverse=True)
    slots = rewards.shape[1]
    rows, where = jnp.arange(rewards.shape[0])[:, None], jnp.where(taken, turn_end, slots)
    ends = jnp.zeros_like(mask).at[rows, where].set(True, mode="drop")
    rewards = rewards.at[rows, where].set(returns.T, mode="drop")
    return gae_advantages(rewards, values, mask, gamma=gamma, lam=lam, ends=ends)


def whiten(
    x: Float[Array, "B L"], mask: Bool[Array, "B L"], like: Float[Array, "B L"] | None = None
) -> Float[Array, "B L"]:
    """Mean 0 and unbiased variance 1 over the masked entries, 0 elsewhere; all equal entries become exactly 0.

    `like`: take out the mean and the deviation of these entries instead of x's own.
    """
    like = x if like is None else like
    # Differences from one of the entries: equal ones differ by exactly 0, where their mean is off by rounding.
    anchor = jnp.max(jnp.where(mask, like, -jnp.inf), initial=-jnp.inf)
    shifted = jnp.where(mask, like - anchor, 0.0)
    n = jnp.sum(mask)
    mean = jnp.sum(shifted) / jnp.maximum(n, 1)
    var = jnp.sum(jnp.where(mask, jnp.square(shifted - mean), 0.0)) / jnp.maximum(n - 1, 1)
    return jnp.where(mask, (x - anchor - mean) * jax.lax.rsqrt(var + 1e-8), 0.0)
