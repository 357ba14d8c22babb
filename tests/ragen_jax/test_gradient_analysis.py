"""Gradients by bucket against the gradient of each row taken alone."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import TINY, random_trajectories
from child import together

from ragen_jax.estimators.gradient_snr import half_moments, signal_and_noise
from ragen_jax.models import ModelConfig, forward, init_params, unembedding
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec, grpo_advantages
from ragen_jax.rl.gradient_analysis import GradientSpec, analyse_gradients
from ragen_jax.rollout import SAMPLED

GROUPS, MEMBERS = 3, 5  # the fifth member is left out
OBJECTIVE = Objective(entropy_coeff=0.05, use_kl_loss=True, kl_loss_coef=0.3, kl_loss_type="k2")
SPEC = GradientSpec(
    UpdateSpec(
        TINY, OBJECTIVE, OptimConfig(), TINY.vocab_size, max_sampled=30, mini_batch_size=4, micro_batch_size=2
    ),
    num_buckets=2, sketch_size=4096, bootstrap=50,
)  # fmt: skip


@pytest.fixture(scope="module")
def setting():
    params, reference = (init_params(TINY, jax.random.key(s)) for s in (0, 1))
    return params, reference, random_trajectories(0, groups=GROUPS, members=MEMBERS)


@pytest.fixture(scope="module")
def oracle(setting) -> dict[str, np.ndarray]:
    """Gradients [P, 2, D] of the task within halves, of the task within groups and of the regularisers."""
    params, reference, traj = setting
    score = np.asarray(traj.score).reshape(GROUPS, MEMBERS)[:, :4]
    whole = np.asarray(grpo_advantages(jnp.asarray(score)))
    half = np.asarray(grpo_advantages(jnp.asarray(score.reshape(GROUPS * 2, 2)))).reshape(GROUPS, 4)
    rows = [[g * MEMBERS + m for m in range(4)] for g in range(GROUPS)]
    mask = np.asarray(traj.role) == SAMPLED
    mean_length = np.mean([mask[b].sum() for g in rows for b in g])

    @jax.jit
    @jax.jacrev
    def row_terms(params, tokens, mask):
        """Sum of a row's log-probs, and its regularisers, before the mean over rows."""

        def logp(p):
            return jax.nn.log_softmax(forward(p, TINY, tokens[None])[0] @ unembedding(p, TINY).T)[:-1]

        here, ref, on = logp(params), logp(reference), mask[1:]
        taken = jnp.take_along_axis(here, tokens[1:, None], axis=1)[:, 0]
        gap = taken - jnp.take_along_axis(ref, tokens[1:, None], axis=1)[:, 0]
        reg = 0.3 * gap**2 / 2 + 0.05 * jnp.sum(jnp.exp(here) * here, axis=1)
        return jnp.stack([jnp.sum(jnp.where(on, x, 0.0)) for x in (taken, reg)]) / mean_length

    of_row = [[flat_rows(row_terms(params, traj.tokens[b], mask[b])) for b in g] for g in rows]
    out = {n: np.zeros((GROUPS, 2, of_row[0][0].shape[1])) for n in ("task", "task_half", "reg")}
    for g in range(GROUPS):
        for m in range(4):
            score_gradient, reg = of_row[g][m]
            out["task"][g, m // 2] -= whole[g, m] * score_gradient / 2
            out["task_half"][g, m // 2] -= half[g, m] * score_gradient / 2
            out["reg"][g, m // 2] += reg / 2
    return out


def flat_rows(tree) -> np.ndarray:
    return np.concatenate([np.asarray(x).reshape(2, -1) for x in jax.tree.leaves(tree)], axis=1)


def test_buckets_equal_gradients_taken_row_by_row(setting, oracle) -> None:
    params, reference, traj = setting
    before = jax.tree.map(np.array, params)
    buckets = analyse_gradients({"policy": params}, traj, spec=SPEC, reference=reference)
    jax.tree.map(np.testing.assert_array_equal, params, before)
    spread = np.std(np.asarray(traj.score).reshape(GROUPS, MEMBERS)[:, :4], axis=1, ddof=1)
    order = np.argsort(spread)
    assert [b.name for b in buckets] == ["bucket_1", "bucket_2", "all"]
    assert [b.prompts for b in buckets[:2]] == [(order[0],), tuple(order[1:])]
    assert sorted(buckets[2].prompts) == [0, 1, 2]
    for bucket in buckets:
        chosen = list(bucket.prompts)
        for part in ("task", "reg"):
            norm = np.linalg.norm(oracle[part][chosen].mean(axis=(0, 1)))
            assert bucket.norms[part] == pytest.approx(norm, rel=2e-4)
        expected = half_moments(jnp.asarray(oracle["task_half"][chosen], jnp.float32))
        signal, noise = map(float, signal_and_noise(expected))
        scale = float(expected.square.mean())
        assert bucket.signal[0] == pytest.approx(signal, abs=1e-3 * scale)
        assert bucket.noise[0] == pytest.approx(noise, abs=1e-3 * scale)
        assert bucket.snr[0] == pytest.approx(signal / noise, rel=0.01, abs=1e-3)
        reg, _ = signal_and_noise(half_moments(jnp.asarray(oracle["reg"][chosen], jnp.float32)))
        assert bucket.reg[0] == pytest.approx(float(reg), rel=1e-3)
        assert bucket.reward_std[0] == pytest.approx(spread[chosen].mean(), rel=1e-5)
        for value, low, high in (bucket.signal, bucket.noise, bucket.reg):
            assert low <= value <= high or len(chosen) == 1


def test_parts_do_not_mix_on_long_rows() -> None:
    """At the reference itself the KL has no gradient, whatever the task's is."""
    model = ModelConfig(
        vocab_size=23, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=32,
    )  # fmt: skip
    params, traj = (
        init_params(model, jax.random.key(0)),
        random_trajectories(0, groups=1, members=8, slots=300),
    )
    spec = replace(SPEC, update=replace(SPEC.update, model=model, micro_batch_size=4))
    norms = analyse_gradients({"policy": params}, traj, spec=spec, reference=params)[-1].norms
    assert norms["task"] > 1
    assert norms["kl"] < 1e-5
    assert norms["reg"] == pytest.approx(norms["entropy"], rel=1e-4)


def test_sketches_agree_and_microbatches_do_not_matter(setting) -> None:
    params, reference, traj = setting
    full = analyse_gradients({"policy": params}, traj, spec=SPEC, reference=reference)[-1]
    single = replace(SPEC, update=replace(SPEC.update, micro_batch_size=1))
    again = analyse_gradients({"policy": params}, traj, spec=single, reference=reference)[-1]
    assert again.signal[0] == pytest.approx(full.signal[0], rel=1e-3)
    assert again.norms == pytest.approx(full.norms, rel=1e-3)
    sketched = analyse_gradients(
        {"policy": params}, traj, spec=replace(SPEC, method="sketch"), reference=reference
    )[-1]
    assert sketched.noise[0] == pytest.approx(full.noise[0], rel=0.15)
    assert sketched.norms["reg"] == pytest.approx(full.norms["reg"], rel=0.1)


def test_fixed_buckets_and_what_is_refused(setting) -> None:
    params, reference, traj = setting
    fixed = replace(SPEC, bucket_mode="fixed_rv")
    names = [b.name for b in analyse_gradients({"policy": params}, traj, spec=fixed, reference=reference)]
    spread = np.std(np.asarray(traj.score).reshape(GROUPS, MEMBERS)[:, :4], axis=1, ddof=1)
    assert names[:-1] == [f"bucket_{b + 1}" for b in range(6) if (np.minimum(spread, 5.5) // 1 == b).any()]
    with pytest.raises(ValueError, match="reference"):
        analyse_gradients({"policy": params}, traj, spec=SPEC)
    with pytest.raises(ValueError, match=r"gradients.group_size is 3; .* at least 4"):
        analyse_gradients(
            {"policy": params}, random_trajectories(0, members=3), spec=SPEC, reference=reference
        )


# One of two processes that hold half of the weights each: python -c SHARED PORT PROCESS.
SHARED = """
import json, sys
from dataclasses import replace
from functools import partial
import jax
from batches import TINY, random_trajectories
from test_gradient_analysis import GROUPS, MEMBERS, SPEC
from ragen_jax import parallel
from ragen_jax.models import init_params
from ragen_jax.rl.gradient_analysis import analyse_gradients
from ragen_jax.rl.layout import laid_out

parallel.start(coordinator=f"127.0.0.1:{sys.argv[1]}", processes=2, process=int(sys.argv[2]), timeout=120)
placement = parallel.make_placement(parallel.ParallelSection(fsdp=2))
model = replace(TINY, placement=placement)
everywhere = partial(parallel.everywhere, placement=placement)
params, reference = (laid_out(partial(init_params, model), model, everywhere(jax.random.key(s))) for s in (0, 1))
assert not params["embed"]["weight"].is_fully_replicated
traj = everywhere(random_trajectories(0, groups=GROUPS, members=MEMBERS))
buckets = analyse_gradients(
    {"policy": params}, traj, spec=replace(SPEC, update=replace(SPEC.update, model=model)), reference=reference,
    key=everywhere(jax.random.key(5)),
)
print("FOUND", json.dumps([[b.prompts, b.metrics()] for b in buckets]), flush=True)
"""


@pytest.mark.slow
def test_processes_that_share_the_weights_find_what_one_finds(setting) -> None:
    params, reference, traj = setting
    ended = together(2, "-c", SHARED, "PORT", "PROCESS")
    assert [code for code, _ in ended] == [0, 0], "\n".join(text[-3000:] for _, text in ended)
    said = [
        next(x for x in text.splitlines() if x.startswith("FOUND")).removeprefix("FOUND ")
        for _, text in ended
    ]
    assert said[0] == said[1]
    alone = analyse_gradients({"policy": params}, traj, spec=SPEC, reference=reference, key=jax.random.key(5))
    found = json.loads(said[0])
    assert [prompts for prompts, _ in found] == [list(b.prompts) for b in alone]
    for (_, metrics), bucket in zip(found, alone, strict=True):
        scale = max(bucket.noise[0], bucket.norms["task"] ** 2)
        for name, value in bucket.metrics().items():
            slack = 1e-2 * abs(value) if "/snr" in name else 1e-4 * scale + 1e-3 * abs(value)
            assert metrics[name] == pytest.approx(value, abs=slack, nan_ok=True), name
