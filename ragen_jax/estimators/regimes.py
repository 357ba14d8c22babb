"""The four regimes of reasoning: conditional entropy high or low, mutual information high or low (RAGEN-2).

    entropy H(Z|X)   information I(X; Z)
    high             high                 DIVERSE                 reasoning varies and depends on its input
    high             low                  TEMPLATE_COLLAPSE       reasoning varies but not with its input
    low              high                 COMPRESSED              one reasoning an input
    low              low                  LOW_ENTROPY_COLLAPSE    one reasoning for all

Entropy alone cannot tell the first two apart. What is high is relative, so the thresholds are arguments:
`regime_thresholds` takes them as fractions of the run's own first entropy, and of its first mutual
information or of the ceiling.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

UNKNOWN = -1
DIVERSE = 0
TEMPLATE_COLLAPSE = 1
COMPRESSED = 2
LOW_ENTROPY_COLLAPSE = 3

REGIME_NAMES = {
    UNKNOWN: "unknown",
    DIVERSE: "diverse reasoning",
    TEMPLATE_COLLAPSE: "template collapse",
    COMPRESSED: "compressed reasoning",
    LOW_ENTROPY_COLLAPSE: "low-entropy collapse",
}


def regime(
    entropy: Float[Array, "*s"],
    mi: Float[Array, "*s"],
    *,
    entropy_threshold: float | Float[Array, "*s"],
    mi_threshold: float | Float[Array, "*s"],
) -> Int[Array, "*s"]:
    """Code of the regime (`REGIME_NAMES`), elementwise. At a threshold a value is high.

    UNKNOWN where anything is NaN.

    Args:
        entropy: conditional entropy H(Z|X), or token entropy, in nats; same unit as its threshold.
        mi: mutual information in nats; same unit as its threshold.
    """
    entropy, mi = jnp.asarray(entropy), jnp.asarray(mi)
    code = 2 * (entropy < entropy_threshold).astype(jnp.int32) + (mi < mi_threshold).astype(jnp.int32)
    known = ~(jnp.isnan(entropy) | jnp.isnan(mi) | jnp.isnan(entropy_threshold) | jnp.isnan(mi_threshold))
    return jnp.where(known, code, UNKNOWN)


def regime_thresholds(
    first_entropy: float | Float[Array, ""],
    first_mi: float | Float[Array, ""],
    *,
    mi_upper_bound: float | Float[Array, ""] | None = None,
    entropy_fraction: float = 0.5,
    mi_fraction: float = 0.5,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(entropy_threshold, mi_threshold) for `regime` from a run's own first values.

    Args:
        first_entropy: entropy at the run's first evaluation, nats.
        first_mi: mutual information there, nats. A run that starts without any (<= 0) cannot lose it: then
            give `mi_upper_bound`, or every later value above 0 counts as high.
        mi_upper_bound: if given, the fraction is of this instead of `first_mi`; same unit as the mi to be
        judged.
        entropy_fraction, mi_fraction: in (0, 1].

    Raises:
        ValueError: a fraction outside (0, 1].
    """
    for name, fraction in (("entropy_fraction", entropy_fraction), ("mi_fraction", mi_fraction)):
        if not 0 < fraction <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {fraction}")
    base = first_mi if mi_upper_bound is None else mi_upper_bound
    return jnp.asarray(entropy_fraction * first_entropy), jnp.asarray(mi_fraction * jnp.maximum(base, 0))
