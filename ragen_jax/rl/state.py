"""The state of training: what is learned, the optimiser's moments, counters. And how an optimiser is described."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Int

from ragen_jax.models import ModelConfig, Params
from ragen_jax.models.lora import LoraConfig, init_lora, merge
from ragen_jax.rl.critic import CriticConfig, init_critic


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with a gradient clip by global norm, one for the policy and one for the critic.

    Learning rates rise linearly over `warmup_steps` optimiser steps and are then constant, or with `schedule`
    "linear" or "cosine" fall to 0 at `decay_steps`; the schedules are optax's of these names.
    """

    lr: float = 1e-6  # of the policy (or its adapters)
    critic_lr: float = 1e-5  # of the critic
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's
    weight_decay: float = 0.01  # AdamW's
    grad_clip: float = 1.0  # global norm that gradients are cut to
    schedule: str = "constant"  # constant, or to 0: linear, cosine
    warmup_steps: int = 0  # optimiser steps of linear rise
    decay_steps: int = 0  # optimiser steps until the rate is 0

    def __post_init__(self) -> None:
        for name in ("lr", "critic_lr", "grad_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; it must be positive")
        for name in ("weight_decay", "warmup_steps", "decay_steps"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; it must not be negative")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optim.betas is {list(self.betas)}; both must lie in [0, 1)")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise ValueError(f"optim.schedule is {self.schedule!r}; use 'constant', 'linear' or 'cosine'")
        if self.schedule != "constant" and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"optim.decay_steps is {self.decay_steps}; with the {self.schedule} schedule it must exceed "
                f"optim.warmup_steps ({self.warmup_steps})"
            )

    def learning_rate(self, peak: float) -> optax.Schedule:
        if self.schedule == "cosine":
            return optax.schedules.warmup_cosine_decay_schedule(
                0.0, peak, self.warmup_steps, self.decay_steps
            )
        rise = optax.schedules.linear_schedule(0.0, peak, self.warmup_steps)
        if self.schedule == "linear":
            fall = optax.schedules.linear_schedule(peak, 0.0, self.decay_steps - self.warmup_steps)
            return optax.schedules.join_schedules([rise, fall], [self.warmup_steps])
        return rise if self.warmup_steps else optax.schedules.constant_schedule(peak)


@functools.cache
def optimiser(cfg: OptimConfig) -> optax.GradientTransformation:
    """The transformation for a tree {"policy": .., "critic": ..} (the critic may be absent)."""

    def adamw(peak: float) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(cfg.grad_clip),
            optax.adamw(cfg.learning_rate(peak), *cfg.betas, weight_decay=cfg.weight_decay),
        )

    def labels(tree: dict[str, Any]) -> dict[str, Any]:
        return {part: jax.tree.map(lambda _, part=part: part, leaves) for part, leaves in tree.items()}

    return optax.partition({"policy": adamw(cfg.lr), "critic": adamw(cfg.critic_lr)}, labels)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`trainable` is {"policy": parameters or LoRA adapters, "critic": what `init_critic` gives, with a critic}."""

    trainable: dict[str, Any]
    opt_state: Any
    updates: Int[Array, ""]  # optimiser steps taken
    skipped: Int[Array, ""]  # optimiser steps left out because a gradient was not finite


def init_state(
    cfg: ModelConfig,
    policy: Params,
    optim: OptimConfig,
    *,
    lora: LoraConfig | None,
    critic: bool,
    key: Array,
    form: CriticConfig | None = None,
) -> TrainState:
    """A fresh training state around `policy` (which stays frozen when `lora` is given), with a critic of that form
    (None: a separate one)."""
    trainable: dict[str, Any] = {"policy": policy if lora is None else init_lora(cfg, lora, key)}
    if critic:
        trainable["critic"] = init_critic(cfg, policy, form or CriticConfig(), lora, key)
    return TrainState(trainable, optimiser(optim).init(trainable), jnp.int32(0), jnp.int32(0))


def policy_params(trainable: dict[str, Any], base: Params | None, lora: LoraConfig | None) -> Params:
    """The policy's full parameters: themselves, or the frozen base with the adapters merged in."""
    if lora is None:
        return trainable["policy"]
    if base is None:
        raise ValueError("LoRA needs the frozen base parameters: pass base=")
    return merge(base, trainable["policy"], lora)
