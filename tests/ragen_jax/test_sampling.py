"""Addressed randomness, sampling, and the stop automaton against plain Python."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.rollout.sampling import Truncation, fold, row_keys, sample, stop_table

TAG = b"</answer>"
PIECES = [
    b"<",
    b"/",
    b"</",
    b"answer",
    b"ans",
    b"wer>",
    b">",
    b"</answer>",
    b"x",
    b"</ans",
    b" ",
    b"",
    b"<</",
    b"wer",
    b"a>b",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=14))
def test_the_automaton_stops_exactly_when_the_bytes_hold_the_tag(ids: list[int]) -> None:
    table = np.asarray(stop_table(PIECES, [11], TAG))
    state, text, stopped = 0, b"", False
    for i in ids:
        state, text = table[i, state], text + PIECES[i]
        stopped = stopped or TAG in text or i == 11
        assert (state == len(TAG)) == stopped


def test_eos_stops_from_every_state() -> None:
    table = np.asarray(stop_table(PIECES, [11], TAG))
    assert (table[11] == len(TAG)).all()


def test_draws_follow_the_distribution_and_report_its_log_probability() -> None:
    logits = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125, 0.9]))  # the last id is beyond the vocabulary
    keys = jax.random.split(jax.random.key(0), 20_000)
    ids, logprob = sample(keys, jnp.tile(logits, (20_000, 1)), jnp.float32(1.0), 4)
    counts = np.bincount(np.asarray(ids), minlength=5) / 20_000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.125, 0.125, 0], atol=4 * np.sqrt(0.25 / 20_000))
    np.testing.assert_allclose(
        np.exp(logprob), np.array([0.5, 0.25, 0.125, 0.125])[np.asarray(ids)], rtol=1e-5
    )


def test_temperature_sharpens_and_zero_is_greedy() -> None:
    logits = jnp.array([[1.0, 0.0, -1.0]])
    ids, logprob = sample(jax.random.split(jax.random.key(1), 1), logits, jnp.float32(0.5), 3)
    np.testing.assert_allclose(logprob[0], jax.nn.log_softmax(logits[0] / 0.5)[ids[0]], rtol=1e-6)
    for seed in range(20):
        ids, logprob = sample(jax.random.split(jax.random.key(seed), 1), logits, jnp.float32(0.0), 3)
        assert int(ids[0]) == 0
        np.testing.assert_allclose(logprob[0], jax.nn.log_softmax(logits[0])[0], rtol=1e-6)


def test_a_number_depends_on_its_address_alone() -> None:
    key = jax.random.key(3)
    together = row_keys(key, jnp.array([0, 0, 5]), jnp.array([0, 1, 1]))
    alone = row_keys(key, jnp.array([5]), jnp.array([1]))
    np.testing.assert_array_equal(jax.random.key_data(together[2:]), jax.random.key_data(alone))
    data = np.asarray(jax.random.key_data(fold(together, 4)))
    assert len({d.tobytes() for d in data}) == 3


@pytest.mark.parametrize("how", [Truncation(top_p=0.6), Truncation(top_k=2), Truncation(min_p=0.4)])
def test_truncated_draws_are_those_left_with_the_probability_they_were_drawn_with(how: Truncation) -> None:
    """Five ids and a padding row. By hand: top-p 0.6 leaves 0 and 1, top-k 2 too, min-p 0.4 leaves 0 and 1."""
    probs = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    logits = jnp.tile(jnp.asarray(np.append(2 * np.log(probs), 9.0), jnp.float32), (2000, 1))
    keys = row_keys(jax.random.key(0), jnp.arange(2000), jnp.zeros(2000, int))
    ids, logprob = jax.jit(sample, static_argnums=(3, 4))(keys, logits, jnp.float32(2.0), 5, how)
    assert set(np.asarray(ids).tolist()) == {0, 1}
    np.testing.assert_allclose(logprob, np.log(np.where(np.asarray(ids) == 0, 2 / 3, 1 / 3)), atol=1e-5)
    assert abs(float(np.mean(np.asarray(ids) == 0)) - 2 / 3) < 0.04
    greedy, _ = sample(keys[:1], logits[:1], jnp.float32(0.0), 5, how)
    assert int(greedy[0]) == 0


@pytest.mark.parametrize(
    ("field", "value"), [("top_p", 0.0), ("top_p", 1.5), ("top_k", 0), ("min_p", -0.1), ("min_p", 2.0)]
)
def test_a_truncation_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"rollout.{field}"):
        Truncation(**{field: value})
