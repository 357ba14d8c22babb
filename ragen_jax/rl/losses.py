"""Token losses and their aggregation. Each term is a sum of weighted tokens; weights carry the global denominators."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from ragen_jax.rl.objective import KLType, Objective


def token_weights(
    mask: Bool[Array, "B L"], rows: Bool[Array, "B"], mode: str, norm_length: float
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
    bound = jnp.where(adv < 0, -adv * objective.clip_ratio_c, jnp.inf)
    dual = bound < loss
    loss = jnp.where(dual, bound, loss)
    diagnostics = {
        "pg_clipfrac": (clipped > unclipped).astype(jnp.float32),
        "pg_clipfrac_lower": dual.astype(jnp.float32),
        "ppo_kl": -delta,
    }
    return loss, diagnostics


def kl_penalty(logprob: Float[Array, "..."], ref: Float[Array, "..."], kind: KLType) -> Float[Array, "..."]:
    """KL(policy || reference) per sampled token: k1, k2, k3 (Schulman 2020) or abs. d is held to +-20, k3 to +-10.

    As a loss, k2's gradient is that of the true KL on-policy; k1's expected gradient is 0 and k3's is that of the
    reverse direction. With a "+" the value is the named estimator's and the gradient k2's.
    """
    d = jnp.clip(logprob - ref, -20.0, 20.0)
    name = kind.removesuffix("+")
    name = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(name, name)
    if name == "k1":
        value = d
    elif name == "abs":
        value = jnp.abs(d)
    elif name == "k2":
        value = 0.5 * jnp.square(d)
    elif name == "k3":
        value = jnp.clip(jnp.exp(-d) - 1 + d, -10.0, 10.0)
    else:
        raise ValueError(f"algorithm.kl_loss_type is {kind!r}")
    if not kind.endswith("+"):
        return value
    slope = 0.5 * jnp.square(d)
    return jax.lax.stop_gradient(value - slope) + slope


def sampler_weights(
    old: Float[Array, "m S"], sampler: Float[Array, "m S"], found: Bool[Array, "m S"], objective: Objective
) -> Float[Array, "m S"]:
    """min(p_trainer / p_sampler, threshold), of each token or of each row's product; constants of the loss.

    Truncated importance weights (Ionides 2008), as verl's rollout_is. Rows hold all their sampled tokens.
    """
    gap = jnp.where(found, old - sampler, 0.0)
    if objective.rollout_is == "sequence":
        gap = jnp.broadcast_to(jnp.sum(gap, axis=1, keepdims=True), gap.shape)
    weight = jnp.exp(jnp.clip(gap, -20.0, 20.0))
    return jax.lax.stop_gradient(jnp.minimum(weight, objective.rollout_is_threshold))


def value_loss(
    value: Float[Array, "N"], old: Float[Array, "N"], returns: Float[Array, "N"], clip: float
) -> Float[Array, "N"]:
    """0.5 max((V - R)^2, (clip(V, V_old +- clip) - R)^2) per token."""
    bounded = jnp.clip(value, old - clip, old + clip)
    return 0.5 * jnp.maximum(jnp.square(value - returns), jnp.square(bounded - returns))
