"""Traces scored under contexts on one device, each context read once.

The contexts' keys and values are made once; all traces are then run against them, their queries folded into one matrix
product per head with the context's keys (which no trace copies), plus causal attention among a trace's own tokens.

Traces of any length lie end to end in one stream of tokens, cut into chunks. The number of chunks is a traced value, so
mixed lengths cost what they hold and nothing recompiles. A query sees the context, and its own trace in the stream: the
previous `lookback` slots at most. A trace's last token predicts nothing and is left out.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.transformer import Block, Params, block, rms_norm, rope_angles, unembedding
from ragen_jax.scoring.logprobs import row_statistics
from ragen_jax.scoring.packing import Contexts, Plan, Stream, Traces, make_plan, make_stream, padded_contexts
from ragen_jax.scoring.variation import varies, vary

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
    # the vocabulary's size where it is split over devices and so must not be cut in blocks
    whole_vocab: int | None

    def embed(self, tokens: Int[Array, " *shape"]) -> Float[Array, "*shape D"]:
        return self.table[tokens].astype(self.cfg.compute_dtype)

    def block(self, layer: dict[str, Array]) -> Block:
        return block(self.cfg, jax.tree.map(lambda w: w.astype(self.cfg.compute_dtype), layer))

    def final(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return rms_norm(x, self.norm, self.cfg.rms_norm_eps)


def score(
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
        lambda a: a.reshape(-1, plan.contexts, *a.shape[1:]), padded_contexts(contexts, plan.contexts)
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
