"""Gradients of prompts, by bucket of reward variance: how large each part of the loss is, and how much of it is signal.

The policy's gradient is split in g_signal + g_noise + g_reg. Each prompt's episodes are split in two halves; every half
gives, from one forward, the gradients of the task (advantages of the whole group), of the task with advantages within
the half, of the KL and of the entropy. Advantages within halves make them independent, as a group's mean or standard
deviation ties its members together; signal and noise are hence those of the estimator on groups of half the size.

A gradient is the mean over rows of sums over tokens, with one constant for all buckets in place of the loss's
denominator (for token-mean the batch's mean row length), so that buckets of any size compare. Whitening over the batch
is done as in the update, its mean and deviation taken as constants. Nothing here changes the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators import reward_variance
from ragen_jax.estimators.gradient_snr import (
    HalfMoments,
    bootstrap_signal_and_noise,
    half_moments,
    inner,
    quantile_buckets,
    signal_and_noise,
    sketch,
)
from ragen_jax.models import ModelConfig, Params, forward
from ragen_jax.parallel import everywhere, here
from ragen_jax.rl.advantages import whiten
from ragen_jax.rl.credit import batch_advantages, batch_rewards
from ragen_jax.rl.forward_pass import Scores, score
from ragen_jax.rl.layout import stored, whole_everywhere
from ragen_jax.rl.losses import kl_penalty, policy_loss, sampler_weights
from ragen_jax.rl.microbatch import at, hidden_before, sampled_slots
from ragen_jax.rl.spec import UpdateSpec
from ragen_jax.rl.state import policy_params
from ragen_jax.rollout import Trajectories
from ragen_jax.scoring import policy_logprobs

LOSSES = ("task", "task_half", "kl", "entropy")
PARTS = (*LOSSES, "reg")  # reg is kl + entropy
FIXED_EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)

_Tree = dict[str, Any]


@dataclass(frozen=True)
class GradientSpec:
    """Static description of an analysis. See `training.sections.GradientSection` for the meaning of the fields."""

    update: UpdateSpec
    num_buckets: int = 4
    bucket_mode: Literal["quantile", "fixed_rv"] = "quantile"
    method: Literal["full", "sketch"] = "full"
    sketch_size: int = 16_384
    bootstrap: int = 1000


@dataclass(frozen=True)
class Bucket:
    """One bucket's prompts and estimates. Intervals are 95%, over prompts; squared norms may be negative."""

    name: str
    prompts: tuple[int, ...]  # indices of groups
    reward_std: tuple[float, float, float]  # mean, least, greatest
    norms: dict[str, float]  # of the mean gradient, noise and all: task, kl, entropy, reg
    signal: tuple[float, float, float]  # |g_signal|^2 and its interval
    noise: tuple[float, float, float]  # trace of the task noise's covariance, of one prompt's gradient
    reg: tuple[float, float, float]  # |g_reg|^2
    snr: tuple[float, float, float]  # signal over noise

    def metrics(self) -> dict[str, float]:
        """Under grad_norm/<bucket>/ and grad_snr/<bucket>/."""
        norm, snr = f"grad_norm/{self.name}", f"grad_snr/{self.name}"
        out = {f"{norm}/{part}": value for part, value in self.norms.items()}
        out |= {f"{norm}/prompts": float(len(self.prompts))}
        out |= {
            f"{norm}/reward_std_{n}": x for n, x in zip(("mean", "min", "max"), self.reward_std, strict=True)
        }
        values = {"signal_sq": self.signal, "noise_trace": self.noise, "reg_sq": self.reg, "snr": self.snr}
        for name, triple in values.items():
            out |= {f"{snr}/{name}{end}": x for end, x in zip(("", "_low", "_high"), triple, strict=True)}
        return out


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Fixed:
    """What the losses hold fixed, by slot."""

    ref: Float[Array, "B L"]
    advantage: Float[Array, "B L"]
    half_advantage: Float[Array, "B L"]
    weight: Float[Array, "B L"]


def analyse_gradients(
    trainable: _Tree,
    traj: Trajectories,
    *,
    spec: GradientSpec,
    base: Params | None = None,
    reference: Params | None = None,
    temperature: float | Array = 1.0,
    key: Array | None = None,
) -> list[Bucket]:
    """Buckets from the lowest reward variance to the highest, then "all". `trainable` is left as it is.

    Of an odd group the last member is left out. Groups with a reward that is not finite are left out. `key` addresses
    the sketches and the bootstrap. With several processes all must call; each gets all buckets.

    Raises:
        ValueError: groups too small to be halved, rows that are turns (a limited context), or a KL loss without
            `reference`.
    """
    objective, size = spec.update.objective, traj.group_size
    least = 4 if objective.group_relative else 2
    if size < least:
        raise ValueError(
            f"gradients.group_size is {size}; each half of a group needs {least // 2} episodes with "
            f"{objective.adv_estimator}, so use at least {least}"
        )
    if traj.windowed:
        raise ValueError("gradients: rows are whole episodes here; set rollout.context_window_mode to full")
    if objective.uses_reference and reference is None:
        raise ValueError("algorithm.use_kl_loss needs a reference policy: pass reference=")
    model = spec.update.model
    groups, half = traj.tokens.shape[0] // size, size // 2
    members = np.arange(groups)[:, None] * size + np.arange(2 * half)
    traj, deviation = _take(traj, members.reshape(-1), size=2 * half, model=model)
    spread = np.asarray(deviation)
    usable = [i for i in range(groups) if np.isfinite(spread[i])]
    fixed = _fixed(trainable, base, reference, traj, temperature, spec=spec.update)
    buckets = [[usable[i] for i in b] for b in _buckets(spread[usable], spec)]
    # Gradients are the whole mesh's; what is made of their inner products and sketches, each process makes alone.
    sketch_key, bootstrap_key = jax.random.split(jax.random.key(0) if key is None else here(key))
    sketch_key = everywhere(sketch_key, model.placement)
    chunk = min(spec.update.micro_batch_size, half)
    chunks = -(-half // chunk)
    found: list[Bucket] = []
    whole = _Sums(spec)
    for number, prompts in enumerate(buckets, 1):
        sums = _Sums(spec)
        for i in prompts:
            rows = np.full((2, chunks * chunk), i * 2 * half)
            rows[:, :half] = i * 2 * half + np.arange(2 * half).reshape(2, half)
            real = np.broadcast_to(np.arange(chunks * chunk) < half, rows.shape)
            shape = (2, chunks, chunk)
            gradients = _group_program(
                trainable, base, traj, fixed, rows.reshape(shape), real.reshape(shape), temperature, sketch_key,
                spec=spec.update, sketch_size=spec.sketch_size,
            )  # fmt: skip
            sums.add(gradients)
            whole.add(gradients)
        if prompts:
            found.append(
                sums.bucket(f"bucket_{number}", prompts, spread, jax.random.fold_in(bootstrap_key, number))
            )
    return [*found, whole.bucket("all", usable, spread, bootstrap_key)] if usable else []


@partial(jax.jit, static_argnames=("size", "model"))
def _take(
    traj: Trajectories, rows: Int[Array, "N"], *, size: int, model: ModelConfig
) -> tuple[Trajectories, Float[Array, "P"]]:
    """Those rows, as groups of `size`, and the standard deviation of each group's rewards."""
    traj = replace(jax.tree.map(lambda x: x[rows], traj), group_size=size)
    return whole_everywhere((traj, reward_variance(traj.score.reshape(-1, size))), model)


def _buckets(spread: np.ndarray, spec: GradientSpec) -> list[list[int]]:
    if spec.bucket_mode == "quantile":
        return quantile_buckets(jnp.asarray(spread), spec.num_buckets)
    place = np.digitize(spread, FIXED_EDGES) - 1
    return [np.flatnonzero(place == b).tolist() for b in range(len(FIXED_EDGES))]


@partial(jax.jit, static_argnames=("spec",))
def _fixed(
    trainable: _Tree, base: Params | None, reference: Params | None, traj: Trajectories,
    temperature: float | Array, *, spec: UpdateSpec,
) -> _Fixed:  # fmt: skip
    temperature = jnp.asarray(temperature, jnp.float32)
    objective, mask = spec.objective, traj.loss_mask
    batch, slots = traj.tokens.shape
    scores = Scores.blank(batch, slots)
    if objective.uses_reference or objective.uses_critic:
        order = jnp.argsort(traj.length).astype(jnp.int32)
        scores = score(trainable, base, reference, traj, order, jnp.int32(batch), spec, temperature)
    rewards = batch_rewards(traj, objective, scores.old, scores.ref)
    finite = jnp.isfinite(jnp.sum(rewards, axis=1).reshape(-1, traj.group_size)).all(axis=1)
    mask = mask & jnp.repeat(finite, traj.group_size)[:, None]
    rewards = jnp.where(mask, rewards, 0.0)
    advantage, _ = batch_advantages(traj, rewards, scores.value, objective, mask)
    halves = replace(traj, group_size=traj.group_size // 2)
    if objective.adv_estimator == "reinforce_plus_plus_baseline":
        # The whitening's constants are those of the whole groups, as in the update.
        raw, _ = batch_advantages(traj, rewards, scores.value, objective, mask, whitened=False)
        half, _ = batch_advantages(halves, rewards, scores.value, objective, mask, whitened=False)
        half_advantage = whiten(half, mask, like=raw)
    else:
        half_advantage, _ = batch_advantages(halves, rewards, scores.value, objective, mask)
    fixed = _Fixed(scores.ref, advantage, half_advantage, _row_weights(mask, spec))
    return whole_everywhere(fixed, spec.model)


def _row_weights(mask: Bool[Array, "B L"], spec: UpdateSpec) -> Float[Array, "B L"]:
    """Weight of a token in its row, by the objective's aggregation with denominators that no bucket changes."""
    tokens = mask.astype(jnp.float32)
    own = jnp.sum(tokens, axis=1, keepdims=True)
    length = {
        "token-mean": jnp.maximum(jnp.mean(own), 1.0),
        "seq-mean-token-mean": jnp.maximum(own, 1.0),
        "seq-mean-token-sum": jnp.float32(1.0),
        "seq-mean-token-sum-norm": jnp.float32(spec.norm_length),
    }[spec.objective.loss_agg_mode]
    return tokens / length


@partial(jax.jit, static_argnames=("spec", "sketch_size"))
def _group_program(
    trainable: _Tree,
    base: Params | None,
    traj: Trajectories,
    fixed: _Fixed,
    rows: Int[Array, "2 C m"],
    real: Bool[Array, "2 C m"],
    temperature: float | Array,
    key: Array,
    *,
    spec: UpdateSpec,
    sketch_size: int,
) -> dict[str, tuple[Any, Array, Array, Array]]:
    """Of each part of the loss: a prompt's mean gradient, its square, the halves' product, the halves' sketches."""
    temperature = jnp.asarray(temperature, jnp.float32)

    def losses(policy: Any, rows: Array, real: Array) -> Array:
        params = policy_params({"policy": policy}, base, spec.lora)
        tokens = traj.tokens[rows]
        where, found_rows = sampled_slots(traj.loss_mask[rows] & real[:, None], spec.max_sampled)
        found = found_rows.reshape(-1)

        def pick(x: Array) -> Array:
            return jnp.where(found, at(x[rows], where), 0.0)

        logprob, entropy = policy_logprobs(
            params, spec.model, hidden_before(forward(params, spec.model, tokens, remat=spec.remat), where),
            at(tokens, where), temperature=temperature, valid_vocab=spec.valid_vocab,
        )  # fmt: skip
        objective = spec.objective
        logprob = jnp.where(found, logprob, 0.0)
        old, weight = jax.lax.stop_gradient(logprob), pick(fixed.weight)
        importance: Array | float = 1.0
        if objective.rollout_is != "none":
            sampler = pick(traj.logprob).reshape(where.shape)
            importance = sampler_weights(old.reshape(where.shape), sampler, found_rows, objective).reshape(-1)
        task, half = (
            jnp.sum(policy_loss(logprob, old, pick(a), objective)[0] * weight * importance)
            for a in (fixed.advantage, fixed.half_advantage)
        )
        kl = jnp.float32(0)
        if objective.use_kl_loss:
            penalty = kl_penalty(logprob, pick(fixed.ref), objective.kl_loss_type)
            kl = objective.kl_loss_coef * jnp.sum(penalty * weight)
        bonus = -objective.entropy_coeff * jnp.sum(jnp.where(found, entropy, 0.0) * weight)
        return jnp.stack([task, half, kl, bonus])

    policy = trainable["policy"]
    unit = jnp.eye(len(LOSSES))

    def chunk(total: Any, x: tuple[Array, Array]) -> tuple[Any, None]:
        _, pull = jax.vjp(lambda p: losses(p, *x), policy)  # one forward for all parts
        # A backward pass for each part: one batched over the parts, XLA's compiler for CPU (jaxlib 0.10.2, its YNN
        # fusions) gets wrong from some length of the rows between 128 and 256 slots on.
        return jax.tree.map(jnp.add, total, jax.lax.map(lambda part: pull(part)[0], unit)), None

    def one_half(x: tuple[Array, Array]) -> Any:
        zeros = jax.tree.map(lambda w: jnp.zeros((len(LOSSES), *w.shape), w.dtype), policy)
        total, _ = jax.lax.scan(chunk, zeros, x)
        count = jnp.sum(x[1])
        return jax.tree.map(lambda g: g / count, total)

    def with_reg(g: Array) -> Array:
        return jnp.concatenate([g, g[:, 2:3] + g[:, 3:4]], axis=1)

    halves = jax.tree.map(with_reg, jax.lax.map(one_half, (rows, real)))  # leaves [2, parts, ...]
    mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), halves)
    square = jax.vmap(inner)(mean, mean)
    cross = jax.vmap(inner)(*(jax.tree.map(lambda g, i=i: g[i], halves) for i in range(2)))
    sketches = jax.vmap(jax.vmap(lambda g: sketch(g, key, sketch_size)))(halves)
    square, cross, sketches = whole_everywhere((square, cross, sketches), spec.model)
    return {
        part: (
            stored(jax.tree.map(lambda g, n=n: g[n], mean), spec.model),
            square[n],
            cross[n],
            sketches[:, n],
        )
        for n, part in enumerate(PARTS)
    }


_add_trees = jax.jit(lambda x, y: jax.tree.map(jnp.add, x, y), donate_argnums=0)
_copy = jax.jit(lambda x: jax.tree.map(jnp.copy, x))
_inner = jax.jit(inner)


class _Sums:
    """Running sums over a bucket's prompts. With the sketch method no gradient is kept beyond its prompt."""

    def __init__(self, spec: GradientSpec) -> None:
        self.spec = spec
        self.total: dict[str, Any] = {}
        self.square: dict[str, list[Array]] = {part: [] for part in PARTS}
        self.cross: dict[str, list[Array]] = {part: [] for part in PARTS}
        self.sketches: dict[str, list[Array]] = {part: [] for part in PARTS}

    def add(self, gradients: dict[str, tuple[Any, Array, Array, Array]]) -> None:
        if self.spec.method == "full":
            mean = {part: g[0] for part, g in gradients.items()}
            self.total = _add_trees(self.total, mean) if self.total else _copy(mean)
        for part, (_, square, cross, sketches) in gradients.items():
            self.square[part].append(square)
            self.cross[part].append(cross)
            self.sketches[part].append(sketches)

    def moments(self, part: str) -> HalfMoments:
        if self.spec.method == "sketch":
            return half_moments(jnp.asarray(np.stack(self.sketches[part])))
        square, cross = (jnp.asarray(np.stack(x[part])) for x in (self.square, self.cross))
        total = np.asarray(_inner(self.total[part], self.total[part]))
        return HalfMoments(jnp.asarray(total) / len(square) ** 2, square, cross)

    def bucket(self, name: str, prompts: list[int], spread: np.ndarray, key: Array) -> Bucket:
        """The estimates; intervals are of sketches, moved onto the estimates."""
        task, reg = (self._estimate(part, key) for part in ("task_half", "reg"))
        norms = {
            part: float(jnp.sqrt(self.moments(part).mean_square)) for part in ("task", "kl", "entropy", "reg")
        }
        values = spread[np.asarray(prompts)]
        (signal, signals), (noise, noises) = task
        (reg_sq, regs), _ = reg
        ratio = signals / np.where(noises > 0, noises, np.nan)
        return Bucket(
            name, tuple(prompts), (float(values.mean()), float(values.min()), float(values.max())), norms,
            _interval(signal, signals), _interval(noise, noises), _interval(reg_sq, regs),
            _interval(signal / noise if noise > 0 else float("nan"), ratio),
        )  # fmt: skip

    def _estimate(self, part: str, key: Array) -> list[tuple[float, np.ndarray]]:
        halves = jnp.asarray(np.stack(self.sketches[part]))
        samples = bootstrap_signal_and_noise(key, halves, samples=self.spec.bootstrap)
        out = []
        for value, drawn in zip(signal_and_noise(self.moments(part)), samples, strict=True):
            host = np.asarray(drawn, np.float64)
            out.append((float(value), host - host.mean() + float(value)))
        return out


def _interval(value: float, samples: np.ndarray) -> tuple[float, float, float]:
    known = samples[np.isfinite(samples)]
    if not len(known):
        return value, float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return value, float(low), float(high)
