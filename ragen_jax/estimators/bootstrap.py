"""Confidence intervals for means over traces, by resampling prompts.

Traces of one prompt are not independent, so whole prompts are drawn (with replacement; copies of a prompt are
one) and the ratio of sums is taken again. The columns, hence log p(Z), stay as they are: putting a prompt in
twice would lower the ceiling of the mutual information itself. The interval therefore says how far the value
depends on which of the prompts the traces came from, and with few prompts it is too narrow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from ragen_jax.estimators.mutual_information import mi_rows
from ragen_jax.estimators.pairs import LengthNormalize, PairScores, grouped_scores
from ragen_jax.estimators.retrieval import recall_rows


def bootstrap_rows(
    key: PRNGKeyArray,
    value: Float[Array, " R"],
    pairs: PairScores,
    *,
    samples: int = 1000,
    level: float = 0.95,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Percentile interval (low, high) of the weighted mean of `value` over rows, prompts resampled.

    Args:
        samples: resamples, at least 1.
        level: coverage in (0, 1).

    Returns:
        NaN, NaN if there is no row; both the mean itself if all rows share one prompt.

    Raises:
        ValueError: samples or level out of range.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    classes = pairs.column_class
    columns = classes.shape[0]
    first_copy = jnp.argmax(classes[:, None] == classes[None, :], axis=1)
    cluster = first_copy[pairs.own]
    weight = jnp.zeros(columns).at[cluster].add(pairs.weight)
    total = jnp.zeros(columns).at[cluster].add(jnp.where(pairs.weight > 0, value * pairs.weight, 0))
    present = weight > 0
    order = jnp.argsort(~present, stable=True)  # prompts with rows first
    count = present.sum()
    draws = jax.random.randint(key, (samples, columns), 0, jnp.maximum(count, 1))
    drawn = order[draws]
    live = jnp.arange(columns) < count
    num = jnp.where(live, total[drawn], 0).sum(axis=1)
    den = jnp.where(live, weight[drawn], 0).sum(axis=1)
    means = jnp.where(den > 0, num / jnp.where(den > 0, den, 1), jnp.nan)
    tail = (1 - level) / 2
    low, high = jnp.quantile(means, jnp.array([tail, 1 - tail]))
    return low, high


def mi_interval(
    key: PRNGKeyArray,
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "none",
    samples: int = 1000,
    level: float = 0.95,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Interval (low, high) for `mi_seq_estimate` (default) or, with "after" or "before", `mi_estimate`.

    Raises:
        ValueError: shapes that do not fit, samples, level or length_normalize out of range.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    return bootstrap_rows(key, mi_rows(pairs, length_normalize), pairs, samples=samples, level=level)


def retrieval_interval(
    key: PRNGKeyArray,
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    k: int = 1,
    samples: int = 1000,
    level: float = 0.95,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Interval (low, high) for `recall_at_k`, by default for `retrieval_accuracy`.

    Raises:
        ValueError: shapes that do not fit, k, samples or level out of range.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    return bootstrap_rows(key, recall_rows(pairs, k), pairs, samples=samples, level=level)
