"""Objectives, advantages, losses and the jitted update."""

from ragen_jax.rl.advantages import gae_advantages, grpo_advantages, token_rewards, whiten
from ragen_jax.rl.learner import Tally, UpdateSpec, update
from ragen_jax.rl.losses import kl_penalty, policy_loss, token_weights, value_loss
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.state import OptimConfig, TrainState, init_state, optimiser, policy_params

__all__ = [
    "Objective",
    "OptimConfig",
    "Tally",
    "TrainState",
    "UpdateSpec",
    "gae_advantages",
    "grpo_advantages",
    "init_state",
    "kl_penalty",
    "optimiser",
    "policy_loss",
    "policy_params",
    "token_rewards",
    "token_weights",
    "update",
    "value_loss",
    "whiten",
]
