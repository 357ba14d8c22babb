"""What the loss holds fixed: log-probs under the policy and its reference, critic values, entropies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ragen_jax.models import Params, forward
from ragen_jax.rl.critic import critic_hidden, critic_values
from ragen_jax.rl.layout import whole_everywhere
from ragen_jax.rl.microbatch import at, bucket_lengths, hidden_before, microbatches
from ragen_jax.rl.rows import kept_first, lengths, place_rows, read_rows, row_count, width
from ragen_jax.rl.spec import UpdateSpec
from ragen_jax.rl.state import policy_params
from ragen_jax.rollout import Trajectories
from ragen_jax.scoring import policy_logprobs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """By slot, float32, 0 where nothing was sampled. Without a reference `ref` is `old`, without a critic `value` 0."""

    old: Float[Array, "B L"]
    ref: Float[Array, "B L"]
    value: Float[Array, "B L"]
    entropy: Float[Array, "B L"]

    @staticmethod
    def blank(batch: int, slots: int) -> Scores:
        return Scores(*(jnp.zeros((batch, slots), jnp.float32) for _ in range(4)))


def score(
    trainable: dict[str, Any],
    base: Params | None,
    reference: Params | None,
    traj: Trajectories,
    order: Int[Array, "N"],
    count: Array,
    spec: UpdateSpec,
    temperature: Array,
) -> Scores:
    """Scores of the first `count` rows of `order` (see `rows`), by the training forward; others are 0."""
    batch, slots = traj.tokens.shape
    policy = policy_params(trainable, base, spec.lora)
    longest = width(traj)
    number, pick = microbatches(
        order, jnp.int32(0), count, lengths(traj), spec.micro_batch_size, longest, spec.length_buckets
    )

    def at_length(length: int, rows: Array, real: Array) -> Scores:
        read = read_rows(traj, rows, real, length, spec.model, spec.max_sampled)
        tokens, where, found = read.tokens, read.where, read.found
        targets = at(tokens, where)

        def logprob(params: Params) -> tuple[Array, Array, Array]:
            hidden = forward(params, spec.model, tokens, remat="none")
            return hidden, *policy_logprobs(
                params, spec.model, hidden_before(hidden, where), targets, temperature=temperature,
                valid_vocab=spec.valid_vocab,
            )  # fmt: skip

        hidden, old, entropy = logprob(policy)
        ref = old if reference is None else logprob(reference)[1]
        value = jnp.zeros_like(old)
        if spec.objective.uses_critic:
            hidden = critic_hidden(
                trainable, base, hidden, spec.model, tokens, form=spec.critic, lora=spec.lora
            )
            value = critic_values(trainable["critic"], hidden_before(hidden, where))
        if traj.windowed:
            return Scores(
                *(jnp.where(found, x.reshape(found.shape), 0.0) for x in (old, ref, value, entropy))
            )
        place = jnp.where(found, where, slots)

        def spread(x: Array) -> Array:
            x = jnp.where(found, x.reshape(where.shape), 0.0)
            return (
                jnp.zeros((rows.shape[0], slots), jnp.float32)
                .at[jnp.arange(rows.shape[0])[:, None], place]
                .set(x, mode="drop")
            )

        return Scores(spread(old), spread(ref), spread(value), spread(entropy))

    branches = [partial(at_length, n) for n in bucket_lengths(longest, spec.length_buckets)]

    def body(i: Array, carry: Scores) -> Scores:
        rows, real, bucket = pick(i)
        new = whole_everywhere(jax.lax.switch(bucket, branches, rows, real), spec.model)
        if traj.windowed:
            return jax.tree.map(lambda c, n: place_rows(traj, c, rows, real, n), carry, new)
        where = jnp.where(real, rows, batch)
        return jax.tree.map(lambda c, n: c.at[where].set(n, mode="drop"), carry, new)

    return jax.lax.fori_loop(0, number, body, Scores.blank(batch, slots))


def row_entropy(
    trainable: dict[str, Any],
    base: Params | None,
    traj: Trajectories,
    *,
    spec: UpdateSpec,
    temperature: float | Array = 1.0,
) -> Float[Array, "B"]:
    """Mean entropy of each row's sampled tokens, in nats, over the whole vocabulary at `temperature`."""
    batch = traj.tokens.shape[0]
    everyone = jnp.ones(batch, bool)
    order = jnp.argsort(traj.length).astype(jnp.int32)
    if traj.windowed:
        order = kept_first(traj, everyone, jnp.zeros(batch, jnp.int32))
    # An estimator without a critic, whose values nobody asks for.
    spec = replace(spec, objective=replace(spec.objective, adv_estimator="reinforce_plus_plus"))
    temperature = jnp.asarray(temperature, jnp.float32)
    entropy = score(trainable, base, None, traj, order, row_count(traj, everyone), spec, temperature).entropy
    return jnp.sum(entropy, axis=1) / jnp.maximum(jnp.sum(traj.loss_mask, axis=1), 1)
