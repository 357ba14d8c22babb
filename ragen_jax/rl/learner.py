"""The update: kept rows are gathered to the front, and every loop's trip count follows what is kept.

One compiled program serves every filter outcome: the loops over minibatches and microbatches have traced bounds, and a
microbatch runs at the shortest of a few static lengths that holds its rows (`lax.switch`). All denominators are those
of a whole minibatch, so neither the microbatch size nor padding changes the result beyond rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.models import ModelConfig, Params, forward
from ragen_jax.models.lora import LoraConfig
from ragen_jax.rl.advantages import gae_advantages, grpo_advantages, token_rewards, whiten
from ragen_jax.rl.layout import stored, whole_everywhere
from ragen_jax.rl.losses import kl_penalty, policy_loss, token_weights, value_loss
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.state import OptimConfig, TrainState, critic_values, optimiser, policy_params
from ragen_jax.rollout import Trajectories
from ragen_jax.scoring import policy_logprobs


@dataclass(frozen=True)
class UpdateSpec:
    """Static description of an update. `mini_batch_size` and `micro_batch_size` count rows (trajectories)."""

    model: ModelConfig
    objective: Objective
    optim: OptimConfig
    valid_vocab: int
    max_sampled: int  # most tokens that one row can have sampled: turns x response tokens
    mini_batch_size: int = 32
    micro_batch_size: int = 4
    ppo_epochs: int = 1
    length_buckets: int = 4
    lora: LoraConfig | None = None
    remat: str = "none"

    def __post_init__(self) -> None:
        for name in ("mini_batch_size", "micro_batch_size", "ppo_epochs", "length_buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}; it must be at least 1")
        if self.mini_batch_size % self.micro_batch_size:
            raise ValueError(
                f"training.mini_batch_size ({self.mini_batch_size}) must be a multiple of "
                f"training.micro_batch_size ({self.micro_batch_size})"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tally:
    """Metrics as (sum, weight) pairs and maxima; added over microbatches, divided once on the host."""

    sums: dict[str, Float[Array, "2"]]
    maxima: dict[str, Float[Array, ""]]

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            jax.tree.map(jnp.add, self.sums, other.sums), jax.tree.map(jnp.maximum, self.maxima, other.maxima)
        )

    def means(self) -> dict[str, float]:
        """Host values; a metric of total weight 0 is left out rather than invented."""
        out = {n: float(s) / float(w) for n, (s, w) in jax.device_get(self.sums).items() if float(w) > 0}
        return out | {n: float(v) for n, v in jax.device_get(self.maxima).items() if math.isfinite(float(v))}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Targets:
    """Everything about the batch that the loss holds fixed; [B, L] float32 by slot, 0 outside the loss mask."""

    old: Float[Array, "B L"]
    ref: Float[Array, "B L"]
    value: Float[Array, "B L"]
    advantage: Float[Array, "B L"]
    returns: Float[Array, "B L"]
    weight: Float[Array, "B L"]  # policy terms, of the current minibatch
    value_weight: Float[Array, "B L"]


def _bucket_lengths(total: int, buckets: int) -> list[int]:
    return sorted({-(-total * (i + 1) // buckets) for i in range(buckets)})


def _sampled_slots(mask: Bool[Array, "m L"], most: int) -> tuple[Int[Array, "m S"], Bool[Array, "m S"]]:
    """Slots of each row's sampled tokens, first `most`, and which entries are real."""
    most = min(most, mask.shape[1] - 1)
    slots = jnp.argsort(~mask, axis=1, stable=True)[:, :most]
    return slots, jnp.take_along_axis(mask, slots, axis=1)


def _at(x: Array, slots: Array) -> Array:
    return jnp.take_along_axis(x, slots, axis=1).reshape(-1)


def _hidden_before(hidden: Float[Array, "m L D"], slots: Int[Array, "m S"]) -> Float[Array, "mS D"]:
    """The state that predicts each slot's token: the one a slot earlier."""
    picked = jnp.take_along_axis(hidden, jnp.maximum(slots - 1, 0)[..., None], axis=1)
    return picked.reshape(-1, hidden.shape[-1])


def _microbatches(
    order: Int[Array, "B"],
    start: Array,
    count: Array,
    lengths: Int[Array, "B"],
    size: int,
    slots: int,
    buckets: int,
) -> Any:
    """(number of microbatches, function of their index -> (rows, which are real, length bucket))."""
    bounds = jnp.array(_bucket_lengths(slots, buckets))
    padded = jnp.pad(order, (0, size))

    def pick(i: Array) -> tuple[Array, Array, Array]:
        rows = jax.lax.dynamic_slice(padded, (start + i * size,), (size,))
        real = i * size + jnp.arange(size) < count
        longest = jnp.max(jnp.where(real, lengths[rows], 1))
        return rows, real, jnp.searchsorted(bounds, longest)

    return -(-count // size), pick


def _score(
    trainable: dict[str, Any],
    base: Params | None,
    reference: Params | None,
    traj: Trajectories,
    order: Array,
    count: Array,
    spec: UpdateSpec,
    temperature: Array,
) -> tuple[Array, Array, Array]:
    """Old and reference log-probs and critic values of the kept rows, [B, L] each, by the training forward."""
    batch, slots = traj.tokens.shape
    policy = policy_params(trainable, base, spec.lora)
    number, pick = _microbatches(
        order, jnp.int32(0), count, traj.length, spec.micro_batch_size, slots, spec.length_buckets
    )

    def at_length(length: int, rows: Array, real: Array) -> tuple[Array, Array, Array]:
        tokens = spec.model.constrain(traj.tokens[rows, :length], "batch")
        where, found = _sampled_slots(traj.loss_mask[rows, :length] & real[:, None], spec.max_sampled)
        targets = _at(tokens, where)

        def logprob(params: Params) -> Array:
            h = _hidden_before(forward(params, spec.model, tokens, remat="none"), where)
            lp, _ = policy_logprobs(
                params, spec.model, h, targets, temperature=temperature, valid_vocab=spec.valid_vocab
            )
            return lp

        old = logprob(policy)
        ref = old if reference is None else logprob(reference)
        value = jnp.zeros_like(old)
        if spec.objective.uses_critic:
            critic = trainable["critic"]
            value = critic_values(critic, _hidden_before(forward(critic, spec.model, tokens), where))
        place = jnp.where(found, where, slots)

        def spread(x: Array) -> Array:
            x = jnp.where(found, x.reshape(where.shape), 0.0)
            return (
                jnp.zeros((rows.shape[0], slots), jnp.float32)
                .at[jnp.arange(rows.shape[0])[:, None], place]
                .set(x, mode="drop")
            )

        return spread(old), spread(ref), spread(value)

    branches = [partial(at_length, n) for n in _bucket_lengths(slots, spec.length_buckets)]

    def body(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rows, real, bucket = pick(i)
        new = jax.lax.switch(bucket, branches, rows, real)
        where = jnp.where(real, rows, batch)
        old, ref, value = (c.at[where].set(n, mode="drop") for c, n in zip(carry, new, strict=True))
        return old, ref, value

    blank = jnp.zeros((batch, slots), jnp.float32)
    return jax.lax.fori_loop(0, number, body, (blank, blank, blank))


def _loss(
    trainable: dict[str, Any],
    base: Params | None,
    traj: Trajectories,
    targets: Targets,
    rows: Array,
    real: Array,
    length: int,
    spec: UpdateSpec,
    temperature: Array,
    on_policy: bool,
) -> tuple[Array, Tally]:
    """One microbatch's share of the minibatch loss, and its metrics."""
    objective = spec.objective
    policy = policy_params(trainable, base, spec.lora)
    tokens = spec.model.constrain(traj.tokens[rows, :length], "batch")
    where, found = _sampled_slots(traj.loss_mask[rows, :length] & real[:, None], spec.max_sampled)
    found = found.reshape(-1)

    def pick(x: Array) -> Array:
        return jnp.where(found, _at(x[rows, :length], where), 0.0)

    logprob, entropy = policy_logprobs(
        policy, spec.model, _hidden_before(forward(policy, spec.model, tokens, remat=spec.remat), where),
        _at(tokens, where), temperature=temperature, valid_vocab=spec.valid_vocab,
    )  # fmt: skip
    logprob = jnp.where(found, logprob, 0.0)
    old = jax.lax.stop_gradient(logprob) if on_policy else pick(targets.old)
    advantage, weight = pick(targets.advantage), pick(targets.weight)
    pg, diagnostics = policy_loss(logprob, old, advantage, objective)
    loss = jnp.sum(pg * weight) - objective.entropy_coeff * jnp.sum(entropy * weight)

    one = found.astype(jnp.float32)
    tokens_seen = jnp.sum(one)

    def mean(x: Array) -> Array:
        return jnp.stack([jnp.sum(jnp.where(found, x, 0.0)), tokens_seen])

    gap = jnp.abs(jax.lax.stop_gradient(old) - pick(traj.logprob))
    sums = {f"actor/{n}": mean(x) for n, x in diagnostics.items()}
    sums |= {"actor/entropy": mean(entropy), "rollout/sampler_logprob_diff_mean": mean(gap)}
    maxima = {
        "rollout/sampler_logprob_diff_max": jnp.max(jnp.where(found, gap, 0.0)),
        "actor/ratio_max": jnp.max(jnp.where(found, jnp.exp(jnp.clip(logprob - old, -20, 20)), 0.0)),
    }
    if objective.use_kl_loss:
        kl = kl_penalty(logprob, pick(targets.ref), objective.kl_loss_type)
        loss = loss + objective.kl_loss_coef * jnp.sum(kl * weight)
        sums["actor/kl_loss"] = mean(kl)
    if objective.uses_critic:
        critic = trainable["critic"]
        value = critic_values(
            critic, _hidden_before(forward(critic, spec.model, tokens, remat=spec.remat), where)
        )
        vf = value_loss(value, pick(targets.value), pick(targets.returns), objective.cliprange_value)
        loss = loss + jnp.sum(vf * pick(targets.value_weight))
        sums["critic/vf_loss"] = mean(vf)
        sums["critic/vpred_mean"] = mean(value)
    # The aggregate itself is a sum over the minibatch: its weight is counted once a minibatch, by the caller.
    sums["actor/pg_loss"] = jnp.stack([jnp.sum(pg * weight), jnp.float32(0)])
    sums |= {n: jnp.zeros(2, jnp.float32) for n in _norm_names(trainable).values()}
    return loss, Tally(jax.lax.stop_gradient(sums), jax.lax.stop_gradient(maxima))


def _norm_names(trainable: dict[str, Any]) -> dict[str, str]:
    return {part: f"{'actor' if part == 'policy' else part}/grad_norm" for part in trainable}


def update(
    state: TrainState,
    traj: Trajectories,
    keep: Bool[Array, "P"],
    *,
    spec: UpdateSpec,
    base: Params | None = None,
    reference: Params | None = None,
    temperature: float | Array = 1.0,
    advantage_scale: float | Array = 1.0,
) -> tuple[TrainState, Tally]:
    """One iteration's learning from the kept groups. Pure; jit it with `spec` static and `state` donated.

    Minibatches of at most `mini_batch_size` rows, of equal size within one, give one optimiser step each, in group
    order. With nothing kept there is no step: parameters, moments and counters stay as they are and every metric has
    weight 0. A gradient that is not finite skips its step and is counted in `state.skipped`.

    Args:
        keep: which groups to learn from.
        base: frozen parameters under the adapters, when `spec.lora` is set.
        reference: parameters of the KL term's reference policy; needed with `use_kl_loss`.
        advantage_scale: multiplies every advantage.
    """
    objective = spec.objective
    if objective.use_kl_loss and reference is None:
        raise ValueError("algorithm.use_kl_loss needs a reference policy: pass reference=")
    traj, keep = whole_everywhere((traj, keep), spec.model)  # some numbers a token: every device picks its rows
    batch, slots = traj.tokens.shape
    temperature = jnp.asarray(temperature, jnp.float32)
    kept = jnp.repeat(keep, traj.group_size)
    count = jnp.sum(kept)
    mask = traj.loss_mask & kept[:, None]
    whole = batch <= spec.mini_batch_size
    on_policy = whole and spec.ppo_epochs == 1

    def ordered(key: Array) -> Array:
        """Kept rows first, by `key`, then by length."""
        return jnp.lexsort((traj.length, jnp.where(kept, key, batch)))

    old = ref = value = jnp.zeros((batch, slots), jnp.float32)
    if not on_policy or objective.use_kl_loss or objective.uses_critic:
        needed = reference if objective.use_kl_loss else None
        order = ordered(jnp.zeros(batch, jnp.int32))
        old, ref, value = _score(state.trainable, base, needed, traj, order, count, spec, temperature)

    if objective.uses_critic:
        rewards = token_rewards(traj.reward + traj.penalty, traj.turn_end, traj.taken, slots)
        advantage, returns = gae_advantages(rewards, value, mask, gamma=objective.gamma, lam=objective.lam)
        if objective.whiten_advantages:
            advantage = whiten(advantage, mask)
    else:
        per_row = grpo_advantages(
            traj.score.reshape(-1, traj.group_size), norm_by_std=objective.norm_adv_by_std_in_grpo,
            tol=objective.constant_reward_tol,
        ).reshape(-1)  # fmt: skip
        advantage = jnp.where(mask, per_row[:, None], 0.0)
        returns = jnp.zeros_like(advantage)
    advantage = advantage * advantage_scale

    steps = -(-count // spec.mini_batch_size)
    rank = jnp.cumsum(kept) - 1
    minibatch = ((rank + 1) * steps - 1) // jnp.maximum(
        count, 1
    )  # equal shares: i holds ranks from i * count // steps
    order = ordered(minibatch)
    transform = optimiser(spec.optim)
    lengths = _bucket_lengths(slots, spec.length_buckets)

    def minibatch_step(i: Array, carry: tuple[TrainState, Tally]) -> tuple[TrainState, Tally]:
        state, tally = carry
        i = i % jnp.maximum(steps, 1)  # several epochs pass over the same minibatches
        rows = kept & (minibatch == i)
        targets = Targets(
            old, ref, value, advantage, returns,
            weight=token_weights(mask, rows, objective.loss_agg_mode, spec.max_sampled),
            value_weight=token_weights(mask, rows, "token-mean", spec.max_sampled),
        )  # fmt: skip
        start = i * count // jnp.maximum(steps, 1)
        number, pick = _microbatches(
            order, start, jnp.sum(rows), traj.length, spec.micro_batch_size, slots, spec.length_buckets
        )

        def at_length(length: int, rows: Array, real: Array) -> tuple[Any, Tally]:
            grad, out = jax.grad(_loss, has_aux=True)(
                state.trainable, base, traj, targets, rows, real, length, spec, temperature, on_policy
            )
            return grad, out

        branches = [partial(at_length, n) for n in lengths]

        def accumulate(j: Array, carry: tuple[Any, Tally]) -> tuple[Any, Tally]:
            rows, real, bucket = pick(j)
            grad, out = jax.lax.switch(bucket, branches, rows, real)
            return stored(jax.tree.map(jnp.add, carry[0], grad), spec.model), carry[1] + out

        zeros = stored(jax.tree.map(jnp.zeros_like, state.trainable), spec.model)
        grad, tally = jax.lax.fori_loop(0, number, accumulate, (zeros, tally))
        norms = {part: optax.tree.norm(g) for part, g in grad.items()}
        finite = jnp.all(jnp.isfinite(jnp.stack(list(norms.values()))))
        changes, opt_state = transform.update(grad, state.opt_state, state.trainable)
        stepped = TrainState(
            optax.apply_updates(state.trainable, changes), opt_state, state.updates + 1, state.skipped
        )
        stayed = TrainState(state.trainable, state.opt_state, state.updates, state.skipped + 1)
        state = stored(jax.tree.map(lambda a, b: jnp.where(finite, a, b), stepped, stayed), spec.model)
        sums = dict(tally.sums)
        for part, name in _norm_names(grad).items():
            norm = jnp.where(finite, norms[part], 0.0)
            sums[name] = sums[name] + jnp.stack([norm, finite.astype(jnp.float32)])
        sums["actor/pg_loss"] = sums["actor/pg_loss"] + jnp.array([0.0, 1.0])
        return state, Tally(sums, tally.maxima)

    names = ["actor/entropy", "rollout/sampler_logprob_diff_mean", "actor/pg_loss", "actor/grad_norm"]
    names += [f"actor/{n}" for n in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")]
    names += ["actor/kl_loss"] * objective.use_kl_loss
    names += ["critic/vf_loss", "critic/vpred_mean", "critic/grad_norm"] * objective.uses_critic
    empty = Tally(
        {n: jnp.zeros(2, jnp.float32) for n in names},
        {n: jnp.float32(-jnp.inf) for n in ("rollout/sampler_logprob_diff_max", "actor/ratio_max")},
    )
    state, tally = jax.lax.fori_loop(0, steps * spec.ppo_epochs, minibatch_step, (state, empty))
    return stored(state, spec.model), whole_everywhere(tally, spec.model)
