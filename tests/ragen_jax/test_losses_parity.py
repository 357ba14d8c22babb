"""Losses and gradients of the presets against formulas that TRL and verl publish, written again in PyTorch.

The torch side starts from the model's logits (and the critic's values), computes the loss by the formula, and its
gradient with respect to them; pulled back through the model it must equal the gradient of the update's own loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import TINY, random_trajectories

from ragen_jax.models import forward, init_params, unembedding
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec, batch_advantages, batch_rewards, init_state
from ragen_jax.rl.critic import critic_values
from ragen_jax.rl.learner import Targets, _loss
from ragen_jax.rl.losses import token_weights
from ragen_jax.rollout import SAMPLED
from ragen_jax.training.config import load_config

pytestmark = pytest.mark.parity
CONFIGS = Path(__file__).parents[2] / "configs"
GROUPS, MEMBERS, MAX_SAMPLED = 3, 4, 18
BATCH = GROUPS * MEMBERS


@dataclass
class Case:
    """Everything that both sides are given."""

    objective: Objective
    traj: Any
    trainable: dict[str, Any]
    old: np.ndarray
    ref: np.ndarray
    old_value: np.ndarray


def case_of(objective: Objective) -> Case:
    rng = np.random.default_rng(5)
    traj = random_trajectories(11, groups=GROUPS, members=MEMBERS)
    policy = init_params(TINY, jax.random.key(0))
    state = init_state(
        TINY, policy, OptimConfig(), lora=None, critic=objective.uses_critic, key=jax.random.key(1)
    )
    trainable = dict(state.trainable)
    if objective.uses_critic:
        head = {
            "weight": jnp.asarray(rng.normal(size=TINY.hidden_size), jnp.float32),
            "bias": jnp.float32(0.1),
        }
        trainable["critic"] = {**trainable["critic"], "value": head}
    logits = forward(policy, TINY, traj.tokens) @ unembedding(policy, TINY).T
    logp = jax.nn.log_softmax(logits)[:, :-1]
    taken = np.pad(
        np.take_along_axis(np.asarray(logp), np.asarray(traj.tokens)[:, 1:, None], 2)[..., 0],
        ((0, 0), (1, 0)),
    )
    mask = np.asarray(traj.role) == SAMPLED
    shift = lambda scale: np.where(mask, taken + scale * rng.normal(size=taken.shape), 0).astype(np.float32)  # noqa: E731
    # Ratios on both sides of every clip, the dual clip among them.
    return Case(
        objective, traj, trainable, shift(0.5), shift(0.3), np.where(mask, rng.normal(size=mask.shape), 0)
    )


def ours(case: Case) -> tuple[float, dict[str, Any]]:
    """The update's own loss of one minibatch, and its gradient."""
    traj, objective = case.traj, case.objective
    spec = UpdateSpec(
        TINY, objective, OptimConfig(), TINY.vocab_size, max_sampled=MAX_SAMPLED, mini_batch_size=BATCH,
        micro_batch_size=BATCH, length_buckets=1,
    )  # fmt: skip
    old, ref, value = (jnp.asarray(x, jnp.float32) for x in (case.old, case.ref, case.old_value))
    rewards = batch_rewards(traj, objective, old, ref)
    advantage, returns = batch_advantages(traj, rewards, value, objective, traj.loss_mask)
    every = jnp.ones(BATCH, bool)
    targets = Targets(
        old, ref, value, advantage, returns,
        token_weights(traj.loss_mask, every, objective.loss_agg_mode, spec.norm_length),
        token_weights(traj.loss_mask, every, "token-mean", spec.norm_length),
    )  # fmt: skip

    def loss(trainable):
        return _loss(
            trainable, None, traj, targets, jnp.arange(BATCH), every, traj.tokens.shape[1], spec,
            jnp.float32(1), False,
        )[0]  # fmt: skip

    return jax.value_and_grad(loss)(case.trainable)


def pulled_back(case: Case, d_logits: np.ndarray, d_values: np.ndarray | None) -> dict[str, Any]:
    """Gradient of the parameters from that of logits and values."""
    tokens = case.traj.tokens

    def logits(policy):
        return forward(policy, TINY, tokens) @ unembedding(policy, TINY).T

    out = {"policy": jax.vjp(logits, case.trainable["policy"])[1](jnp.asarray(d_logits, jnp.float32))[0]}
    if d_values is not None:
        values = lambda critic: critic_values(critic, forward(critic, TINY, tokens))  # noqa: E731
        out["critic"] = jax.vjp(values, case.trainable["critic"])[1](jnp.asarray(d_values, jnp.float32))[0]
    return out


def torch_side(case: Case) -> tuple[float, np.ndarray, np.ndarray | None]:
    """Loss by the published formulas, gradient of logits and of values."""
    torch = pytest.importorskip("torch")
    o, traj = case.objective, case.traj
    t = lambda x: torch.tensor(np.asarray(x), dtype=torch.float64)  # noqa: E731
    ids = torch.tensor(np.asarray(traj.tokens), dtype=torch.long)
    mask = torch.tensor(np.asarray(traj.role) == SAMPLED)[:, 1:].double()
    policy = case.trainable["policy"]
    logits = t(forward(policy, TINY, traj.tokens) @ unembedding(policy, TINY).T).requires_grad_()
    logp = torch.log_softmax(logits[:, :-1], dim=-1)
    new = torch.gather(logp, 2, ids[:, 1:, None])[..., 0]
    entropy = -(logp.exp() * logp).sum(-1)
    old, ref, old_value = (t(x)[:, 1:] for x in (case.old, case.ref, case.old_value))
    reward = t(traj.reward) + t(traj.penalty)

    values, vf = None, 0.0
    if o.adv_estimator == "gae":  # verl compute_gae_advantage_return, over sampled tokens
        per_token = torch.zeros_like(mask)
        for b in range(BATCH):
            for k in range(int(traj.turns[b])):
                per_token[b, int(traj.turn_end[b, k]) - 1] += reward[b, k]
        if o.use_kl_in_reward:
            per_token = per_token - o.kl_coef * (old - ref) * mask
        advantage = torch.zeros_like(mask)
        for b in range(BATCH):
            next_value = last = 0.0
            for s in reversed(range(mask.shape[1])):
                if mask[b, s]:
                    delta = per_token[b, s] + o.gamma * next_value - old_value[b, s]
                    last = delta + o.gamma * o.lam * last
                    advantage[b, s], next_value = last, old_value[b, s]
        returns = (advantage + old_value) * mask
        flat = advantage[mask.bool()]
        advantage = (advantage - flat.mean()) * torch.rsqrt(flat.var() + 1e-8) * mask
        critic = case.trainable["critic"]
        values = t(critic_values(critic, forward(critic, TINY, traj.tokens))).requires_grad_()
        v = values[:, :-1]
        clipped = torch.clamp(v, old_value - o.cliprange_value, old_value + o.cliprange_value)
        losses = torch.max((v - returns) ** 2, (clipped - returns) ** 2)
        vf = 0.5 * (losses * mask).sum() / mask.sum()
    else:  # TRL GRPOTrainer: group means, scale_rewards on or off
        score = reward.sum(1).reshape(GROUPS, MEMBERS)
        score = score - score.mean(1, keepdim=True)
        if o.adv_estimator == "grpo" and o.norm_adv_by_std_in_grpo:
            score = score / (reward.sum(1).reshape(GROUPS, MEMBERS).std(1, keepdim=True) + 1e-6)
        advantage = score.reshape(-1, 1).expand_as(mask)

    ratio = torch.exp(new - old)  # TRL: coef_1 with delta, coef_2
    kept = ratio if o.clip_ratio_c == float("inf") else torch.clamp(ratio, max=o.clip_ratio_c)
    bounded = torch.clamp(ratio, 1 - o.clip_ratio_low, 1 + o.clip_ratio_high)
    per_token = -torch.min(kept * advantage, bounded * advantage)
    if o.use_kl_loss:  # beta, k3
        per_token = per_token + o.kl_loss_coef * (torch.exp(ref - new) - (ref - new) - 1)
    per_token = per_token - o.entropy_coeff * entropy
    lengths = mask.sum(1)
    loss = {  # TRL loss_type dapo, grpo, dr_grpo
        "token-mean": (per_token * mask).sum() / mask.sum(),
        "seq-mean-token-mean": ((per_token * mask).sum(1) / lengths.clamp(min=1)).mean(),
        "seq-mean-token-sum-norm": (per_token * mask).sum() / (BATCH * MAX_SAMPLED),
    }[o.loss_agg_mode]
    (loss + vf).backward()
    return float(loss + vf), logits.grad.numpy(), None if values is None else values.grad.numpy()


@pytest.mark.parametrize("extra", [{}, {"clip_ratio_c": 1.5, "entropy_coeff": 0.02}], ids=["preset", "dual"])
@pytest.mark.parametrize("preset", ["ppo", "grpo", "dapo", "dr_grpo"])
def test_presets_equal_published_formulas(preset: str, extra: dict[str, Any]) -> None:
    changes = [f"algorithm.{n}={v}" for n, v in extra.items()]
    case = case_of(load_config(CONFIGS / f"{preset}.yaml", changes).algorithm)
    loss, gradient = ours(case)
    expected, d_logits, d_values = torch_side(case)
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    by_formula = pulled_back(case, d_logits, d_values)
    assert set(by_formula) == set(gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient, by_formula)


@pytest.mark.parametrize(
    "cut", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.1}]
)
def test_truncation_equals_transformers(cut: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from ragen_jax.rollout.sampling import Truncation, truncate

    logits = np.random.default_rng(0).normal(size=(50, 23)).astype(np.float32) * 3
    expected = torch.tensor(logits)
    made = {"top_k": "TopKLogitsWarper", "top_p": "TopPLogitsWarper", "min_p": "MinPLogitsWarper"}
    for name, warper in made.items():
        if name in cut:
            expected = getattr(transformers, warper)(cut[name])(None, expected)
    np.testing.assert_array_equal(truncate(jnp.asarray(logits), Truncation(**cut)), expected.numpy())
