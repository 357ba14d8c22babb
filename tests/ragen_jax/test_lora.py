"""Adapters: identity at the start, the formula, gradients, validation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models import ModelConfig, forward, init_params
from ragen_jax.models.lora import MATRICES, LoraConfig, init_lora, lora_specs, merge

CFG = ModelConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=24,
)  # fmt: skip
PARAMS = init_params(CFG, jax.random.key(0))
FORWARD = jax.jit(forward, static_argnums=1)
TOKENS = jnp.arange(10).reshape(2, 5) % CFG.vocab_size


def random_adapters(lora: LoraConfig) -> dict:
    adapters = init_lora(CFG, lora, jax.random.key(1))
    leaves, tree = jax.tree.flatten(adapters)
    return tree.unflatten([jax.random.normal(jax.random.key(i), w.shape) for i, w in enumerate(leaves)])


def test_fresh_adapters_change_nothing() -> None:
    params = PARAMS
    lora = LoraConfig(rank=4)
    adapters = init_lora(CFG, lora, jax.random.key(1))
    assert all(float(jnp.abs(adapters["layers"][t]["a"]).min()) > 0 for t in MATRICES)
    merged = jax.jit(merge, static_argnums=2)(params, adapters, lora)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, merged, params)


@pytest.mark.parametrize("target", MATRICES)
def test_merged_matrix_is_base_plus_scaled_product(target: str) -> None:
    params = PARAMS
    lora = LoraConfig(rank=3, alpha=7.0, targets=(target,))
    adapters = random_adapters(lora)
    merged = merge(params, adapters, lora)
    for layer in range(CFG.num_hidden_layers):
        base = np.asarray(params["layers"][target][layer], np.float64)
        a = np.asarray(adapters["layers"][target]["a"][layer], np.float64)
        b = np.asarray(adapters["layers"][target]["b"][layer], np.float64)
        x = np.linspace(-1, 1, base.shape[0])
        expected = x @ base + (x @ a) @ b * 7.0 / 3
        np.testing.assert_allclose(x @ np.asarray(merged["layers"][target][layer]), expected, atol=1e-4)
    for other in params["layers"].keys() - {target}:
        assert merged["layers"][other] is params["layers"][other]
    changed = FORWARD(merged, CFG, TOKENS) - FORWARD(params, CFG, TOKENS)
    assert float(jnp.abs(changed).max()) > 1e-3


def test_gradient_reaches_adapters_only_and_matches_a_difference() -> None:
    params = PARAMS
    lora = LoraConfig(rank=2, targets=("q", "down"))
    adapters = init_lora(CFG, lora, jax.random.key(1))

    @jax.jit
    def loss(adapters: dict) -> jax.Array:
        return jnp.mean(jnp.square(forward(merge(params, adapters, lora), CFG, TOKENS) - 1.0))

    grads = jax.grad(loss)(adapters)
    assert jax.tree.structure(grads) == jax.tree.structure(adapters)
    for target in lora.targets:  # B = 0 shuts A off at the start, as it should
        assert float(jnp.abs(grads["layers"][target]["a"]).max()) == 0
        assert float(jnp.abs(grads["layers"][target]["b"]).max()) > 1e-5
    step = jax.tree.map(lambda g: -0.01 * g, grads)
    moved = jax.tree.map(jnp.add, adapters, step)
    predicted = sum(float(jnp.vdot(g, s)) for g, s in zip(*map(jax.tree.leaves, (grads, step)), strict=True))
    assert float(loss(moved) - loss(adapters)) == pytest.approx(predicted, rel=0.05)


def test_specs_describe_the_tree() -> None:
    lora = LoraConfig(rank=4)
    adapters = init_lora(CFG, lora, jax.random.key(0))
    specs = lora_specs(CFG, lora)
    assert len(jax.tree.leaves(adapters)) == len(specs) == 2 * len(MATRICES)
    for (group, target, part), spec in specs.items():
        leaf = adapters[group][target][part]
        assert leaf.shape == (CFG.num_hidden_layers, *spec.shape)
        assert leaf.dtype == jnp.float32
        assert len(spec.axes) == 2
        assert spec.axes.count(None) == 1
    assert specs["layers", "q", "a"].hf_name.format(layer=1) == (
        "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rank": 0}, "lora.rank"),
        ({"alpha": 0.0}, "lora.alpha"),
        ({"alpha": float("nan")}, "lora.alpha"),
        ({"targets": ()}, "lora.targets"),
        ({"targets": ("q", "q")}, "lora.targets"),
        ({"targets": ("q_proj",)}, "q_proj"),
    ],
)
def test_bad_configurations_are_named(fields: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LoraConfig(**fields)


def test_rank_beyond_a_matrix_is_named() -> None:
    with pytest.raises(ValueError, match=r"rank is 9, but k is only 16 x 8"):
        init_lora(CFG, LoraConfig(rank=9, targets=("k",)), jax.random.key(0))
