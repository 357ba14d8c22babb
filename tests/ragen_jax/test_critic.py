"""Forms of a critic: gradients against the loss as a formula, and what of the policy's weights is kept twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from batches import TINY, random_trajectories
from reference_rl import advantages

from ragen_jax.models import forward, init_params, unembedding
from ragen_jax.models.lora import LoraConfig, merge
from ragen_jax.rl import CriticConfig, Objective, OptimConfig, TrainState, UpdateSpec, init_state, update
from ragen_jax.rollout import SAMPLED
from ragen_jax.training.config import config_from_dict

RANK = LoraConfig(rank=2, targets=("q", "down"))
OWN = LoraConfig(rank=3, targets=("v",))
FORMS = {
    "separate": (CriticConfig(), None),
    "shared": (CriticConfig("shared", vf_coef=0.3), None),
    "shared under lora": (CriticConfig("shared", vf_coef=0.3), RANK),
    "lora": (CriticConfig("lora", OWN), None),
    "lora under lora": (CriticConfig("lora"), RANK),
}
OBJECTIVE = Objective(adv_estimator="gae", entropy_coeff=0.0, whiten_advantages=False)


def noisy(tree: Any, seed: int) -> Any:
    leaves, shape = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return shape.unflatten(
        [x + 0.2 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def start(form: CriticConfig, lora: LoraConfig | None) -> tuple[dict[str, Any], Any]:
    policy = init_params(TINY, jax.random.key(0))
    state = init_state(TINY, policy, OptimConfig(), lora=lora, critic=True, key=jax.random.key(1), form=form)
    return state.trainable, policy


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("separate", "shared under lora") else n for n in FORMS],
)
def test_gradient_equals_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, lora = FORMS[name]
    trainable, policy = start(form, lora)
    trainable = {part: noisy(tree, i) for i, (part, tree) in enumerate(trainable.items())}
    base = None if lora is None else policy
    traj = jax.device_get(random_trajectories(3, groups=2, members=2))
    spec = UpdateSpec(
        TINY, OBJECTIVE, OptimConfig(), TINY.vocab_size, max_sampled=30, mini_batch_size=4, micro_batch_size=2,
        length_buckets=1, lora=lora, critic=form,
    )  # fmt: skip

    def networks(tree: dict[str, Any]) -> tuple[Any, Any]:
        """Parameters of the policy and of the critic's trunk."""
        whole = tree["policy"] if lora is None else merge(policy, tree["policy"], lora)
        if form.kind == "separate":
            return whole, tree["critic"]
        if form.kind == "shared":
            return whole, whole
        under = policy if lora is not None else jax.tree.map(jax.lax.stop_gradient, tree["policy"])
        return whole, merge(under, tree["critic"]["adapters"], form.lora or lora)

    mask = np.asarray(traj.role) == SAMPLED
    ids, inside = np.asarray(traj.tokens), mask[:, 1:]

    @jax.jit
    def scored(tree: dict[str, Any]) -> tuple[Any, Any]:
        """Log-prob of every token but the first, and the value before it."""
        actor, trunk = networks(tree)
        logp = jax.nn.log_softmax(forward(actor, TINY, ids)[:, :-1] @ unembedding(actor, TINY).T)
        head = tree["critic"]["value"]
        value = forward(trunk, TINY, ids)[:, :-1] @ head["weight"] + head["bias"]
        return jnp.take_along_axis(logp, ids[:, 1:, None], axis=-1)[..., 0], value

    old = np.pad(np.where(inside, scored(trainable)[1], 0), ((0, 0), (1, 0)))
    adv = advantages(traj, old, OBJECTIVE, np.ones(4, bool))
    returns = (adv + old)[:, 1:]

    @jax.jit
    @jax.grad
    def gradient(tree: dict[str, Any]) -> Any:
        logp, value = scored(tree)
        ratio = jnp.exp(logp - jax.lax.stop_gradient(logp))
        loss = -adv[:, 1:] * ratio + form.vf_coef * 0.5 * (value - returns) ** 2
        return jnp.sum(jnp.where(inside, loss, 0.0)) / inside.sum()

    expected = gradient(trainable)
    sgd = optax.sgd(1.0)  # so that the change of the parameters is the gradient
    monkeypatch.setattr("ragen_jax.rl.learner.optimiser", lambda cfg: sgd)
    state = TrainState(trainable, sgd.init(trainable), jnp.int32(0), jnp.int32(0))
    after, _ = jax.jit(update, static_argnames="spec")(state, traj, jnp.ones(2, bool), spec=spec, base=base)
    change = jax.tree.map(lambda x, y: x - y, trainable, after.trainable)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), change, expected)
    assert all(float(jnp.abs(g).max()) > 1e-4 for g in jax.tree.leaves(expected["critic"]))


@pytest.mark.parametrize("name", FORMS)
def test_no_weight_of_the_policy_is_kept_twice(name: str) -> None:
    form, lora = FORMS[name]
    trainable, policy = start(form, lora)
    count = sum(x.size for x in jax.tree.leaves(trainable["critic"]))
    head, width, layers = TINY.hidden_size + 1, TINY.hidden_size, TINY.num_hidden_layers
    kv = TINY.num_key_value_heads * TINY.head_dim
    adapters = {
        "lora": layers * 3 * (width + kv),
        "lora under lora": layers * 2 * (width + width + TINY.intermediate_size + width),
    }
    trunk = sum(x.size for group, leaves in policy.items() if group != "lm_head" for x in leaves.values())
    assert count == head + (trunk if name == "separate" else adapters.get(name, 0))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"critic": {"kind": "shared"}},
            "critic.kind = 'shared': algorithm.adv_estimator grpo has no critic",
        ),
        ({"critic": {"kind": "lora"}, "algorithm": {"adv_estimator": "gae"}}, "critic.lora is None"),
        ({"critic": {"lora": {"rank": 2}}, "algorithm": {"adv_estimator": "gae"}}, "critic.lora is set"),
        ({"critic": {"kind": "both"}}, "critic.kind"),
        ({"critic": {"vf_coef": 0}, "algorithm": {"adv_estimator": "gae"}}, "critic.vf_coef is 0"),
        (
            {"critic": {"kind": "lora", "lora": {"rank": 0}}, "algorithm": {"adv_estimator": "gae"}},
            "lora.rank is 0",
        ),
    ],
)
def test_contradictions_are_refused_by_name(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        config_from_dict(sections)


def test_adapters_of_the_policy_serve_the_critic() -> None:
    tree = {"critic": {"kind": "lora"}, "algorithm": {"adv_estimator": "gae"}, "model": {"lora": {"rank": 2}}}
    config = config_from_dict(tree)
    assert config.critic.adapters(config.model.lora) == LoraConfig(rank=2)
    assert replace(config.critic, lora=OWN).adapters(config.model.lora) == OWN
