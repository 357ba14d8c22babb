"""What the filter ranks and keeps, what replaces dropped groups, and when a run ends itself."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from batches import random_trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.estimators import (
    chance_std_over_mean,
    filter_scores,
    reward_variance,
    reward_variance_noise,
    select_groups,
)
from ragen_jax.rollout import Trajectories
from ragen_jax.training.checkpoints import HostState
from ragen_jax.training.config import config_from_dict
from ragen_jax.training.early_stop import early_stop
from ragen_jax.training.metrics import merge
from ragen_jax.training.programs import filter_program, refill_program
from ragen_jax.training.sections import RolloutSection


# -- scores --------------------------------------------------------------------------------------------
def by_hand(values: np.ndarray, metric: str, level: str) -> list[float]:
    out: list[float] = []
    for group in values.astype(np.float64):
        spread = metric in ("reward_variance", "entropy_variance")
        constant = group.max() - group.min() <= 1e-5
        if level == "trajectory":
            out += [(0.0 if constant else abs(x - group.mean())) if spread else x for x in group]
        elif spread:
            out.append(0.0 if constant else float(np.std(group, ddof=1)))
        else:
            out.append(group.sum() if metric == "reward_sum" else group.mean())
    return out


@pytest.mark.parametrize("level", ["prompt", "trajectory"])
@pytest.mark.parametrize(
    "metric", ["reward_variance", "reward", "reward_sum", "entropy", "entropy_variance", "length"]
)
def test_scores_equal_their_definitions(metric: str, level: str) -> None:
    values = np.random.default_rng(0).normal(5, 2, (6, 4)).astype(np.float32)
    values[2] = 10.9
    found = filter_scores(jnp.asarray(values), metric, level)
    np.testing.assert_allclose(found, by_hand(values, metric, level), rtol=1e-5, atol=1e-5)
    if metric.endswith("variance"):
        assert not np.any(found[2] if level == "prompt" else found[8:12])  # exactly
    values[1, 3] = np.nan
    bad = filter_scores(jnp.asarray(values), metric, level)
    assert np.isnan(np.asarray(bad).reshape(6, -1)).any(axis=1).tolist() == [False, True, *[False] * 4]


def test_names_of_scores_are_checked() -> None:
    for metric, level in (("rewards", "prompt"), ("reward", "group")):
        with pytest.raises(ValueError, match="must be one of"):
            filter_scores(jnp.ones((2, 2)), metric, level)
    alias = filter_scores(jnp.array([[1.0, 3.0]]), "reward_std")
    np.testing.assert_allclose(alias, np.sqrt(2), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 5, width=32), st.just(float("nan"))), min_size=1, max_size=13))
def test_quartiles_part_the_groups(scores: list[float]) -> None:
    masks = [
        np.asarray(select_groups(jnp.array(scores, jnp.float32), strategy="quartile", value=q))
        for q in (1, 2, 3, 4)
    ]
    known = [i for i, s in enumerate(scores) if np.isfinite(s)]
    order = sorted(known, key=lambda i: (np.float32(scores[i]), i))
    expected = [{order[r] for r in range(len(order)) if 4 * r // len(order) == q} for q in range(4)]
    assert [set(np.flatnonzero(m).tolist()) for m in masks] == expected


# -- how much of the differences in reward variance is chance ------------------------------------------
def test_jackknife_equals_its_formula() -> None:
    rewards = np.random.default_rng(1).normal(size=(3, 5))
    for row, found in zip(rewards, reward_variance_noise(jnp.asarray(rewards)), strict=True):
        less = np.array([np.std(np.delete(row, k), ddof=1) for k in range(5)])
        assert float(found) == pytest.approx(4 / 5 * ((less - less.mean()) ** 2).sum(), rel=1e-4)


def test_chance_level_is_what_equal_prompts_show() -> None:
    """600 prompts of one true spread: their Std/Mean is chance; with spreads that differ it is well above."""
    rng = np.random.default_rng(2)

    def ratio(rewards: np.ndarray) -> tuple[float, float]:
        spread = np.asarray(reward_variance(jnp.asarray(rewards)))
        return spread.std() / spread.mean(), float(chance_std_over_mean(jnp.asarray(rewards)))

    observed, chance = ratio(rng.normal(size=(600, 16)))
    assert chance == pytest.approx(observed, rel=0.1)
    observed, chance = ratio(rng.normal(size=(600, 16)) * rng.uniform(0.2, 3, (600, 1)))
    assert observed > 2 * chance
    assert float(chance_std_over_mean(jnp.ones((3, 4)))) == 0


# -- the program ---------------------------------------------------------------------------------------
def with_scores(scores: np.ndarray) -> Trajectories:
    """One turn an episode, rewards as given, [P, G]."""
    groups, members = scores.shape
    return random_trajectories(0, groups=groups, members=members, turns=1, rewards=scores.reshape(-1, 1))


SCORES = np.array([[0, 0, 0, 0], [0, 0, 0, 4], [0, 2, 0, 2], [1, 1, 1, 1.5]], float)


def test_trajectory_level_keeps_episodes() -> None:
    section = RolloutSection(
        env_groups=4, group_size=4, rollout_filter_level="trajectory", rollout_filter_strategy="top_k_abs",
        rollout_filter_value=3, rollout_filter_include_zero=False,
    )  # fmt: skip
    keep, metrics, groups = filter_program(with_scores(SCORES), section=section)
    distance = np.abs(SCORES - SCORES.mean(1, keepdims=True)).reshape(-1)
    assert set(np.flatnonzero(keep)) == set(np.argsort(-distance, kind="stable")[:3])
    assert float(metrics["rollout/filter_kept_count"]) == 3
    np.testing.assert_allclose(groups["kept"], np.asarray(keep).reshape(4, 4).mean(1))
    np.testing.assert_allclose(groups["mean"], SCORES.mean(1))


@pytest.mark.parametrize("metric", ["entropy", "entropy_variance", "length"])
def test_other_metrics(metric: str) -> None:
    traj = random_trajectories(1, groups=4, members=4)
    entropy = np.random.default_rng(0).random(16).astype(np.float32)
    section = RolloutSection(
        env_groups=4, group_size=4, rollout_filter_metric=metric, rollout_filter_strategy="top_k_abs",
        rollout_filter_value=1, rollout_filter_type="smallest",
    )  # fmt: skip
    if metric != "length":
        with pytest.raises(ValueError, match=metric):
            filter_program(traj, section=section)
    keep, _, _ = filter_program(traj, jnp.asarray(entropy), section=section)
    values = np.asarray(traj.loss_mask).sum(1) if metric == "length" else entropy
    scores = (
        values.reshape(4, 4).std(1, ddof=1) if metric.endswith("variance") else values.reshape(4, 4).mean(1)
    )
    assert set(np.flatnonzero(keep) // 4) == {int(np.argmin(scores))}
    off = replace(section, rollout_filter_strategy="top_p", rollout_filter_include_zero=True)
    assert np.all(filter_program(traj, section=off)[0])  # needs no entropies


def test_adaptive_filter_is_off_where_prompts_hardly_differ() -> None:
    section = RolloutSection(
        env_groups=4, group_size=4, rollout_filter_value=0.5, rollout_filter_adaptive=0.3
    )
    alike = np.tile([[0.0, 1, 2, 3]], (4, 1)) * np.array([[1.0], [1.1], [0.9], [1]])
    for scores, active in ((alike, 0.0), (SCORES, 1.0), (np.zeros((4, 4)), 1.0)):
        keep, metrics, _ = filter_program(with_scores(scores), section=section)
        assert float(metrics["rollout/filter_active"]) == active
        assert bool(keep.all()) == (active == 0)
        spread = scores.std(1, ddof=1)
        expected = spread.std() / spread.mean() if spread.any() else 0
        assert float(metrics["reward_variance/std_over_mean"]) == pytest.approx(expected, rel=1e-5)
        assert "reward_variance/std_over_mean_chance" in metrics


def test_dropped_groups_are_replaced_in_order() -> None:
    first, second = (random_trajectories(s, groups=4, members=2) for s in (0, 1))
    keep = np.array([True, False, True, False])
    more = np.array([False, True, True, True])
    traj, kept = refill_program(first, jnp.repeat(keep, 2), second, jnp.repeat(more, 2))
    assert kept.all()
    expected = np.concatenate([np.asarray(first.tokens)[[0, 1, 4, 5]], np.asarray(second.tokens)[2:6]])
    np.testing.assert_array_equal(traj.tokens, expected)
    # Too few even so: what is kept comes first, and the rest is not.
    traj, kept = refill_program(first, jnp.repeat(keep, 2), second, jnp.zeros(8, bool))
    np.testing.assert_array_equal(kept, [True] * 4 + [False] * 4)
    np.testing.assert_array_equal(traj.tokens[:4], np.asarray(first.tokens)[[0, 1, 4, 5]])


def test_metrics_of_several_batches() -> None:
    parts = [
        {"a": 1.0, "b_count": 2.0, "c/max": 1.0, "c/min": 1.0},
        {"a": 2.0, "b_count": 3.0, "c/max": 5.0, "c/min": 0.0},
    ]
    assert merge(parts) == {"a": 1.5, "b_count": 5.0, "c/max": 5.0, "c/min": 0.0}


# -- early stops ---------------------------------------------------------------------------------------
QUIET = {"rollout/empty_after_filter": 0.0, "train/skipped_updates": 0.0, "train/nonfinite_count": 0.0}


def config(**rules: float):
    return config_from_dict(
        {"early_stop": rules, "evaluation": {"test_freq": 1}, "env": {"tag": "FrozenLake"}}
    )


def test_reward_variance_collapse_is_measured_against_the_runs_own_start() -> None:
    host = HostState()
    rules = config(reward_variance_base_steps=2, reward_variance_steps=3, reward_variance_ratio=0.1)
    #        base    empty: not counted        low  low  up again  low   low   low
    values = [1.0, 9.0, 3.0, 0.1, 0.1, 0.5, 0.19, 0.1, 0.0]
    stopped = []
    for step, value in enumerate(values, 1):
        host.step = step
        metrics = {
            **QUIET,
            "rollout/in_group_reward_std": value,
            "rollout/empty_after_filter": float(step == 2),
        }
        stopped.append(early_stop(rules, host, metrics))
    assert stopped[:-1] == [None] * 8
    assert "early_stop.reward_variance_ratio" in stopped[-1]
    assert metrics["early_stopped/reward_variance_collapse"] == 1
    never = config(reward_variance_ratio=0)
    host = HostState(base_sum=20, base_count=10)
    assert all(
        early_stop(never, host, {**QUIET, "rollout/in_group_reward_std": 0.0}) is None for _ in range(30)
    )


def test_validation_floor_counts_evaluations_on_end() -> None:
    host, rules, name = HostState(), config(validation_count=2), "val-env/FrozenLake/success"
    found = []
    for step, value in enumerate([0.0, 0.02, 0.0, None, 0.0], 1):
        host.step = step
        metrics = dict(QUIET) if value is None else {**QUIET, name: value}
        found.append(early_stop(rules, host, metrics))
    assert found[:-1] == [None] * 4
    assert "early_stop.validation_success" in found[-1]
    assert metrics["early_stopped/low_validation_success"] == 1


def test_empty_filter() -> None:
    host = HostState()
    for empty, expected in ((1, False), (0, False), *[(1, False)] * 4, (1, True)):
        metrics = {**QUIET, "rollout/empty_after_filter": float(empty)}
        reason = early_stop(config(), host, metrics)
        assert (reason is not None) == expected
    assert metrics["early_stopped/empty_filtered_steps"] == 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"rollout_filter_strategy": "top_k", "rollout_filter_value": 1.5}, "rollout_filter_value"),
        ({"rollout_filter_strategy": "top_k_abs", "rollout_filter_value": 9}, "rollout_filter_value"),
        ({"rollout_filter_strategy": "quartile", "rollout_filter_value": 0.9}, "rollout_filter_value"),
        (
            {"max_num_gen_batches": 3, "rollout_filter_value": 1, "rollout_filter_include_zero": True},
            "max_num_gen_batches",
        ),
        ({"max_num_gen_batches": 3, "rollout_filter_level": "trajectory"}, "max_num_gen_batches"),
        ({"rollout_filter_adaptive": 0.3, "group_size": 2}, "rollout_filter_adaptive"),
        ({"top_p": 0.0}, "top_p"),
        ({"group_size": 1}, "group_size"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_name(fields: dict, name: str) -> None:
    with pytest.raises(ValueError, match=f"rollout.{name}"):
        replace(RolloutSection(), **fields)
