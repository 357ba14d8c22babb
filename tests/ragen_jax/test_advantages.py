"""Every advantage estimator on random ragged batches against plain NumPy loops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_rl
from batches import random_trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.rl import (
    Objective,
    advantage_scale,
    batch_advantages,
    batch_rewards,
    grpo_advantages,
    kl_penalty,
    overlong_penalty,
    rloo_advantages,
    whiten,
)
from ragen_jax.rl.objective import GROUP_RELATIVE, AdvEstimator
from ragen_jax.rollout import SAMPLED, Trajectories


@partial(jax.jit, static_argnames="objective")
def computed(traj: Trajectories, value: jax.Array, kept: jax.Array, objective: Objective) -> tuple:
    rewards = batch_rewards(traj, objective)
    return batch_advantages(traj, rewards, value, objective, traj.loss_mask & kept[:, None])


OBJECTIVES = [
    Objective(adv_estimator=kind, gamma=0.9, lam=0.8, high_level_gamma=0.7) for kind in get_args(AdvEstimator)
]
OBJECTIVES += [
    Objective(adv_estimator="gae", use_turn_scores=False, whiten_advantages=False),
    Objective(adv_estimator="bi_level_gae", gamma=0.9, lam=0.5, whiten_advantages=False),
    Objective(adv_estimator="grpo", norm_adv_by_std_in_grpo=False, use_turn_scores=False),
]


def some_batch(seed: int, members: int) -> Trajectories:
    """Ragged rows; some turns have reward 0, a group is constant, some rows hold no sampled token."""
    traj = random_trajectories(seed, groups=3, members=members)
    rng = np.random.default_rng(seed)
    reward = np.where(rng.random(traj.reward.shape) < 0.4, 0, np.asarray(traj.reward))
    reward[:members] = np.where(np.arange(reward.shape[1]) == 0, 10.9, 0)
    penalty = np.where(rng.random(reward.shape) < 0.2, -0.1, 0)
    penalty[:members] = 0
    live = np.asarray(traj.taken)
    traj = replace(
        traj, reward=jnp.asarray(np.where(live, reward, 0), jnp.float32),
        penalty=jnp.asarray(np.where(live, penalty, 0), jnp.float32),
    )  # fmt: skip
    silent = int(rng.integers(members, traj.tokens.shape[0]))  # as if a row had been given everything
    return replace(
        traj,
        role=traj.role.at[silent].set(jnp.minimum(traj.role[silent], 1)),
        turns=traj.turns.at[silent].set(0),
    )


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o.adv_estimator)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), members=st.sampled_from([1, 4]))
def test_estimators_equal_their_formulas(objective: Objective, seed: int, members: int) -> None:
    traj = some_batch(seed, members)
    rng = np.random.default_rng(seed + 1)
    value = rng.normal(size=traj.tokens.shape).astype(np.float32)
    kept = np.repeat(rng.random(3) < 0.8, members)
    advantage, returns = computed(traj, jnp.asarray(value), jnp.asarray(kept), objective)
    expected = reference_rl.advantages(traj, value, objective, kept)
    np.testing.assert_allclose(advantage, expected, atol=5e-5)
    if objective.uses_critic and not objective.whiten_advantages:
        mask = np.asarray(traj.loss_mask) & kept[:, None]
        np.testing.assert_allclose(returns, np.where(mask, expected + value, 0), atol=5e-5)
    if members > 1 and objective.adv_estimator in ("grpo", "dr_grpo", "rloo"):
        assert not np.any(advantage[:members])  # exactly


@pytest.mark.parametrize("kind", GROUP_RELATIVE)
def test_sixteen_equal_rewards_have_no_advantage(kind: AdvEstimator) -> None:
    rewards = np.zeros((32, 3))
    rewards[:, 0] = 10.9
    traj = random_trajectories(0, groups=2, members=16, turns=1, rewards=rewards[:, :1])
    advantage, _ = computed(traj, jnp.zeros(traj.tokens.shape), jnp.ones(32, bool), Objective(kind))
    assert not np.any(advantage)


def test_whitening_equal_entries_gives_exactly_nothing() -> None:
    mask = jnp.arange(120).reshape(3, 40) % 3 > 0
    assert not np.any(whiten(jnp.full((3, 40), 10.9, jnp.float32), mask))
    assert not np.any(whiten(jnp.full((3, 40), jnp.inf), jnp.zeros((3, 40), bool)))


def test_a_turn_without_reward_is_still_a_turn() -> None:
    """Two turns of one token, reward 0 and then 1, values 0: the first turn's return is discounted by turn."""
    traj = random_trajectories(0, groups=1, members=1, turns=2)
    role = jnp.zeros((1, 40), jnp.uint8).at[0, jnp.array([1, 3])].set(SAMPLED).at[0, jnp.array([0, 2])].set(1)
    traj = replace(
        traj, role=role, turn=jnp.zeros((1, 40), jnp.int32).at[0, 2:4].set(1), turns=jnp.array([2]),
        turn_end=jnp.array([[1, 3]]), reward=jnp.array([[0.0, 1.0]]), penalty=jnp.zeros((1, 2)),
    )  # fmt: skip
    objective = Objective("bi_level_gae", high_level_gamma=0.5, gamma=0.9, whiten_advantages=False)
    advantage, _ = computed(traj, jnp.zeros((1, 40)), jnp.ones(1, bool), objective)
    np.testing.assert_allclose(advantage[0, jnp.array([1, 3])], [0.5, 1.0])


def test_groups_of_one() -> None:
    scores = jnp.array([[2.0], [-3.0]])
    np.testing.assert_array_equal(rloo_advantages(scores), scores)
    np.testing.assert_array_equal(grpo_advantages(scores, norm_by_std=False), scores)
    np.testing.assert_allclose(grpo_advantages(scores), scores, rtol=2e-6)


@pytest.mark.parametrize("kind", ["grpo", "gae"])
def test_kl_in_the_reward(kind: AdvEstimator) -> None:
    traj = random_trajectories(3, groups=2, members=4)
    objective = Objective(kind, use_kl_in_reward=True, kl_coef=0.3, kl_penalty="k2", whiten_advantages=False)
    rng = np.random.default_rng(0)
    old, ref = (jnp.asarray(rng.normal(size=traj.tokens.shape), jnp.float32) for _ in range(2))
    with pytest.raises(ValueError, match="use_kl_in_reward"):
        batch_rewards(traj, objective)
    rewards = np.asarray(batch_rewards(traj, objective, old, ref))
    for row in range(8):
        for slot, r in reference_rl.rewards_by_slot(traj, row, objective).items():
            r -= 0.3 * float(old[row, slot] - ref[row, slot]) ** 2 / 2
            assert rewards[row, slot] == pytest.approx(r, abs=1e-5)
    assert not rewards[~np.asarray(traj.loss_mask)].any()
    advantage, _ = batch_advantages(
        traj, jnp.asarray(rewards), jnp.zeros_like(old), objective, traj.loss_mask
    )
    if kind == "grpo":
        total = rewards.sum(1).reshape(2, 4)
        expected = (total - total.mean(1, keepdims=True)) / total.std(1, ddof=1, keepdims=True)
        first = np.asarray(traj.prompt_end[:, 0])
        np.testing.assert_allclose(advantage[np.arange(8), first], expected.reshape(-1), rtol=1e-4)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_straight_through_keeps_the_value_and_takes_k2s_gradient(kind: str) -> None:
    logp, ref = jnp.array([-1.0, -0.3, -2.0]), jnp.array([-0.5, -0.4, -2.0])
    other = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}[kind]
    np.testing.assert_array_equal(kl_penalty(logp, ref, kind), kl_penalty(logp, ref, other))
    np.testing.assert_allclose(kl_penalty(logp, ref, f"{kind}+"), kl_penalty(logp, ref, kind), atol=1e-7)
    slope = jax.grad(lambda x: kl_penalty(x, ref, f"{other}+").sum())(logp)
    np.testing.assert_allclose(slope, logp - ref, atol=1e-7)  # of d^2 / 2


def test_soft_overlong_penalty_counts_tokens_by_turn() -> None:
    traj = random_trajectories(1, groups=4, members=4)
    objective = Objective(overlong_buffer_share=0.5, overlong_penalty_factor=2.0)
    found = np.asarray(overlong_penalty(traj, objective, 6))
    seen = set()
    for row in range(16):
        for t in range(3):
            length = int(np.sum((np.asarray(traj.turn[row]) == t) & np.asarray(traj.loss_mask[row])))
            expected = 0.0 if length <= 3 else -2.0 * (length - 3) / 3  # limit 6, buffer 3
            seen.add(length)
            assert found[row, t] == pytest.approx(expected), (row, t, length)
    assert {1, 4, 6} <= seen
    assert not np.any(overlong_penalty(traj, Objective(), 6))


def test_scaling_by_what_was_kept_and_by_spread() -> None:
    traj = random_trajectories(2, groups=4, members=4)
    keep = np.array([True, False, True, False])
    rows = jnp.asarray(np.repeat(keep, 4))
    for kind, factor in (("none", 1.0), ("linear", 0.5), ("sqrt", 0.5**0.5)):
        scale, extra = advantage_scale(traj, rows, Objective(filter_loss_scaling=kind))
        np.testing.assert_allclose(scale, factor)
        assert extra == {}
    spread = np.std(np.asarray(traj.score).reshape(4, 4), axis=1, ddof=1)
    soft = spread / (spread[keep].max() + 1e-6)
    scale, extra = advantage_scale(traj, rows, Objective(soft_advantage_reweight=True))
    np.testing.assert_allclose(scale, np.repeat(soft, 4), rtol=1e-5)
    total, weight = extra["actor/soft_reweight_mean"]
    assert float(total / weight) == pytest.approx(soft[keep].mean(), rel=1e-5)
