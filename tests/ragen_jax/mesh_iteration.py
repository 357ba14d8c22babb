"""Two iterations on one device and on meshes of eight; run by test_mesh.py in a process that has eight devices.

python mesh_iteration.py KIND MESH ..: KIND is plain, limited (contexts) or mixture; or cross.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from micro_run import micro_config

from ragen_jax.models import ModelConfig, abstract_params, init_params
from ragen_jax.parallel import ParallelSection, make_placement
from ragen_jax.rl import init_state
from ragen_jax.rl.layout import laid_out, shardings
from ragen_jax.scoring import Contexts, Traces, cross
from ragen_jax.training.diagnosis import empty_ema
from ragen_jax.training.programs import diagnosis_program, filter_program, rollout_program, update_program
from ragen_jax.training.setup import build, draw_levels

MESHES = {"8x1x1": (8, 1, 1), "2x4x1": (2, 4, 1), "2x2x2": (2, 2, 2), "1x1x8": (1, 1, 8)}
MODEL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip

KINDS = {
    "plain": {},
    "limited": {"rollout": {"context_window_mode": "single_turn", "max_context_window": 2}, "env": {"max_turns": 3}},
    # Of different lengths, so that the parts of a device's batch end at different times.
    "mixture": {
        "env": {"tags": ["FrozenLake", "Bandit"], "n_groups": [3, 1], "by_tag": {"Bandit": {"max_turns": 1}}},
        "rollout": {"group_size": 8},
        "training": {"mini_batch_size": 16},
    },
}  # fmt: skip


def config(shape: tuple[int, int, int] | None, kind: str = "plain"):
    parallel = {} if shape is None else dict(zip(("data", "fsdp", "tensor"), shape, strict=True))
    if shape is not None and shape[2] > 1:
        parallel["replicate"] = ["vocab"] + (["kv_heads"] if shape[2] > 4 else [])
    sections = {
        "env": {"max_response_tokens": 12},
        "rollout": {
            "env_groups": 4, "group_size": 4, "rollout_filter_value": 1.0, "rollout_filter_include_zero": True,
        },
        "training": {"mini_batch_size": 8, "micro_batch_size": 8, "length_buckets": 2, "remat": "full"},
    }  # fmt: skip
    sections = {name: own | KINDS[kind].get(name, {}) for name, own in sections.items()}
    return micro_config(
        Path("unused"), model=MODEL, warm_start={"steps": 0}, parallel=parallel,
        algorithm={"adv_estimator": "gae", "use_kl_loss": True, "entropy_coeff": 0.01},
        diagnosis={"compute_freq": 1, "num_samples": 8, "trajectory_enabled": True},
        evaluation={"levels": 8, "batch_size": 8}, **sections,
    )  # fmt: skip


def iterations(shape: tuple[int, int, int] | None, kind: str):
    """What two iterations give, and how many programs they compiled."""
    cfg = config(shape, kind)
    setup = build(cfg, devices=jax.devices()[:1] if shape is None else None)
    key = jax.random.key(3)
    state = laid_out(
        lambda p, k: init_state(setup.model, p, cfg.optim, lora=None, critic=True, key=k),
        setup.model,
        setup.params,
        key,
    )
    reference = laid_out(lambda p: jax.tree.map(jnp.copy, p), setup.model, setup.params)
    ema = laid_out(lambda: empty_ema(setup.diagnosis_spec.families), setup.model)
    programs = rollout_program, filter_program, diagnosis_program, update_program
    before = [p._cache_size() for p in programs]
    out = []
    for step in (1, 2):
        traj = rollout_program(
            state.trainable, None, *setup.tables("train"), jax.random.fold_in(key, step), draw_levels(setup, step), 1.0,
            jnp.arange(4), spec=setup.rollout_spec, group_size=cfg.rollout.group_size, lora=None,
            objective=cfg.algorithm,
        )  # fmt: skip
        keep, metrics, _ = filter_program(traj, None, section=cfg.rollout, shares=setup.shares)
        found, ema, samples = diagnosis_program(
            state.trainable, None, traj, key, ema, 1.0, spec=setup.diagnosis_spec, lora=None
        )
        state, tally = update_program(
            state, traj, keep, spec=setup.update_spec, base=None, reference=reference, temperature=1.0
        )
        out.append(jax.device_get((traj, keep, metrics, found, samples, tally, state)))
    return out, [p._cache_size() - b for p, b in zip(programs, before, strict=True)]


def close(got, want, name: str, atol: float) -> None:
    def check(path, a, b):
        label = f"{name} {jax.tree_util.keystr(path)}"
        if np.asarray(a).dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=label)
        else:
            np.testing.assert_allclose(a, b, atol=atol, rtol=atol, err_msg=label)

    jax.tree_util.tree_map_with_path(check, got, want)


def compare(kind: str, names: list[str]) -> None:
    (first, _), counted = iterations(None, kind)
    assert counted[0] <= 1
    assert first[0].windowed == (kind == "limited")
    assert set(first[0].turns.tolist()) >= {"plain": {2}, "limited": {3}, "mixture": {1, 2}}[kind]
    for name in names:
        got, counts = iterations(MESHES[name], kind)
        assert counts == [1, 1, 1, 1], (name, counts)
        traj, keep, metrics, found, samples, tally, state = got[0]
        close(traj, first[0], f"{name} rollout", 2e-5)  # ids exactly, log-probs to rounding
        close((keep, metrics), first[1:3], f"{name} filter", 1e-5)
        close((found, samples), first[3:5], f"{name} diagnosis", 2e-4)
        if kind == "plain":
            close(tally, first[5], f"{name} losses", 1e-5)
        else:  # hundreds of tokens: as they are logged, since sums of rounding grow with their number
            got_losses, wanted = ((t.means(), t.nonfinite) for t in (tally, first[5]))
            close(got_losses, wanted, f"{name} losses", 1e-5)
        # The optimiser divides by the gradient's size; its first moments are the gradients themselves.
        moments = [np.asarray(x) for x in jax.tree.leaves(state.opt_state)]
        close(moments, [np.asarray(x) for x in jax.tree.leaves(first[6].opt_state)], f"{name} moments", 1e-5)
        assert int(state.updates) == 2
        print(name, "equal", flush=True)


def cross_scoring_moves_no_keys() -> None:
    """With the parameters gathered, scoring exchanges sums over the tensor axis alone: no keys, nothing of L."""
    cfg = ModelConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=64,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    contexts = Contexts(jnp.asarray(rng.integers(0, 64, (8, 9)), jnp.int32), jnp.full(8, 9, jnp.int32))
    traces = Traces(jnp.asarray(rng.integers(0, 64, (8, 2, 5)), jnp.int32), jnp.full((8, 2), 5, jnp.int32))
    params = init_params(cfg, jax.random.key(0))
    want = cross.cross_score(params, cfg, contexts, traces)
    for shape in ((2, 4, 1), (2, 2, 2)):
        placement = make_placement(ParallelSection(*shape))
        on = replace(cfg, placement=placement)

        def gathered(x, stored, mesh=placement.mesh):
            spec = jax.P(*(None if part == "fsdp" else part for part in stored.spec))
            return jax.device_put(x, jax.NamedSharding(mesh, spec))

        whole = jax.tree.map(gathered, params, shardings(abstract_params(on), on))
        args = whole, contexts, traces, jnp.float32(1)
        static = on, False, None, placement.mesh, ("data", "fsdp"), cross.MEMORY_BYTES
        program = cross._program.lower(*args, *static).compile()
        got = program(*args)
        np.testing.assert_allclose(got, want, atol=1e-4, err_msg=str(shape))
        assert got.sharding.spec == jax.P(None, None, ("data", "fsdp")), got.sharding.spec
        kinds = ("all-gather", "all-to-all", "collective-permute")
        assert not [k for k in kinds if f" {k}(" in program.as_text()], shape
    print("cross-scoring moves no keys", flush=True)


if __name__ == "__main__":
    assert jax.device_count() == 8
    if sys.argv[1] == "cross":
        cross_scoring_moves_no_keys()
    else:
        compare(sys.argv[1], sys.argv[2:])
