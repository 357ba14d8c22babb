"""Entropies of reasoning from cross-scores: H(Z|X) and H(Z). Their difference is the mutual information."""

from __future__ import annotations

from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators.pairs import LengthNormalize, grouped_scores, marginal_rows, matched_rows, row_mean


def conditional_entropy(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    weight: Float[Array, "P G"] | None = None,
) -> Float[Array, ""]:
    """H(Z|X) as -mean log p(Z | own X), >= 0, in nats a token, or a trace with "none".

    NaN if no trace is valid. "after" and "before" agree here. Source: RAGEN-2, Table 1.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, weight=weight)
    return -row_mean(matched_rows(pairs, length_normalize), pairs.weight)


def marginal_entropy(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    weight: Float[Array, "P G"] | None = None,
    prompt_weight: Float[Array, " P"] | None = None,
) -> Float[Array, ""]:
    """H(Z) estimated as -mean log p(Z), >= 0: nats a token, or a trace with "none". NaN if no trace is valid.

    `prompt_class` does not change the value, see `marginal`. Source: RAGEN-2, Table 1 ("reasoning entropy").

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class, weight=weight, prompt_weight=prompt_weight)
    return -row_mean(marginal_rows(pairs, length_normalize), pairs.weight)
