"""Which prompts' groups to train on: the strategies of RAGEN-2's rollout filter, as masks.

Let s_1 .. s_n be the scores that remain after zeros are dropped (if asked) and after scores that are NaN or
infinite, which are never selected. With none left, nothing is selected. Ties go to the lower index.

top_p, value >= 1     all that remain.
top_p, linear         sort (descending for "largest"), tau = value * sum(s) - eps; walk and add until the sum
                      reaches tau or a score is <= 0; the walked prefix if the sum reached tau, else nothing.
                      So: zeros only, nothing; value * sum(s) <= eps, nothing; a negative or zero score ends
                      the walk, hence "smallest" with a zero in it selects nothing.
top_p, softmax        p = softmax(s), or softmax(-s) for "smallest", sorted descending; up to the first place
                      where the cumulative sum is >= value. At least one. Depends on the scale of the scores.
top_k                 the int(value * P) best, P counting all groups; at least 1, at most n.
top_k_abs             the int(value) best, likewise.
min_p                 largest: s >= value * max(s) - 1e-10; smallest: s <= min(s) / (value + 1e-10) + 1e-10.
quartile              the quarter that value numbers, 1 the lowest scores and 4 the highest, whatever the type: of
                      n scores in ascending order, those of rank r (from 0) with 4 r // n == value - 1.
"""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

Strategy = Literal["top_p", "top_k", "top_k_abs", "min_p", "quartile"]
Direction = Literal["largest", "smallest"]
ProbMode = Literal["linear", "softmax"]
EpsMode = Literal["absolute", "relative"]

ZERO_TOL = 1e-10


def select_groups(
    scores: Float[Array, " P"],
    *,
    strategy: Strategy = "top_p",
    value: float | Float[Array, ""] = 1.0,
    type: Direction = "largest",
    include_zero: bool = True,
    top_p_prob_mode: ProbMode = "linear",
    selection_eps: float | Float[Array, ""] = 0.01,
    eps_mode: EpsMode = "absolute",
    zero_tol: float = ZERO_TOL,
) -> Bool[Array, " P"]:
    """Mask of the groups to keep. See the module's text for every strategy; count with `selection_stats`.

    Args:
        scores: one score a group, in float32. NaN and infinities are never selected.
        strategy: static.
        value: share, count, ratio or number of the strategy; a number or, without recompiling, a traced scalar. A
            number gives int(value * P) in double precision as Python does, a traced scalar in float32.
        type: static; whether large or small scores are wanted.
        include_zero: static; False first drops scores with |s| <= zero_tol.
        top_p_prob_mode: static.
        selection_eps: slack of linear top_p, >= 0.
        eps_mode: static; "absolute" takes the slack in units of the scores, as the reference does; "relative"
            as a share of their sum, so that scaling all scores changes nothing.
        zero_tol: see include_zero.

    Raises:
        ValueError: scores not one-dimensional, or an option that is not one of its names.
    """
    _check("strategy", strategy, Strategy)
    _check("type", type, Direction)
    _check("top_p_prob_mode", top_p_prob_mode, ProbMode)
    _check("eps_mode", eps_mode, EpsMode)
    scores = jnp.asarray(scores, jnp.float32)
    if scores.ndim != 1:
        raise ValueError(f"scores must have shape [groups], got {scores.shape}")
    total = scores.shape[0]
    if total == 0:
        return jnp.zeros(0, bool)
    left = jnp.isfinite(scores)
    if not include_zero:
        left &= jnp.abs(scores) > zero_tol
    n = left.sum()
    wanted = jnp.where(left, scores if type == "largest" else -scores, -jnp.inf)  # larger is better
    order = jnp.argsort(-wanted, stable=True)
    ranked_left = jnp.arange(total) < n

    if strategy == "quartile":
        rank = jnp.argsort(jnp.argsort(jnp.where(left, scores, jnp.inf), stable=True), stable=True)
        return left & (4 * rank // jnp.maximum(n, 1) == jnp.asarray(value, jnp.int32) - 1)
    if strategy == "min_p":
        if type == "largest":
            best = jnp.max(wanted)
            keep = scores >= value * jnp.where(n > 0, best, 0) - 1e-10
        else:
            best = -jnp.max(wanted)
            keep = scores <= jnp.where(n > 0, best, 0) / (value + 1e-10) + 1e-10
        return left & keep
    if strategy == "top_p":
        if top_p_prob_mode == "linear":
            ranked = jnp.where(ranked_left, scores[order], 0)
            kept = _linear_prefix(ranked, ranked_left, value, selection_eps, eps_mode)
        else:
            kept = jnp.arange(total) < _softmax_count(wanted[order], n, value)
        kept = jnp.where(jnp.asarray(value) >= 1, ranked_left, kept)
    else:
        kept = jnp.arange(total) < jnp.clip(_count(strategy, value, total), 1, n)
    return jnp.zeros(total, bool).at[order].set(kept & ranked_left)


def selection_stats(
    scores: Float[Array, " P"], mask: Bool[Array, " P"], *, zero_tol: float = ZERO_TOL
) -> dict[str, Float[Array, ""]]:
    """filter_kept_count, filter_kept_ratio (of all groups), filter_zero_count and filter_nan_count.

    filter_zero_count counts |s| <= zero_tol, filter_nan_count scores that are NaN or infinite, which
    `select_groups` never selects.

    Raises:
        ValueError: shapes that differ.
    """
    scores = jnp.asarray(scores, jnp.float32)
    if scores.shape != mask.shape:
        raise ValueError(f"scores and mask must have one shape, got {scores.shape} and {mask.shape}")
    kept = mask.sum().astype(jnp.float32)
    return {
        "filter_kept_count": kept,
        "filter_kept_ratio": kept / max(scores.shape[0], 1),
        "filter_zero_count": jnp.sum(jnp.abs(scores) <= zero_tol).astype(jnp.float32),
        "filter_nan_count": jnp.sum(~jnp.isfinite(scores)).astype(jnp.float32),
    }


def _linear_prefix(
    ranked: Array, left: Array, value: float | Array, eps: float | Array, eps_mode: str
) -> Array:
    """The walk of linear top_p over sorted scores (0 past the end): mask of the places kept."""
    reached = jnp.cumsum(ranked)
    total = reached[-1]
    tau = value * total - (eps if eps_mode == "absolute" else eps * total)
    before = jnp.concatenate([jnp.zeros(1, reached.dtype), reached[:-1]])
    # A walk that takes anything reaches tau: if it takes a positive score it can take all positive ones, and
    # their sum is at least tau. So "nothing if tau is not reached" needs no test, which rounding could fail.
    return jnp.cumprod((before < tau) & (ranked > 0) & left).astype(bool)


def _softmax_count(wanted: Array, n: Array, value: float | Array) -> Array:
    """How many of the sorted scores (-inf past the end) softmax top_p keeps: 1 to n, or 0 with n = 0."""
    finite = jnp.isfinite(wanted)
    weight = jnp.where(finite, jnp.exp(jnp.where(finite, wanted - jnp.where(n > 0, wanted[0], 0), 0)), 0)
    share = jnp.cumsum(weight) / jnp.where(n > 0, weight.sum(), 1)
    below = jnp.sum((share < value) & finite)
    return jnp.minimum(below + 1, n)


def _count(strategy: str, value: float | Array, total: int) -> int | Array:
    """int(value * P) or int(value), towards zero."""
    if isinstance(value, jax.Array):
        return jnp.trunc(value * total if strategy == "top_k" else value).astype(jnp.int32)
    return min(int(value * total if strategy == "top_k" else value), total)


def _check(name: str, value: str, allowed: object) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{name} must be one of {get_args(allowed)}, got {value!r}")
