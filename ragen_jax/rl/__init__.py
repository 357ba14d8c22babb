"""Objectives, advantages, losses and the jitted update."""

from ragen_jax.rl.advantages import (
    bi_level_gae_advantages,
    discounted_returns,
    gae_advantages,
    grpo_advantages,
    rloo_advantages,
    token_rewards,
    whiten,
)
from ragen_jax.rl.credit import advantage_scale, batch_advantages, batch_rewards, overlong_penalty
from ragen_jax.rl.critic import CriticConfig
from ragen_jax.rl.forward_pass import row_entropy
from ragen_jax.rl.learner import update
from ragen_jax.rl.losses import kl_penalty, policy_loss, sampler_weights, token_weights, value_loss
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.spec import UpdateSpec
from ragen_jax.rl.state import OptimConfig, TrainState, init_state, optimiser, policy_params
from ragen_jax.rl.tally import Tally

__all__ = [
    "CriticConfig",
    "Objective",
    "OptimConfig",
    "Tally",
    "TrainState",
    "UpdateSpec",
    "advantage_scale",
    "batch_advantages",
    "batch_rewards",
    "bi_level_gae_advantages",
    "discounted_returns",
    "gae_advantages",
    "grpo_advantages",
    "init_state",
    "kl_penalty",
    "optimiser",
    "overlong_penalty",
    "policy_loss",
    "policy_params",
    "rloo_advantages",
    "row_entropy",
    "sampler_weights",
    "token_rewards",
    "token_weights",
    "update",
    "value_loss",
    "whiten",
]
