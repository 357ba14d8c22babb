"""What an update costs: against PyTorch on the same rows, and by how much the filter keeps.

    python -m benchmarks.update [--size small|medium] [--no-torch] [--record]

Both sides start from the same weights and must find the same losses and gradient norms before anything is timed. One
compiled program takes every mask. The kept groups are spread over the batch; sides and masks take turns, medians are
taken. A line through the cost by kept fraction shows what does not shrink with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._table import report
from ragen_jax.models import ModelConfig, init_params
from ragen_jax.rl import Objective, OptimConfig, TrainState, UpdateSpec, init_state, update
from ragen_jax.rollout import GIVEN, SAMPLED, Trajectories

FRACTIONS = (0.0, 0.125, 0.25, 0.5, 1.0)
SMALL = ModelConfig(
    vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=384,
)  # fmt: skip
MEDIUM = ModelConfig(
    vocab_size=4096, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2,
    intermediate_size=1024,
)  # fmt: skip
SIZES = {"small": SMALL, "medium": MEDIUM}
OPTIM = OptimConfig(lr=1e-3, critic_lr=1e-3)  # far enough that ratios leave the clip's bounds
TOLERANCE = 1e-4  # of a mean over a minibatch's tokens, relative or absolute where it is below 1


def trajectories(groups: int, members: int, slots: int, vocab: int) -> Trajectories:
    """Full rows, half given and half sampled, with random rewards."""
    batch = groups * members
    rng = np.random.default_rng(0)
    role = np.where(np.arange(slots) < slots // 2, GIVEN, SAMPLED).astype(np.uint8)
    one = jnp.ones((batch, 1), jnp.int32)
    flag = jnp.zeros(batch, bool)
    return Trajectories(
        tokens=jnp.asarray(rng.integers(0, vocab, (batch, slots)), jnp.int32), length=jnp.full(batch, slots),
        role=jnp.tile(jnp.asarray(role), (batch, 1)), turn=jnp.zeros((batch, slots), jnp.int32),
        logprob=jnp.zeros((batch, slots), jnp.float32), prompt_end=one * (slots // 2), think_start=one * (slots // 2),
        think_end=one * slots, turn_end=one * (slots - 1), reward=jnp.asarray(rng.normal(size=(batch, 1)), jnp.float32),
        penalty=jnp.zeros((batch, 1), jnp.float32), format_ok=flag[:, None], executed=one, effective=one,
        turns=one[:, 0], terminated=flag, truncated=flag, success=flag, overflow=flag, level=one[:, 0],
        group_size=members,
    )  # fmt: skip


def mask(groups: int, fraction: float) -> np.ndarray:
    """bool[groups]: which are kept, evenly spread."""
    order = np.arange(groups)
    return order % round(1 / fraction) == 0 if fraction else order < 0


def initial(model: ModelConfig, critic: bool) -> TrainState:
    """A state whose critic does not begin at 0, so that its values count in the check."""
    params = init_params(model, jax.random.key(0))
    state = init_state(model, params, OPTIM, lora=None, critic=critic, key=jax.random.key(1))
    if not critic:
        return state
    head = {
        "weight": 0.1 * jax.random.normal(jax.random.key(2), (model.hidden_size,)),
        "bias": jnp.float32(0.1),
    }
    return replace(state, trainable=state.trainable | {"critic": state.trainable["critic"] | {"value": head}})


def torch_update(spec: UpdateSpec, state: TrainState, traj: Trajectories) -> Callable[[np.ndarray], Any]:
    """The same update on the same rows in PyTorch."""
    from benchmarks._torch_update import TorchUpdate

    given = int(traj.prompt_end[0, 0])
    host = (np.array(traj.tokens), given, np.array(traj.reward[:, 0]), traj.group_size)
    return TorchUpdate(spec, state.trainable, *host)


def difference(ours: dict[str, float], theirs: dict[str, float]) -> float:
    """The largest between means of both sides. Raises ValueError where one exceeds the tolerance."""
    worst = 0.0
    for name, value in theirs.items():
        gap = abs(ours[name] - value) / max(1.0, abs(value))
        if not gap <= TOLERANCE:
            raise ValueError(f"{name} is {ours[name]:.6g} here and {value:.6g} in PyTorch")
        worst = max(worst, gap)
    return worst


def line(cost: dict[float, float]) -> tuple[float, float]:
    """Least-squares line through (kept fraction, cost), without the point at 0: intercept and slope."""
    points = np.array([(f, s) for f, s in cost.items() if f])
    slope, intercept = np.polyfit(points[:, 0], points[:, 1], 1)
    return float(intercept), float(slope)


def timed(sides: dict[str, Callable[[np.ndarray], Any]], groups: int, rounds: int) -> dict[Any, float]:
    """Median seconds by (side, fraction); PyTorch's cost of keeping nothing is not asked for."""
    seconds: dict[Any, list[float]] = {}
    for _ in range(rounds + 1):
        for fraction in FRACTIONS:
            for side, run in sides.items():
                if fraction or side == "jax":
                    start = time.perf_counter()
                    run(mask(groups, fraction))
                    seconds.setdefault((side, fraction), []).append(time.perf_counter() - start)
    return {point: statistics.median(s[1:]) for point, s in seconds.items()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--groups", type=int, default=16, help="of 8 members (default: 16)")
    parser.add_argument("--slots", type=int, default=192, help="tokens a row, half of them sampled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--record", action="store_true", help="append the rows to benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    groups, members, slots, model = args.groups, 8, args.slots, SIZES[args.size]
    found = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    with_torch = found and not args.no_torch
    traj = trajectories(groups, members, slots, model.vocab_size)
    rows, notes = [], []
    for name in ("grpo", "gae"):
        spec = UpdateSpec(
            model, Objective(adv_estimator=name), OPTIM, model.vocab_size, max_sampled=slots // 2,
            mini_batch_size=32, micro_batch_size=16, length_buckets=1,
        )  # fmt: skip
        state = initial(model, critic=name == "gae")
        program = jax.jit(update, static_argnames="spec")

        def ours(groups: np.ndarray, program: Any = program, state: Any = state, spec: Any = spec) -> Any:
            return jax.block_until_ready(program(state, traj, jnp.asarray(groups), spec=spec))

        sides: dict[str, Callable[[np.ndarray], Any]] = {"jax": ours}
        checked = ""
        if with_torch:
            every = mask(groups, 1.0)
            gap = difference(jax.device_get(ours(every)[1]).means(), torch_update(spec, state, traj)(every))
            sides["torch"] = torch_update(spec, state, traj)
            checked = f" losses and gradient norms differ by at most {gap:.1e} from PyTorch's;"
        medians = timed(sides, groups, args.rounds)
        cost = {f: medians["jax", f] for f in FRACTIONS}
        for f, s in cost.items():
            tokens = f * groups * members * slots
            theirs = medians.get(("torch", f))
            rows.append(
                [
                    name,
                    f"{f:g}",
                    s,
                    s / cost[1.0],
                    round(tokens / s) if f else "-",
                    "-" if theirs is None else round(tokens / theirs),
                    "-" if theirs is None else f"{theirs / s:.2f}",
                    program._cache_size(),
                ]
            )
        intercept, _ = line(cost)
        notes.append(
            f"{name}:{checked} line through the costs: {intercept / cost[1.0]:+.3f} of the full cost at 0."
        )
    steps = -(-groups * members // 32)
    report(
        f"Update, {args.size}: {groups} groups x {members} members x {slots} slots, {steps} minibatches of 32 rows",
        ["advantages", "kept", "s", "of all kept", "tokens/s", "PyTorch tokens/s", "ratio", "compilations"],
        rows,
        notes=f"{model.num_parameters / 1e6:.2f}M parameters, float32, AdamW; gae has a critic of the same size. "
        f"PyTorch: eager, transformers, microbatches of 16 rows as here. {' '.join(notes)}",
        record=args.record,
    )


if __name__ == "__main__":
    main()
