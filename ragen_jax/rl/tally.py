"""Metrics of an update, added over microbatches and divided once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

CORRELATION = "rollout/sampler_logprob_corr"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tally:
    """Metrics as (sum, weight) pairs and maxima, what a correlation needs, and the rows of broken gradients.

    `moments` are n and the sums of x, y, x^2, y^2 and xy of the sampler's and the trainer's log-probs. `nonfinite`
    marks the rows of microbatches whose gradient was not finite.
    """

    sums: dict[str, Float[Array, "2"]]
    maxima: dict[str, Float[Array, ""]]
    moments: Float[Array, "6"]
    nonfinite: Bool[Array, "B"]

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            jax.tree.map(jnp.add, self.sums, other.sums), jax.tree.map(jnp.maximum, self.maxima, other.maxima),
            self.moments + other.moments, self.nonfinite | other.nonfinite,
        )  # fmt: skip

    def means(self) -> dict[str, float]:
        """Host values; a metric of total weight 0 is left out rather than invented."""
        out = {n: float(s) / float(w) for n, (s, w) in jax.device_get(self.sums).items() if float(w) > 0}
        out |= {n: float(v) for n, v in jax.device_get(self.maxima).items() if math.isfinite(float(v))}
        correlation = pearson(jax.device_get(self.moments))
        return out if correlation is None else {**out, CORRELATION: correlation}


def moments(x: Float[Array, "N"], y: Float[Array, "N"], found: Bool[Array, "N"]) -> Float[Array, "6"]:
    """n and the sums of x, y, x^2, y^2, xy over `found`."""
    x, y = (jnp.where(found, v, 0.0) for v in (x, y))
    parts = (found.astype(jnp.float32), x, y, jnp.square(x), jnp.square(y), x * y)
    return jnp.stack([jnp.sum(p) for p in parts])


def pearson(sums: np.ndarray) -> float | None:
    """Correlation from `moments`; None where one of the two does not vary beyond rounding."""
    n, x, y, xx, yy, xy = (float(s) for s in sums)
    if n < 2:
        return None
    var_x, var_y = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    if not (var_x > 1e-6 * xx / n and var_y > 1e-6 * yy / n):
        return None
    return max(-1.0, min(1.0, (xy / n - x * y / n**2) / math.sqrt(var_x * var_y)))
