"""Mutual information in units of the spread of log p(Z), comparable between steps and models.

z = mean((log p(Z|X) - log p(Z)) / (s + 1e-3)), s the population standard deviation of log p(Z) over rows, or
its moving average over evaluations. Where all traces are equally likely s is near 0 and z is large whatever
the information is: read it beside `marginal_std`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators.mutual_information import mi_rows
from ragen_jax.estimators.pairs import LengthNormalize, PairScores, grouped_scores, marginal_rows, row_mean

STD_EPS = 1e-3
EMA_DECAY = 0.9


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ema:
    """An exponential moving average that starts at its first value. Part of what a checkpoint must hold."""

    value: Float[Array, ""]
    count: Int[Array, ""]  # values seen

    @staticmethod
    def empty() -> Ema:
        """State before the first value."""
        return Ema(value=jnp.zeros((), jnp.float32), count=jnp.zeros((), jnp.int32))


def ema_update(ema: Ema, value: Float[Array, ""], *, decay: float = EMA_DECAY) -> Ema:
    """decay * old + (1 - decay) * value; the value itself at first. NaN and inf are passed over."""
    finite = jnp.isfinite(value)
    safe = jnp.where(finite, value, 0).astype(ema.value.dtype)
    new = jnp.where(ema.count > 0, decay * ema.value + (1 - decay) * safe, safe)
    return Ema(value=jnp.where(finite, new, ema.value), count=ema.count + finite.astype(ema.count.dtype))


def marginal_std_rows(pairs: PairScores, length_normalize: LengthNormalize = "after") -> Float[Array, ""]:
    """Population standard deviation over rows of log p(Z), >= 0. NaN if there is no row."""
    value = marginal_rows(pairs, length_normalize)
    mean = row_mean(value, pairs.weight)
    variance = row_mean(jnp.square(value - jnp.where(jnp.isfinite(mean), mean, 0)), pairs.weight)
    return jnp.sqrt(variance)


def zscore_rows(
    pairs: PairScores,
    std: Float[Array, ""],
    length_normalize: LengthNormalize = "after",
    *,
    std_eps: float = STD_EPS,
) -> Float[Array, ""]:
    """mean((log p(Z|X) - log p(Z)) / (std + std_eps)) over rows."""
    return row_mean(mi_rows(pairs, length_normalize) / (std + std_eps), pairs.weight)


def mi_zscore(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    std_eps: float = STD_EPS,
) -> Float[Array, ""]:
    """Mutual information over the standard deviation of log p(Z) (plus `std_eps`).

    NaN if no trace is valid.
    "none" gives the reference's mi_zscore_seq. Source: RAGEN-2, Table 1.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    return zscore_rows(pairs, marginal_std_rows(pairs, length_normalize), length_normalize, std_eps=std_eps)


def mi_zscore_ema(
    L: Float[Array, "P G P"],
    lengths: Int[Array, "P G"],
    valid: Bool[Array, "P G"] | None = None,
    prompt_class: Int[Array, " P"] | None = None,
    ema: Ema | None = None,
    *,
    length_normalize: LengthNormalize = "after",
    std_eps: float = STD_EPS,
    decay: float = EMA_DECAY,
) -> tuple[Float[Array, ""], Ema]:
    """`mi_zscore` with a moving average of the standard deviation, and the average's new state.

    Args:
        ema: state after the previous evaluation; None at the first.
        decay: in [0, 1), share of the old average that stays.

    Raises:
        ValueError: shapes that do not fit, or an unknown `length_normalize`.
    """
    pairs = grouped_scores(L, lengths, valid, prompt_class)
    std = marginal_std_rows(pairs, length_normalize)
    new = ema_update(Ema.empty() if ema is None else ema, std, decay=decay)
    return zscore_rows(pairs, new.value, length_normalize, std_eps=std_eps), new
