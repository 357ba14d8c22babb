"""One accelerator, a few minutes: is it right, and how fast is it?

    python -m benchmarks.gpu [--tiny] [--record] [--attention cudnn] [--no-torch] [--minutes 7.5]

First a shallow model of the same shape is run on the accelerator, in float32 and in bfloat16, against float32 on the
CPU: log-probs, decoding over the cache, cross-scores, one update. Then a randomly initialised model of the shape of
Qwen2.5-1.5B is timed in bfloat16: decoding, the update, cross-scoring, and a whole iteration with an environment; each
with its share of the matrix-product peak measured here (MFU: the least FLOPs of the method over time and peak). Where
torch and transformers are installed, the first three are timed there too. A part that would begin after --minutes is
left out, and named. `--tiny` takes a few layers of width 64 in float32, and any backend.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory to PyTorch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks._gpu_work import (
    FULL,
    SMALL,
    Size,
    cached_logprobs,
    cross_flops,
    cross_inputs,
    decode,
    decode_flops,
    head_flops,
    logprobs,
    row,
    timed,
    update_flops,
    update_spec,
)
from benchmarks._table import report
from benchmarks.cross_scoring import layer_flops
from benchmarks.update import trajectories
from ragen_jax.models import ModelConfig, init_params
from ragen_jax.rl import init_state, update
from ragen_jax.scoring import cross_score
from ragen_jax.training.config import load_config
from ragen_jax.training.diagnosis import empty_ema
from ragen_jax.training.programs import (
    diagnosis_program,
    filter_program,
    rollout_program,
    update_program,
)
from ragen_jax.training.setup import Setup, build, draw_levels

TIMES = ["", "s", "tokens/s", "TFLOP/s", "MFU", "compile s"]


# -- right ---------------------------------------------------------------------------------------------------
def correctness(size: Size) -> list[list[Any]]:
    """A row for each program: largest difference from float32 on the CPU in float32, mean difference in bfloat16."""
    shape = dataclasses.replace(
        size.model,
        num_hidden_layers=2,
        vocab_size=min(size.model.vocab_size, 8192),
        dtype="float32",
        attention="xla",
    )
    few = dataclasses.replace(
        SMALL, model=shape, context=64, trace=16, slots=128, memory_bytes=2**26, update_rows=4, micro=2
    )
    half = dataclasses.replace(shape, dtype="bfloat16", attention=size.model.attention)
    cpu = jax.devices("cpu")[0]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, shape.vocab_size, (2, 128)).astype(np.int32)
    with jax.default_device(cpu):
        params = jax.device_get(jax.jit(init_params, static_argnums=0)(shape, jax.random.key(0)))
        traj = jax.device_get(trajectories(2, 2, few.slots, shape.vocab_size))
        cross = jax.device_get(cross_inputs(shape, few))

    def results(cfg: ModelConfig) -> dict[str, np.ndarray]:
        """Everything on the default device of the moment."""
        spec = update_spec(cfg, few)
        state = init_state(cfg, params, spec.optim, lora=None, critic=False, key=jax.random.key(0))
        scores = functools.partial(cross_score, cfg=cfg, memory_bytes=few.memory_bytes)
        new, tally = jax.jit(update, static_argnames="spec")(state, traj, jnp.ones(2, bool), spec=spec)
        out = {
            "log-probs, training forward": logprobs(params, cfg, tokens),
            "log-probs, decoding over the cache": cached_logprobs(params, cfg, tokens, 32),
            "cross-scores, a token": scores(params, contexts=cross[0], traces=cross[1]) / few.trace,
            "entropy in the update": jnp.stack([tally.sums["actor/entropy"][0] / tally.sums["actor/entropy"][1]]),
            "gradient's norm": jnp.stack([tally.sums["actor/grad_norm"][0]]),
            "parameters' change / lr": (
                new.trainable["policy"]["layers"]["down"] - jnp.asarray(params["layers"]["down"])
            ) / spec.optim.lr,
        }  # fmt: skip
        return {name: np.asarray(value, np.float64) for name, value in out.items()}

    with jax.default_device(cpu):
        wanted = results(shape)
    with jax.default_matmul_precision("highest"):
        exact = results(shape)
    coarse = results(half)
    # An Adam step is a sign where gradients are near nothing; so its mean is compared, not its maximum.
    rows = []
    for name, want in wanted.items():
        scale = max(float(np.abs(want).mean()), 1.0)
        by_mean = name.startswith("parameters")
        float_error = (
            np.abs(exact[name] - want).mean() if by_mean else np.abs(exact[name] - want).max()
        ) / scale
        half_error = np.abs(coarse[name] - want).mean() / scale
        limits = (2e-2, 0.5) if by_mean else (2e-3, 5e-2)
        sound = bool(float_error <= limits[0] and half_error <= limits[1])
        rows.append([name, float(float_error), limits[0], float(half_error), limits[1], sound])
    return rows


# -- fast ----------------------------------------------------------------------------------------------------
def matmul_peak(size: Size) -> float:
    """FLOP/s of a square product in the compute dtype, chained so that launches do not count."""
    n, chain = size.matmul, 8
    a = jnp.full((n, n), 1 / n, size.model.compute_dtype)

    @jax.jit
    def run(a: Array) -> Array:
        return jax.lax.fori_loop(0, chain, lambda _, x: x @ a, a)

    best = min(timed(lambda: run(a), 1)[0] for _ in range(5))
    return chain * 2 * n**3 / best


def our_rows(size: Size, peak: float, late: Callable[[str], bool]) -> list[list[Any]]:
    """Decoding, update, cross-scoring and the whole iteration, as far as there is time."""
    cfg, rows = size.model, []
    params = jax.jit(init_params, static_argnums=0)(cfg, jax.random.key(0))
    rng = np.random.default_rng(0)
    prompts = jnp.asarray(rng.integers(0, cfg.vocab_size, (size.decode_rows, size.prompt)), jnp.int32)
    if not late("decode"):
        half = jax.tree.map(lambda w: w.astype(cfg.compute_dtype), params)
        times = timed(lambda: decode(half, cfg, prompts, size.new, jax.random.key(1)), size.repeats)
        rows.append(row("decode", size.decode_rows * size.new, decode_flops(size), peak, *times))
        del half
    if not late("cross-scoring"):
        contexts, traces = cross_inputs(cfg, size)
        score = functools.partial(cross_score, params, cfg, contexts, traces, memory_bytes=size.memory_bytes)
        times = timed(score, size.repeats)
        tokens = size.prompts**2 * size.group * size.trace
        rows.append(row("cross-scoring", tokens, cross_flops(size), peak, *times))
    spec = update_spec(cfg, size)
    state = init_state(cfg, params, spec.optim, lora=None, critic=False, key=jax.random.key(0))
    del params  # the update takes them over
    if not late("update"):
        groups = size.update_rows // 4 if size.update_rows >= 8 else 1
        traj = trajectories(groups, size.update_rows // groups, size.slots, cfg.vocab_size)
        keep = jnp.ones(groups, bool)

        def step() -> Any:
            nonlocal state
            state, tally = update_program(state, traj, keep, spec=spec)
            return state, tally

        times = timed(step, size.repeats)
        rows.append(row("update", size.update_rows * size.slots, update_flops(size), peak, *times))
    if not late("iteration"):
        rows += iteration_rows(size, state, peak)
    return rows


def wide_setup(size: Size) -> Setup:
    """A run's parts with the benchmark's model: most of its vocabulary is padding beyond the small tokenizer."""
    config = load_config(
        None, ["warm_start.steps=0", "model.hidden_size=8", "model.intermediate_size=8", *size.iteration]
    )
    setup = build(config)
    return dataclasses.replace(
        setup, model=size.model, params={},
        rollout_spec=dataclasses.replace(setup.rollout_spec, model=size.model),
        diagnosis_spec=dataclasses.replace(setup.diagnosis_spec, model=size.model),
        update_spec=dataclasses.replace(setup.update_spec, model=size.model),
    )  # fmt: skip


def iteration_rows(size: Size, state: Any, peak: float) -> list[list[Any]]:
    """One step, and each of its programs alone. Every group is kept, whatever the filter says."""
    setup = wide_setup(size)
    config = setup.config
    key, levels = jax.random.key(0), draw_levels(setup, 1)
    keep = jnp.ones(config.rollout.env_groups, bool)
    ema = empty_ema(setup.diagnosis_spec.families)

    def one_step(state: Any) -> tuple[Any, Any, dict[str, float]]:
        """The new state, the trajectories, and the seconds of each program."""
        parts: dict[str, float] = {}

        def clocked(name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = jax.block_until_ready(run(*args, **kwargs))
            parts[name] = time.perf_counter() - start
            return out

        traj = clocked(
            "rollout", rollout_program, state.trainable, None, setup.train, setup.stops, key, levels, 1.0,
            spec=setup.rollout_spec, group_size=config.rollout.group_size, lora=None,
        )  # fmt: skip
        clocked(
            "diagnosis", diagnosis_program, state.trainable, None, traj, key, ema, 1.0, spec=setup.diagnosis_spec,
            lora=None,
        )  # fmt: skip
        clocked("filter", filter_program, traj, section=config.rollout)
        state, _ = clocked("update", update_program, state, traj, keep, spec=setup.update_spec)
        return state, traj, parts

    state, traj, first = one_step(state)
    state, traj, parts = one_step(state)
    length = np.asarray(traj.length, np.float64)
    sampled = int(np.asarray(traj.loss_mask).sum())
    once = sum(n * layer_flops(size.model, n / 2) for n in length) + sampled * head_flops(size.model)
    total, tokens = sum(parts.values()), int(length.sum())
    compiling = max(sum(first.values()) - total, 0.0)
    # Read and sampled once, then forward and backward; the diagnosis comes on top.
    rows = [row("iteration (FLOPs of rollout and update)", tokens, 4 * once, peak, total, compiling)]
    return rows + [[f"  {name}", s, tokens / s, "-", "-", first[name] - s] for name, s in parts.items()]


def main(argv: list[str] | None = None) -> int:
    """Returns 1 when a correctness check fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a model of some thousand parameters, on any backend"
    )
    parser.add_argument("--record", action="store_true", help="append to benchmarks/RESULTS.md")
    parser.add_argument(
        "--attention", default="xla", choices=("xla", "cudnn"), help="of the training forward"
    )
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--minutes", type=float, default=7.5, help="no part begins later than this")
    args = parser.parse_args(argv)
    begun = time.perf_counter()
    size = SMALL if args.tiny else FULL
    size = dataclasses.replace(size, model=dataclasses.replace(size.model, attention=args.attention))
    skipped: list[str] = []

    def late(part: str) -> bool:
        gone = time.perf_counter() - begun
        if gone > 60 * args.minutes:
            skipped.append(part)
            return True
        print(f"[{gone:6.1f} s] {part}", flush=True)
        return False

    late("correctness")
    checks = correctness(size)
    columns = ["", "float32 error", "limit", "bfloat16 error", "limit ", "within"]
    kind = jax.devices()[0].device_kind
    report(
        f"Correctness on {kind} against float32 on CPU: 2 layers of width {size.model.hidden_size}", columns, checks,
        "Errors relative to the mean magnitude, or to 1 if that is less: the largest in float32, the mean in bfloat16. "
        f"Attention of the training forward in bfloat16: {args.attention}.", args.record,
    )  # fmt: skip
    late("peak")
    peak = matmul_peak(size)
    rows = our_rows(size, peak, late)
    if not args.no_torch:
        try:
            from benchmarks._gpu_torch import torch_rows
        except ImportError as error:
            skipped.append(f"transformers ({error})")
        else:
            rows += torch_rows(size, peak, late)
    notes = (
        f"Random weights, {size.model.num_parameters / 1e6:.1f}M parameters, float32 masters, {size.model.dtype}. "
        f"Peak: {peak / 1e12:.4g} TFLOP/s in a product of {size.matmul} x {size.matmul}. "
        f"Decode: {size.decode_rows} rows, "
        f"prompt of {size.prompt} and {size.new} sampled, prompt in the time. Update: {size.update_rows} rows of "
        f"{size.slots}, half sampled, microbatches of {size.micro}, remat {size.remat}, attention {args.attention}. "
        f"Cross-scoring: {size.prompts} x {size.group} traces of {size.trace} under {size.prompts} contexts of "
        f"{size.context}; transformers' time is that of one context times {size.prompts}, its FLOPs those of ours. "
        f"Medians of {size.repeats} after a first call."
    )
    if skipped:
        notes += f" Left out: {', '.join(skipped)}."
    report(f"One {kind}, {size.model.dtype}", TIMES, rows, notes, args.record)
    print(f"[{time.perf_counter() - begun:6.1f} s] done")
    return 0 if all(check[-1] for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
