"""From a batch of episodes to the advantage of every sampled token, as an objective says. All float32."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ragen_jax.estimators import reward_variance
from ragen_jax.rl.advantages import (
    bi_level_gae_advantages,
    discounted_returns,
    gae_advantages,
    grpo_advantages,
    rloo_advantages,
    token_rewards,
    whiten,
)
from ragen_jax.rl.losses import kl_penalty
from ragen_jax.rl.objective import Objective
from ragen_jax.rollout import Trajectories


def overlong_penalty(traj: Trajectories, objective: Objective, limit: int) -> Float[Array, "B T"]:
    """DAPO's soft penalty on long turns, in tokens (Yu et al. 2025): 0 up to `limit` less the buffer, then linear down
    to -`overlong_penalty_factor` at `limit`, the most that a turn can sample. The buffer is `overlong_buffer_share` of
    the limit, rounded, and at least one token."""
    if not objective.overlong_buffer_share:
        return jnp.zeros_like(traj.reward)
    buffer = max(1, round(objective.overlong_buffer_share * limit))
    turns = jnp.arange(traj.reward.shape[1])
    length = jnp.sum((traj.turn[:, :, None] == turns) & traj.loss_mask[:, :, None], axis=1)
    over = (length - (limit - buffer)) / buffer
    return -objective.overlong_penalty_factor * jnp.clip(over, 0.0, 1.0)


def batch_rewards(
    traj: Trajectories,
    objective: Objective,
    old: Float[Array, "B L"] | None = None,
    ref: Float[Array, "B L"] | None = None,
) -> Float[Array, "B L"]:
    """Rewards with penalties by slot; `old` and `ref` are the log-probs of a KL in the reward."""
    slots = traj.tokens.shape[1]
    reward = jnp.where(traj.taken, traj.reward + traj.penalty, 0.0)
    if objective.use_turn_scores:
        out = token_rewards(reward, traj.turn_end, traj.taken, slots)
    else:
        last = jnp.arange(reward.shape[1]) == traj.turns[:, None] - 1
        out = token_rewards(jnp.where(last, traj.score[:, None], 0.0), traj.turn_end, last, slots)
    if objective.use_kl_in_reward:
        if old is None or ref is None:
            raise ValueError(
                "algorithm.use_kl_in_reward needs the log-probs of the policy and of its reference"
            )
        kl = kl_penalty(old, ref, objective.kl_penalty)
        out = out - objective.kl_coef * jnp.where(traj.loss_mask, kl, 0.0)
    return out


def batch_advantages(
    traj: Trajectories,
    rewards: Float[Array, "B L"],
    value: Float[Array, "B L"] | None,
    objective: Objective,
    mask: Bool[Array, "B L"],
    *,
    whitened: bool = True,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Advantages and returns by slot, 0 outside `mask`: the sampled tokens of the rows to learn from.

    A group's statistics are over all its members, whether or not they are in `mask`. `whitened` False leaves out the
    whitening over the batch, which ties rows of different prompts together. `value` is needed by estimators with a
    critic alone.
    """
    kind = objective.adv_estimator
    none = jnp.zeros_like(rewards)
    if objective.uses_critic:
        if value is None:
            raise ValueError(f"algorithm.adv_estimator {kind} needs the critic's values")
        if kind == "gae":
            advantage, returns = gae_advantages(
                rewards, value, mask, gamma=objective.gamma, lam=objective.lam
            )
        else:
            advantage, returns = bi_level_gae_advantages(
                rewards, value, mask, traj.turn_end, traj.taken, gamma=objective.gamma, lam=objective.lam,
                high_level_gamma=objective.high_level_gamma,
            )  # fmt: skip
        whitens = objective.whiten_advantages
    elif kind == "reinforce_plus_plus":
        advantage, returns, whitens = discounted_returns(rewards, mask, gamma=objective.gamma), none, True
    else:
        scores = jnp.sum(rewards, axis=1).reshape(-1, traj.group_size)
        tol = objective.constant_reward_tol
        if kind == "rloo":
            rows = rloo_advantages(scores, tol=tol)
        else:
            by_std = kind == "grpo" and objective.norm_adv_by_std_in_grpo
            rows = grpo_advantages(scores, norm_by_std=by_std, tol=tol)
        advantage, returns = jnp.where(mask, rows.reshape(-1)[:, None], 0.0), none
        whitens = kind == "reinforce_plus_plus_baseline"
    return (whiten(advantage, mask) if whitens and whitened else advantage), returns


def advantage_scale(
    traj: Trajectories, kept: Bool[Array, "B"], objective: Objective
) -> tuple[Float[Array, "B"], dict[str, Array]]:
    """What multiplies the advantages of each row, and its metrics as (sum, weight) pairs.

    filter_loss_scaling: the kept share of the batch's rows, or its root. soft_advantage_reweight: the standard
    deviation of the group's rewards over the largest of a kept group (+ 1e-6).
    """
    scale = jnp.ones(kept.shape[0], jnp.float32)
    share = jnp.mean(kept.astype(jnp.float32))
    if objective.filter_loss_scaling != "none":
        scale = scale * (share if objective.filter_loss_scaling == "linear" else jnp.sqrt(share))
    if not objective.soft_advantage_reweight:
        return scale, {}
    spread = jnp.nan_to_num(reward_variance(traj.score.reshape(-1, traj.group_size)))
    rows = jnp.repeat(spread, traj.group_size)
    soft = rows / (jnp.max(jnp.where(kept, rows, 0.0)) + 1e-6)
    total = jnp.stack([jnp.sum(jnp.where(kept, soft, 0.0)), jnp.sum(kept).astype(jnp.float32)])
    return scale * soft, {"actor/soft_reweight_mean": total}
