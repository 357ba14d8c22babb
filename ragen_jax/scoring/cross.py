"""The log-probability of every trace under every context, each context read once.

L[i, k, j] = log p(z_ik | x_j): trace k of prompt i, scored as the continuation of context j. The work is that of
P Lx + P P G T tokens, where scoring every concatenation takes P P G (Lx + T); `stream` has the work of one device.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.transformer import Params, gathered
from ragen_jax.scoring.packing import Contexts, Traces, padded_contexts
from ragen_jax.scoring.stream import score

MEMORY_BYTES = 256 * 2**20
"""Default budget for activations, keys and values, and logits, on each device."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CrossMarginals:
    """Log-probabilities of each trace: under its own context, and under the mean over all contexts."""

    matched: Float[Array, "P G"]  # log p(z_ik | x_i)
    marginal: Float[Array, "P G"]  # log (1/P) sum_j p(z_ik | x_j)


def cross_score(
    params: Params,
    cfg: ModelConfig,
    contexts: Contexts,
    traces: Traces,
    *,
    temperature: float | Float[Array, ""] = 1.0,
    valid_vocab: int | None = None,
    mesh: Mesh | None = None,
    axis_names: tuple[str, ...] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> Float[Array, "P G J"]:
    """L[i, k, j] = sum over t of log p(z_ikt | x_j, z_ik<t), float32, under softmax(logits / temperature).

    Compiled once for each combination of shapes, `cfg` and keyword arguments but `temperature`; lengths and
    temperature are traced. May be called inside another `jit`. Not differentiable in reverse.

    Args:
        params: parameters as `ragen_jax.models` keeps them (layers stacked).
        contexts: J contexts; J need not be P.
        traces: P x G traces. An empty trace scores 0; tell it by `traces.length == 0`.
        temperature: positive.
        valid_vocab: ids from here on have probability zero. Default: all of `cfg.vocab_size`.
        mesh: if given, contexts are split over `axis_names` of it (padded if they do not divide), and the
            result is sharded over j. Parameters are needed whole on every device of these axes. Default: the
            mesh of `cfg.placement`, if any, and the axes that its rows are split over; parameters are then
            gathered.
        axis_names: default all axes of the mesh. The others are left to the compiler.
        memory_bytes: each device's budget for all but parameters and the result; steps grow with it, so give
            an accelerator some GiB. The least that a program needs may be more: one context's keys and values
            of all layers, and a step of 64 tokens.

    Returns:
        L, with NaN where the length of the context (0 included) or of the trace is out of range.

    Raises:
        ValueError: for shapes that do not fit, or axis names that the mesh lacks.
    """
    return _cross(
        False, params, cfg, contexts, traces, temperature, valid_vocab, mesh, axis_names, memory_bytes
    )


def cross_marginals(
    params: Params,
    cfg: ModelConfig,
    contexts: Contexts,
    traces: Traces,
    *,
    temperature: float | Float[Array, ""] = 1.0,
    valid_vocab: int | None = None,
    mesh: Mesh | None = None,
    axis_names: tuple[str, ...] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> CrossMarginals:
    """Diagonal and log-mean-exp over j of `cross_score`'s L, without any device holding all of L.

    Arguments as of `cross_score`, with as many contexts as prompts. Under a mesh each device reduces its own
    contexts' columns, and the parts are joined by pmax and psum. Results are the same on every device.
    """
    if contexts.tokens.shape[0] != traces.tokens.shape[0]:
        raise ValueError(
            f"contexts {contexts.tokens.shape} and traces {traces.tokens.shape} must have as many prompts"
        )
    return _cross(
        True, params, cfg, contexts, traces, temperature, valid_vocab, mesh, axis_names, memory_bytes
    )


def _cross(
    reduce: bool,
    params: Params,
    cfg: ModelConfig,
    contexts: Contexts,
    traces: Traces,
    temperature: Any,
    valid_vocab: int | None,
    mesh: Mesh | None,
    axis_names: tuple[str, ...] | None,
    memory_bytes: int,
) -> Any:
    if contexts.tokens.ndim != 2 or contexts.length.shape != contexts.tokens.shape[:1]:
        shapes = contexts.tokens.shape, contexts.length.shape
        raise ValueError(f"contexts.tokens [J, Lx] and .length [J] expected, got {shapes}")
    if traces.tokens.ndim != 3 or traces.length.shape != traces.tokens.shape[:2]:
        shapes = traces.tokens.shape, traces.length.shape
        raise ValueError(f"traces.tokens [P, G, T] and .length [P, G] expected, got {shapes}")
    for name, shape in (("contexts", contexts.tokens.shape), ("traces", traces.tokens.shape)):
        if 0 in shape:
            raise ValueError(f"{name}.tokens is empty: {shape}")
    axes: tuple[str, ...] = ()
    if mesh is None and cfg.placement is not None and cfg.placement.row_axes:
        mesh, axis_names = cfg.placement.mesh, cfg.placement.row_axes
    if mesh is not None:
        axes = tuple(mesh.axis_names) if axis_names is None else tuple(axis_names)
        if not axes or not set(axes) <= set(mesh.axis_names):
            raise ValueError(f"axis_names {axes} must be among the mesh's axes {mesh.axis_names}")
    temperature = jnp.asarray(temperature, jnp.float32)
    return _program(params, contexts, traces, temperature, cfg, reduce, valid_vocab, mesh, axes, memory_bytes)


@functools.partial(jax.jit, static_argnums=(4, 5, 6, 7, 8, 9))
def _program(
    params: Params,
    contexts: Contexts,
    traces: Traces,
    temperature: Float[Array, ""],
    cfg: ModelConfig,
    reduce: bool,
    valid_vocab: int | None,
    mesh: Mesh | None,
    axes: tuple[str, ...],
    memory_bytes: int,
) -> Any:
    """The whole of `cross_score` (or, with `reduce`, of `cross_marginals`), split over `axes` of `mesh`."""
    count = contexts.tokens.shape[0]

    def local(params: Params, contexts: Contexts, traces: Traces, temperature: Array) -> Any:
        scores = score(params, cfg, contexts, traces, temperature, valid_vocab, memory_bytes)
        return _reduced(scores, axes, count) if reduce else scores

    if cfg.placement is not None:
        params = gathered(params, cfg)
    if mesh is None:
        return local(params, contexts, traces, temperature)
    devices = math.prod(mesh.shape[a] for a in axes)
    spec, whole = jax.P(axes), jax.P()
    split = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(whole, spec, whole, whole),
        out_specs=whole if reduce else jax.P(None, None, axes),
        axis_names=set(axes),
    )
    out = split(params, padded_contexts(contexts, devices), traces, temperature)
    return out if reduce or count % devices == 0 else out[..., :count]


def _reduced(scores: Float[Array, "P G J"], axes: tuple[str, ...], count: int) -> CrossMarginals:
    """Diagonal and log-mean-exp of L from this device's columns; the first `count` of all are real."""
    first = jax.lax.axis_index(axes) * scores.shape[-1] if axes else 0
    column = first + jnp.arange(scores.shape[-1])
    scores = jnp.where(column < count, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1)
    if axes:
        top = jax.lax.pmax(top, axes)
    base = jnp.where(jnp.isfinite(top), top, 0.0)  # all -inf: the sum is 0, its log -inf
    total = jnp.sum(jnp.exp(scores - base[..., None]), axis=-1)
    own = column == jnp.arange(scores.shape[0])[:, None, None]
    matched = jnp.sum(jnp.where(own, scores, 0.0), axis=-1)
    if axes:
        total, matched = jax.lax.psum((total, matched), axes)
    return CrossMarginals(matched, base + jnp.log(total) - math.log(count))
