"""Mutual information, entropies, retrieval and z-scores against formulas written again in NumPy loops."""

import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax import estimators as E

P, G = 5, 3
SEEDS = st.integers(0, 2**32 - 1)
metrics_jit = jax.jit(E.collapse_metrics, static_argnames="length_normalize")


def sample(seed, prompts=P, group=G, *, hole=True):
    """Random scores with invalid and empty traces and, half the time, prompts that are copies."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, (prompts, group))
    per_token = -rng.exponential(1.0, (prompts, group, prompts))
    L = per_token * lengths[..., None]
    classes = np.arange(prompts) * 7 - 3
    if rng.random() < 0.5:
        classes[1] = classes[3]
        L[..., 1] = L[..., 3]
    valid = np.ones((prompts, group), bool)
    if hole:
        valid = rng.random((prompts, group)) < 0.8
        lengths[rng.random((prompts, group)) < 0.1] = 0
        valid[0, 0], lengths[0, 0] = True, 4
    return L.astype(np.float32), lengths, valid, classes


def oracle(L, lengths, valid, classes, normalize="after", std_eps=1e-3):
    """Table 1 by loops over traces, in double precision."""
    prompts, group, _ = L.shape
    rows = []
    for i, g in itertools.product(range(prompts), range(group)):
        n = int(lengths[i, g])
        if not valid[i, g] or n == 0:
            continue
        s = [float(x) for x in L[i, g]]
        mix = math.log(sum(math.exp(x - max(s)) for x in s) / prompts) + max(s)
        per = [x / n for x in s]
        mix_per = math.log(sum(math.exp(x - max(per)) for x in per) / prompts) + max(per)
        copies = sum(classes[j] == classes[i] for j in range(prompts))
        rows.append(
            {
                "m": s[i] / n,
                "m_seq": s[i],
                "z": mix / n if normalize == "after" else mix_per,
                "z_seq": mix,
                "ceiling": math.log(prompts / copies),
                "copies": copies,
                "rank": [sum(x > max(s[j] for j in range(prompts) if classes[j] == classes[i]) for x in s)],
            }
        )

    def mean(f):
        return sum(f(r) for r in rows) / len(rows)

    out = {"num_rows": len(rows), "num_rows_invalid": prompts * group - len(rows)}
    for s in ("", "_seq"):
        m, z = f"m{s}", f"z{s}"
        out[f"mi{s}_estimate"] = mean(lambda r, m=m, z=z: r[m] - r[z])
        out[f"conditional_entropy{s}_est"] = -mean(lambda r, m=m: r[m])
        out[f"reasoning_entropy{s}_est"] = -mean(lambda r, z=z: r[z])
        std = float(np.std([r[z] for r in rows]))
        out[f"marginal_std{s}"] = std
        out[f"mi_zscore{s}"] = mean(lambda r, m=m, z=z, std=std: (r[m] - r[z]) / (std + std_eps))
    out["mi_upper_bound"] = mean(lambda r: r["ceiling"])
    for k in (1, 2, 4, 8):
        at = "" if k == 1 else f"@{k}"
        ke = min(k, prompts)
        out[f"retrieval_accuracy{at}"] = mean(lambda r, ke=ke: float(r["rank"][0] < ke))
        out[f"retrieval_chance_level{at}"] = mean(
            lambda r, ke=ke: 1 - math.comb(prompts - r["copies"], ke) / math.comb(prompts, ke)
        )
    return out


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(["after", "before"]))
def test_every_metric_against_loops(seed, normalize):
    L, lengths, valid, classes = sample(seed)
    got, _ = metrics_jit(L, lengths, valid, classes, length_normalize=normalize)
    expected = oracle(L, lengths, valid, classes, normalize)
    for name, value in expected.items():
        assert float(got[name]) == pytest.approx(value, abs=2e-4, rel=2e-4), name
    assert got["matched_log_prob_mean"] == -got["conditional_entropy_est"]
    assert got["marginal_log_prob_mean"] == -got["reasoning_entropy_est"]
    for at in ("", "@2", "@4", "@8"):
        above = got[f"retrieval_accuracy{at}"] - got[f"retrieval_chance_level{at}"]
        assert float(got[f"retrieval_above_chance{at}"]) == pytest.approx(float(above), abs=1e-6)


def test_named_functions_are_the_metrics():
    L, lengths, valid, classes = sample(3)
    args = (L, lengths, valid, classes)
    all_of, _ = E.collapse_metrics(*args)
    before, _ = E.collapse_metrics(*args, length_normalize="before")
    pairs = [
        (E.mi_estimate(*args), all_of["mi_estimate"]),
        (E.mi_estimate(*args, length_normalize="before"), before["mi_estimate"]),
        (E.mi_seq_estimate(*args), all_of["mi_seq_estimate"]),
        (E.mi_upper_bound(*args), all_of["mi_upper_bound"]),
        (E.mi_upper_bound(*args, length_normalize="after"), all_of["mi_upper_bound_per_token"]),
        (E.mi_zscore(*args), all_of["mi_zscore"]),
        (E.mi_zscore(*args, length_normalize="none"), all_of["mi_zscore_seq"]),
        (E.conditional_entropy(*args[:3]), all_of["conditional_entropy_est"]),
        (E.conditional_entropy(*args[:3], length_normalize="none"), all_of["conditional_entropy_seq_est"]),
        (E.marginal_entropy(*args), all_of["reasoning_entropy_est"]),
        (E.marginal_entropy(*args, length_normalize="before"), before["reasoning_entropy_est"]),
        (E.retrieval_accuracy(*args), all_of["retrieval_accuracy"]),
        (E.recall_at_k(*args, k=2), all_of["retrieval_accuracy@2"]),
        (E.retrieval_chance(*args, k=4), all_of["retrieval_chance_level@4"]),
    ]
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_worked_by_hand():
    # Two prompts, one trace of two tokens each: p = 1/2 under its own prompt, 1/8 under the other.
    L = jnp.log(jnp.array([[[1 / 2, 1 / 8]], [[1 / 8, 1 / 2]]]))
    lengths = jnp.full((2, 1), 2)
    mixture = (1 / 2 + 1 / 8) / 2
    np.testing.assert_allclose(E.matched(L, lengths, length_normalize="none"), math.log(1 / 2), rtol=1e-6)
    np.testing.assert_allclose(E.matched(L, lengths), math.log(1 / 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(E.marginal(L, lengths, length_normalize="none"), math.log(mixture), rtol=1e-6)
    np.testing.assert_allclose(E.marginal(L, lengths), math.log(mixture) / 2, rtol=1e-6)
    before = math.log((math.sqrt(1 / 2) + math.sqrt(1 / 8)) / 2)
    np.testing.assert_allclose(E.marginal(L, lengths, length_normalize="before"), before, rtol=1e-6)
    np.testing.assert_allclose(E.mi_seq_estimate(L, lengths), math.log(1.6), rtol=1e-5)
    np.testing.assert_allclose(E.mi_upper_bound(L, lengths), math.log(2), rtol=1e-6)


# -- an enumerable policy --
VOCABULARY, LENGTH, PROMPTS = 3, 3, 4


def enumerable_policy(seed=0):
    """log p(z | x) of all 27 strings of 3 tokens under 4 prompts, from random conditional tables."""
    rng = np.random.default_rng(seed)
    strings = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    logp = np.zeros((PROMPTS, len(strings)))
    for x in range(PROMPTS):
        table = {}
        for s, string in enumerate(strings):
            for t in range(LENGTH):
                prefix = string[:t]
                if prefix not in table:
                    logits = 2 * rng.normal(size=VOCABULARY)
                    table[prefix] = logits - np.log(np.exp(logits).sum())
                logp[x, s] += table[prefix][string[t]]
    np.testing.assert_allclose(np.exp(logp).sum(1), 1)
    return logp


def exact_information(logp, p_x):
    p = np.exp(logp)
    p_z = p_x @ p
    h_z = -(p_z * np.log(p_z)).sum()
    h_z_given_x = -(p_x[:, None] * p * logp).sum()
    return h_z - h_z_given_x, h_z_given_x, h_z


@pytest.mark.parametrize("p_x", [[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]])
def test_all_traces_enumerated_give_the_exact_information(p_x):
    logp, p_x = enumerable_policy(), np.array(p_x)
    exact, conditional, marginal = exact_information(logp, p_x)
    assert exact > 0.1
    L = np.broadcast_to(logp.T[None], (PROMPTS, logp.shape[1], PROMPTS))
    weight = p_x[:, None] * np.exp(logp)
    lengths = np.full(weight.shape, LENGTH)
    kwargs = {"weight": weight, "prompt_weight": p_x}
    np.testing.assert_allclose(E.mi_seq_estimate(L, lengths, **kwargs), exact, rtol=1e-5)
    np.testing.assert_allclose(E.mi_estimate(L, lengths, **kwargs), exact / LENGTH, rtol=1e-5)
    got = E.conditional_entropy(L, lengths, length_normalize="none", weight=weight)
    np.testing.assert_allclose(got, conditional, rtol=1e-5)
    got = E.marginal_entropy(L, lengths, length_normalize="none", **kwargs)
    np.testing.assert_allclose(got, marginal, rtol=1e-5)
    bound = E.mi_upper_bound(L, lengths, **kwargs)
    np.testing.assert_allclose(bound, -(p_x * np.log(p_x)).sum(), rtol=1e-5)


def test_sampled_traces_estimate_the_exact_information():
    logp = enumerable_policy(1)
    exact, _, _ = exact_information(logp, np.full(PROMPTS, 1 / PROMPTS))
    rng = np.random.default_rng(2)
    group = 500
    drawn = np.stack([rng.choice(logp.shape[1], group, p=np.exp(row)) for row in logp])
    L = np.stack([logp[:, z].T for z in drawn])
    lengths = np.full((PROMPTS, group), LENGTH)
    terms = E.matched(L, lengths, length_normalize="none") - E.marginal(L, lengths, length_normalize="none")
    error = float(np.asarray(terms).std(axis=1).mean() / math.sqrt(PROMPTS * group))
    assert error < exact / 20  # sharp enough to mean something
    assert abs(float(E.mi_seq_estimate(L, lengths)) - exact) < 3 * error


# -- copies of a prompt --
def test_copies_count_as_their_share_and_lower_the_ceiling():
    far = -100.0
    L = np.full((4, 1, 4), far)  # prompts 0, 1, 2 are one prompt; 3 another; reasoning tells the two apart
    L[:3, 0, :3] = -2.0
    L[3, 0, 3] = -2.0
    lengths, classes = np.full((4, 1), 2), np.array([5, 5, 5, 9])
    ceiling = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)  # entropy of the shares 3/4 and 1/4
    got, _ = E.collapse_metrics(L, lengths, prompt_class=classes)
    np.testing.assert_allclose(got["mi_upper_bound"], ceiling, rtol=1e-6)
    np.testing.assert_allclose(got["mi_seq_estimate"], ceiling, rtol=1e-5)
    assert got["num_distinct_prompts"] == 2
    assert got["retrieval_accuracy"] == 1
    np.testing.assert_allclose(got["retrieval_chance_level"], 0.75 * 0.75 + 0.25 * 0.25, rtol=1e-6)
    assert E.retrieval_accuracy(L, lengths) == pytest.approx(
        (3 * 1 / 3 + 1) / 4
    )  # taken as distinct: ties of three


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_bounds(seed):
    L, lengths, valid, classes = sample(seed)
    got, _ = metrics_jit(L, lengths, valid, classes)
    got = {name: float(value) for name, value in got.items()}
    assert got["mi_seq_estimate"] <= got["mi_upper_bound"] + 1e-4
    assert got["mi_estimate"] <= got["mi_upper_bound_per_token"] + 1e-4
    assert got["mi_upper_bound"] <= math.log(P) + 1e-6
    recalls = [got[f"retrieval_accuracy{at}"] for at in ("", "@2", "@4", "@8")]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1  # k = 8 exceeds the 5 columns
    assert all(0 <= r <= 1 for r in recalls)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_order_of_prompts_and_traces_is_nothing(seed):
    L, lengths, valid, classes = sample(seed)
    rng = np.random.default_rng(seed + 1)
    p, g = rng.permutation(P), rng.permutation(G)
    moved = L[p][:, g][:, :, p], lengths[p][:, g], valid[p][:, g], classes[p]
    first, _ = metrics_jit(L, lengths, valid, classes)
    second, _ = metrics_jit(*moved)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-4, atol=1e-4, err_msg=name)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([np.nan, np.inf, -np.inf, -1e30, 0.0]))
def test_what_a_left_out_trace_holds_is_nothing(seed, junk):
    L, lengths, valid, classes = sample(seed)
    dirty = L.copy()
    out = ~valid | (lengths == 0)
    dirty[out] = junk
    first, _ = metrics_jit(L, lengths, valid, classes)
    second, _ = metrics_jit(dirty, lengths, valid, classes)
    for name in first:
        assert np.isfinite(second[name]), name
        assert first[name] == second[name], name


def test_broken_scores_are_left_out_and_counted():
    L, lengths, valid, classes = sample(5, hole=False)
    L[0, 0, 2], L[1, 1, 1], L[2, 2, 0] = np.nan, -np.inf, np.inf
    got, _ = E.collapse_metrics(L, lengths, valid, classes)
    assert got["num_rows_nonfinite"] == 3
    assert got["num_rows_invalid"] == 0
    assert all(np.isfinite(value) for value in got.values())
    valid[0, 0] = valid[1, 1] = valid[2, 2] = False
    expected, _ = E.collapse_metrics(np.nan_to_num(L, neginf=0, posinf=0), lengths, valid, classes)
    np.testing.assert_array_equal(got["mi_seq_estimate"], expected["mi_seq_estimate"])
    assert expected["num_rows_invalid"] == 3


def test_impossible_under_a_foreign_prompt_is_information():
    L = np.full((3, 1, 3), -np.inf)
    L[np.arange(3), 0, np.arange(3)] = -4.0
    got, _ = E.collapse_metrics(L, np.full((3, 1), 4))
    np.testing.assert_allclose(got["mi_seq_estimate"], math.log(3), rtol=1e-6)
    assert got["num_rows_nonfinite"] == 0


def test_nothing_valid_is_nan_not_zero_and_leaves_the_average_alone():
    L, lengths, _, _ = sample(6, hole=False)
    _, ema = E.collapse_metrics(L, lengths)
    got, after = E.collapse_metrics(L, lengths, np.zeros((P, G), bool), None, ema)
    assert got["num_rows"] == 0
    assert got["num_rows_invalid"] == P * G
    assert all(np.isnan(got[n]) for n in ("mi_estimate", "retrieval_accuracy", "mi_upper_bound", "mi_zscore"))
    assert float(after.seq.value) == float(ema.seq.value)
    assert int(after.seq.count) == int(ema.seq.count) == 1
    np.testing.assert_array_equal(E.matched(L, lengths, np.zeros((P, G), bool)), 0)


def test_small_differences_survive_large_sums():
    L = np.full((2, 1, 2), -4000.0)
    L[0, 0, 0] = L[1, 0, 1] = -3999.0
    exact = 1 - math.log((math.e + 1) / 2)
    np.testing.assert_allclose(E.mi_seq_estimate(L, np.full((2, 1), 900)), exact, atol=1e-3)


# -- retrieval --
def recall_by_shuffling(scores, own, classes, k, draws, rng):
    hits = 0
    for _ in range(draws):
        order = rng.permutation(len(scores))
        ranked = sorted(order, key=lambda j: -scores[j])[:k]
        hits += any(classes[j] == classes[own] for j in ranked)
    return hits / draws


@pytest.mark.parametrize("k", [1, 2, 4])
def test_ties_give_the_expectation_over_random_breaking(k):
    rng = np.random.default_rng(k)
    scores = np.array([-1.0, -2, -2, -2, -2, -3])
    classes = np.array([0, 1, 1, 2, 3, 1])
    for own in range(6):
        pairs = E.pair_scores(scores[None], np.array([own]), np.array([1]), column_class=classes)
        expected = recall_by_shuffling(scores, own, classes, k, 4000, rng)
        assert float(E.recall_rows(pairs, k)[0]) == pytest.approx(expected, abs=0.03), own


def test_scores_that_say_nothing_give_exactly_chance():
    L, lengths, classes = np.full((6, 2, 6), -3.0), np.full((6, 2), 3), np.array([0, 0, 1, 2, 3, 4])
    got, _ = E.collapse_metrics(L, lengths, prompt_class=classes)
    for at in ("", "@2", "@4", "@8"):
        assert float(got[f"retrieval_above_chance{at}"]) == pytest.approx(0, abs=1e-6)
    assert float(got["mi_seq_estimate"]) == pytest.approx(0, abs=1e-6)


# -- z-score and its average --
def test_moving_average_starts_at_its_first_value():
    values = [2.0, 4.0, float("nan"), 1.0]
    ema = E.Ema.empty()
    seen = []
    for value in values:
        ema = jax.jit(E.ema_update)(ema, jnp.float32(value))
        seen.append(float(ema.value))
    second = 0.9 * 2 + 0.1 * 4
    np.testing.assert_allclose(seen, [2, second, second, 0.9 * second + 0.1], rtol=1e-6)
    assert int(ema.count) == 3


def test_zscore_with_average_over_evaluations():
    ema, collapse, smooth = None, None, None
    for seed in range(3):
        L, lengths, valid, classes = sample(seed)
        expected = oracle(L, lengths, valid, classes)
        std = expected["marginal_std"]
        smooth = std if smooth is None else 0.9 * smooth + 0.1 * std
        z, ema = E.mi_zscore_ema(L, lengths, valid, classes, ema)
        got, collapse = E.collapse_metrics(L, lengths, valid, classes, collapse)
        np.testing.assert_allclose(z, expected["mi_estimate"] / (smooth + 1e-3), rtol=1e-3)
        np.testing.assert_allclose(got["mi_zscore_ema"], z, rtol=1e-6)
        np.testing.assert_allclose(got["marginal_std_ema"], smooth, rtol=1e-3)
    assert int(collapse.token.count) == int(collapse.seq.count) == 3


# -- rows with own columns --
def test_rows_without_own_column_or_in_unused_columns():
    scores = np.array([[-1.0, -5, np.nan], [-4, -2, np.nan], [-1, -1, np.nan], [-1, -1, 0]])
    pairs = E.pair_scores(
        scores,
        np.array([0, 1, -1, 2]),
        np.array([2, 2, 2, 2]),
        column_valid=np.array([True, True, False]),
    )
    assert int(pairs.num_invalid) == 2
    got, _ = E.collapse_metrics_rows(pairs)
    expected = np.mean(
        [-1 - np.log((np.exp(-1) + np.exp(-5)) / 2), -2 - np.log((np.exp(-4) + np.exp(-2)) / 2)]
    )
    np.testing.assert_allclose(got["mi_seq_estimate"], expected, rtol=1e-5)
    np.testing.assert_allclose(got["mi_upper_bound"], math.log(2), rtol=1e-6)
    assert got["num_columns"] == 2
    assert got["retrieval_accuracy"] == 1
    np.testing.assert_allclose(got["retrieval_chance_level"], 0.5)


def test_groups_are_a_special_case_of_rows():
    L, lengths, valid, classes = sample(9)
    pairs = E.pair_scores(
        L.reshape(P * G, P),
        np.arange(P * G) // G,
        lengths.reshape(-1),
        valid.reshape(-1),
        column_class=classes,
    )
    rows, _ = E.collapse_metrics_rows(pairs)
    groups, _ = E.collapse_metrics(L, lengths, valid, classes)
    for name in rows:
        np.testing.assert_array_equal(rows[name], groups[name])


# -- intervals --
def test_bootstrap_is_seeded_and_resamples_prompts():
    L, lengths, valid, _ = sample(11, hole=False)
    low, high = E.mi_interval(jax.random.key(0), L, lengths, valid, samples=4000)
    again = E.mi_interval(jax.random.key(0), L, lengths, valid, samples=4000)
    assert (low, high) == again
    terms = np.asarray(E.matched(L, lengths, length_normalize="none"))
    terms = (terms - np.asarray(E.marginal(L, lengths, length_normalize="none"))).mean(axis=1)
    rng = np.random.default_rng(0)
    means = terms[rng.integers(0, P, (20000, P))].mean(axis=1)
    np.testing.assert_allclose([low, high], np.quantile(means, [0.025, 0.975]), atol=0.1 * means.std())
    assert low < E.mi_seq_estimate(L, lengths, valid) < high
    got, _ = E.collapse_metrics(L, lengths, valid, bootstrap_key=jax.random.key(0), bootstrap_samples=4000)
    assert (got["mi_seq_estimate_low"], got["mi_seq_estimate_high"]) == (low, high)


def test_bootstrap_takes_copies_as_one_prompt():
    L, lengths, _, _ = sample(12, hole=False)
    one = E.mi_interval(jax.random.key(0), L, lengths, None, np.zeros(P, int))
    estimate = E.mi_seq_estimate(L, lengths)
    np.testing.assert_allclose(one, [estimate, estimate], rtol=1e-5)
    valid = np.zeros((P, G), bool)
    valid[3:] = True  # prompts without a valid trace are not drawn
    low, high = E.mi_interval(jax.random.key(0), L, lengths, valid)
    terms = np.asarray(
        E.matched(L, lengths, length_normalize="none") - E.marginal(L, lengths, length_normalize="none")
    )
    np.testing.assert_allclose([low, high], sorted(terms.mean(axis=1)[3:]), rtol=1e-5)
    nothing = E.retrieval_interval(jax.random.key(0), L, lengths, np.zeros((P, G), bool))
    assert np.isnan(nothing).all()


def test_bootstrap_covers():
    """About 95 of 100 intervals hold the value that the traces are drawn around."""
    rng = np.random.default_rng(0)
    prompts, runs = 40, 100

    @jax.jit
    def interval(key, value):
        pairs = E.pair_scores(
            jnp.zeros((prompts * 2, prompts)), jnp.arange(prompts * 2) // 2, jnp.ones(prompts * 2, int)
        )
        return E.bootstrap_rows(key, value, pairs, samples=400)

    held = 0
    for run in range(runs):
        value = np.repeat(rng.normal(1.0, 1.0, prompts), 2).astype(np.float32)  # members of a prompt agree
        low, high = interval(jax.random.key(run), value)
        held += bool(low <= 1.0 <= high)
    assert 85 <= held <= 100


# -- contract --
def test_errors_name_the_argument():
    L, lengths, valid, classes = sample(0)
    with pytest.raises(ValueError, match="L must have shape"):
        E.mi_estimate(L[0], lengths)
    with pytest.raises(ValueError, match="lengths must have shape"):
        E.mi_estimate(L, lengths.T)
    with pytest.raises(ValueError, match="valid must have shape"):
        E.mi_estimate(L, lengths, valid[:2])
    with pytest.raises(ValueError, match="column_class must have shape"):
        E.mi_estimate(L, lengths, valid, classes[:2])
    with pytest.raises(ValueError, match="length_normalize"):
        E.mi_estimate(L, lengths, length_normalize="During")
    with pytest.raises(ValueError, match="length_normalize"):
        E.collapse_metrics(L, lengths, length_normalize="none")
    with pytest.raises(ValueError, match="k must be"):
        E.recall_at_k(L, lengths, k=0)
    with pytest.raises(ValueError, match="level"):
        E.mi_interval(jax.random.key(0), L, lengths, level=1.0)


def test_low_precision_scores_are_summed_in_float32():
    L, lengths, _, _ = sample(1, hole=False)
    low = jnp.asarray(L, jnp.bfloat16)
    got = E.mi_seq_estimate(low, lengths)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, E.mi_seq_estimate(low.astype(jnp.float32), lengths))


def test_import_brings_in_nothing_else():
    code = (
        "import sys; import ragen_jax.estimators; "
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('flax', 'optax', 'orbax', 'envs_jax', 'chex', 'matplotlib', 'tensorflow_datasets', 'yaml')"
        " or m.startswith('ragen_jax.') and not m.startswith('ragen_jax.estimators')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_exists():
    assert sorted(E.__all__) == sorted(set(E.__all__))
    assert all(hasattr(E, name) for name in E.__all__)
