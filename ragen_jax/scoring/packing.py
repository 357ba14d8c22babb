"""What cross-scoring is given and how it is cut: sizes within a memory budget, traces end to end in one stream."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from ragen_jax.models.config import ModelConfig

_QUERIES = 64  # queries that attend to one window of the stream together
_STEP_TOKENS = 512  # tokens (contexts x chunk) of a step that keep matrix products efficient on a CPU


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


def padded_contexts(contexts: Contexts, multiple: int) -> Contexts:
    """Adds contexts of length 1 up to a multiple."""
    pad = -contexts.tokens.shape[0] % multiple
    if pad == 0:
        return contexts
    return Contexts(
        jnp.pad(contexts.tokens, ((0, pad), (0, 0))), jnp.pad(contexts.length, (0, pad), constant_values=1)
    )


@dataclass(frozen=True)
class Plan:
    contexts: int  # contexts taken together
    chunk: int  # slots of the stream taken together, a multiple of `queries`
    queries: int
    lookback: int  # slots before a group of queries that it may need, a multiple of `queries`
    traces: int  # traces in one stream
    context_chunk: int
    vocab_block: int


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _even(total: int, most: int) -> int:
    """Size of equal parts of at most `most`: a divisor of `total` if a large one exists, else padded."""
    most = max(min(total, most), 1)
    for size in range(most, most // 2, -1):
        if total % size == 0:
            return size
    return -(-total // -(-total // most))


def make_plan(cfg: ModelConfig, j: int, lx: int, n: int, t: int, memory_bytes: int) -> Plan:
    """Sizes for J contexts of Lx tokens and N traces of T, within the budget where possible.

    Half of the budget is for the streams with their keys and values, a quarter for one step.
    """
    width = cfg.compute_dtype.itemsize
    kv = 2 * cfg.num_key_value_heads * cfg.head_dim * width
    stream_token, inputs = cfg.hidden_size * width + kv, max(t - 1, 1)
    queries = min(_QUERIES, _up(inputs, 8))
    lookback = _up(max(t - 2, 0), queries)
    attention = 2 * cfg.num_attention_heads * (lx + lookback + queries)
    step_token = 4 * (3 * cfg.intermediate_size + 6 * cfg.hidden_size + attention)
    step = max(memory_bytes // 4 // step_token, queries)
    room = memory_bytes // 2
    one = lx * (cfg.hidden_size * width + kv) + n * inputs * stream_token
    if one <= room:  # all traces in one stream, one layer of the context at a time
        traces, contexts = n, _even(j, room // one)
    else:
        room -= cfg.num_hidden_layers * lx * kv
        traces, contexts = _even(n, room // (inputs * stream_token)), 1
    capacity = traces * inputs
    # a stream's last chunk is half empty on average: no larger than a 16th of it, unless steps get too small
    step = min(step, max(_STEP_TOKENS, contexts * capacity // 16))
    contexts = _even(j, min(contexts, max(step // queries, 1)))
    chunk = min(max(step // contexts // queries, 1) * queries, _up(capacity, queries))
    return Plan(
        contexts=contexts,
        chunk=chunk,
        queries=queries,
        lookback=lookback,
        traces=traces,
        context_chunk=_even(lx, step // contexts),
        vocab_block=min(cfg.vocab_size, max(memory_bytes // 16 // (4 * contexts * chunk), 256)),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """Traces end to end, each without its last token. Slots from `used` on are empty: segment -1."""

    tokens: Int[Array, " S"]
    target: Int[Array, " S"]
    position: Int[Array, " S"]  # within the trace
    segment: Int[Array, " S"]  # number of the trace
    used: Int[Array, ""]
    start: Int[Array, " N"]  # slot of each trace's first token


def make_stream(tokens: Int[Array, "N T"], length: Int[Array, " N"], chunk: int) -> Stream:
    n, t = tokens.shape
    inputs = jnp.maximum(length - 1, 0)
    end = jnp.cumsum(inputs)
    slot = jnp.arange(_up(max(n * (t - 1), 1), chunk))
    trace = jnp.minimum(jnp.searchsorted(end, slot, side="right"), n - 1)
    start = end - inputs
    live = slot < end[-1]
    position = jnp.where(live, slot - start[trace], 0)
    return Stream(
        tokens=tokens[trace, position],
        target=tokens[trace, jnp.minimum(position + 1, t - 1)],
        position=position,
        segment=jnp.where(live, trace, -1),
        used=end[-1],
        start=start,
    )
