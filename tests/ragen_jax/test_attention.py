"""The switch between XLA's attention, cuDNN's and the TPU's kernels."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import QWEN2, random_params

from ragen_jax.models import abstract_params, forward


@pytest.mark.parametrize("kernel", ["cudnn", "pallas"])
def test_elsewhere_kernels_are_the_same_as_xla(kernel: str) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("kernels are in use here; benchmarks/gpu.py compares cuDNN's")
    half = dataclasses.replace(QWEN2, dtype="bfloat16", head_dim=64)
    params, tokens = random_params(half), jnp.arange(12).reshape(2, 6)
    xla = forward(params, half, tokens)
    np.testing.assert_array_equal(forward(params, dataclasses.replace(half, attention=kernel), tokens), xla)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": "flash"}, "model.attention is 'flash'; use 'xla', 'cudnn' or 'pallas'"),
        ({"attention": "cudnn"}, "needs model.dtype bfloat16, not float32"),
        ({"attention": "cudnn", "dtype": "bfloat16", "head_dim": 12}, "multiple of 8 up to 128, not 12"),
        ({"attention": "cudnn", "dtype": "bfloat16", "head_dim": 256}, "multiple of 8 up to 128, not 256"),
        ({"attention": "pallas", "head_dim": 80}, "model.attention is 'pallas', .* multiple of 64, not 80"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(QWEN2, **fields)


def test_the_kernel_is_asked_for_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attention(
        q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool, implementation: str | None = None
    ) -> jax.Array:
        asked.append((is_causal, implementation))
        return q

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    half = dataclasses.replace(QWEN2, dtype="bfloat16", attention="cudnn")
    params = abstract_params(QWEN2)
    for cfg in (half, dataclasses.replace(half, attention="xla")):
        jax.eval_shape(lambda p, cfg=cfg: forward(p, cfg, jnp.zeros((1, 4), jnp.int32)), params)
    assert set(asked[: len(asked) // 2]) == {(True, "cudnn")}
    assert set(asked[len(asked) // 2 :]) == {(True, None)}
