"""Scores of reasoning traces under prompts, in the one shape that every estimator reads.

Row i is a trace Z_i, column j a prompt X_j, and `scores[i, j]` is the summed log-probability of the tokens of
Z_i after X_j, in nats. Column `own[i]` is the prompt that Z_i was sampled after. `[P, G, P]` input is the
special case of P * G rows with own column i // G; samples of (episode, turn) pairs with a column each are
another.

A row without a usable trace has weight 0: it enters no mean, its values read 0, and it is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

LengthNormalize = Literal["after", "before", "none"]
"""Where a trace's length divides. "after": (1/|Z|) log mean_j exp L, the paper's. "before": log mean_j
exp(L / |Z|), the reference implementation's, a mixture of geometric means, no mutual information. "none": not
at all, nats a trace."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PairScores:
    """Cross-scores and which of them count. Built by `pair_scores` or `grouped_scores`."""

    scores: Float[Array, "R N"]  # summed log-probability in nats; 0 in rows left out
    own: Int[Array, " R"]  # column of the row's own prompt; 0 in rows left out
    length: Int[Array, " R"]  # tokens of the trace, at least 1
    weight: Float[Array, " R"]  # weight in means over rows; 0 in rows left out
    column_class: Int[Array, " N"]  # equal prompts have equal classes
    column_weight: Float[Array, " N"]  # p(x): sums to 1; 0 in columns left out
    num_invalid: Int[Array, ""]  # rows left out: not valid, empty, or without an own column in use
    num_nonfinite: Int[Array, ""]  # further rows left out: NaN, +inf, or -inf under the own prompt


def pair_scores(
    scores: Float[Array, "R N"],
    own: Int[Array, " R"],
    length: Int[Array, " R"],
    valid: Bool[Array, " R"] | None = None,
    *,
    row_weight: Float[Array, " R"] | None = None,
    column_class: Int[Array, " N"] | None = None,
    column_valid: Bool[Array, " N"] | None = None,
    column_weight: Float[Array, " N"] | None = None,
) -> PairScores:
    """Checks and masks cross-scores.

    Args:
        scores: summed log-probabilities in nats, <= 0. -inf is allowed under a foreign prompt.
        own: own column of each row; outside [0, N) the row is left out.
        length: tokens of each trace; 0 leaves the row out.
        valid: rows to use; default all.
        row_weight: weight >= 0 of each row in means; default 1. With p(z|x) for every z, means are exact
        expectations.
        column_class: any integers; columns of equal prompts share one. Default: all distinct.
        column_valid: columns to use; default all.
        column_weight: p(x) of each column, need not sum to 1; default equal. Copies of one prompt then weigh
            together as much as their share of the columns, which is the empirical p(x).

    Raises:
        ValueError: shapes that do not fit.
    """
    scores = jnp.asarray(scores)
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape [rows, columns], got {scores.shape}")
    rows, columns = scores.shape
    dtype = jnp.promote_types(scores.dtype, jnp.float32)
    scores = scores.astype(dtype)
    own = _shaped("own", own, (rows,))
    length = _shaped("length", length, (rows,))
    in_range = (own >= 0) & (own < columns)
    own = jnp.where(in_range, own, 0)

    classes = (
        jnp.arange(columns) if column_class is None else _shaped("column_class", column_class, (columns,))
    )
    p_x = (
        jnp.ones(columns, dtype)
        if column_weight is None
        else _shaped("column_weight", column_weight, (columns,))
    )
    p_x = jnp.maximum(p_x.astype(dtype), 0)
    if column_valid is not None:
        p_x = jnp.where(_shaped("column_valid", column_valid, (columns,)), p_x, 0)
    usable = p_x > 0
    p_x = p_x / jnp.where(p_x.sum() > 0, p_x.sum(), 1)

    weight = (
        jnp.ones(rows, dtype)
        if row_weight is None
        else _shaped("row_weight", row_weight, (rows,)).astype(dtype)
    )
    chosen = in_range & (length > 0) & usable[own] & (weight > 0)
    if valid is not None:
        chosen &= _shaped("valid", valid, (rows,))
    matched = jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    broken = jnp.any(usable & (jnp.isnan(scores) | jnp.isposinf(scores)), axis=1) | ~jnp.isfinite(matched)
    kept = chosen & ~broken
    return PairScores(
        scores=jnp.where(kept[:, None], scores, 0),
        own=jnp.where(kept, own, 0).astype(jnp.int32),
        length=jnp.maximum(length, 1),
        weight=jnp.where(kept, weight, 0),
        column_class=classes,
        column_weight=p_x,
        num_invalid=jnp.sum(~chosen),
        num_nonfinite=jnp.sum(chosen & broken),
    )


def grouped_scores(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    weight: Float[Array, "P G"] | None = None,
    prompt_weight: Float[Array, " P"] | None = None,
) -> PairScores:
    """`PairScores` of G traces for each of P prompts: L[i, k, j] scores trace k of prompt i under prompt j.

    Args as in `pair_scores`, in [P, G] shape; `weight` is its row_weight and `prompt_weight` its
    column_weight.

    Raises:
        ValueError: shapes that do not fit.
    """
    L = jnp.asarray(L)
    if L.ndim != 3 or L.shape[0] != L.shape[2]:
        raise ValueError(f"L must have shape [prompts, traces, prompts], got {L.shape}")
    prompts, group, _ = L.shape
    shape = (prompts, group)
    return pair_scores(
        L.reshape(prompts * group, prompts),
        jnp.repeat(jnp.arange(prompts), group),
        _shaped("lengths", lengths, shape).reshape(-1),
        None if valid is None else _shaped("valid", valid, shape).reshape(-1),
        row_weight=None if weight is None else _shaped("weight", weight, shape).reshape(-1),
        column_class=prompt_class,
        column_weight=prompt_weight,
    )


def matched_rows(pairs: PairScores, length_normalize: LengthNormalize = "after") -> Float[Array, " R"]:
    """log p(Z | own X) of each row: nats a token, or a trace for "none". 0 in rows left out."""
    check_normalize(length_normalize)
    own = jnp.take_along_axis(pairs.scores, pairs.own[:, None], axis=1)[:, 0]
    return own if length_normalize == "none" else own / pairs.length


def marginal_rows(pairs: PairScores, length_normalize: LengthNormalize = "after") -> Float[Array, " R"]:
    """log p(Z) = log sum_j p(x_j) p(Z | x_j) of each row, over its length as asked. 0 in rows left out."""
    check_normalize(length_normalize)
    scores = pairs.scores / pairs.length[:, None] if length_normalize == "before" else pairs.scores
    usable = pairs.column_weight > 0
    log_p_x = jnp.log(jnp.where(usable, pairs.column_weight, 1))
    value = jax.nn.logsumexp(jnp.where(usable, scores + log_p_x, -jnp.inf), axis=1)
    if length_normalize == "after":
        value = value / pairs.length
    return jnp.where(pairs.weight > 0, value, 0)


def own_columns(pairs: PairScores) -> Bool[Array, "R N"]:
    """Columns in use whose prompt equals the row's own prompt."""
    same = pairs.column_class[None, :] == pairs.column_class[pairs.own][:, None]
    return same & (pairs.column_weight > 0)


def row_mean(value: Float[Array, " R"], weight: Float[Array, " R"]) -> Float[Array, ""]:
    """Weighted mean over rows of positive weight; NaN where there is none, a mean of nothing."""
    total = weight.sum()
    some = total > 0
    return jnp.where(
        some, jnp.where(weight > 0, value * weight, 0).sum() / jnp.where(some, total, 1), jnp.nan
    )


def check_normalize(length_normalize: str) -> None:
    """Raises ValueError unless `length_normalize` is one of the three."""
    if length_normalize not in get_args(LengthNormalize):
        raise ValueError(
            f"length_normalize must be one of {get_args(LengthNormalize)}, got {length_normalize!r}"
        )


def _shaped(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    array = jnp.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array
