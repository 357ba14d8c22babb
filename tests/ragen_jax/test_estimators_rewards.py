"""Reward spread, regimes and the sampling of pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ragen_jax import estimators as E

finite = st.floats(-50, 50, width=32)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, (4, 6), elements=finite))
def test_reward_variance_is_the_sample_deviation(rewards):
    got = np.asarray(E.reward_variance(rewards))
    expected = rewards.astype(np.float64).std(axis=1, ddof=1)
    constant = np.ptp(rewards, axis=1) <= 1e-5
    np.testing.assert_allclose(got[~constant], expected[~constant], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got[constant], 0)


@pytest.mark.parametrize("members", [2, 8, 16])
def test_equal_rewards_give_exactly_zero(members):
    penalties = -0.1 * np.arange(1, 31)
    rewards = np.concatenate([penalties, 11 + penalties]).astype(np.float32)
    groups = np.repeat(rewards[:, None], members, axis=1)
    assert np.count_nonzero(E.reward_variance(groups)) == 0
    if members == 16:  # the trap: std itself is not zero
        assert np.count_nonzero(np.asarray(jnp.std(groups, axis=1, ddof=1)) > 1e-10) > 0


def test_rewards_summed_in_another_order_are_equal():
    one = np.float32(0)
    for _ in range(10):
        one += np.float32(0.1)
    assert one != np.float32(1)
    np.testing.assert_array_equal(E.reward_variance(np.array([[one, 1.0, one, 1.0]], np.float32)), 0)
    assert E.reward_variance(np.array([[0.9, 1.0]], np.float32))[0] > 0.07
    np.testing.assert_array_equal(E.reward_variance(np.array([[0.9, 1.0]], np.float32), tol=0.2), 0)


def test_large_offsets_keep_small_differences():
    rewards = np.array([[2048, 2048.25, 2048.5, 2048.25]], np.float32)
    np.testing.assert_allclose(E.reward_variance(rewards), rewards.astype(float).std(1, ddof=1), rtol=1e-6)


def test_reward_variance_errors_and_nan():
    with pytest.raises(ValueError, match="groups of 1"):
        E.reward_variance(np.ones((3, 1)))
    with pytest.raises(ValueError, match="prompts, group"):
        E.reward_variance(np.ones(3))
    got = E.reward_variance(np.array([[1, np.nan, 1], [0, np.inf, 1], [0, 1, 2]], np.float32))
    assert np.isnan(got[0])
    assert np.isnan(got[1])
    assert float(got[2]) == pytest.approx(1)
    stats = E.reward_variance_stats(np.array([[1, np.nan], [0, 1], [2, 2]], np.float32))
    assert float(stats["nan_count"]) == 1
    assert float(stats["zero_count"]) == 1
    assert float(stats["mean"]) == pytest.approx(np.sqrt(0.5) / 2)


def test_reward_variance_stats():
    rewards = np.array([[0, 1, 0, 1], [2, 2, 2, 2], [0, 4, 0, 0]], np.float32)
    spread = rewards.std(axis=1, ddof=1)
    stats = {name: float(v) for name, v in jax.jit(E.reward_variance_stats)(rewards).items()}
    expected = {
        "mean": spread.mean(),
        "std": spread.std(),
        "min": 0,
        "max": spread.max(),
        "std_over_mean": spread.std() / spread.mean(),
        "zero_count": 1,
        "nan_count": 0,
    }
    assert stats == pytest.approx(expected, rel=1e-5)
    assert float(E.reward_variance_stats(np.ones((2, 2)))["std_over_mean"]) == 0
    assert np.isnan(float(E.reward_variance_stats(np.full((2, 2), np.nan))["mean"]))


# -- regimes --
def test_four_regimes_and_unknown():
    entropy = np.array([2.0, 2.0, 0.1, 0.1, np.nan, 1.0])
    mi = np.array([1.0, 0.1, 1.0, 0.1, 1.0, 0.5])
    got = E.regime(entropy, mi, entropy_threshold=1.0, mi_threshold=0.5)
    names = [E.REGIME_NAMES[int(code)] for code in got]
    assert names == [
        "diverse reasoning",
        "template collapse",
        "compressed reasoning",
        "low-entropy collapse",
        "unknown",
        "diverse reasoning",
    ]
    codes = {E.DIVERSE, E.TEMPLATE_COLLAPSE, E.COMPRESSED, E.LOW_ENTROPY_COLLAPSE, E.UNKNOWN}
    assert codes == set(E.REGIME_NAMES)
    assert int(E.regime(1.0, 1.0, entropy_threshold=np.nan, mi_threshold=0.5)) == E.UNKNOWN


def test_thresholds_from_the_run_itself():
    entropy, mi = E.regime_thresholds(2.0, 1.2, entropy_fraction=0.25, mi_fraction=0.5)
    assert (float(entropy), float(mi)) == pytest.approx((0.5, 0.6))
    _, mi = E.regime_thresholds(2.0, 1.2, mi_upper_bound=2.0, mi_fraction=0.1)
    assert float(mi) == pytest.approx(0.2)
    _, mi = E.regime_thresholds(2.0, -0.3)
    assert float(mi) == 0
    with pytest.raises(ValueError, match="mi_fraction"):
        E.regime_thresholds(1.0, 1.0, mi_fraction=0.0)


# -- pairs --
VALID = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]], bool)


def draws(sampler, num_samples, count=600):
    sample = jax.jit(jax.vmap(lambda key: sampler(key, VALID, num_samples)))
    return sample(jax.random.split(jax.random.key(0), count))


def test_first_turn_sample_is_a_uniform_subset():
    got = draws(E.sample_first_turn, 3)
    episode, chosen = np.asarray(got.episode), np.asarray(got.chosen)
    assert not np.asarray(got.turn).any()
    assert (chosen.sum(axis=1) == 2).all()  # two episodes have a valid first turn
    assert all(sorted(e[c]) == [0, 3] for e, c in zip(episode, chosen, strict=True))
    one = draws(E.sample_first_turn, 1)
    share = np.mean(np.asarray(one.episode)[:, 0] == 0)
    assert 0.42 < share < 0.58
    assert E.sample_first_turn(jax.random.key(0), VALID, 99).episode.shape == (4,)


def test_turn_sample_is_without_replacement_over_pairs():
    got = draws(E.sample_turns, 3)
    assert np.asarray(got.chosen).all()
    pairs = np.stack([got.episode, got.turn], -1)
    assert all(len({tuple(p) for p in row}) == 3 for row in pairs)
    assert VALID[pairs[..., 0], pairs[..., 1]].all()
    for e, t in np.argwhere(VALID):
        share = np.mean((pairs[..., 0] == e) & (pairs[..., 1] == t))
        assert 0.16 < share < 0.24  # one in five
    everything = E.sample_turns(jax.random.key(0), VALID, 50)
    assert int(everything.chosen.sum()) == 5
    assert everything.episode.shape == (12,)


def test_trajectory_sample_draws_an_episode_then_its_turn():
    got = draws(E.sample_trajectories, 4)
    episode, turn, chosen = (np.asarray(x) for x in (got.episode, got.turn, got.chosen))
    assert VALID[episode[chosen], turn[chosen]].all()
    assert 0.70 < chosen.mean() < 0.80  # draws of the episode without valid turns are dropped
    assert not chosen[episode == 2].any()
    share = np.mean((episode == 3)[chosen])
    assert 0.29 < share < 0.38  # by episode, not by turn: one in three, though it has one turn in five
    assert any(len(set(zip(e, t, strict=True))) < 4 for e, t in zip(episode, turn, strict=True))
    many = E.sample_trajectories(jax.random.key(1), VALID, 40)
    assert not np.asarray(many.chosen)[5:].any()  # no more draws than valid turns


def test_pairs_flow_into_the_metrics():
    """The trajectory family: each draw its own column, dropped draws no column."""
    sample = E.sample_trajectories(jax.random.key(2), VALID, 5)
    prompt = sample.episode * 3 + sample.turn
    scores = -1.0 - 50.0 * (prompt[:, None] != prompt[None, :])
    pairs = E.pair_scores(
        scores,
        jnp.arange(5),
        jnp.ones(5, int),
        sample.chosen,
        column_class=prompt,
        column_valid=sample.chosen,
    )
    got, _ = E.collapse_metrics_rows(pairs)
    drawn = np.asarray(prompt)[np.asarray(sample.chosen)]
    _, counts = np.unique(drawn, return_counts=True)
    share = counts / counts.sum()
    assert 0 < len(drawn) < 5 or len(set(drawn.tolist())) < 5
    np.testing.assert_allclose(got["mi_seq_estimate"], -(share * np.log(share)).sum(), rtol=1e-5)
    np.testing.assert_allclose(got["mi_upper_bound"], got["mi_seq_estimate"], rtol=1e-5)
    assert int(got["num_distinct_prompts"]) == len(counts)
    assert got["retrieval_accuracy"] == 1


def test_sample_sizes_are_checked():
    for sampler in (E.sample_first_turn, E.sample_turns, E.sample_trajectories):
        with pytest.raises(ValueError, match="num_samples"):
            sampler(jax.random.key(0), VALID, 0)
