"""The TPU's attention kernels in interpret mode, and decoding with stacked layers, against attention written out."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import LLAMA, QWEN2, random_params

from ragen_jax.models import decoding_params, extend, forward, init_cache, spread_cache
from ragen_jax.models.kernels import CACHE_BLOCK, cache_attention, splash_attention, splash_block


def written_out(q: np.ndarray, k: np.ndarray, v: np.ndarray, last: np.ndarray) -> np.ndarray:
    """float64 attention of q [C, Q, H] over k, v [S, K, H], slots 0 .. last[c], one query and head at a time."""
    out = np.empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for c, h in np.ndindex(*q.shape[:2]):
        n, of = last[c] + 1, h // group
        logits = k[:n, of].astype(np.float64) @ q[c, h].astype(np.float64) / np.sqrt(q.shape[2])
        weights = np.exp(logits - logits.max())
        out[c, h] = weights @ v[:n, of] / weights.sum()
    return out


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_splash_and_its_gradient() -> None:
    """A length that no block divides; the gradient against that of attention with every logit."""
    q, k, v = draw(0, 1, 130, 2, 64), draw(1, 1, 130, 1, 64), draw(2, 1, 130, 1, 64)
    kernel = partial(splash_attention, interpret=True)
    plain = partial(jax.nn.dot_product_attention, is_causal=True)
    weight = draw(3, *q.shape)
    out, pull = jax.vjp(kernel, q, k, v)
    np.testing.assert_allclose(out[0], written_out(q[0], k[0], v[0], np.arange(130)), atol=2e-6)
    for ours, theirs in zip(pull(weight), jax.vjp(plain, q, k, v)[1](weight), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("length", "block", "padded"), [(3600, 384, 3840), (4096, 512, 4096), (1024, 512, 1024), (200, 128, 256)]
)
def test_blocks_pad_little(length: int, block: int, padded: int) -> None:
    assert splash_block(length) == (block, padded)


@pytest.mark.parametrize(("new", "starts"), [(1, (0, 255, 256, 511)), (9, (0, 3, 250, 503))])
def test_cache_kernel(new: int, starts: tuple[int, ...]) -> None:
    """Rows of any length, on and beside the borders of blocks; three query heads a key-value head; the right layer."""
    q = draw(0, 4, new, 6, 64)
    k, v = draw(1, 2, 4, 2, 2 * CACHE_BLOCK, 64), draw(2, 2, 4, 2, 2 * CACHE_BLOCK, 64)
    out = cache_attention(q, k, v, jnp.int32(1), jnp.array(starts), interpret=True)
    for row, start in enumerate(starts):
        keys, values = (x[1, row].transpose(1, 0, 2) for x in (k, v))
        expected = written_out(q[row], keys, values, start + np.arange(new))
        np.testing.assert_allclose(out[row], expected, atol=2e-6)


def test_cache_kernel_reads_nothing_beyond_a_row() -> None:
    k = draw(1, 1, 2, 1, 2 * CACHE_BLOCK, 64)
    q, start = draw(0, 2, 1, 2, 64), jnp.array([100, 300])
    spoilt = k.copy()
    spoilt[0, 0, :, 101:], spoilt[0, 1, :, 301:] = 1e30, 1e30
    call = partial(cache_attention, interpret=True)
    same = call(q, spoilt, k, jnp.int32(0), start)
    np.testing.assert_array_equal(call(q, k, k, jnp.int32(0), start), same)


@pytest.mark.parametrize("cfg", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_decoding_equals_the_training_forward(cfg, scan_layers: bool) -> None:
    """A prompt read once and given to two members, which append a chunk of their own and then a token."""
    cfg = dataclasses.replace(cfg, scan_layers=scan_layers)
    params = random_params(cfg)
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, (4, 12))
    tokens[1::2, :5] = tokens[::2, :5]  # members share the prompt
    whole = forward(params, cfg, jnp.asarray(tokens))

    @jax.jit
    def decode(params, tokens):
        weights = decoding_params(params, cfg)
        hidden, cache = extend(weights, cfg, tokens[::2, :5], jnp.zeros(2, jnp.int32), init_cache(cfg, 2, 5))
        parts = [jnp.repeat(hidden, 2, axis=0)]
        cache = spread_cache(cache, 2, 12)
        for start, end in ((5, 11), (11, 12)):
            hidden, cache = extend(weights, cfg, tokens[:, start:end], jnp.full(4, start), cache)
            parts.append(hidden)
        return jnp.concatenate(parts, axis=1)

    np.testing.assert_allclose(decode(params, tokens), whole, atol=2e-5)


def test_a_cache_of_part_of_a_block_is_refused() -> None:
    q, k = draw(0, 1, 1, 2, 64), draw(1, 1, 1, 1, CACHE_BLOCK + 8, 64)
    with pytest.raises(ValueError, match=r"264 slots.*multiple of 256"):
        cache_attention(q, k, k, jnp.int32(0), jnp.zeros(1, jnp.int32), interpret=True)
