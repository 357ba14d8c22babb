"""Advantages, token losses and their aggregation against NumPy written from the formulas."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.rl import (
    Objective,
    gae_advantages,
    grpo_advantages,
    kl_penalty,
    policy_loss,
    sampler_weights,
    token_rewards,
    token_weights,
    value_loss,
    whiten,
)


def test_grpo_is_the_standardised_reward() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    centred = scores - scores.mean(1, keepdims=True)
    np.testing.assert_allclose(
        grpo_advantages(jnp.asarray(scores)),
        centred / (scores.std(1, ddof=1, keepdims=True) + 1e-6),
        atol=1e-5,
    )
    np.testing.assert_allclose(grpo_advantages(jnp.asarray(scores), norm_by_std=False), centred, atol=1e-6)


@pytest.mark.parametrize("reward", [10.9, 10.8, 10.7, 10.6, -0.1, -0.3])
def test_equal_rewards_give_exactly_no_advantage(reward: float) -> None:
    rounding = np.float32(reward) + np.spacing(np.float32(reward)) * np.arange(-2, 3, dtype=np.float32)
    for scores in (np.full((1, 16), reward, np.float32), rounding[None]):
        assert not np.any(grpo_advantages(jnp.asarray(scores)))
        assert not np.any(grpo_advantages(jnp.asarray(scores), norm_by_std=False))
    assert np.any(grpo_advantages(jnp.asarray(rounding[None]), tol=0.0))  # what the tolerance is for


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.9, 1.0]))
def test_gae_skips_given_tokens(seed: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((3, 12)) < 0.5
    rewards = np.where(mask, rng.normal(size=mask.shape), 0).astype(np.float32)
    values = rng.normal(size=mask.shape).astype(np.float32)
    expected, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for b in range(3):
        slots = np.flatnonzero(mask[b])
        for i, s in enumerate(
            slots
        ):  # the definition: a discounted sum of temporal differences over sampled tokens
            for k, u in enumerate(slots[i:]):
                after = values[b, slots[i + k + 1]] if i + k + 1 < len(slots) else 0.0
                expected[b, s] += (gamma * lam) ** k * (rewards[b, u] + gamma * after - values[b, u])
            returns[b, s] = expected[b, s] + values[b, s]
    adv, ret = gae_advantages(
        jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(mask), gamma=gamma, lam=lam
    )
    np.testing.assert_allclose(adv, expected, atol=2e-5)
    np.testing.assert_allclose(ret, returns, atol=2e-5)


def test_turn_rewards_lie_on_the_turns_last_tokens() -> None:
    out = token_rewards(
        jnp.array([[1.0, 0.0, 5.0], [2.0, 9.0, 9.0]]), jnp.array([[2, 4, 6], [3, 0, 0]]),
        jnp.array([[True, True, True], [True, False, False]]), 8,
    )  # fmt: skip
    np.testing.assert_array_equal(out, [[0, 0, 1, 0, 0, 0, 5, 0], [0, 0, 0, 2, 0, 0, 0, 0]])


def test_whitening() -> None:
    x, mask = np.random.default_rng(1).normal(3, 2, (4, 9)), np.random.default_rng(2).random((4, 9)) < 0.6
    out = np.asarray(whiten(jnp.asarray(x, jnp.float32), jnp.asarray(mask)))
    np.testing.assert_allclose(out[mask].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(out[mask].var(ddof=1), 1, atol=1e-5)
    assert not out[~mask].any()


@pytest.mark.parametrize(
    "mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_aggregation_modes(mode: str) -> None:
    rng = np.random.default_rng(3)
    loss, mask = rng.normal(size=(5, 8)), rng.random((5, 8)) < 0.5
    mask[3] = False
    rows = np.array([True, True, False, True, True])
    used = [loss[b][mask[b]] for b in range(5) if rows[b]]
    expected = {
        "token-mean": np.concatenate(used).mean(),
        "seq-mean-token-mean": np.mean([u.mean() if len(u) else 0 for u in used]),
        "seq-mean-token-sum": np.mean([u.sum() for u in used]),
        "seq-mean-token-sum-norm": np.mean([u.sum() for u in used]) / 20,
    }[mode]
    weights = token_weights(jnp.asarray(mask), jnp.asarray(rows), mode, 20)
    np.testing.assert_allclose(float(jnp.sum(weights * loss)), expected, atol=1e-6)


def test_clipped_surrogate_by_cases() -> None:
    objective = Objective(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0)
    ratio = np.array([1.0, 1.5, 0.5, 1.5, 0.5, 5.0, 1.1])
    adv = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 2.0])
    #      unclipped  cut at 1.28  free   free   cut at 0.8  dual at 3  free
    expected = [-1.0, -1.28, -0.5, 1.5, 0.8, 3.0, -2.2]
    loss, seen = policy_loss(
        jnp.log(jnp.asarray(ratio, jnp.float32)), jnp.zeros(7), jnp.asarray(adv), objective
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_array_equal(seen["pg_clipfrac"], [0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(seen["pg_clipfrac_lower"], [0, 0, 0, 0, 0, 1, 0])


def test_no_dual_clip() -> None:
    off = Objective(clip_ratio_c=float("inf"))
    loss, seen = policy_loss(
        jnp.log(jnp.array([50.0, 2.0, 1.0])), jnp.zeros(3), jnp.array([-1.0, 1.0, 0.0]), off
    )
    np.testing.assert_allclose(loss, [50.0, -1.28, 0.0], rtol=1e-5)
    assert not np.any(seen["pg_clipfrac_lower"])


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_truncated_importance_weights(kind: str) -> None:
    rng = np.random.default_rng(0)
    old, sampler, found = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
    weights = sampler_weights(
        *map(jnp.asarray, (old, sampler, found)), Objective(rollout_is=kind, rollout_is_threshold=1.5)
    )
    for b in range(3):
        whole = np.exp(sum(old[b, s] - sampler[b, s] for s in range(5) if found[b, s]))
        for s in np.flatnonzero(found[b]):
            ratio = np.exp(old[b, s] - sampler[b, s]) if kind == "token" else whole
            assert float(weights[b, s]) == pytest.approx(min(ratio, 1.5), rel=1e-5)


def test_kl_estimators() -> None:
    d = np.array([-0.7, 0.0, 0.4])
    logp, ref = jnp.asarray(d, jnp.float32), jnp.zeros(3)
    np.testing.assert_allclose(kl_penalty(logp, ref, "k1"), d, rtol=1e-6)
    np.testing.assert_allclose(kl_penalty(logp, ref, "k2"), d**2 / 2, rtol=1e-6)
    np.testing.assert_allclose(kl_penalty(logp, ref, "k3"), np.exp(-d) - 1 + d, atol=1e-6)
    assert np.all(np.isfinite(kl_penalty(jnp.array([500.0, -500.0]), jnp.zeros(2), "k3")))


def test_value_loss_is_the_larger_of_free_and_clipped() -> None:
    value, old, returns = np.array([2.0, 0.2, -3.0]), np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, -0.1])
    bounded = np.clip(value, old - 0.5, old + 0.5)
    expected = 0.5 * np.maximum((value - returns) ** 2, (bounded - returns) ** 2)
    np.testing.assert_allclose(value_loss(*map(jnp.asarray, (value, old, returns)), 0.5), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"adv_estimator": "gea"}, "adv_estimator"), ({"clip_ratio_c": 1.0}, "clip_ratio_c"), ({"gamma": 1.5}, "gamma"),
        ({"kl_loss_type": "low-var-kl"}, "kl_loss_type"), ({"entropy_coeff": -1.0}, "entropy_coeff"),
        ({"clip_ratio_low": 1.0}, "clip_ratio_low"), ({"loss_agg_mode": "mean"}, "loss_agg_mode"),
        ({"clip_ratio_c": 0.5}, "clip_ratio_c"), ({"rollout_is_threshold": 0.0}, "rollout_is_threshold"),
        ({"adv_estimator": "bi_level_gae", "use_turn_scores": False}, "use_turn_scores"),
        ({"use_kl_loss": True, "use_ref": False}, "use_kl_loss"),
        ({"overlong_buffer_share": 1.5}, "overlong_buffer_share"),
        ({"use_kl_in_reward": True, "use_ref": False}, "use_kl_in_reward"), ({"kl_penalty": "k4"}, "kl_penalty"),
        ({"loss_scale_factor": 0.0}, "loss_scale_factor"), ({"filter_loss_scaling": "square"}, "filter_loss_scaling"),
    ],
)  # fmt: skip
def test_an_objective_that_makes_no_sense_is_refused_by_name(changes: dict, field: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm.{field}"):
        Objective(**changes)
