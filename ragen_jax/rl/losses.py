"""Token losses and their aggregation. Each term is a sum of weighted tokens; weights carry the global denominators."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ragen_jax.rl.objective import KLType, Objective


def token_weights(
    mask: Bool[Array, "B L"], rows: Bool[Array, "B"], mode: str, norm_length: int
) -> Float[Array, "B L"]:
    """Weights that sum token losses to the aggregate over the whole minibatch given (Yu et al. 2025; Liu et al. 2025).

    `rows` marks the rows of the minibatch. token-mean: 1 / all sampled tokens. seq-mean-token-mean: 1 / (rows x own
    tokens). seq-mean-token-sum: 1 / rows. seq-mean-token-sum-norm: 1 / (rows x `norm_length`), a constant (Dr.GRPO).
    Rows without a sampled token count as rows and weigh nothing.
    """
    mask = (mask & rows[:, None]).astype(jnp.float32)
    count = jnp.maximum(jnp.sum(rows), 1).astype(jnp.float32)
    own = jnp.sum(mask, axis=1, keepdims=True)
    if mode == "token-mean":
        return mask / jnp.maximum(jnp.sum(mask), 1.0)
    if mode == "seq-mean-token-mean":
        return mask / (count * jnp.maximum(own, 1.0))
    if mode == "seq-mean-token-sum":
        return mask / count
    if mode == "seq-mean-token-sum-norm":
        return mask / (count * norm_length)
    raise ValueError(f"algorithm.loss_agg_mode is {mode!r}")


def policy_loss(
    logprob: Float[Array, "N"], old: Float[Array, "N"], adv: Float[Array, "N"], objective: Objective
) -> tuple[Float[Array, "N"], dict[str, Float[Array, "N"]]]:
    """Clipped surrogate with separate bounds and dual clip, per token, and its per-token diagnostics.

    max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most -A c (Schulman et al. 2017; Ye et al. 2020).
    """
    delta = jnp.clip(logprob - old, -20.0, 20.0)
    ratio = jnp.exp(delta)
    unclipped = -adv * ratio
    clipped = -adv * jnp.clip(ratio, 1 - objective.clip_ratio_low, 1 + objective.clip_ratio_high)
    loss = jnp.maximum(unclipped, clipped)
    bound = -adv * objective.clip_ratio_c
    dual = (adv < 0) & (bound < loss)
    loss = jnp.where(dual, bound, loss)
    diagnostics = {
        "pg_clipfrac": (clipped > unclipped).astype(jnp.float32),
        "pg_clipfrac_lower": dual.astype(jnp.float32),
        "ppo_kl": -delta,
    }
    return loss, diagnostics


def kl_penalty(logprob: Float[Array, "N"], ref: Float[Array, "N"], kind: KLType) -> Float[Array, "N"]:
    """KL(policy || reference) per sampled token: k1, k2 or k3 (Schulman 2020). d is held to +-20 and k3 to +-10.

    As a loss, k2's gradient is that of the true KL on-policy; k1's expected gradient is 0 and k3's is that of the
    reverse direction.
    """
    d = jnp.clip(logprob - ref, -20.0, 20.0)
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * jnp.square(d)
    if kind == "k3":
        return jnp.clip(jnp.exp(-d) - 1 + d, -10.0, 10.0)
    raise ValueError(f"algorithm.kl_loss_type is {kind!r}")


def value_loss(
    value: Float[Array, "N"], old: Float[Array, "N"], returns: Float[Array, "N"], clip: float
) -> Float[Array, "N"]:
    """0.5 max((V - R)^2, (clip(V, V_old +- clip) - R)^2) per token."""
    bounded = jnp.clip(value, old - clip, old + clip)
    return 0.5 * jnp.maximum(jnp.square(value - returns), jnp.square(bounded - returns))
