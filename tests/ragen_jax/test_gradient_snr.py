"""Signal and noise of gradients on a bandit whose gradient and noise are known in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.estimators.gradient_snr import (
    HalfMoments,
    bootstrap_signal_and_noise,
    half_moments,
    inner,
    quantile_buckets,
    signal_and_noise,
    sketch,
)

ARMS, PROMPTS, MEMBERS, REPETITIONS = 5, 3, 8, 1000


@pytest.fixture(scope="module")
def bandit() -> tuple[np.ndarray, float, float]:
    """Halves of 1,000 repetitions, [R, P, 2, D], with the true |mean g|^2 and mean tr Cov of a group's gradient.

    A softmax policy over arms shared by all prompts, rewards that depend on prompt and arm with Gaussian noise, and
    REINFORCE without a baseline, whose mean and covariance are sums over arms.
    """
    rng = np.random.default_rng(0)
    logits, mean_reward, spread = rng.normal(size=ARMS), rng.normal(size=(PROMPTS, ARMS)), 0.5
    pi = np.exp(logits) / np.exp(logits).sum()
    score = np.eye(ARMS) - pi  # of each arm: its one-hot vector less pi
    g = np.einsum("k,pk,kd->pd", pi, mean_reward, score)
    second = np.einsum("k,pk,k->p", pi, mean_reward**2 + spread**2, (score**2).sum(1))
    signal = float((g.mean(0) ** 2).sum())
    noise = float(((second - (g**2).sum(1)) / MEMBERS).mean())
    arms = rng.choice(ARMS, p=pi, size=(REPETITIONS, PROMPTS, 2, MEMBERS // 2))
    rewards = mean_reward[np.arange(PROMPTS)[None, :, None, None], arms]
    rewards = rewards + spread * rng.normal(size=arms.shape)
    halves = (rewards[..., None] * score[arms]).mean(axis=3)
    return halves.astype(np.float32), signal, noise


def test_estimates_are_unbiased(bandit: tuple[np.ndarray, float, float]) -> None:
    halves, signal, noise = bandit
    found = jax.vmap(lambda h: jnp.stack(signal_and_noise(half_moments(h))))(jnp.asarray(halves))
    found = np.asarray(found, np.float64)
    error = found.std(axis=0, ddof=1) / np.sqrt(REPETITIONS)
    assert abs(found[:, 0].mean() - signal) < 3 * error[0]
    assert abs(found[:, 1].mean() - noise) < 3 * error[1]
    # What is mended: the squared norm of the mean gradient is too large by the noise of the mean.
    naive = (halves.mean(axis=(1, 2)) ** 2).sum(axis=-1)
    assert naive.mean() - signal > 10 * naive.std() / np.sqrt(REPETITIONS)
    assert naive.mean() == pytest.approx(signal + noise / PROMPTS, rel=0.05)


def test_sketches_do_as_well_on_average(bandit: tuple[np.ndarray, float, float]) -> None:
    halves, signal, noise = bandit
    keys = jax.random.split(jax.random.key(1), REPETITIONS)

    def one(key: jax.Array, h: jax.Array) -> jax.Array:
        flat = jax.vmap(lambda x: sketch({"w": x}, key, 16))(h.reshape(-1, ARMS))
        return jnp.stack(signal_and_noise(half_moments(flat.reshape(PROMPTS, 2, 16))))

    found = np.asarray(jax.vmap(one)(keys, jnp.asarray(halves)), np.float64)
    error = found.std(axis=0, ddof=1) / np.sqrt(REPETITIONS)
    assert abs(found[:, 0].mean() - signal) < 3 * error[0]
    assert abs(found[:, 1].mean() - noise) < 3 * error[1]


def test_without_signal_the_estimate_is_centred_on_zero() -> None:
    halves = np.random.default_rng(2).normal(size=(REPETITIONS, 4, 2, 6)).astype(np.float32)
    found = np.asarray(
        jax.vmap(lambda h: signal_and_noise(half_moments(h))[0])(jnp.asarray(halves)), np.float64
    )
    assert abs(found.mean()) < 3 * found.std() / np.sqrt(REPETITIONS)
    assert (found < 0).mean() > 0.3


def test_streamed_moments_are_those_of_the_whole() -> None:
    halves = np.random.default_rng(3).normal(size=(5, 2, 7))
    trees = [[{"a": jnp.asarray(h[:3]), "b": jnp.asarray(h[3:])} for h in pair] for pair in halves]
    mean = [jax.tree.map(lambda x, y: (x + y) / 2, *pair) for pair in trees]
    total = jax.tree.map(lambda *x: sum(x) / 5, *mean)
    streamed = HalfMoments(
        inner(total, total),
        jnp.stack([inner(m, m) for m in mean]),
        jnp.stack([inner(a, b) for a, b in trees]),
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
        streamed,
        half_moments(jnp.asarray(halves, jnp.float32)),
    )


def test_bootstrap_covers_and_is_centred(bandit: tuple[np.ndarray, float, float]) -> None:
    rng = np.random.default_rng(4)
    g = rng.normal(size=6)
    covered = 0
    for seed in range(60):
        prompts = g + 0.5 * rng.normal(size=(24, 1, 6))  # prompts differ in their gradient
        halves = jnp.asarray(prompts + rng.normal(size=(24, 2, 6)), jnp.float32)
        signal, noise = signal_and_noise(half_moments(halves))
        signals, noises = bootstrap_signal_and_noise(jax.random.key(seed), halves, samples=400)
        assert float(signals.mean()) == pytest.approx(float(signal), abs=1e-3)
        assert float(noises.mean()) == pytest.approx(float(noise), abs=1e-3)
        low, high = np.quantile(signals, [0.025, 0.975])
        covered += low <= (g**2).sum() <= high
    assert covered >= 48  # of 60, for a nominal 57


def test_buckets_by_rank() -> None:
    scores = jnp.array([3.0, 0.0, 2.0, 1.0, 5.0, 4.0, 6.0])
    assert quantile_buckets(scores, 3) == [[1, 3], [2, 0], [5, 4, 6]]
    assert quantile_buckets(scores[:2], 6) == [[1], [0]]
