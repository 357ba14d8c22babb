"""`token_logprobs` against the plain log-softmax, its gradients against autodiff, and what it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.scoring import logprobs as module
from ragen_jax.scoring import token_logprobs

N, D, V = 13, 6, 37

BLOCKS = {
    "one": {},
    "one_forced": {"row_block": N, "vocab_block": V},
    "rows": {"row_block": 5, "vocab_block": V},
    "vocab": {"row_block": N, "vocab_block": 8},
    "both": {"row_block": 4, "vocab_block": 10},
    "larger": {"row_block": 100, "vocab_block": 1000},
    "single_ids": {"row_block": 3, "vocab_block": 1},
}


def inputs(seed=0, n=N, d=D, v=V, dtype=np.float32):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(n, d)) * 2, dtype)
    weight = jnp.asarray(rng.normal(size=(v, d)), dtype)
    return hidden, weight, jnp.asarray(rng.integers(0, v, n), jnp.int32)


def plain(hidden, weight, targets, temperature=1.0, valid=None):
    logits = hidden.astype(jnp.float32) @ weight.astype(jnp.float32)[:valid].T / temperature
    logp = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logp, targets[:, None], 1)[:, 0], -jnp.sum(jnp.exp(logp) * logp, 1)


@pytest.mark.parametrize(("valid", "temperature"), [(None, 1.0), (29, 0.6)])
@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS.keys())
def test_values_and_both_gradients(blocks, valid, temperature):
    hidden, weight, targets = inputs()
    targets = targets % (valid or V)
    rng = np.random.default_rng(1)
    c_logprob, c_entropy = (jnp.asarray(rng.normal(size=N), jnp.float32) for _ in range(2))

    def loss(score):
        def value(hidden, weight):
            logprob, entropy = score(hidden, weight)
            return c_logprob @ logprob + c_entropy @ entropy, (logprob, entropy)

        return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))

    ours = loss(
        lambda h, w: token_logprobs(h, w, targets, temperature=temperature, valid_vocab=valid, **blocks)
    )
    (_, values), grads = ours(hidden, weight)
    (_, values0), grads0 = loss(lambda h, w: plain(h, w, targets, temperature, valid))(hidden, weight)
    for got, want in zip((*values, *grads), (*values0, *grads0), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if valid:
        assert not np.any(grads[1][valid:])


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_each_output_alone(which):
    """A cotangent of one output only: neither gradient may leak into the other."""
    hidden, weight, targets = inputs(3)
    got = jax.grad(lambda h: token_logprobs(h, weight, targets, row_block=4, vocab_block=9)[which].sum())(
        hidden
    )
    want = jax.grad(lambda h: plain(h, weight, targets)[which].sum())(hidden)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [BLOCKS["one"], BLOCKS["both"]], ids=["one", "both"])
def test_ids_that_do_not_count_have_probability_zero(blocks):
    hidden, weight, _ = inputs()
    targets = jnp.array([-1, 0, 28, 29, 36, 37, 1000] + [5] * (N - 7), jnp.int32)
    logprob, entropy = token_logprobs(hidden, weight, targets, valid_vocab=29, **blocks)
    assert np.isneginf(logprob).tolist() == [True, False, False, True, True, True, True] + [False] * (N - 7)
    assert np.isfinite(entropy).all()


@pytest.mark.parametrize("blocks", [BLOCKS["one"], BLOCKS["both"]], ids=["one", "both"])
def test_extreme_logits(blocks):
    """All mass on one id: log-probability 0, entropy 0, and no NaN in the gradients."""
    hidden, weight, _ = inputs()
    hidden = hidden * 1e4
    top = jnp.argmax(hidden @ weight.T, axis=1).astype(jnp.int32)
    logprob, entropy = token_logprobs(hidden, weight, top, **blocks)
    np.testing.assert_allclose(logprob, 0, atol=1e-2)
    np.testing.assert_allclose(entropy, 0, atol=1e-2)
    grads = jax.grad(lambda h, w: sum(x.sum() for x in token_logprobs(h, w, top, **blocks)), (0, 1))(
        hidden, weight
    )
    assert all(np.isfinite(g).all() for g in grads)


def test_uniform_distribution_by_hand():
    hidden, weight, targets = inputs()
    logprob, entropy = token_logprobs(jnp.zeros_like(hidden), weight, targets, valid_vocab=V, vocab_block=7)
    np.testing.assert_allclose(logprob, -np.log(V), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(V), rtol=1e-6)


@pytest.mark.parametrize("blocks", [BLOCKS["one"], BLOCKS["both"]], ids=["one", "both"])
def test_bfloat16_inputs_are_scored_in_float32(blocks):
    hidden, weight, targets = inputs(dtype=jnp.bfloat16)
    got = token_logprobs(hidden, weight, targets, **blocks)
    want = plain(hidden, weight, targets)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    grads = jax.grad(lambda h, w: token_logprobs(h, w, targets, **blocks)[0].sum(), (0, 1))(hidden, weight)
    assert [g.dtype for g in grads] == [jnp.bfloat16] * 2


def test_no_rows():
    hidden, weight, _ = inputs()
    logprob, entropy = token_logprobs(hidden[:0], weight, jnp.zeros(0, jnp.int32))
    assert logprob.shape == entropy.shape == (0,)


def test_temperature_is_traced():
    hidden, weight, targets = inputs()
    traces = []

    @jax.jit
    def score(temperature):
        traces.append(None)
        return token_logprobs(hidden, weight, targets, temperature=temperature)[0]

    for temperature in (0.5, 1.0, 2.0):
        np.testing.assert_allclose(
            score(temperature), plain(hidden, weight, targets, temperature)[0], rtol=1e-5
        )
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": jnp.zeros(3, jnp.int32)}, "targets"),
        ({"unembedding": jnp.zeros((V, D + 1))}, "unembedding"),
        ({"valid_vocab": V + 1}, "valid_vocab"),
        ({"vocab_block": 0}, "vocab_block"),
    ],
)
def test_errors_name_the_argument(change, message):
    hidden, weight, targets = inputs()
    arguments = {"hidden": hidden, "unembedding": weight, "targets": targets} | change
    with pytest.raises(ValueError, match=message):
        token_logprobs(**arguments)


def test_memory_of_the_blocked_form():
    """Temporaries of forward and backward stay far under the logits' bytes; the plain form's do not."""
    n, d, v = 2048, 32, 16384
    shapes = [jax.ShapeDtypeStruct(s, t) for s, t in (((n, d), "f4"), ((v, d), "f4"), ((n,), "i4"))]

    def temporaries(score):
        def value(hidden, weight, targets):
            return sum(x.sum() for x in score(hidden, weight, targets))

        compiled = jax.jit(jax.value_and_grad(value, (0, 1))).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = n * v * 4
    assert temporaries(lambda *a: token_logprobs(*a, row_block=256, vocab_block=2048)) < logits / 8
    assert temporaries(lambda *a: token_logprobs(*a, row_block=n, vocab_block=v)) >= logits
    assert temporaries(plain) >= logits


def test_default_blocks_keep_to_the_budget():
    for n, v in [(1, 151936), (100, 151936), (4096, 151936), (100000, 49152), (200000, 500), (7, 2**26)]:
        plan = module._plan(n, v, None, None, None)
        assert plan.rows * plan.vocab * 4 <= module.BLOCK_BYTES
        assert plan.rows * plan.row_blocks >= n
        assert plan.vocab * plan.vocab_blocks >= v
        assert plan.single == (n * v * 4 <= module.BLOCK_BYTES)
        # neither a row nor an id more than one block's worth of padding, and no thin blocks
        assert plan.rows * plan.row_blocks < n + plan.row_blocks
        assert plan.rows * plan.vocab * 4 > module.BLOCK_BYTES / 4 or plan.single
