"""The whole set of collapse metrics in one call, under the names of the reference implementation."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from ragen_jax.estimators.bootstrap import bootstrap_rows
from ragen_jax.estimators.mutual_information import ceiling_rows, mi_rows
from ragen_jax.estimators.pairs import (
    LengthNormalize,
    PairScores,
    grouped_scores,
    marginal_rows,
    matched_rows,
    row_mean,
)
from ragen_jax.estimators.retrieval import chance_rows, recall_rows
from ragen_jax.estimators.zscore import EMA_DECAY, STD_EPS, Ema, ema_update, marginal_std_rows, zscore_rows

RECALL_KS = (2, 4, 8)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CollapseEma:
    """Moving averages of the spread of log p(Z), one state per sampling family."""

    token: Ema
    seq: Ema

    @staticmethod
    def empty() -> CollapseEma:
        """State before the first evaluation."""
        return CollapseEma(token=Ema.empty(), seq=Ema.empty())


def collapse_metrics_rows(
    pairs: PairScores,
    ema: CollapseEma | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    std_eps: float = STD_EPS,
    ema_decay: float = EMA_DECAY,
    bootstrap_key: PRNGKeyArray | None = None,
    bootstrap_samples: int = 1000,
) -> tuple[dict[str, Float[Array, ""]], CollapseEma]:
    """`collapse_metrics` for rows with own columns, as any sampling of (episode, turn) pairs gives them.

    Raises:
        ValueError: `length_normalize` is not "after" or "before".
    """
    if length_normalize not in ("after", "before"):
        raise ValueError(f'length_normalize must be "after" or "before" here, got {length_normalize!r}')
    state = CollapseEma.empty() if ema is None else ema
    metrics: dict[str, Array] = {}
    new = {}
    kinds: tuple[tuple[str, LengthNormalize, Ema], ...] = (
        ("", length_normalize, state.token),
        ("_seq", "none", state.seq),
    )
    for suffix, kind, old in kinds:
        std = marginal_std_rows(pairs, kind)
        new[suffix] = ema_update(old, std, decay=ema_decay)
        smooth = new[suffix].value
        metrics[f"mi{suffix}_estimate"] = row_mean(mi_rows(pairs, kind), pairs.weight)
        metrics[f"conditional_entropy{suffix}_est"] = -row_mean(matched_rows(pairs, kind), pairs.weight)
        metrics[f"reasoning_entropy{suffix}_est"] = -row_mean(marginal_rows(pairs, kind), pairs.weight)
        metrics[f"marginal_std{suffix}"] = std
        metrics[f"marginal_std_ema{suffix}"] = smooth
        metrics[f"mi_zscore{suffix}"] = zscore_rows(pairs, std, kind, std_eps=std_eps)
        metrics[f"mi_zscore_ema{suffix}"] = zscore_rows(pairs, smooth, kind, std_eps=std_eps)
    metrics["matched_log_prob_mean"] = -metrics["conditional_entropy_est"]
    metrics["marginal_log_prob_mean"] = -metrics["reasoning_entropy_est"]
    metrics["mi_upper_bound"] = row_mean(ceiling_rows(pairs, "none"), pairs.weight)
    metrics["mi_upper_bound_per_token"] = row_mean(ceiling_rows(pairs, length_normalize), pairs.weight)
    for k in (1, *RECALL_KS):
        at = "" if k == 1 else f"@{k}"
        hit = row_mean(recall_rows(pairs, k), pairs.weight)
        chance = row_mean(chance_rows(pairs, k), pairs.weight)
        metrics[f"retrieval_accuracy{at}"] = hit
        metrics[f"retrieval_chance_level{at}"] = chance
        metrics[f"retrieval_above_chance{at}"] = hit - chance
    usable = pairs.column_weight > 0
    earlier_copy = jnp.tril(pairs.column_class[:, None] == pairs.column_class[None, :], -1) & usable
    metrics["num_rows"] = jnp.sum(pairs.weight > 0).astype(jnp.float32)
    metrics["num_rows_invalid"] = pairs.num_invalid.astype(jnp.float32)
    metrics["num_rows_nonfinite"] = pairs.num_nonfinite.astype(jnp.float32)
    metrics["num_columns"] = usable.sum().astype(jnp.float32)
    metrics["num_distinct_prompts"] = jnp.sum(usable & ~earlier_copy.any(axis=1)).astype(jnp.float32)
    if bootstrap_key is not None:
        measured = {
            "mi_estimate": mi_rows(pairs, length_normalize),
            "mi_seq_estimate": mi_rows(pairs, "none"),
            "retrieval_accuracy": recall_rows(pairs, 1),
        }
        for name, value in measured.items():
            low, high = bootstrap_rows(bootstrap_key, value, pairs, samples=bootstrap_samples)
            metrics[f"{name}_low"], metrics[f"{name}_high"] = low, high
    return metrics, CollapseEma(token=new[""], seq=new["_seq"])


def collapse_metrics(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    ema: CollapseEma | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    std_eps: float = STD_EPS,
    ema_decay: float = EMA_DECAY,
    bootstrap_key: PRNGKeyArray | None = None,
    bootstrap_samples: int = 1000,
) -> tuple[dict[str, Float[Array, ""]], CollapseEma]:
    """Every collapse metric of RAGEN-2's Table 1, by the reference's names, and the new averages.

    Names: mi_estimate, mi_seq_estimate, mi_upper_bound, matched_log_prob_mean, marginal_log_prob_mean,
    conditional_entropy_est, conditional_entropy_seq_est, reasoning_entropy_est, reasoning_entropy_seq_est,
    retrieval_accuracy, retrieval_chance_level, retrieval_above_chance (each also @2, @4, @8), marginal_std,
    marginal_std_ema, mi_zscore, mi_zscore_ema (each also _seq). Added: mi_upper_bound_per_token (the ceiling
    of mi_estimate), num_rows, num_rows_invalid, num_rows_nonfinite, num_columns, num_distinct_prompts, and
    with a `bootstrap_key` mi_estimate, mi_seq_estimate and retrieval_accuracy with _low and _high (95 %).

    Differences from the reference: `mi_estimate` and its kin divide by length after the mixture (the
    paper's); length_normalize="before" gives the reference's. Chance levels and ceilings are exact where
    prompts are copies. Where no trace is valid, every mean is NaN, num_rows is 0 and the averages stay as
    they were.

    Args:
        L: summed log-probabilities in nats, L[i, k, j] of trace k of prompt i under prompt j.
        lengths: tokens of each trace.
        valid: traces to use; default all. Empty ones are left out in any case.
        prompt_class: equal prompts share an integer; default all distinct.
        ema: state after the previous evaluation of the same sampling family; None at the first.
        length_normalize: "after" or "before".
        std_eps: added to standard deviations that divide.
        ema_decay: in [0, 1).
        bootstrap_key: asks for intervals.
        bootstrap_samples: resamples of the intervals.

    Raises:
        ValueError: shapes that do not fit, or `length_normalize` out of its range.
    """
    return collapse_metrics_rows(
        grouped_scores(L, lengths, valid, prompt_class),
        ema,
        length_normalize=length_normalize,
        std_eps=std_eps,
        ema_decay=ema_decay,
        bootstrap_key=bootstrap_key,
        bootstrap_samples=bootstrap_samples,
    )
