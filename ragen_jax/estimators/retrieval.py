"""Can the prompt be told from the reasoning? Accuracy of naming it as the prompt of highest likelihood.

Equal prompts are one answer: naming any copy is right. Ties are broken uniformly at random and the value is
the exact expectation over that, so it depends on the order of neither rows nor columns, and traces that score
the same under every prompt give exactly the chance level.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators.pairs import PairScores, grouped_scores, own_columns, row_mean


def _miss(total: Array, wanted: Array, drawn: Array, most: int) -> Array:
    """Probability that `drawn` (<= `most`) of `total` things hold none of the `wanted` ones."""
    miss = jnp.ones(jnp.broadcast_shapes(total.shape, wanted.shape, drawn.shape))
    for i in range(most):
        step = jnp.maximum(total - wanted - i, 0) / jnp.maximum(total - i, 1)
        miss = jnp.where(i < drawn, miss * step, miss)
    return miss


def recall_rows(pairs: PairScores, k: int) -> Float[Array, " R"]:
    """Probability that the row's own prompt is among its min(k, N) best columns. 0 in rows left out.

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    usable = pairs.column_weight > 0
    same = own_columns(pairs)
    scores = jnp.where(usable, pairs.scores, -jnp.inf)
    best = jnp.max(jnp.where(same, scores, -jnp.inf), axis=1, keepdims=True)
    tied = (scores == best) & usable
    drawn = jnp.minimum(k, usable.sum()) - jnp.sum(scores > best, axis=1)
    hit = 1 - _miss(tied.sum(axis=1), jnp.sum(tied & same, axis=1), drawn, k)
    return jnp.where(pairs.weight > 0, hit, 0)


def chance_rows(pairs: PairScores, k: int = 1) -> Float[Array, " R"]:
    """`recall_rows` of k columns drawn at random: k / N for distinct prompts. 0 in rows left out.

    With copies this is the exact 1 - C(N-c, k) / C(N, k); the reference implementation uses the bound min(1,
    k c / N).

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    columns = jnp.sum(pairs.column_weight > 0)
    hit = 1 - _miss(columns, own_columns(pairs).sum(axis=1), jnp.minimum(k, columns), k)
    return jnp.where(pairs.weight > 0, hit, 0)


def retrieval_accuracy(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
) -> Float[Array, ""]:
    """Share in [0, 1] of traces whose most likely prompt is their own (or a copy). NaN if no trace is valid.

    A trace's length divides all its scores alike, so it plays no part. Source: RAGEN-2, Table 1.

    Raises:
        ValueError: shapes that do not fit.
    """
    return recall_at_k(L, lengths, valid, prompt_class, k=1)


def recall_at_k(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    k: int,
) -> Float[Array, ""]:
    """Share of traces whose own prompt is among the min(k, P) most likely. NaN if no trace is valid.

    Raises:
        ValueError: shapes that do not fit, or k < 1.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    return row_mean(recall_rows(pairs, k), pairs.weight)


def retrieval_chance(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    k: int = 1,
) -> Float[Array, ""]:
    """What `recall_at_k` would be with scores that say nothing: min(1, k / P) for distinct prompts.

    Raises:
        ValueError: shapes that do not fit, or k < 1.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    return row_mean(chance_rows(pairs, k), pairs.weight)
