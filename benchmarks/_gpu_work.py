"""What the accelerator's benchmark runs: the models and sizes, the programs, and the FLOPs of each."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.cross_scoring import layer_flops
from ragen_jax.models import ModelConfig, Params, extend, forward, init_cache, unembedding, unstack
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec
from ragen_jax.scoring import Contexts, Traces, token_logprobs

QWEN_1_5B = ModelConfig(
    vocab_size=151_936, hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
    intermediate_size=8960, rope_theta=1e6, rms_norm_eps=1e-6, attention_bias=True,
    max_position_embeddings=32_768, dtype="bfloat16",
)  # fmt: skip
TINY = ModelConfig(
    vocab_size=1024, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=96, rope_theta=1e6, rms_norm_eps=1e-6, attention_bias=True, max_position_embeddings=2048,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much each part does. Rows of the update are half given, half sampled, and full."""

    model: ModelConfig
    matmul: int  # side of the square product that measures the peak
    decode_rows: int
    prompt: int
    new: int
    update_rows: int
    slots: int
    micro: int
    prompts: int  # of cross-scoring, as many contexts
    group: int
    context: int
    trace: int
    iteration: tuple[str, ...]  # settings of the whole iteration
    memory_bytes: int  # of cross-scoring
    repeats: int
    remat: str


FULL = Size(
    model=QWEN_1_5B, matmul=8192, decode_rows=128, prompt=512, new=128, update_rows=32, slots=1024, micro=4,
    prompts=8, group=16, context=512, trace=256, memory_bytes=8 * 2**30, repeats=3, remat="full",
    iteration=(
        "env.tag=FrozenLake", "env.max_turns=3", "env.max_response_tokens=128", "env.num_levels=64",
        "rollout.env_groups=8", "rollout.group_size=16", "training.mini_batch_size=128",
        "training.micro_batch_size=4", "training.length_buckets=2", "diagnosis.trajectory_enabled=false",
        "training.remat=full",
    ),
)  # fmt: skip
SMALL = Size(
    model=TINY, matmul=256, decode_rows=4, prompt=16, new=8, update_rows=4, slots=32, micro=2, prompts=3, group=2,
    context=24, trace=8, memory_bytes=2**24, repeats=1, remat="none",
    iteration=(
        "env.tag=FrozenLake", "env.size=3", "env.style=brief", "env.max_turns=1", "env.max_response_tokens=8",
        "env.num_levels=8", "rollout.env_groups=2", "rollout.group_size=2", "training.mini_batch_size=4",
        "training.micro_batch_size=2", "training.length_buckets=1", "diagnosis.trajectory_enabled=false",
        "diagnosis.num_samples=4",
    ),
)  # fmt: skip


# -- programs ------------------------------------------------------------------------------------------------
@functools.partial(jax.jit, static_argnums=(1, 3))
def decode(params: Params, cfg: ModelConfig, prompts: Array, new: int, key: Array | None = None) -> Array:
    """`new` ids after each prompt, [rows, new]: the most likely ones, or with a key drawn at temperature 1."""
    weights = unstack(params, cfg)
    rows, length = prompts.shape
    head = unembedding(weights, cfg)

    def following(hidden: Array, position: Array) -> Array:
        logits = jnp.einsum("bd,vd->bv", hidden, head, preferred_element_type=jnp.float32)
        if key is not None:
            logits = logits + jax.random.gumbel(jax.random.fold_in(key, position), logits.shape)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    hidden, cache = extend(
        weights, cfg, prompts, jnp.zeros(rows, jnp.int32), init_cache(cfg, rows, length + new)
    )

    def step(carry: Any, position: Array) -> tuple[Any, Array]:
        ids, cache = carry
        hidden, cache = extend(weights, cfg, ids[:, None], jnp.full(rows, position), cache)
        ids = following(hidden[:, 0], position)
        return (ids, cache), ids

    first = following(hidden[:, -1], jnp.int32(0))
    _, rest = jax.lax.scan(step, (first, cache), length + jnp.arange(new - 1))
    return jnp.concatenate([first[:, None], rest.T], axis=1)


@functools.partial(jax.jit, static_argnums=1)
def logprobs(params: Params, cfg: ModelConfig, tokens: Array) -> Array:
    """log p of every token but the first, [rows, length - 1], by the training forward."""
    hidden = forward(params, cfg, tokens)[:, :-1]
    head = unembedding(params, cfg).astype(cfg.compute_dtype)
    lp, _ = token_logprobs(hidden.reshape(-1, cfg.hidden_size), head, tokens[:, 1:].reshape(-1))
    return lp.reshape(tokens.shape[0], -1)


@functools.partial(jax.jit, static_argnums=(1, 3))
def cached_logprobs(params: Params, cfg: ModelConfig, tokens: Array, prompt: int) -> Array:
    """log p of every token after the first `prompt`, one at a time over the cache, as in decoding."""
    weights = unstack(params, cfg)
    rows, length = tokens.shape
    cache = init_cache(cfg, rows, length)
    hidden, cache = extend(weights, cfg, tokens[:, :prompt], jnp.zeros(rows, jnp.int32), cache)

    def step(cache: Any, position: Array) -> tuple[Any, Array]:
        hidden, cache = extend(weights, cfg, tokens[:, position][:, None], jnp.full(rows, position), cache)
        return cache, hidden[:, 0]

    _, later = jax.lax.scan(step, cache, prompt + jnp.arange(length - prompt - 1))
    states = jnp.concatenate([hidden[:, -1:], jnp.moveaxis(later, 0, 1)], axis=1)
    head = unembedding(weights, cfg)
    lp, _ = token_logprobs(states.reshape(-1, cfg.hidden_size), head, tokens[:, prompt:].reshape(-1))
    return lp.reshape(rows, -1)


def update_spec(cfg: ModelConfig, size: Size) -> UpdateSpec:
    return UpdateSpec(
        cfg, Objective(), OptimConfig(lr=1e-4), cfg.vocab_size, max_sampled=size.slots // 2,
        mini_batch_size=size.update_rows, micro_batch_size=size.micro, length_buckets=1, remat=size.remat,
    )  # fmt: skip


def cross_inputs(cfg: ModelConfig, size: Size) -> tuple[Contexts, Traces]:
    rng = np.random.default_rng(0)
    p, g = size.prompts, size.group
    contexts, traces = (
        jnp.asarray(rng.integers(0, cfg.vocab_size, shape), jnp.int32)
        for shape in ((p, size.context), (p, g, size.trace))
    )
    return (
        Contexts(contexts, jnp.full(p, size.context, jnp.int32)),
        Traces(traces, jnp.full((p, g), size.trace, jnp.int32)),
    )


# -- FLOPs and seconds -----------------------------------------------------------------------------------------------
def head_flops(cfg: ModelConfig) -> float:
    return 2.0 * cfg.hidden_size * cfg.vocab_size


def decode_flops(size: Size) -> float:
    """Prompts without logits but the last, and one token at a time over all that came before."""
    cfg, middle = size.model, size.prompt + size.new / 2
    a_row = size.prompt * layer_flops(cfg, size.prompt / 2) + size.new * (
        layer_flops(cfg, middle) + head_flops(cfg)
    )
    return size.decode_rows * a_row


def update_flops(size: Size) -> float:
    """Forward and backward, three forwards' worth; logits of sampled slots only; recomputation does not count."""
    cfg = size.model
    a_row = size.slots * layer_flops(cfg, size.slots / 2) + size.slots // 2 * head_flops(cfg)
    return 3 * size.update_rows * a_row


def cross_flops(size: Size) -> float:
    """Each context once, and each trace under each context."""
    cfg, p = size.model, size.prompts
    a_trace = size.trace * (layer_flops(cfg, size.context + size.trace / 2) + head_flops(cfg))
    return p * (size.context * layer_flops(cfg, size.context / 2) + p * size.group * a_trace)


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """(median seconds of a call, seconds of the first one beyond that: compilation)."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return median, max(seconds[0] - median, 0.0)


def row(name: str, tokens: float, flops: float, peak: float, seconds: float, compiling: float) -> list[Any]:
    """A line of the table of times."""
    return [name, seconds, tokens / seconds, flops / seconds / 1e12, flops / seconds / peak, compiling]
