"""Seconds and memory to score every trace under every context: shared contexts against concatenation.

    python -m benchmarks.cross_scoring [--size quick|small|smollm2] [--record]

Three sides score the same P x G traces under the same P contexts in float32: transformers on PyTorch and this
package's training forward, both on the P x P x G concatenations (padded to the longest; a batch holds all
traces under one context; logits of the traces' positions only), and `cross_score`. Sides take turns, in one
process. Concatenations cost the same under every context: they are timed under `--timed` of the P, scaled.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks._table import report
from ragen_jax.models import ModelConfig, forward, init_params, load_model, unembedding
from ragen_jax.models.hf import config_dict
from ragen_jax.models.hub import pulled
from ragen_jax.models.weights import named_tensors
from ragen_jax.scoring import Contexts, Traces, cross_score, token_logprobs

SMOLLM2 = ModelConfig(
    vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    intermediate_size=1536, rope_theta=100_000.0, max_position_embeddings=8192,
)  # fmt: skip
SMALL = ModelConfig(
    vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=1024,
)  # fmt: skip
QUICK = ModelConfig(
    vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=128,
)  # fmt: skip
SIZES = {"quick": QUICK, "small": SMALL, "smollm2": SMOLLM2}


@dataclass(frozen=True)
class Case:
    """P contexts of one length, P x G traces of lengths drawn evenly from shortest .. longest."""

    context: int
    shortest: int
    longest: int
    prompts: int = 8
    group: int = 4

    @property
    def name(self) -> str:
        span = f"{self.longest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"
        return f"context {self.context}, traces of {span}"

    def draw(self, vocab: int) -> tuple[Contexts, Traces]:
        rng = np.random.default_rng(0)
        p, g = self.prompts, self.group
        length = rng.integers(self.shortest, self.longest + 1, (p, g))
        length.flat[0] = self.longest
        contexts, traces = (rng.integers(0, vocab, s) for s in ((p, self.context), (p, g, self.longest)))
        return (
            Contexts(jnp.asarray(contexts, jnp.int32), jnp.full(p, self.context, jnp.int32)),
            Traces(jnp.asarray(traces, jnp.int32), jnp.asarray(length, jnp.int32)),
        )


FULL, MIXED, LONG = Case(256, 64, 64), Case(256, 16, 64), Case(1024, 64, 64)
CASES = {"full": FULL, "mixed": MIXED, "long": LONG}


# -- work ----------------------------------------------------------------------------------------------------
def layer_flops(cfg: ModelConfig, keys: float) -> float:
    """Of all layers for one token that attends to `keys` others: two a multiply-add."""
    q, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    weights = cfg.hidden_size * (2 * q + 2 * kv + 3 * cfg.intermediate_size)
    return cfg.num_hidden_layers * (2 * weights + 4 * q * keys)


def floors(cfg: ModelConfig, case: Case, lengths: np.ndarray) -> tuple[float, float]:
    """(concatenated, shared): least FLOPs with causal attention and logits of the traces' tokens only.

    Concatenations are padded to the longest trace; shared contexts take each trace at its length.
    """
    p, rows = case.prompts, case.prompts * case.group
    head = 2 * cfg.hidden_size * cfg.vocab_size
    length = case.context + case.longest
    naive = p * rows * (length * layer_flops(cfg, length / 2) + case.longest * head)
    shared = p * case.context * layer_flops(cfg, case.context / 2)
    for n in lengths.ravel():
        shared += p * n * (layer_flops(cfg, case.context + n / 2) + head)
    return naive, float(shared)


def matmul_peak(cfg: ModelConfig, with_torch: bool) -> tuple[float, float]:
    """FLOP/s of JAX and of PyTorch (0 without): best of 20 rounds of this model's feed-forward product."""
    shapes = (2048, cfg.hidden_size), (cfg.hidden_size, cfg.intermediate_size)
    a, b = (jnp.ones(shape) for shape in shapes)
    multiply = jax.jit(jnp.matmul)
    products: list[Callable[[], Any]] = [lambda: jax.block_until_ready(multiply(a, b))]
    if with_torch:
        import torch

        c, d = (torch.ones(shape) for shape in shapes)
        products.append(lambda: c @ d)
    best = [float("inf")] * 2
    for _ in range(20):
        for side, product in enumerate(products):
            start = time.perf_counter()
            for _ in range(3):
                product()
            best[side] = min(best[side], (time.perf_counter() - start) / 3)
    return 2 * a.shape[0] * b.size / best[0], 2 * a.shape[0] * b.size / best[1]


# -- sides ---------------------------------------------------------------------------------------------------
@dataclass
class Side:
    """`run()` scores all N traces under some of the contexts, `share` of them: [N, contexts]."""

    name: str
    run: Callable[[], np.ndarray]
    share: float
    peak: float = 0.0  # bytes above the model


def torch_side(cfg: ModelConfig, params: Any, contexts: Contexts, traces: Traces, timed: int) -> Side:
    """transformers, one batch of all traces for each context."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config_dict(cfg))).eval()
    state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in named_tensors(params, cfg)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    n, t = traces.length.size, traces.tokens.shape[-1]
    x = torch.from_numpy(np.array(contexts.tokens)).long()
    z = torch.from_numpy(np.array(traces.tokens).reshape(n, t)).long()
    live = torch.arange(t) < torch.from_numpy(np.array(traces.length).reshape(n, 1))

    def run() -> np.ndarray:
        columns = []
        with torch.inference_mode():
            for row in x[:timed]:
                ids = torch.cat([row.expand(n, -1), z], dim=1)
                hidden = model.model(ids, use_cache=False).last_hidden_state[:, len(row) - 1 : -1]
                logp = model.lm_head(hidden).log_softmax(-1).gather(-1, z[..., None])[..., 0]
                columns.append((logp * live).sum(-1))
        return torch.stack(columns, -1).numpy()

    return Side("transformers, concatenated", run, timed / len(x), peak=resident_peak(run))


def resident_peak(run: Callable[[], Any]) -> float:
    """Bytes by which the process's resident memory rose, at most, in one call (looked at every 5 ms)."""
    page = resource.getpagesize()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    with contextlib.suppress(OSError, AttributeError):  # glibc: hand back what earlier calls freed
        ctypes.CDLL(None).malloc_trim(0)
    before = highest = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.005):
            highest = max(highest, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return highest - before


def temporaries(compiled: Any) -> float:
    """Bytes that a compiled program needs besides arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def concatenated_side(cfg: ModelConfig, params: Any, contexts: Contexts, traces: Traces, timed: int) -> Side:
    """The training forward of this package on the same batches."""
    n, t = traces.length.size, traces.tokens.shape[-1]

    @jax.jit
    def score(params: Any, row: Array, tokens: Array, length: Array) -> Array:
        ids = jnp.concatenate([jnp.broadcast_to(row, (n, len(row))), tokens], axis=1)
        hidden = forward(params, cfg, ids)[:, len(row) - 1 : -1].reshape(n * t, -1)
        logprob, _ = token_logprobs(hidden, unembedding(params, cfg), tokens.reshape(-1))
        return jnp.where(jnp.arange(t) < length[:, None], logprob.reshape(n, t), 0.0).sum(-1)

    arguments = traces.tokens.reshape(n, t), traces.length.reshape(n)
    compiled = score.lower(params, contexts.tokens[0], *arguments).compile()

    def run() -> np.ndarray:
        return np.stack([compiled(params, row, *arguments) for row in contexts.tokens[:timed]], -1)

    return Side("ragen-jax, concatenated", run, timed / len(contexts.tokens), temporaries(compiled))


def shared_side(cfg: ModelConfig, params: Any, contexts: Contexts, traces: Traces) -> Side:
    def scores(params: Any, contexts: Contexts, traces: Traces) -> Array:
        return cross_score(params, cfg, contexts, traces)

    compiled = jax.jit(scores).lower(params, contexts, traces).compile()

    def run() -> np.ndarray:
        return np.asarray(compiled(params, contexts, traces)).reshape(traces.length.size, -1)

    return Side("ragen-jax, cross_score", run, 1.0, temporaries(compiled))


def rows_of(
    cfg: ModelConfig, params: Any, case: Case, timed: int, repeats: int, with_torch: bool
) -> list[list[Any]]:
    """One row a side: seconds for all P contexts, time against ours, work, memory, difference."""
    contexts, traces = case.draw(cfg.vocab_size)
    timed = min(timed, case.prompts)
    sides = [torch_side(cfg, params, contexts, traces, timed)] if with_torch else []
    sides.append(concatenated_side(cfg, params, contexts, traces, timed))
    sides.append(shared_side(cfg, params, contexts, traces))
    times: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
    results: dict[str, np.ndarray] = {}
    for _ in range(repeats):
        for side in sides:
            wall, cpu = time.perf_counter(), time.process_time()
            results[side.name] = side.run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            times[side.name].append((wall / side.share, cpu / side.share))
    medians = {name: np.median(np.asarray(pairs), axis=0).tolist() for name, pairs in times.items()}
    naive, shared = floors(cfg, case, np.asarray(traces.length))
    ours = sides[-1].name
    rows: list[list[Any]] = []
    for side in sides:
        wall, cpu = medians[side.name]
        work = shared if side.name == ours else naive
        columns = results[side.name].shape[1]
        difference = np.abs(results[side.name] - results[ours][:, :columns])
        per_token = difference / np.asarray(traces.length).reshape(-1, 1)
        rows.append(
            [
                side.name,
                wall,
                wall / medians[ours][0],
                cpu / medians[ours][1],
                work / shared,
                work / wall / 1e9,
                side.peak / 2**20,
                float(per_token.max()),
            ]
        )
    return rows


COLUMNS = [
    "", "s", "time / ours", "CPU / ours", "floor / ours", "GFLOP/s of floor", "peak MiB", "max |dlogp|",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="smollm2")
    parser.add_argument("--quick", action="store_true", help="the same as --size quick")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--timed", type=int, default=2, help="contexts that concatenations are timed under")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--record", action="store_true", help="append to benchmarks/RESULTS.md")
    options = parser.parse_args()
    size = "quick" if options.quick else options.size
    cfg, weights, with_torch = SIZES[size], "random weights", not options.no_torch
    path = pulled("smollm2-135m") if size == "smollm2" else None
    if path is not None:
        cfg, params, _ = load_model(path)
        params, weights = jax.device_put(params), "published weights"
    else:
        params = init_params(cfg, jax.random.key(0))
    for name in options.cases:
        case = CASES[name]
        before = matmul_peak(cfg, with_torch)
        rows = rows_of(cfg, params, case, options.timed, options.repeats, with_torch)
        ours, theirs = np.maximum(before, matmul_peak(cfg, with_torch)) / 1e9
        notes = (
            f"{size}: {cfg.num_hidden_layers} layers, d {cfg.hidden_size}, vocabulary {cfg.vocab_size}, "
            f"{weights}. Medians of {options.repeats} interleaved runs; concatenations timed under "
            f"{options.timed} of {case.prompts} contexts. Floor: least FLOPs of the side's method. Peak: "
            "above the model; temporaries of the compiled program, for transformers rise of the process. "
            f"max |dlogp|: from ours, a token. Float32 product of 2048 x {cfg.hidden_size} x "
            f"{cfg.intermediate_size}, best: JAX {ours:.0f} GFLOP/s"
        )
        notes += f", PyTorch {theirs:.0f}." if with_torch else "."
        title = f"Cross-scoring, {size}, P = {case.prompts}, G = {case.group}, {case.name}, float32"
        report(title, COLUMNS, rows, notes, options.record)


if __name__ == "__main__":
    main()
