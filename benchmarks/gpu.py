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
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory to PyTorch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks._table import report
from benchmarks.cross_scoring import layer_flops
from benchmarks.update import trajectories
from ragen_jax.models import (
    ModelConfig,
    Params,
    extend,
    forward,
    init_cache,
    init_params,
    unembedding,
    unstack,
)
from ragen_jax.models.hf import config_dict
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec, init_state, update
from ragen_jax.scoring import Contexts, Traces, cross_score, token_logprobs
from ragen_jax.training.config import load_config
from ragen_jax.training.diagnosis import empty_ema
from ragen_jax.training.programs import (
    diagnosis_program,
    filter_program,
    rollout_program,
    update_program,
)
from ragen_jax.training.setup import Setup, build, draw_levels

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
TIMES = ["", "s", "tokens/s", "TFLOP/s", "MFU", "compile s"]


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """(median seconds of a call, seconds of the first one beyond that: compilation)."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return median, max(seconds[0] - median, 0.0)


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


def row(name: str, tokens: float, flops: float, peak: float, seconds: float, compiling: float) -> list[Any]:
    return [name, seconds, tokens / seconds, flops / seconds / 1e12, flops / seconds / peak, compiling]


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


# -- PyTorch -------------------------------------------------------------------------------------------------
def torch_rows(size: Size, peak: float, late: Callable[[str], bool]) -> list[list[Any]]:
    """The same work with transformers: generate, loss and AdamW under autocast, concatenated scoring."""
    import torch
    import transformers

    cfg = size.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if cfg.dtype == "bfloat16" else torch.float32
    settings = transformers.Qwen2Config(**config_dict(cfg))
    with torch.device(device):
        model = transformers.Qwen2ForCausalLM(settings).to(torch.float32)
    torch.manual_seed(0)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def clock(run: Callable[[], Any]) -> tuple[float, float]:
        def whole() -> int:
            run()
            finish()
            return 0

        return timed(whole, size.repeats)

    def random_ids(*shape: int) -> Any:
        return torch.randint(0, cfg.vocab_size, shape, device=device)

    rows: list[list[Any]] = []
    if not late("transformers, update"):
        model.train()
        if size.remat != "none":
            model.gradient_checkpointing_enable()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)
        ids, half = random_ids(size.update_rows, size.slots), size.slots // 2

        def step() -> None:
            for batch in ids.split(size.micro):
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    hidden = model.model(batch, use_cache=False).last_hidden_state[:, half - 1 : -1]
                    logits = model.lm_head(hidden).float()
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, half:].flatten())
                (loss * len(batch) / len(ids)).backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        times = clock(step)
        rows.append(
            row("transformers, update", size.update_rows * size.slots, update_flops(size), peak, *times)
        )
        del optimiser
        if size.remat != "none":
            model.gradient_checkpointing_disable()
    model = model.to(dtype).eval()
    if not late("transformers, decode"):
        prompts = random_ids(size.decode_rows, size.prompt)

        def generate() -> None:
            with torch.inference_mode():
                model.generate(
                    prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=size.new,
                    min_new_tokens=size.new, eos_token_id=None, pad_token_id=0,
                )  # fmt: skip

        times = clock(generate)
        rows.append(
            row("transformers, decode", size.decode_rows * size.new, decode_flops(size), peak, *times)
        )
    if not late("transformers, cross-scoring"):
        context = random_ids(1, size.context)
        traces = random_ids(size.prompts * size.group, size.trace)

        def score() -> None:  # under one context; the others cost the same
            with torch.inference_mode():
                for batch in traces.split(size.group):
                    ids = torch.cat([context.expand(len(batch), -1), batch], dim=1)
                    hidden = model.model(ids, use_cache=False).last_hidden_state[:, size.context - 1 : -1]
                    logits = model.lm_head(hidden).float()
                    logits.log_softmax(-1).gather(-1, batch[..., None]).sum(1)

        seconds, first = clock(score)
        tokens = size.prompts**2 * size.group * size.trace
        times = seconds * size.prompts, first
        rows.append(
            row("transformers, cross-scoring (concatenated)", tokens, cross_flops(size), peak, *times)
        )
    return rows


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
            import torch  # noqa: F401
            import transformers  # noqa: F401
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
