"""The log-probability of every trace under every context, each context read once.

L[i, k, j] = log p(z_ik | x_j): trace k of prompt i, scored as the continuation of context j. The contexts'
keys and values are made once; all traces are then run against them, their queries folded into one matrix
product per head with the context's keys (which no trace copies), plus causal attention among a trace's own
tokens. The work is that of P Lx + P P G T tokens, where scoring every concatenation takes P P G (Lx + T).

Traces of any length lie end to end in one stream of tokens, cut into chunks. The number of chunks is a
traced value, so mixed lengths cost what they hold and nothing recompiles. A query sees the context, and its
own trace in the stream: the previous `lookback` slots at most. A trace's last token predicts nothing and is
left out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.transformer import Block, Params, block, gathered, rms_norm, rope_angles, unembedding
from ragen_jax.scoring.logprobs import row_statistics
from ragen_jax.scoring.packing import Plan, Stream, make_plan, make_stream
from ragen_jax.scoring.variation import varies, vary

MEMORY_BYTES = 256 * 2**20
"""Default budget for activations, keys and values, and logits, on each device."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Contexts:
    """What is conditioned on: `tokens[j, :length[j]]`, length 1 .. Lx. What pads the rows has no effect."""

    tokens: Int[Array, "J Lx"]
    length: Int[Array, " J"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Traces:
    """What is scored: `tokens[i, k, :length[i, k]]`, length 0 .. T. What pads the rows has no effect."""

    tokens: Int[Array, "P G T"]
    length: Int[Array, "P G"]


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
        scores = _score(params, cfg, contexts, traces, temperature, valid_vocab, memory_bytes)
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
    out = split(params, _padded(contexts, devices), traces, temperature)
    return out if reduce or count % devices == 0 else out[..., :count]


def _padded(contexts: Contexts, multiple: int) -> Contexts:
    """Adds contexts of length 1 up to a multiple."""
    pad = -contexts.tokens.shape[0] % multiple
    if pad == 0:
        return contexts
    return Contexts(
        jnp.pad(contexts.tokens, ((0, pad), (0, 0))), jnp.pad(contexts.length, (0, pad), constant_values=1)
    )


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


# -- one layer -----------------------------------------------------------------------------------------------
_slice = functools.partial(jax.lax.dynamic_slice_in_dim, axis=1)
_update = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)


def _scores(
    q: Float[Array, "... C Q H"], k: Float[Array, "... S K H"], visible: Bool[Array, " *mask"]
) -> Array:
    """Masked logits [..., K, Q/K, C, S] of attention, float32."""
    q = q.reshape(*q.shape[:-2], k.shape[-2], -1, q.shape[-1])
    logits = jnp.einsum("...ckrh,...skh->...krcs", q, k, preferred_element_type=jnp.float32)
    return jnp.where(visible, logits * q.shape[-1] ** -0.5, -jnp.inf)


def _weighted(
    weights: Float[Array, "... K R C S"], v: Float[Array, "... S K H"]
) -> Float[Array, "... C K R H"]:
    return jnp.einsum(
        "...krcs,...skh->...ckrh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )


def _context_layer(
    b: Block, cfg: ModelConfig, x: Float[Array, "Q Lx D"], chunks: Any, chunk: int
) -> tuple[Array, Array, Array]:
    """One block over contexts, some queries at a time: new x, keys and values [Q, Lx, K, H]."""
    size = x.shape[1]
    empty = jnp.zeros((x.shape[0], size, cfg.num_key_value_heads * cfg.kv_copies, cfg.head_dim), x.dtype)
    empty = vary(empty, varies(x))

    def step(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, keys, values = carry
        at = i * chunk
        rows = _slice(x, at, chunk)
        slots = at + jnp.arange(chunk)
        q, k, v = b.project(rows, *rope_angles(cfg, slots))
        keys, values = _update(keys, k, at), _update(values, v, at)
        logits = _scores(q, keys, jnp.arange(size) <= slots[:, None])
        out = _weighted(jax.nn.softmax(logits, axis=-1), values)
        return _update(x, b.finish(rows, out.astype(x.dtype)), at), keys, values

    return jax.lax.fori_loop(0, chunks, step, (x, empty, empty))


def _stream_layer(
    b: Block,
    cfg: ModelConfig,
    plan: Plan,
    x: Float[Array, "Q S D"],
    stream: Stream,
    context: tuple[Float[Array, "Q Lx K H"], Float[Array, "Q Lx K H"], Int[Array, " Q"]],
) -> Float[Array, "Q S D"]:
    """One block over the stream under each of Q contexts, given by keys, values and true length."""
    context_k, context_v, length = context
    count, lookback, chunk, queries = x.shape[0], plan.lookback, plan.chunk, plan.queries
    window = lookback + chunk
    in_context = jnp.arange(context_k.shape[1]) < length[:, None, None, None, None]
    segment = jnp.pad(stream.segment, (lookback, 0), constant_values=-1)
    empty = jnp.zeros(
        (count, lookback + x.shape[1], cfg.num_key_value_heads * cfg.kv_copies, cfg.head_dim), x.dtype
    )
    empty = vary(empty, varies(x))

    def windows(a: Array) -> Array:
        """[Q, lookback + chunk, K, H] -> [Q, groups, lookback + queries, K, H], what each group may see."""
        parts = a.reshape(count, window // queries, queries, *a.shape[2:])
        groups = chunk // queries
        return jnp.concatenate([parts[:, i : i + groups] for i in range(lookback // queries + 1)], axis=2)

    group = jnp.arange(chunk // queries)[:, None] * queries
    key_slot = group + jnp.arange(lookback + queries)  # within the window, [groups, lookback + queries]
    query_slot = group + lookback + jnp.arange(queries)

    def step(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, keys, values = carry
        at = i * chunk
        rows = _slice(x, at, chunk)
        position = jax.lax.dynamic_slice_in_dim(stream.position, at, chunk)
        q, k, v = b.project(rows, *rope_angles(cfg, length[:, None] + position))
        keys, values = _update(keys, k, at + lookback), _update(values, v, at + lookback)
        near = jax.lax.dynamic_slice_in_dim(segment, at, window)
        own = (near[key_slot][:, None, :] == near[query_slot][:, :, None]) & (
            key_slot[:, None, :] <= query_slot[:, :, None]
        )
        grouped = q.reshape(count, chunk // queries, queries, *q.shape[2:])
        to_own = _scores(grouped, windows(_slice(keys, at, window)), own[:, None, None])
        to_context = _scores(q, context_k, in_context)  # [Q, K, R, chunk, Lx]

        def by_group(a: Array) -> Array:
            """[Q, K, R, chunk] <- [Q, groups, K, R, queries]"""
            return jnp.moveaxis(a, 1, 3).reshape(*to_context.shape[:-1])

        def by_context(a: Array) -> Array:
            """The inverse of `by_group`."""
            return jnp.moveaxis(a.reshape(*a.shape[:3], chunk // queries, queries), 3, 1)

        top = jnp.maximum(by_group(to_own.max(-1)), to_context.max(-1))
        to_own = jnp.exp(to_own - by_context(top)[..., None])
        to_context = jnp.exp(to_context - top[..., None])
        total = by_group(to_own.sum(-1)) + to_context.sum(-1)
        out = _weighted(to_own, windows(_slice(values, at, window)))  # [Q, groups, queries, K, R, H]
        out = out.reshape(count, chunk, *out.shape[3:]) + _weighted(to_context, context_v)
        out = out / jnp.moveaxis(total, 3, 1)[..., None]
        return _update(x, b.finish(rows, out.astype(x.dtype)), at), keys, values

    chunks = -(-stream.used // chunk)
    return jax.lax.fori_loop(0, chunks, step, (x, empty, empty))[0]


# -- all layers ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Setup:
    """What every step needs: sizes, weights in the compute dtype, and how tokens are scored."""

    cfg: ModelConfig
    plan: Plan
    table: Float[Array, "V D"]
    layers: dict[str, Array]
    norm: Float[Array, " D"]
    head: Float[Array, "V D"]
    temperature: Float[Array, ""]
    valid_vocab: int
    whole_vocab: (
        int | None
    )  # the vocabulary's size where it is split over devices and so must not be cut in blocks

    def embed(self, tokens: Int[Array, " *shape"]) -> Float[Array, "*shape D"]:
        return self.table[tokens].astype(self.cfg.compute_dtype)

    def block(self, layer: dict[str, Array]) -> Block:
        return block(self.cfg, jax.tree.map(lambda w: w.astype(self.cfg.compute_dtype), layer))

    def final(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return rms_norm(x, self.norm, self.cfg.rms_norm_eps)


def _score(
    params: Params,
    cfg: ModelConfig,
    contexts: Contexts,
    traces: Traces,
    temperature: Float[Array, ""],
    valid_vocab: int | None,
    memory_bytes: int,
) -> Float[Array, "P G J"]:
    """L for the contexts of one device."""
    p, g, t = traces.tokens.shape
    j, lx = contexts.tokens.shape
    plan = make_plan(cfg, j, lx, p * g, t, memory_bytes)
    split = cfg.placement is not None and cfg.placement.ways("vocab") > 1
    if split:  # a block of ids would lie on one device
        plan = replace(plan, vocab_block=cfg.vocab_size)
    setup = _Setup(
        cfg=cfg,
        plan=plan,
        table=params["embed"]["weight"],
        layers=params["layers"],
        norm=params["norm"]["weight"],
        head=unembedding(params, cfg).astype(cfg.compute_dtype),
        temperature=temperature,
        valid_vocab=cfg.vocab_size if valid_vocab is None else valid_vocab,
        whole_vocab=cfg.vocab_size if split else None,
    )
    spare = -(p * g) % plan.traces
    tokens = jnp.pad(traces.tokens.reshape(-1, t), ((0, spare), (0, 0))).reshape(-1, plan.traces, t)
    length = jnp.pad(traces.length.reshape(-1), (0, spare)).reshape(-1, plan.traces)
    groups = jax.tree.map(
        lambda a: a.reshape(-1, plan.contexts, *a.shape[1:]), _padded(contexts, plan.contexts)
    )
    scores = jax.lax.map(lambda group: _score_group(setup, group, tokens, jnp.clip(length, 0, t)), groups)
    scores = jnp.moveaxis(scores, 0, 1).reshape(length.size, -1)[: p * g, :j].reshape(p, g, j)
    sound = (contexts.length >= 1) & (contexts.length <= lx)
    sound = sound & ((traces.length >= 0) & (traces.length <= t))[..., None]
    return jnp.where(sound, scores, jnp.nan)


def _score_group(
    setup: _Setup, contexts: Contexts, tokens: Int[Array, "M N T"], length: Int[Array, "M N"]
) -> Float[Array, "MN Q"]:
    """Sums of log-probs of M streams of N traces under some contexts."""
    cfg, plan = setup.cfg, setup.plan
    lx = contexts.tokens.shape[1]
    context_length = jnp.clip(contexts.length, 1, lx)
    x = setup.embed(jnp.pad(contexts.tokens, ((0, 0), (0, -lx % plan.context_chunk))))
    chunks = -(-jnp.max(context_length) // plan.context_chunk)

    def read(x: Array, layer: dict[str, Array]) -> tuple[Array, tuple[Array, Array]]:
        x, k, v = _context_layer(setup.block(layer), cfg, x, chunks, plan.context_chunk)
        return x, (k, v)

    def start(stream: Stream) -> Float[Array, "Q S D"]:
        rows = setup.embed(stream.tokens)
        return vary(jnp.broadcast_to(rows, (len(context_length), *rows.shape)), varies(x))

    def follow(x: Array, stream: Stream, layer: dict[str, Array], kv: tuple[Array, Array]) -> Array:
        return _stream_layer(setup.block(layer), cfg, plan, x, stream, (*kv, context_length))

    def last(x: Array) -> Float[Array, "Q D"]:
        return setup.final(jnp.take_along_axis(x, context_length[:, None, None] - 1, axis=1)[:, 0])

    if tokens.shape[0] == 1:  # keys and values of one layer at a time
        stream = make_stream(tokens[0], length[0], plan.chunk)

        def both(carry: tuple[Array, Array], layer: dict[str, Array]) -> tuple[tuple[Array, Array], None]:
            x, kv = read(carry[0], layer)
            return (x, follow(carry[1], stream, layer, kv)), None

        (x, rows), _ = jax.lax.scan(both, (x, start(stream)), setup.layers)
        return _sums(setup, tokens[0], length[0], last(x), stream, rows)

    x, cache = jax.lax.scan(read, x, setup.layers)
    hidden = last(x)

    def one_stream(traces: tuple[Array, Array]) -> Float[Array, "N Q"]:
        stream = make_stream(*traces, plan.chunk)
        rows, _ = jax.lax.scan(
            lambda rows, layer: (follow(rows, stream, *layer), None), start(stream), (setup.layers, cache)
        )
        return _sums(setup, *traces, hidden, stream, rows)

    return jax.lax.map(one_stream, (tokens, length)).reshape(-1, len(context_length))


def _sums(
    setup: _Setup,
    tokens: Int[Array, "N T"],
    length: Int[Array, " N"],
    last: Float[Array, "Q D"],
    stream: Stream,
    rows: Float[Array, "Q S D"],
) -> Float[Array, "N Q"]:
    """Each trace's log-probs summed, from the last hidden state of every context and the stream's."""
    chunk, t = setup.plan.chunk, tokens.shape[1]
    count = rows.shape[0]

    def step(i: Array, logprobs: Array) -> Array:
        hidden = setup.final(_slice(rows, i * chunk, chunk)).reshape(count * chunk, -1)
        target = jnp.tile(jax.lax.dynamic_slice_in_dim(stream.target, i * chunk, chunk), count)
        logprob, _ = row_statistics(
            hidden,
            setup.head,
            target,
            temperature=setup.temperature,
            valid_vocab=setup.valid_vocab,
            row_block=count * chunk,
            vocab_block=setup.plan.vocab_block,
        )
        return _update(logprobs, logprob.reshape(count, chunk), i * chunk)

    later = vary(jnp.zeros(rows.shape[:2], jnp.float32), varies(rows))
    later = jax.lax.fori_loop(0, -(-stream.used // chunk), step, later)
    step_of = jnp.arange(t)
    slot = jnp.clip(stream.start[:, None] + step_of - 1, 0, rows.shape[1] - 1)
    first = _first_logprobs(setup, last, tokens[:, 0])
    logprob = jnp.where(step_of == 0, first[:, :, None], later[:, slot])  # [Q, N, T]
    live = step_of < length[:, None]
    return jnp.einsum("qnt,nt->nq", jnp.where(live, logprob, 0.0), live.astype(jnp.float32))


def _first_logprobs(
    setup: _Setup, last: Float[Array, "Q D"], target: Int[Array, " N"]
) -> Float[Array, "Q N"]:
    """Log-probs of the traces' first tokens: one softmax a context serves them all."""
    _, log_z = row_statistics(
        last,
        setup.head,
        jnp.zeros(last.shape[0], jnp.int32),
        temperature=setup.temperature,
        valid_vocab=setup.valid_vocab,
        vocab_block=setup.whole_vocab,
    )
    logits = jnp.einsum("qd,nd->qn", last, setup.head[target], preferred_element_type=jnp.float32)
    real = (target >= 0) & (target < setup.valid_vocab)
    return jnp.where(real, logits / setup.temperature - log_z[:, None], -jnp.inf)
