"""What an update costs by how much the filter keeps.

    python -m benchmarks.update [--record]

One compiled program takes every mask. The kept groups are spread over the batch; sides are interleaved, medians taken.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._table import report
from ragen_jax.models import ModelConfig, init_params
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec, init_state, update
from ragen_jax.rollout import GIVEN, SAMPLED, Trajectories

FRACTIONS = (0.0, 0.125, 0.25, 0.5, 1.0)


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="append the rows to benchmarks/RESULTS.md")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    groups, members, slots = 16, 8, 192
    model = ModelConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=384,
    )  # fmt: skip
    traj = trajectories(groups, members, slots, 512)
    rows = []
    for name in ("grpo", "gae"):
        spec = UpdateSpec(
            model, Objective(adv_estimator=name), OptimConfig(), 512, max_sampled=slots // 2, mini_batch_size=32,
            micro_batch_size=16, length_buckets=1,
        )  # fmt: skip
        state = init_state(
            model, init_params(model, jax.random.key(0)), spec.optim, lora=None, critic=name == "gae",
            key=jax.random.key(1),
        )  # fmt: skip
        program = jax.jit(update, static_argnames="spec")
        order = np.arange(groups)
        masks = {f: jnp.asarray(order % round(1 / f) == 0 if f else order < 0) for f in FRACTIONS}
        seconds: dict[float, list[float]] = {f: [] for f in FRACTIONS}
        for _ in range(args.rounds + 1):
            for fraction, mask in masks.items():
                start = time.perf_counter()
                jax.block_until_ready(program(state, traj, mask, spec=spec))
                seconds[fraction].append(time.perf_counter() - start)
        medians = {f: statistics.median(s[1:]) for f, s in seconds.items()}
        tokens = groups * members * slots
        for f, s in medians.items():
            rate = f"{f * tokens / s:,.0f}" if f else "-"
            rows.append(
                [name, f"{f:g}", f"{s:.3f}", f"{s / medians[1.0]:.3f}", rate, str(program._cache_size())]
            )
    report(
        f"Update by kept fraction: {groups} groups x {members} members x {slots} slots, minibatches of 32 rows",
        ["advantages", "kept", "seconds", "of all kept", "tokens/s", "compilations"],
        rows,
        notes=f"{model.num_parameters / 1e6:.2f}M parameters, float32; gae has a critic of the same size.",
        record=args.record,
    )


if __name__ == "__main__":
    main()
