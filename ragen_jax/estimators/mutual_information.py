"""Mutual information between prompts X and reasoning Z, from cross-scores.

I(X; Z) = E[log p(Z|X) - log p(Z)] with p(Z) the mixture of p(Z | x_j) over the sample's prompts (RAGEN-2,
Table 1). `mi_seq_estimate` is that quantity in nats a trace; `mi_estimate` divides each trace's term by its
length.

Ceiling. Each row's own prompt is part of its mixture, so no row exceeds -log p(class of its own prompt): log
N for N distinct prompts, log(N / c) for a prompt with c copies. `mi_upper_bound` is the mean of that over
rows; it is the entropy of the class distribution when the rows follow p(x), and exp of it is the effective
number of prompts. An estimate close to the ceiling says only that the truth is at least that. Estimates can
be slightly negative.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators.pairs import (
    LengthNormalize,
    PairScores,
    check_normalize,
    grouped_scores,
    marginal_rows,
    matched_rows,
    own_columns,
    row_mean,
)


def matched(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
) -> Float[Array, "P G"]:
    """log p(Z | own X), <= 0: nats a token, or nats a trace with "none". 0 where a trace is left out.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    return matched_rows(grouped_scores(L, lengths, valid), length_normalize).reshape(L.shape[:2])


def marginal(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    prompt_weight: Float[Array, " P"] | None = None,
) -> Float[Array, "P G"]:
    """log p(Z), Z's likelihood under the mixture of the sample's prompts, <= 0.

    "after" (default) is (1/|Z|) log mean_j exp L[., ., j]; "before" log mean_j exp(L[., ., j] / |Z|); "none"
    the undivided log mean_j exp L. Copies of a prompt count together as its share of the columns, so
    `prompt_class` does not change the value (it is taken so that the arguments are the same everywhere);
    `prompt_weight` replaces p(x). 0 where a trace is left out.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class, prompt_weight=prompt_weight)
    return marginal_rows(pairs, length_normalize).reshape(L.shape[:2])


def mi_rows(pairs: PairScores, length_normalize: LengthNormalize = "after") -> Float[Array, " R"]:
    """log p(Z|X) - log p(Z) of each row; their mean is the mutual information. 0 in rows left out."""
    return matched_rows(pairs, length_normalize) - marginal_rows(pairs, length_normalize)


def ceiling_rows(pairs: PairScores, length_normalize: LengthNormalize = "none") -> Float[Array, " R"]:
    """Largest value `mi_rows` can take in each row: -log p(own class), by the length too with "after"."""
    check_normalize(length_normalize)
    share = jnp.where(own_columns(pairs), pairs.column_weight, 0).sum(axis=1)
    used = pairs.weight > 0
    value = -jnp.log(jnp.where(used, share, 1))
    return value / pairs.length if length_normalize == "after" else value


def mi_estimate(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    weight: Float[Array, "P G"] | None = None,
    prompt_weight: Float[Array, " P"] | None = None,
) -> Float[Array, ""]:
    """MI-Est: mean over traces of log p(Z|X) - log p(Z) by length, nats a token.

    NaN if no trace is valid.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class, weight=weight, prompt_weight=prompt_weight)
    return row_mean(mi_rows(pairs, length_normalize), pairs.weight)


def mi_seq_estimate(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    weight: Float[Array, "P G"] | None = None,
    prompt_weight: Float[Array, " P"] | None = None,
) -> Float[Array, ""]:
    """MI-Seq-Est: mean over traces of log p(Z|X) - log p(Z), nats a trace, at most `mi_upper_bound`.

    An unbiased estimate of I(X; Z) for X drawn from the P prompts when the traces are sampled from the scored
    policy. With every trace enumerated and `weight` = p(z|x) it is exact. NaN if no trace is valid.

    Raises:
        ValueError: shapes that do not fit.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class, weight=weight, prompt_weight=prompt_weight)
    return row_mean(mi_rows(pairs, "none"), pairs.weight)


def mi_upper_bound(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "none",
    weight: Float[Array, "P G"] | None = None,
    prompt_weight: Float[Array, " P"] | None = None,
) -> Float[Array, ""]:
    """Ceiling of the estimate of one `length_normalize`: log P for distinct prompts ("none", "before").

    Default: that of `mi_seq_estimate`, in nats a trace. See the module's text for copies. NaN if no trace is
    valid.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class, weight=weight, prompt_weight=prompt_weight)
    return row_mean(ceiling_rows(pairs, length_normalize), pairs.weight)
