"""How much of a gradient is signal: |g|^2 and the trace of the noise covariance, without bias, from halves of groups.

Prompt i has gradients a_i and b_i, each from an independent half of its episodes, with the same expectation g_i; their
mean is m_i. Over n prompts,

    signal   |mean_i g_i|^2            estimated by |mean_i m_i|^2 - sum_i (|m_i|^2 - <a_i, b_i>) / n^2
    noise    mean_i tr Cov(m_i)        estimated by mean_i (|m_i|^2 - <a_i, b_i>)

since E <a_i, b_i> = |g_i|^2, E <m_i, m_k> = <g_i, g_k>, and |m_i|^2 - <a_i, b_i> = |a_i - b_i|^2 / 4. Both are unbiased
given the prompts, whatever the distribution, so a signal may come out negative where there is none. Noise is that of
one prompt's mean gradient, hence the same for buckets of any size; the noise of the mean over n prompts is noise / n.

Only inner products are needed: sums of gradients can be streamed, or gradients replaced by sketches that keep inner
products on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HalfMoments:
    """Inner products of the gradients of n prompts and their halves."""

    mean_square: Float[Array, ""]  # |mean_i m_i|^2
    square: Float[Array, " n"]  # |m_i|^2
    cross: Float[Array, " n"]  # <a_i, b_i>


def half_moments(halves: Float[Array, "n 2 D"]) -> HalfMoments:
    """From gradients (or sketches of them) that fit in one array."""
    mean = halves.mean(axis=1)
    return HalfMoments(
        mean_square=jnp.sum(jnp.square(mean.mean(axis=0))),
        square=jnp.sum(jnp.square(mean), axis=-1),
        cross=jnp.sum(halves[:, 0] * halves[:, 1], axis=-1),
    )


def signal_and_noise(moments: HalfMoments) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Unbiased |mean_i g_i|^2 and mean_i tr Cov(m_i). See the module's text. NaN, NaN without a prompt."""
    n = moments.square.shape[0]
    if n == 0:
        return jnp.float32(jnp.nan), jnp.float32(jnp.nan)
    noise = jnp.mean(moments.square - moments.cross)
    return moments.mean_square - noise / n, noise


def bootstrap_signal_and_noise(
    key: PRNGKeyArray, halves: Float[Array, "n 2 D"], *, samples: int = 1000
) -> tuple[Float[Array, " samples"], Float[Array, " samples"]]:
    """Signal and noise of `samples` resamples of the prompts (with replacement), each shifted as a whole so that its
    mean is the estimate of all prompts.

    Copies of a prompt in a resample count as one another's independent halves, so that a resample has no bias from
    copies' noise. Quantiles of a result are an interval; of a ratio, take the ratio of resamples.

    Raises:
        ValueError: samples below 1.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    n = halves.shape[0]
    mean = halves.mean(axis=1)
    moments = half_moments(halves)
    signal, noise = signal_and_noise(moments)
    if n == 0:
        return jnp.full(samples, jnp.nan), jnp.full(samples, jnp.nan)
    products = mean @ mean.T
    products = products.at[jnp.arange(n), jnp.arange(n)].set(moments.cross)
    drawn = jax.random.randint(key, (samples, n), 0, n)
    weight = jax.vmap(lambda d: jnp.zeros(n).at[d].add(1.0))(drawn) / n
    signals = jnp.einsum("si,ij,sj->s", weight, products, weight)
    noises = weight @ (moments.square - moments.cross)
    return signals - signals.mean() + signal, noises - noises.mean() + noise


def sketch(tree: Any, key: PRNGKeyArray, size: int) -> Float[Array, " size"]:
    """`size` numbers that stand for a tree of arrays: <sketch(x), sketch(y)> is <x, y> on average over keys.

    Each entry is added with a random sign to a random place (Charikar, Chen and Farach-Colton 2002). The error of an
    inner product is about |x| |y| / sqrt(size). Sketches can be compared only if key, size and shapes are the same.
    """
    out = jnp.zeros(size, jnp.float32)
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        where, sign = jax.random.split(jax.random.fold_in(key, i))
        place = jax.random.randint(where, (leaf.size,), 0, size)
        signs = jax.random.rademacher(sign, (leaf.size,), jnp.float32)
        out = out.at[place].add(signs * leaf.reshape(-1).astype(jnp.float32))
    return out


def inner(x: Any, y: Any) -> Float[Array, ""]:
    """Inner product of two trees of arrays, float32."""
    parts = jax.tree.map(lambda a, b: jnp.vdot(a.astype(jnp.float32), b.astype(jnp.float32)), x, y)
    return sum(jax.tree.leaves(parts), jnp.float32(0))


def quantile_buckets(scores: Float[Array, " P"], buckets: int) -> list[list[int]]:
    """Indices by ascending score in `buckets` runs of equal length (fewer, if there are fewer scores); what is left
    over goes to the last. Host-side."""
    order = [int(i) for i in jnp.argsort(jnp.asarray(scores), stable=True)]
    count = min(buckets, len(order))
    size = len(order) // max(count, 1)
    return [order[i * size : (i + 1) * size if i + 1 < count else None] for i in range(count)]
