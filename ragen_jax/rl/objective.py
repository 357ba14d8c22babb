"""An objective is validated data. PPO, GRPO, DAPO and Dr.GRPO are values of it, not branches of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

AdvEstimator = Literal[
    "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae", "bi_level_gae"
]
LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
KLType = Literal[
    "k1", "k2", "k3", "kl", "abs", "mse", "low_var_kl", "k1+", "k2+", "k3+", "kl+", "abs+", "mse+", "low_var_kl+"
]  # fmt: skip
LossScaling = Literal["none", "linear", "sqrt"]
RolloutIS = Literal["none", "token", "sequence"]

GROUP_RELATIVE = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
_CHOICES = {
    "adv_estimator": AdvEstimator,
    "loss_agg_mode": LossAggMode,
    "kl_loss_type": KLType,
    "kl_penalty": KLType,
    "filter_loss_scaling": LossScaling,
    "rollout_is": RolloutIS,
}


def _refuse(field: str, value: object, remedy: str) -> None:
    raise ValueError(f"algorithm.{field} is {value!r}; {remedy}")


@dataclass(frozen=True)
class Objective:
    """What is maximised. Names and defaults are verl's and RAGEN's. Raises ValueError naming the field.

    adv_estimator: from the group of a prompt: grpo, dr_grpo, rloo, reinforce_plus_plus_baseline; without a group:
        reinforce_plus_plus; with a critic: gae, bi_level_gae. Formulas are in docs/algorithms.md.
    norm_adv_by_std_in_grpo: divide grpo's advantages by the group's standard deviation (ddof 1).
    use_turn_scores: each turn's reward lies on the turn's last token; false: the episode's sum lies on its last token.
    clip_ratio_low, clip_ratio_high: PPO's clip bounds, 1 - low and 1 + high.
    clip_ratio_c: the dual clip, a bound on the ratio where the advantage is negative; .inf: none.
    kl_loss_type, kl_penalty: k1 (kl) = d, k2 (mse) = d^2 / 2, k3 (low_var_kl) = exp(-d) - 1 + d, abs = |d|, with
        d = log p - log p_ref (Schulman 2020); a "+" at the end keeps the value and takes k2's gradient.
    loss_agg_mode: how token losses become one number; every denominator is that of the whole minibatch.
    loss_scale_factor: the constant length of seq-mean-token-sum-norm; null: the most tokens that a row can sample.
    overlong_buffer_share: last share of a turn's token limit, in which a penalty grows (DAPO); 0: no penalty.
    rollout_is: weigh losses by the trainer's over the sampler's probability, of each token or of each row's tokens
        together ("sequence"), cut off at rollout_is_threshold.
    constant_reward_tol: a group whose rewards differ by no more than this has advantage exactly 0.
    """

    adv_estimator: AdvEstimator = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    gamma: float = 1.0  # discount by sampled token; gae, bi_level_gae, reinforce_plus_plus
    lam: float = 1.0  # GAE's lambda
    high_level_gamma: float = 0.95  # discount by turn, bi_level_gae only
    whiten_advantages: bool = True  # with a critic: mean 0 and deviation 1 over the sampled tokens
    use_turn_scores: bool = True
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    entropy_coeff: float = 0.001  # weight of the entropy bonus
    use_ref: bool = True  # a KL term may keep the policy before RL as its reference
    use_kl_loss: bool = False  # add a penalty on the distance to the reference to the loss
    kl_loss_coef: float = 0.001  # its weight
    kl_loss_type: KLType = "k2"
    use_kl_in_reward: bool = False  # take a penalty on each sampled token off the rewards
    kl_coef: float = 0.001  # its weight
    kl_penalty: KLType = "k1"
    loss_agg_mode: LossAggMode = "token-mean"
    loss_scale_factor: float | None = None
    cliprange_value: float = 0.5  # clip of the value's change, with a critic
    overlong_buffer_share: float = 0.0
    overlong_penalty_factor: float = 1.0  # the penalty of a turn that reaches its limit
    filter_loss_scaling: LossScaling = "none"  # advantages times the kept share, or its root
    soft_advantage_reweight: bool = False  # advantages times the group's reward std over the largest kept one
    rollout_is: RolloutIS = "none"
    rollout_is_threshold: float = 2.0  # where it is cut off
    constant_reward_tol: float = 1e-5

    def __post_init__(self) -> None:
        for name, kinds in _CHOICES.items():
            if getattr(self, name) not in get_args(kinds):
                _refuse(name, getattr(self, name), f"use one of {', '.join(get_args(kinds))}")
        for name in ("gamma", "lam", "high_level_gamma", "overlong_buffer_share"):
            if not 0 <= getattr(self, name) <= 1:
                _refuse(name, getattr(self, name), "it must lie in [0, 1]")
        if not 0 < self.clip_ratio_low < 1:
            _refuse("clip_ratio_low", self.clip_ratio_low, "it must lie in (0, 1)")
        for name in ("clip_ratio_high", "rollout_is_threshold"):
            if not getattr(self, name) > 0:
                _refuse(name, getattr(self, name), "it must be positive")
        if not self.clip_ratio_c > 1:
            _refuse("clip_ratio_c", self.clip_ratio_c, "the dual clip bounds a ratio and must be above 1")
        if self.loss_scale_factor is not None and not 0 < self.loss_scale_factor < float("inf"):
            _refuse("loss_scale_factor", self.loss_scale_factor, "it is a length and must be positive")
        for name in (
            "entropy_coeff", "kl_loss_coef", "kl_coef", "cliprange_value", "constant_reward_tol",
            "overlong_penalty_factor",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                _refuse(name, getattr(self, name), "it must not be negative")
        if self.adv_estimator == "bi_level_gae" and not self.use_turn_scores:
            _refuse(
                "use_turn_scores", False,
                "algorithm.adv_estimator bi_level_gae learns from each turn's reward; set it to true, or use gae",
            )  # fmt: skip
        for name in ("use_kl_loss", "use_kl_in_reward"):
            if getattr(self, name) and not self.use_ref:
                _refuse(name, True, "a KL needs a reference policy: set algorithm.use_ref to true")

    @property
    def uses_critic(self) -> bool:
        return self.adv_estimator in ("gae", "bi_level_gae")

    @property
    def uses_reference(self) -> bool:
        return self.use_kl_loss or self.use_kl_in_reward

    @property
    def group_relative(self) -> bool:
        """Whether advantages compare the members of a group."""
        return self.adv_estimator in GROUP_RELATIVE
