"""The update as a whole: what it may not depend on, what it leaves alone, and how often it compiles."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from batches import TINY, random_trajectories

from ragen_jax.models import forward, init_params, unembedding
from ragen_jax.rl import Objective, OptimConfig, TrainState, UpdateSpec, grpo_advantages, init_state, update
from ragen_jax.rollout import SAMPLED

GRPO = UpdateSpec(
    TINY, Objective(adv_estimator="grpo", entropy_coeff=0.01), OptimConfig(lr=1e-2, critic_lr=1e-2), TINY.vocab_size,
    max_sampled=30, mini_batch_size=16, micro_batch_size=4, length_buckets=1,
)  # fmt: skip
PPO = replace(GRPO, objective=Objective(adv_estimator="gae", entropy_coeff=0.01))
ALL = jnp.ones(4, bool)


def start(spec: UpdateSpec, seed: int = 0) -> TrainState:
    policy = init_params(TINY, jax.random.key(seed))
    return init_state(
        TINY, policy, spec.optim, lora=None, critic=spec.objective.uses_critic, key=jax.random.key(seed)
    )


compiled = jax.jit(update, static_argnames="spec")


def run(spec: UpdateSpec, traj, keep=ALL, state: TrainState | None = None, **kwargs):
    return compiled(state or start(spec), traj, keep, spec=spec, **kwargs)


def close(a, b, atol: float = 2e-6) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


@pytest.mark.parametrize(
    ("spec", "mode"), [(GRPO, "token-mean"), (PPO, "seq-mean-token-mean")], ids=["grpo", "ppo"]
)
def test_microbatch_size_padding_and_buckets_do_not_matter(spec: UpdateSpec, mode: str) -> None:
    spec = replace(spec, objective=replace(spec.objective, loss_agg_mode=mode), mini_batch_size=8)
    traj = random_trajectories(0)
    expected, tally = run(spec, traj)
    wider = replace(
        traj,
        **{n: jnp.pad(getattr(traj, n), ((0, 0), (0, 11))) for n in ("tokens", "role", "turn", "logprob")},
    )
    for other, batch in (
        (replace(spec, micro_batch_size=2), traj),
        (replace(spec, length_buckets=3), wider),
    ):
        got, seen = run(other, batch)
        close(got.trainable, expected.trainable, atol=1e-5)
        for name, value in tally.means().items():
            assert seen.means()[name] == pytest.approx(value, abs=1e-4), name


def test_gradient_equals_rows_one_by_one_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: each row alone, cut to its length, log-softmax over the whole vocabulary, loss by the formula."""
    traj = random_trajectories(1, groups=2, members=3)
    params = init_params(TINY, jax.random.key(3))
    adv = np.asarray(grpo_advantages(traj.score.reshape(2, 3))).reshape(-1)
    rows = [np.asarray(traj.tokens[b, : int(traj.length[b])]) for b in range(6)]
    masks = [np.asarray(traj.role[b, : int(traj.length[b])]) == SAMPLED for b in range(6)]
    total = sum(m.sum() for m in masks)

    def loss(params):
        out = 0.0
        for b in range(6):
            hidden = forward(params, TINY, jnp.asarray(rows[b])[None])[0]
            logp = jax.nn.log_softmax(hidden @ unembedding(params, TINY).T)
            slots = np.flatnonzero(masks[b])
            taken = logp[slots - 1, rows[b][slots]]
            ratio = jnp.exp(taken - jax.lax.stop_gradient(taken))  # 1, so no clip is active
            minus_entropy = jnp.sum(jnp.exp(logp[slots - 1]) * logp[slots - 1], axis=1)
            out += jnp.sum(-adv[b] * ratio + 0.01 * minus_entropy)
        return out / total

    expected = jax.jit(jax.grad(loss))(params)
    norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(expected)))
    # Plain gradient descent in place of AdamW, so that the change of the parameters is the gradient.
    sgd = optax.partition(
        {"policy": optax.sgd(1.0)}, lambda tree: {"policy": jax.tree.map(lambda _: "policy", tree["policy"])}
    )
    monkeypatch.setattr("ragen_jax.rl.learner.optimiser", lambda cfg: sgd)
    state = TrainState({"policy": params}, sgd.init({"policy": params}), jnp.int32(0), jnp.int32(0))
    after, tally = update(state, traj, ALL[:2], spec=GRPO)
    change = jax.tree.map(lambda a, b: a - b, params, after.trainable["policy"])
    close(change, expected, atol=1e-6)
    assert tally.means()["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("spec", [GRPO, PPO], ids=["grpo", "ppo"])
def test_filtered_groups_might_as_well_not_exist(spec: UpdateSpec) -> None:
    traj = random_trajectories(2)
    keep = jnp.array([True, False, True, False])
    rows = np.flatnonzero(np.repeat(np.asarray(keep), 4))
    alone = jax.tree.map(lambda x: x[rows], traj)
    expected, _ = run(spec, alone, jnp.ones(2, bool))
    got, _ = run(spec, traj, keep)
    close(got.trainable, expected.trainable)
    # Whatever a dropped group holds, NaN included, reaches nothing.
    poisoned = replace(traj, reward=jnp.where(jnp.repeat(keep, 4)[:, None], traj.reward, jnp.nan))
    again, tally = run(spec, poisoned, keep)
    close(again.trainable, got.trainable)
    assert all(np.isfinite(v) for v in tally.means().values())


@pytest.mark.parametrize("spec", [GRPO, PPO], ids=["grpo", "ppo"])
def test_nothing_kept_changes_nothing(spec: UpdateSpec) -> None:
    state = start(spec)
    after, tally = run(spec, random_trajectories(3), jnp.zeros(4, bool), state)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert tally.means() == {}


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    traj = random_trajectories(4)
    state = start(GRPO)
    bad = replace(traj, reward=traj.reward.at[0, 0].set(jnp.inf))
    after, _ = run(GRPO, bad, ALL, state)
    jax.tree.map(np.testing.assert_array_equal, after.trainable, state.trainable)
    assert int(after.skipped) == 1
    assert int(after.updates) == 0


def test_only_sampled_tokens_are_learned_from() -> None:
    """With every advantage positive, each sampled token's probability rises; a row without any leaves no trace."""
    traj = random_trajectories(5)
    silent = replace(traj, role=jnp.where(traj.role == SAMPLED, 1, traj.role).astype(jnp.uint8))
    state = start(replace(GRPO, optim=OptimConfig(lr=1e-2, weight_decay=0.0)))
    spec = replace(
        GRPO, optim=OptimConfig(lr=1e-2, weight_decay=0.0), objective=Objective(entropy_coeff=0.01)
    )
    after, tally = run(spec, silent, ALL, state)
    close(after.trainable, state.trainable, atol=0)
    assert tally.means()["actor/grad_norm"] == 0
    moved, _ = run(spec, traj, ALL, state)
    assert any(
        bool(jnp.any(a != b))
        for a, b in zip(*map(jax.tree.leaves, (moved.trainable, state.trainable)), strict=True)
    )


def test_epochs_and_minibatches_make_the_steps() -> None:
    spec = replace(GRPO, mini_batch_size=4, ppo_epochs=2)
    after, _ = run(spec, random_trajectories(6), jnp.array([True, True, False, True]))
    assert int(after.updates) == 2 * 3


def test_one_compilation_for_every_outcome_of_the_filter() -> None:
    traces = 0

    def counted(*args):
        nonlocal traces
        traces += 1
        return update(*args, spec=GRPO)

    f = jax.jit(counted)
    state, traj = start(GRPO), random_trajectories(7)
    for keep in ([1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1]):
        f(state, traj, jnp.array(keep, bool))
    assert traces == 1


def test_kl_needs_a_reference_and_pulls_toward_it() -> None:
    objective = Objective(use_kl_loss=True, kl_loss_coef=10.0, entropy_coeff=0.0, constant_reward_tol=1e9)
    spec = replace(GRPO, objective=objective)  # the tolerance makes every advantage 0: only the KL acts
    traj, state = random_trajectories(8), start(spec)
    with pytest.raises(ValueError, match="use_kl_loss"):
        update(state, traj, ALL, spec=spec)
    reference = init_params(TINY, jax.random.key(9))
    values = []
    for _ in range(4):
        state, tally = run(spec, traj, ALL, state, reference=reference)
        values.append(tally.means()["actor/kl_loss"])
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0, 1, 2, 2, 2, 2, 2]),
        ("linear", [0, 1, 2, 1.5, 1, 0.5, 0]),
        ("cosine", [0, 1, *(1 + np.cos(np.pi * np.arange(5) / 4))]),
    ],
)
def test_learning_rates(schedule: str, expected: list[float]) -> None:
    config = OptimConfig(schedule=schedule, warmup_steps=2, decay_steps=6)
    rate = config.learning_rate(2.0)
    np.testing.assert_allclose([float(rate(i)) for i in range(7)], expected, atol=1e-6)
    if schedule != "constant":
        with pytest.raises(ValueError, match=f"optim.decay_steps is 2; with the {schedule} schedule"):
            replace(config, decay_steps=2)


def test_rows_can_be_kept_without_their_group() -> None:
    """Statistics are of the whole group, the loss and its denominators of the rows kept."""
    traj = random_trajectories(9)
    rows = np.random.default_rng(0).random(16) < 0.5
    state = start(GRPO)
    after, _ = run(GRPO, traj, jnp.asarray(rows), state)
    silent = replace(
        traj,
        role=jnp.where(jnp.asarray(rows)[:, None], traj.role, jnp.minimum(traj.role, 1)).astype(jnp.uint8),
    )
    expected, _ = run(GRPO, silent, ALL, state)  # token-mean: rows without sampled tokens weigh nothing
    close(after.trainable, expected.trainable, atol=1e-5)
    with pytest.raises(ValueError, match="keep has 5 entries"):
        update(state, traj, jnp.ones(5, bool), spec=GRPO)


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_importance_weights_make_up_for_the_sampler(kind: str) -> None:
    """A sampler at the policy's own log-probs: weight 1, correlation 1. At half the probability: 2, cut off at 1.25."""
    traj = random_trajectories(10)
    spec = replace(GRPO, objective=Objective(rollout_is=kind, rollout_is_threshold=1.25))
    state = start(spec)
    params = state.trainable["policy"]
    logits = forward(params, TINY, traj.tokens) @ unembedding(params, TINY).T
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits)[:, :-1], traj.tokens[:, 1:, None], axis=2)[..., 0]
    own = jnp.where(traj.loss_mask, jnp.pad(logp, ((0, 0), (1, 0))), 0.0)
    _, tally = run(spec, replace(traj, logprob=own), ALL, state)
    assert tally.means()["actor/rollout_is_weight"] == pytest.approx(1, abs=1e-4)
    assert tally.means()["rollout/sampler_logprob_corr"] == pytest.approx(1, abs=1e-3)
    assert tally.means()["rollout/sampler_logprob_diff_max"] < 1e-4
    _, tally = run(spec, replace(traj, logprob=own - jnp.log(2.0)), ALL, state)
    assert tally.means()["actor/rollout_is_weight"] == pytest.approx(1.25, abs=1e-4)
    assert tally.means()["rollout/sampler_logprob_diff_mean"] == pytest.approx(np.log(2), abs=1e-4)
    noise = jnp.asarray(np.random.default_rng(0).normal(size=own.shape), jnp.float32)
    _, tally = run(spec, replace(traj, logprob=own + noise), ALL, state)
    mask = np.asarray(traj.loss_mask)
    expected = np.corrcoef(np.asarray(own)[mask], np.asarray(own + noise)[mask])[0, 1]
    assert tally.means()["rollout/sampler_logprob_corr"] == pytest.approx(expected, abs=1e-3)


def test_rows_of_a_broken_gradient_are_named() -> None:
    traj = random_trajectories(4)
    bad = replace(traj, reward=traj.reward.at[0, 0].set(jnp.inf))
    spec = replace(GRPO, mini_batch_size=8, micro_batch_size=2)
    after, tally = run(spec, bad, ALL)
    assert (int(after.skipped), int(after.updates)) == (1, 1)
    named = np.flatnonzero(tally.nonfinite)
    assert set(named) <= set(range(8))  # of the minibatch at fault
    assert set(named) >= {0, 1, 2, 3}  # the group's advantages are not numbers


def test_bad_batch_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mini_batch_size"):
        replace(GRPO, mini_batch_size=6)
