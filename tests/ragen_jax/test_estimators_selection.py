"""Selection of groups against an independent walk in plain Python, and the published cases."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragen_jax.estimators import select_groups, selection_stats

STATIC = ("strategy", "type", "include_zero", "top_p_prob_mode", "eps_mode")
select_traced = jax.jit(select_groups, static_argnames=STATIC)


def oracle(
    scores, strategy, value, type="largest", include_zero=True, top_p_prob_mode="linear", selection_eps=0.01
):
    """The published rules, a loop at a time; returns the set of kept indices."""
    left = [i for i, s in enumerate(scores) if math.isfinite(s)]
    if not include_zero:
        left = [i for i in left if abs(scores[i]) > 1e-10]
    if not left:
        return set()
    sign = -1 if type == "largest" else 1
    ranked = sorted(left, key=lambda i: (sign * scores[i], i))
    if strategy == "top_p" and value >= 1:
        return set(left)
    if strategy == "top_p" and top_p_prob_mode == "linear":
        tau = value * sum(scores[i] for i in left) - selection_eps
        kept, reached = [], 0.0
        for i in ranked:
            if reached >= tau or scores[i] <= 0:
                break
            kept.append(i)
            reached += scores[i]
        return set(kept) if reached >= tau else set()
    if strategy == "top_p":
        top = max(-sign * scores[i] for i in left)
        weights = [math.exp(-sign * scores[i] - top) for i in ranked]
        reached, k = 0.0, 0
        for k, w in enumerate(weights, start=1):  # noqa: B007
            reached += w / sum(weights)
            if reached >= value:
                break
        return set(ranked[:k])
    if strategy in ("top_k", "top_k_abs"):
        k = int(value * len(scores)) if strategy == "top_k" else int(value)
        return set(ranked[: max(1, min(k, len(left)))])
    if type == "largest":
        return {i for i in left if scores[i] >= value * max(scores[j] for j in left) - 1e-10}
    low = np.float32(min(scores[j] for j in left))  # in float32, where 1 / (0.5 + 1e-10) is 2
    return {i for i in left if np.float32(scores[i]) <= low / np.float32(value + 1e-10) + np.float32(1e-10)}


def kept(scores, **options):
    mask = select_groups(jnp.array(scores, jnp.float32), **options)
    return [i for i, m in enumerate(np.asarray(mask)) if m]


def softmax_is_clear(scores, value, type, include_zero):
    """No cumulative share within rounding of `value`, where float32 and double may rightly differ."""
    left = [s for s in scores if math.isfinite(s) and (include_zero or abs(s) > 1e-10)]
    if not left:
        return True
    x = np.sort((1 if type == "largest" else -1) * np.array(left))[::-1]
    share = np.cumsum(np.exp(x - x[0])) / np.exp(x - x[0]).sum()
    return np.abs(share - value).min() > 1e-5


# Multiples of 1/8 and of 1/16: sums and products are exact in float32, so only the rules can differ.
grid = st.one_of(st.just(0.0), st.integers(-16, 64).map(lambda i: i / 8))
scores_st = st.lists(st.one_of(grid, st.just(float("nan"))), min_size=6, max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    scores_st,
    st.sampled_from(["top_p", "top_k", "top_k_abs", "min_p"]),
    st.integers(1, 20).map(lambda i: i / 16),
    st.sampled_from(["largest", "smallest"]),
    st.booleans(),
    st.sampled_from(["linear", "softmax"]),
)
@example([0.0] * 6, "top_p", 0.9375, "largest", True, "linear")
@example([math.nan] * 6, "top_p", 0.9375, "largest", True, "softmax")
@example([math.inf, -math.inf, 1.0, 1.0, 0.0, 0.0], "top_p", 1.0, "largest", True, "softmax")
def test_against_the_oracle(scores, strategy, value, type, include_zero, mode):
    if strategy == "top_k_abs":
        value = 5 * value
    options = {
        "strategy": strategy,
        "type": type,
        "include_zero": include_zero,
        "top_p_prob_mode": mode,
    }
    if strategy == "top_p" and mode == "softmax" and not softmax_is_clear(scores, value, type, include_zero):
        return
    expected = sorted(oracle(scores, value=value, **options))
    assert kept(scores, value=value, **options) == expected
    traced = select_traced(jnp.array(scores, jnp.float32), value=jnp.float32(value), **options)
    assert [i for i, m in enumerate(np.asarray(traced)) if m] == expected


@pytest.mark.parametrize(
    ("scores", "options", "expected"),
    [
        ([4, 3, 2, 1], {"value": 0.6}, [0, 1]),
        ([1, 1, 1], {"value": 0.6, "top_p_prob_mode": "softmax"}, [0, 1]),
        ([0, 0, 0, 0], {"value": 0.9}, []),
        ([10, 1, 0, 0], {"value": 0.9, "include_zero": False}, [0]),
        ([10, 1, 0, 0], {"value": 0.9, "include_zero": False, "top_p_prob_mode": "softmax"}, [0]),
        ([4, 2, 0, 0], {"value": 0.9, "include_zero": False}, [0, 1]),
        ([3, 1, 1, 0], {"value": 0.9}, [0, 1, 2]),
        ([1, 1, 1, 0], {"value": 0.6, "include_zero": False, "top_p_prob_mode": "softmax"}, [0, 1]),
        ([4, 3, 2, 1], {"value": 1.0}, [0, 1, 2, 3]),
        ([0, 0, 0], {"value": 1.0}, [0, 1, 2]),
        ([0, 0, 0], {"value": 1.0, "include_zero": False}, []),
        ([0, 2, 1], {"value": 1.0, "include_zero": False, "top_p_prob_mode": "softmax"}, [1, 2]),
        ([0, 0, 0], {"value": 0.5, "top_p_prob_mode": "softmax"}, [0, 1]),
        ([0.004, 0.004], {"value": 0.9}, []),  # value * sum <= eps
        ([5, -1, -1], {"value": 0.9}, [0]),  # tau 2.69
        ([5, -4, 6], {"value": 0.9, "type": "smallest"}, []),  # a negative score ends the walk
        ([3, 0, 1], {"value": 0.9, "type": "smallest"}, []),
        ([3, 2, 1], {"value": 0.4, "type": "smallest"}, [1, 2]),  # tau 2.39: 1, then 2
        ([1, 5, 3, 4], {"strategy": "top_k", "value": 0.5}, [1, 3]),
        (
            [1, 5, 0, 0],
            {"strategy": "top_k", "value": 0.75, "include_zero": False},
            [0, 1],
        ),  # capped at those left
        ([1, 5, 3, 4], {"strategy": "top_k", "value": 0.1}, [1]),  # at least one
        ([1, 5, 3, 4], {"strategy": "top_k_abs", "value": 3, "type": "smallest"}, [0, 2, 3]),
        ([1, 5, 3, 4], {"strategy": "top_k_abs", "value": 99}, [0, 1, 2, 3]),
        ([1, 5, 3, 4], {"strategy": "top_k_abs", "value": 0}, [1]),
        ([2, 2, 2], {"strategy": "top_k_abs", "value": 1}, [0]),
        ([1, 5, 3, 4], {"strategy": "min_p", "value": 0.6}, [1, 2, 3]),
        ([1, 2, 3, 4], {"strategy": "min_p", "value": 0.5, "type": "smallest"}, [0, 1]),
        ([0, 0, 1], {"strategy": "min_p", "value": 0.5, "type": "smallest"}, [0, 1]),
    ],
)
def test_published_and_worked_cases(scores, options, expected):
    assert kept(scores, **options) == expected
    options = {"strategy": "top_p", **options}
    assert sorted(oracle([float(s) for s in scores], **options)) == expected


def test_python_numbers_truncate_as_python_does():
    assert int(0.29 * 100) == 28
    assert len(kept(range(1, 101), strategy="top_k", value=0.29)) == 28


def test_nan_is_never_selected_and_counted():
    scores = jnp.array([jnp.nan, 2.0, jnp.inf, 0.0])
    for strategy in ("top_p", "top_k", "top_k_abs", "min_p"):
        for mode in ("linear", "softmax"):
            for direction in ("largest", "smallest"):
                for value in (0.0, 0.5, 1.0, 4.0):
                    mask = select_groups(
                        scores, strategy=strategy, top_p_prob_mode=mode, type=direction, value=value
                    )
                    assert not mask[0]
                    assert not mask[2]
    mask = select_groups(scores)
    stats = {name: float(v) for name, v in selection_stats(scores, mask).items()}
    assert stats == {
        "filter_kept_count": 2,
        "filter_kept_ratio": 0.5,
        "filter_zero_count": 1,
        "filter_nan_count": 2,
    }


def test_value_can_be_traced_without_a_second_compilation():
    traces = []

    @jax.jit
    def select(scores, value, eps):
        traces.append(1)
        return select_groups(scores, value=value, selection_eps=eps)

    scores = jnp.array([4.0, 3, 2, 1])
    sizes = [int(select(scores, jnp.float32(v), jnp.float32(0.01)).sum()) for v in (0.3, 0.6, 0.9, 1.0)]
    assert sizes == [1, 2, 3, 4]
    assert len(traces) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 64).map(lambda i: i / 8), min_size=6, max_size=6), st.integers(-6, 6))
def test_relative_slack_does_not_see_the_scale(scores, power):
    scores = jnp.array(scores, jnp.float32)
    options = {"value": 0.9, "eps_mode": "relative"}
    np.testing.assert_array_equal(
        select_groups(scores, **options), select_groups(scores * 2.0**power, **options)
    )


def test_absolute_slack_sees_the_scale():
    assert kept([0.005, 0.005], value=0.9) == []
    assert kept([0.005, 0.005], value=0.9, eps_mode="relative") == [0, 1]


@settings(max_examples=50, deadline=None)
@given(
    st.permutations(range(6)),
    st.sampled_from(["top_p", "top_k", "min_p"]),
    st.sampled_from(["linear", "softmax"]),
)
def test_order_of_groups_is_nothing_for_distinct_scores(order, strategy, mode):
    scores = np.array([0.0, 0.5, 1.25, 2.0, 3.5, 7.0], np.float32)
    options = {"strategy": strategy, "value": 0.7, "top_p_prob_mode": mode}
    order = np.array(order)
    np.testing.assert_array_equal(
        np.asarray(select_groups(scores, **options))[order], select_groups(scores[order], **options)
    )


def test_bad_options_are_named():
    scores = jnp.ones(3)
    with pytest.raises(ValueError, match="strategy must be one of"):
        select_groups(scores, strategy="top_q")
    with pytest.raises(ValueError, match="type must be one of"):
        select_groups(scores, type="biggest")
    with pytest.raises(ValueError, match="top_p_prob_mode must be one of"):
        select_groups(scores, top_p_prob_mode="cubic")
    with pytest.raises(ValueError, match="eps_mode must be one of"):
        select_groups(scores, eps_mode="scaled")
    with pytest.raises(ValueError, match="scores must have shape"):
        select_groups(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="one shape"):
        selection_stats(scores, jnp.ones(2, bool))
    assert select_groups(jnp.ones(0)).shape == (0,)
