"""An objective is validated data. PPO and GRPO are values of it, not branches of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdvEstimator = Literal["grpo", "gae"]
LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
KLType = Literal["k1", "k2", "k3"]

_ESTIMATORS = ("grpo", "gae")
_AGG_MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
_KL_TYPES = ("k1", "k2", "k3")


def _choice(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"algorithm.{field} is {value!r}; use one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Objective:
    """What is maximised. Names and defaults are verl's and RAGEN's. Raises ValueError naming the field.

    adv_estimator: "grpo" (one advantage per episode, from its group) or "gae" (a critic, over sampled tokens).
    norm_adv_by_std_in_grpo: divide GRPO advantages by the group's standard deviation (ddof 1).
    clip_ratio_low, clip_ratio_high, clip_ratio_c: PPO's clip bounds, and the dual clip for negative advantages.
    kl_loss_type: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d with d = log p - log p_ref (Schulman 2020).
    loss_agg_mode: how token losses become one number; every denominator is that of the whole minibatch.
    constant_reward_tol: a group whose rewards differ by no more than this has advantage exactly 0.
    """

    adv_estimator: AdvEstimator = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    gamma: float = 1.0  # discount by sampled token, gae only
    lam: float = 1.0  # GAE's lambda, gae only
    whiten_advantages: bool = True  # mean 0 and deviation 1 over the batch's sampled tokens, gae only
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    entropy_coeff: float = 0.001  # weight of the entropy bonus
    use_kl_loss: bool = False  # add a penalty on the distance to the policy before RL
    kl_loss_coef: float = 0.001  # its weight
    kl_loss_type: KLType = "k2"
    loss_agg_mode: LossAggMode = "token-mean"
    cliprange_value: float = 0.5  # clip of the value's change, gae only
    constant_reward_tol: float = 1e-5

    def __post_init__(self) -> None:
        _choice("adv_estimator", self.adv_estimator, _ESTIMATORS)
        _choice("loss_agg_mode", self.loss_agg_mode, _AGG_MODES)
        _choice("kl_loss_type", self.kl_loss_type, _KL_TYPES)
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"algorithm.{name} is {getattr(self, name)}; it must lie in [0, 1]")
        if not 0 < self.clip_ratio_low < 1:
            raise ValueError(f"algorithm.clip_ratio_low is {self.clip_ratio_low}; it must lie in (0, 1)")
        if self.clip_ratio_high <= 0:
            raise ValueError(f"algorithm.clip_ratio_high is {self.clip_ratio_high}; it must be positive")
        if self.clip_ratio_c <= 1:
            raise ValueError(
                f"algorithm.clip_ratio_c is {self.clip_ratio_c}; the dual clip bounds a ratio and must be above 1"
            )
        for name in ("entropy_coeff", "kl_loss_coef", "cliprange_value", "constant_reward_tol"):
            if getattr(self, name) < 0:
                raise ValueError(f"algorithm.{name} is {getattr(self, name)}; it must not be negative")

    @property
    def uses_critic(self) -> bool:
        return self.adv_estimator == "gae"
