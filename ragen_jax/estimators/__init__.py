"""Measures of whether an agent still thinks, as pure functions of arrays. Imports nothing but JAX and NumPy.

Input is a tensor of cross-scores from any trainer: L[i, k, j] is the summed log-probability, in nats, of the
tokens of trace k of prompt i when it is read after prompt j. `collapse_metrics(L, lengths)` gives everything
at once.
"""

from ragen_jax.estimators.bootstrap import bootstrap_rows, mi_interval, retrieval_interval
from ragen_jax.estimators.collapse import CollapseEma, collapse_metrics, collapse_metrics_rows
from ragen_jax.estimators.entropy import conditional_entropy, marginal_entropy
from ragen_jax.estimators.filter_scores import filter_scores
from ragen_jax.estimators.mutual_information import (
    ceiling_rows,
    marginal,
    matched,
    mi_estimate,
    mi_rows,
    mi_seq_estimate,
    mi_upper_bound,
)
from ragen_jax.estimators.pair_sampling import (
    PairSample,
    sample_first_turn,
    sample_trajectories,
    sample_turns,
)
from ragen_jax.estimators.pairs import (
    LengthNormalize,
    PairScores,
    grouped_scores,
    marginal_rows,
    matched_rows,
    pair_scores,
    row_mean,
)
from ragen_jax.estimators.regimes import (
    COMPRESSED,
    DIVERSE,
    LOW_ENTROPY_COLLAPSE,
    REGIME_NAMES,
    TEMPLATE_COLLAPSE,
    UNKNOWN,
    regime,
    regime_thresholds,
)
from ragen_jax.estimators.retrieval import (
    chance_rows,
    recall_at_k,
    recall_rows,
    retrieval_accuracy,
    retrieval_chance,
)
from ragen_jax.estimators.rewards import (
    chance_std_over_mean,
    reward_variance,
    reward_variance_noise,
    reward_variance_stats,
)
from ragen_jax.estimators.selection import select_groups, selection_stats
from ragen_jax.estimators.zscore import (
    Ema,
    ema_update,
    marginal_std_rows,
    mi_zscore,
    mi_zscore_ema,
    zscore_rows,
)

__all__ = [
    "COMPRESSED",
    "DIVERSE",
    "LOW_ENTROPY_COLLAPSE",
    "REGIME_NAMES",
    "TEMPLATE_COLLAPSE",
    "UNKNOWN",
    "CollapseEma",
    "Ema",
    "LengthNormalize",
    "PairSample",
    "PairScores",
    "bootstrap_rows",
    "ceiling_rows",
    "chance_rows",
    "chance_std_over_mean",
    "collapse_metrics",
    "collapse_metrics_rows",
    "conditional_entropy",
    "ema_update",
    "filter_scores",
    "grouped_scores",
    "marginal",
    "marginal_entropy",
    "marginal_rows",
    "marginal_std_rows",
    "matched",
    "matched_rows",
    "mi_estimate",
    "mi_interval",
    "mi_rows",
    "mi_seq_estimate",
    "mi_upper_bound",
    "mi_zscore",
    "mi_zscore_ema",
    "pair_scores",
    "recall_at_k",
    "recall_rows",
    "regime",
    "regime_thresholds",
    "retrieval_accuracy",
    "retrieval_chance",
    "retrieval_interval",
    "reward_variance",
    "reward_variance_noise",
    "reward_variance_stats",
    "row_mean",
    "sample_first_turn",
    "sample_trajectories",
    "sample_turns",
    "select_groups",
    "selection_stats",
    "zscore_rows",
]
