"""The update: kept rows are gathered to the front, and every loop's trip count follows what is kept.

One compiled program serves every filter outcome: the loops over minibatches and microbatches have traced bounds, and a
microbatch runs at the shortest of a few static lengths that holds its rows (`lax.switch`). All denominators are those
of a whole minibatch, so neither the microbatch size nor padding changes the result beyond rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float

from ragen_jax.models import Params, forward
from ragen_jax.rl.credit import advantage_scale, batch_advantages, batch_rewards
from ragen_jax.rl.critic import critic_hidden, critic_values
from ragen_jax.rl.forward_pass import Scores, score
from ragen_jax.rl.layout import stored, whole_everywhere
from ragen_jax.rl.losses import kl_penalty, policy_loss, sampler_weights, token_weights, value_loss
from ragen_jax.rl.microbatch import at, bucket_lengths, hidden_before, microbatches
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.rows import episodes, kept_first, lengths, read_rows, row_count, width
from ragen_jax.rl.spec import UpdateSpec
from ragen_jax.rl.state import TrainState, optimiser, policy_params
from ragen_jax.rl.tally import Tally, moments
from ragen_jax.rollout import Trajectories
from ragen_jax.scoring import policy_logprobs


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
    read = read_rows(traj, rows, real, length, spec.model, spec.max_sampled)
    tokens, where, found_rows, pick = read.tokens, read.where, read.found, read.pick
    found = found_rows.reshape(-1)
    hidden = forward(policy, spec.model, tokens, remat=spec.remat)
    logprob, entropy = policy_logprobs(
        policy, spec.model, hidden_before(hidden, where), at(tokens, where), temperature=temperature,
        valid_vocab=spec.valid_vocab,
    )  # fmt: skip
    logprob = jnp.where(found, logprob, 0.0)
    old = jax.lax.stop_gradient(logprob) if on_policy else pick(targets.old)
    sampler, advantage, weight = pick(traj.logprob), pick(targets.advantage), pick(targets.weight)
    pg, diagnostics = policy_loss(logprob, old, advantage, objective)
    if objective.rollout_is != "none":
        shape = where.shape
        importance = sampler_weights(old.reshape(shape), sampler.reshape(shape), found_rows, objective)
        pg = pg * importance.reshape(-1)
        diagnostics["rollout_is_weight"] = importance.reshape(-1)
    loss = jnp.sum(pg * weight) - objective.entropy_coeff * jnp.sum(entropy * weight)

    tokens_seen = jnp.sum(found.astype(jnp.float32))

    def mean(x: Array) -> Array:
        return jnp.stack([jnp.sum(jnp.where(found, x, 0.0)), tokens_seen])

    gap = jnp.abs(old - sampler)
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
        hidden = critic_hidden(
            trainable, base, hidden, spec.model, tokens, form=spec.critic, lora=spec.lora, remat=spec.remat
        )
        value = critic_values(trainable["critic"], hidden_before(hidden, where))
        vf = value_loss(value, pick(targets.value), pick(targets.returns), objective.cliprange_value)
        loss = loss + spec.critic.vf_coef * jnp.sum(vf * pick(targets.value_weight))
        sums["critic/vf_loss"] = mean(vf)
        sums["critic/vpred_mean"] = mean(value)
    # The aggregate itself is a sum over the minibatch: its weight is counted once a minibatch, by the caller.
    sums["actor/pg_loss"] = jnp.stack([jnp.sum(pg * weight), jnp.float32(0)])
    sums |= {n: jnp.zeros(2, jnp.float32) for n in _norm_names(trainable).values()}
    tally = Tally(sums, maxima, moments(sampler, old, found), jnp.zeros(traj.tokens.shape[0], bool))
    return loss, jax.lax.stop_gradient(tally)


def _norm_names(trainable: dict[str, Any]) -> dict[str, str]:
    return {part: f"{'actor' if part == 'policy' else part}/grad_norm" for part in trainable}


def _empty_tally(objective: Objective, batch: int) -> Tally:
    """Weight 0 for every metric of `_loss`."""
    names = ["actor/entropy", "rollout/sampler_logprob_diff_mean", "actor/pg_loss", "actor/grad_norm"]
    names += [f"actor/{n}" for n in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")]
    names += ["actor/rollout_is_weight"] * (objective.rollout_is != "none")
    names += ["actor/kl_loss"] * objective.use_kl_loss
    names += ["critic/vf_loss", "critic/vpred_mean", "critic/grad_norm"] * objective.uses_critic
    maxima = ("rollout/sampler_logprob_diff_max", "actor/ratio_max")
    return Tally(
        {n: jnp.zeros(2, jnp.float32) for n in names}, {n: jnp.float32(-jnp.inf) for n in maxima},
        jnp.zeros(6, jnp.float32), jnp.zeros(batch, bool),
    )  # fmt: skip


def update(
    state: TrainState,
    traj: Trajectories,
    keep: Bool[Array, "P"] | Bool[Array, "B"],
    *,
    spec: UpdateSpec,
    base: Params | None = None,
    reference: Params | None = None,
    temperature: float | Array = 1.0,
) -> tuple[TrainState, Tally]:
    """One iteration's learning from what was kept. Pure; jit it with `spec` static and `state` donated.

    Minibatches of at most `mini_batch_size` rows, of equal size within one, give one optimiser step each, in group
    order. With nothing kept there is no step: parameters, moments and counters stay as they are and every metric has
    weight 0. A gradient that is not finite skips its step and is counted in `state.skipped`; the rows of the
    microbatches at fault are in the tally.

    Args:
        keep: which groups to learn from, or which rows. Statistics of a group are over all its members either way.
        base: frozen parameters under the adapters, when `spec.lora` is set.
        reference: parameters of the KL's reference policy; needed with `use_kl_loss` and `use_kl_in_reward`.
    """
    objective = spec.objective
    if objective.uses_reference and reference is None:
        name = "use_kl_loss" if objective.use_kl_loss else "use_kl_in_reward"
        raise ValueError(f"algorithm.{name} needs a reference policy: pass reference=")
    traj, keep = whole_everywhere(
        (traj, keep), spec.model
    )  # some numbers a token: every device picks its rows
    batch, slots = traj.tokens.shape
    if keep.shape[0] not in (batch, batch // traj.group_size):
        raise ValueError(
            f"keep has {keep.shape[0]} entries; it needs one a group or one a row of {batch} rows"
        )
    temperature = jnp.asarray(temperature, jnp.float32)
    kept = keep if keep.shape[0] == batch else jnp.repeat(keep, traj.group_size)
    count = jnp.sum(kept)
    mask = traj.loss_mask & kept[:, None]
    on_policy = batch <= spec.mini_batch_size and spec.ppo_epochs == 1

    fixed = Scores.blank(batch, slots)
    if not on_policy or objective.uses_reference or objective.uses_critic:
        needed = reference if objective.uses_reference else None
        order = kept_first(traj, kept, jnp.zeros(batch, jnp.int32))
        fixed = score(state.trainable, base, needed, traj, order, row_count(traj, kept), spec, temperature)
    rewards = batch_rewards(traj, objective, fixed.old, fixed.ref)
    advantage, returns = batch_advantages(traj, rewards, fixed.value, objective, mask)
    scale, extra = advantage_scale(traj, kept, objective)
    advantage = advantage * scale[:, None]
    if objective.use_kl_in_reward:
        kl = jnp.where(mask, kl_penalty(fixed.old, fixed.ref, objective.kl_penalty), 0.0)
        extra["actor/reward_kl_penalty"] = jnp.stack([jnp.sum(kl), jnp.sum(mask).astype(jnp.float32)])

    steps = -(-count // spec.mini_batch_size)
    # Equal shares: minibatch i holds the kept rows of ranks from i * count // steps.
    minibatch = (jnp.cumsum(kept) * steps - 1) // jnp.maximum(count, 1)
    order = kept_first(traj, kept, minibatch)
    transform = optimiser(spec.optim)
    longest, row_lengths = width(traj), lengths(traj)

    def minibatch_step(i: Array, carry: tuple[TrainState, Tally]) -> tuple[TrainState, Tally]:
        state, tally = carry
        i = i % jnp.maximum(steps, 1)  # several epochs pass over the same minibatches
        rows = kept & (minibatch == i)
        targets = Targets(
            fixed.old, fixed.ref, fixed.value, advantage, returns,
            weight=token_weights(mask, rows, objective.loss_agg_mode, spec.norm_length),
            value_weight=token_weights(mask, rows, "token-mean", spec.norm_length),
        )  # fmt: skip
        start, size = i * count // jnp.maximum(steps, 1), jnp.sum(rows)
        if traj.windowed:
            start, size = row_count(traj, kept & (minibatch < i)), row_count(traj, rows)
        number, pick = microbatches(
            order, start, size, row_lengths, spec.micro_batch_size, longest, spec.length_buckets
        )

        def at_length(length: int, rows: Array, real: Array) -> tuple[Any, Tally]:
            return jax.grad(_loss, has_aux=True)(
                state.trainable, base, traj, targets, rows, real, length, spec, temperature, on_policy
            )

        branches = [partial(at_length, n) for n in bucket_lengths(longest, spec.length_buckets)]

        def accumulate(j: Array, carry: tuple[Any, Tally]) -> tuple[Any, Tally]:
            rows, real, bucket = pick(j)
            grad, out = jax.lax.switch(bucket, branches, rows, real)
            broken = ~jnp.isfinite(optax.tree.norm(grad))
            where = jnp.where(real & broken, episodes(traj, rows), batch)
            out = replace(out, nonfinite=out.nonfinite.at[where].set(True, mode="drop"))
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
        return state, replace(tally, sums=sums)

    empty = _empty_tally(objective, batch)
    state, tally = jax.lax.fori_loop(0, steps * spec.ppo_epochs, minibatch_step, (state, empty))
    tally = replace(tally, sums=tally.sums | extra)
    return stored(state, spec.model), whole_everywhere(tally, spec.model)
