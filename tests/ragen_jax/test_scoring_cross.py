"""`cross_score` against scoring every concatenation, on one device and on eight simulated ones."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import child_environment

from ragen_jax.models.config import Llama3Rope, ModelConfig
from ragen_jax.models.transformer import abstract_params, forward, init_params, unembedding
from ragen_jax.scoring import Contexts, Traces, cross, cross_marginals, cross_score, packing

TINY = ModelConfig(
    vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=24,
)  # fmt: skip
UNTIED = ModelConfig(
    vocab_size=53, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
    head_dim=6, intermediate_size=20, tie_word_embeddings=False, attention_bias=True, rope_theta=500.0,
    rope_scaling=Llama3Rope(8.0, 1.0, 4.0, 16),
)  # fmt: skip


def random_params(cfg, seed=0):
    """Initial parameters with every weight made to matter: biases and norms random too."""
    params = init_params(cfg, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda w: w + jnp.asarray(rng.normal(size=w.shape) * 0.2, w.dtype), params)


def batch(cfg, p=3, g=2, lx=11, t=9, seed=0, j=None):
    """Ragged contexts and traces that include context lengths 1 and Lx, and trace lengths 0, 1 and T."""
    rng = np.random.default_rng(seed)
    j = j or p
    context_length = rng.integers(1, lx + 1, j)
    context_length[:2] = 1, lx
    trace_length = rng.integers(0, t + 1, (p, g))
    trace_length.flat[:3] = 0, 1, t
    contexts = Contexts(
        jnp.asarray(rng.integers(0, cfg.vocab_size, (j, lx)), jnp.int32),
        jnp.asarray(context_length, jnp.int32),
    )
    traces = Traces(
        jnp.asarray(rng.integers(0, cfg.vocab_size, (p, g, t)), jnp.int32),
        jnp.asarray(trace_length, jnp.int32),
    )
    return contexts, traces


def concatenated(logits_of, contexts, traces, temperature=1.0, valid=None):
    """L from the logits of each concatenation, one at a time."""
    (p, g, _), j = traces.tokens.shape, contexts.tokens.shape[0]
    scores = np.zeros((p, g, j))
    for index in np.ndindex(p, g, j):
        x = np.asarray(contexts.tokens[index[2], : contexts.length[index[2]]])
        z = np.asarray(traces.tokens[index[:2]][: traces.length[index[:2]]])
        logits = np.asarray(logits_of(np.concatenate([x, z])), np.float64)[:, :valid] / temperature
        logp = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        logp -= logits.max(1, keepdims=True)
        scores[index] = sum(logp[len(x) + i - 1, token] for i, token in enumerate(z))
    return scores


def by_forward(params, cfg, capacity):
    """Logits by the training forward of one row, padded on the right to one shape."""

    @jax.jit
    def logits(row):
        return forward(params, cfg, row[None])[0] @ unembedding(params, cfg).T

    return lambda row: logits(np.pad(row, (0, capacity - len(row))))[: len(row)]


def by_numpy(params, cfg):
    """Logits of one row in float64, written out again."""
    w = jax.tree.map(lambda a: np.asarray(a, np.float64), params)

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + cfg.rms_norm_eps) * weight

    def rope(x):
        half = cfg.head_dim // 2
        angle = np.arange(len(x))[:, None, None] * cfg.rope_theta ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
        )

    def logits(row):
        n, repeat = len(row), cfg.num_attention_heads // cfg.num_key_value_heads
        x = w["embed"]["weight"][row]
        for i in range(cfg.num_hidden_layers):
            layer = {name: a[i] for name, a in w["layers"].items()}
            h = norm(x, layer["attn_norm"])
            q, k, v = (
                (h @ layer[s] + layer.get(f"{s}_bias", 0)).reshape(n, -1, cfg.head_dim)
                for s in ("q", "k", "v")
            )
            q, k, v = rope(q), rope(k).repeat(repeat, 1), v.repeat(repeat, 1)
            a = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(cfg.head_dim)
            a = np.exp(np.where(np.tril(np.ones((n, n), bool)), a, -np.inf))
            a = np.einsum("hqk,khd->qhd", a / a.sum(-1, keepdims=True), v).reshape(n, -1)
            x = x + a @ layer["o"]
            h = norm(x, layer["mlp_norm"])
            gate = h @ layer["gate"]
            x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
        head = w["embed" if cfg.tie_word_embeddings else "lm_head"]["weight"]
        return norm(x, w["norm"]["weight"]) @ head.T

    return logits


def test_equals_brute_force_in_numpy():
    params = random_params(TINY)
    contexts, traces = batch(TINY)
    want = concatenated(by_numpy(params, TINY), contexts, traces)
    np.testing.assert_allclose(cross_score(params, TINY, contexts, traces), want, atol=1e-4)


@pytest.mark.parametrize("memory_bytes", [2**28, 160_000, 20_000], ids=["one_stream", "contexts", "streams"])
@pytest.mark.parametrize("cfg", [TINY, UNTIED], ids=["tied", "untied"])
def test_equals_concatenation(cfg, memory_bytes, monkeypatch):
    """Ragged contexts and traces; all at once, contexts in groups, and traces in several streams."""
    monkeypatch.setattr(packing, "_QUERIES", 8)
    monkeypatch.setattr(packing, "_STEP_TOKENS", 16)
    params = random_params(cfg)
    contexts, traces = batch(cfg, p=5, g=3, lx=13, t=21)
    traces = Traces(traces.tokens % 50, traces.length)
    plan = packing.make_plan(cfg, 5, 13, 15, 21, memory_bytes)
    kind = (plan.contexts == 5, plan.traces == 15)
    assert kind == {2**28: (True, True), 160_000: (False, True), 20_000: (False, False)}[memory_bytes], plan
    options = {"temperature": 0.7, "valid_vocab": 50}
    got = np.asarray(cross_score(params, cfg, contexts, traces, **options, memory_bytes=memory_bytes))
    want = concatenated(by_forward(params, cfg, 34), contexts, traces, *options.values())
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert np.all(got[np.asarray(traces.length) == 0] == 0)


@pytest.mark.parametrize(("t", "j"), [(1, 3), (2, 3), (4, 1), (4, 7)])
def test_short_traces_and_other_numbers_of_contexts(t, j):
    params = random_params(TINY)
    contexts, traces = batch(TINY, lx=5, t=4, j=max(j, 2))
    contexts = Contexts(contexts.tokens[:j], contexts.length[:j])
    traces = Traces(traces.tokens[..., :t], jnp.minimum(traces.length, t))
    want = concatenated(by_forward(params, TINY, 9), contexts, traces)
    np.testing.assert_allclose(cross_score(params, TINY, contexts, traces), want, atol=1e-4)


def test_padding_has_no_effect_and_lengths_are_traced(monkeypatch):
    """Other padding ids: the same bits. Other lengths, tokens, temperature: no new trace of the program."""
    count = []
    real = cross.score
    monkeypatch.setattr(cross, "score", lambda *a: count.append(None) or real(*a))
    params = random_params(TINY)
    contexts, traces = batch(TINY, lx=12, t=10)
    beyond_context = jnp.arange(12) >= contexts.length[:, None]
    beyond_trace = jnp.arange(10) >= traces.length[..., None]
    first = cross_score(params, TINY, contexts, traces)
    others = [(0, 0), (TINY.vocab_size - 1, 7)]
    for x, z in others:
        again = cross_score(
            params,
            TINY,
            Contexts(jnp.where(beyond_context, x, contexts.tokens), contexts.length),
            Traces(jnp.where(beyond_trace, z, traces.tokens), traces.length),
        )
        np.testing.assert_array_equal(first, again)
    for seed, temperature in ((1, 0.5), (2, 2)):
        contexts, traces = batch(TINY, lx=12, t=10, seed=seed)
        cross_score(params, TINY, contexts, traces, temperature=temperature)
    assert len(count) == 1


def test_layout_of_the_stream_by_hand():
    tokens = jnp.array([[1, 2, 3, 4], [5, 0, 0, 0], [0, 0, 0, 0], [6, 7, 8, 0]])
    stream = packing.make_stream(tokens, jnp.array([4, 1, 0, 3]), chunk=8)
    assert stream.used == 5
    assert stream.tokens[:5].tolist() == [1, 2, 3, 6, 7]
    assert stream.target[:5].tolist() == [2, 3, 4, 7, 8]
    assert stream.position[:5].tolist() == [0, 1, 2, 0, 1]
    assert stream.segment.tolist() == [0, 0, 0, 3, 3] + [-1] * 11
    assert stream.start[0] == 0
    assert stream.start[3] == 3


def test_lengths_out_of_range_are_flagged():
    params = random_params(TINY)
    contexts, traces = batch(TINY)
    clean = cross_score(params, TINY, contexts, traces)
    contexts = Contexts(contexts.tokens, contexts.length.at[2].set(0))
    traces = Traces(traces.tokens, traces.length.at[1, 1].set(10))
    scores = cross_score(params, TINY, contexts, traces)
    bad = np.zeros(scores.shape, bool)
    bad[1, 1] = bad[..., 2] = True
    np.testing.assert_array_equal(np.isnan(scores), bad)
    np.testing.assert_allclose(scores[~bad], clean[~bad], atol=1e-5)


def test_an_id_that_does_not_count_scores_minus_infinity():
    params = random_params(TINY)
    contexts, _ = batch(TINY)
    traces = Traces(jnp.array([[[5, 60, 5]], [[60, 5, 5]], [[5, 5, 60]]]), jnp.array([[3], [3], [2]]))
    scores = cross_score(params, TINY, contexts, traces, valid_vocab=60)
    assert np.isneginf(scores[:2]).all()
    assert np.isfinite(scores[2]).all()
    marginals = cross_marginals(params, TINY, contexts, traces, valid_vocab=60)
    assert np.isneginf(marginals.marginal[:2]).all()
    assert np.isneginf(marginals.matched[:2]).all()


def test_marginals():
    params = random_params(TINY)
    contexts, traces = batch(TINY, p=4)
    scores = np.asarray(cross_score(params, TINY, contexts, traces, temperature=0.8), np.float64)
    got = cross_marginals(params, TINY, contexts, traces, temperature=0.8)
    np.testing.assert_allclose(got.matched, scores[np.arange(4), :, np.arange(4)], atol=1e-5)
    np.testing.assert_allclose(got.marginal, np.log(np.exp(scores).mean(-1)), atol=1e-4)


def test_inside_another_jit():
    params = random_params(TINY)
    contexts, traces = batch(TINY)
    inner = jax.jit(lambda *a: cross_score(a[0], TINY, *a[1:]).sum())(params, contexts, traces)
    np.testing.assert_allclose(inner, cross_score(params, TINY, contexts, traces).sum(), rtol=1e-5)


def test_bfloat16_policy_is_scored_in_float32():
    cfg = ModelConfig(**{**vars(TINY), "dtype": "bfloat16"})
    params = random_params(TINY)
    contexts, traces = batch(TINY)
    got, want = cross_score(params, cfg, contexts, traces), cross_score(params, TINY, contexts, traces)
    assert got.dtype == jnp.float32
    tokens = np.maximum(traces.length, 1)[..., None]
    assert 0 < np.abs((got - want) / tokens).max() < 0.2


def test_memory_follows_the_budget():
    """Temporaries stay within the budget, and far under the keys and values that concatenation would hold."""
    cfg = ModelConfig(
        vocab_size=8192, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=256,
    )  # fmt: skip
    p, g, lx, t = 8, 8, 256, 64
    shape = jax.ShapeDtypeStruct
    contexts = Contexts(shape((p, lx), "i4"), shape((p,), "i4"))
    traces = Traces(shape((p, g, t), "i4"), shape((p, g), "i4"))

    def temporaries(memory_bytes):
        arguments = (abstract_params(cfg), contexts, traces, shape((), "f4"))
        lowered = cross._program.lower(*arguments, cfg, False, None, None, (), memory_bytes)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    small, large = temporaries(8 * 2**20), temporaries(64 * 2**20)
    assert small < 8 * 2**20
    assert small < large < 64 * 2**20
    logits_of_one_context = p * g * t * cfg.vocab_size * 4
    assert large < logits_of_one_context / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": lambda c, t: (Contexts(c.tokens, c.length[:2]), t)}, "contexts"),
        ({"contexts": lambda c, t: (c, Traces(t.tokens, t.length[:, :1]))}, "traces"),
        ({"contexts": lambda c, t: (c, Traces(t.tokens[:, :0], t.length[:, :0]))}, "traces.tokens is emp"),
        ({"axis_names": ("model",)}, "axis_names"),
    ],
)
def test_errors_name_what_does_not_fit(change, message):
    contexts, traces = change.pop("contexts", lambda c, t: (c, t))(*batch(TINY))
    if "axis_names" in change:
        change["mesh"] = jax.make_mesh((1,), ("data",))
    with pytest.raises(ValueError, match=message):
        cross_score(abstract_params(TINY), TINY, contexts, traces, **change)


def test_marginals_need_a_context_a_prompt():
    contexts, traces = batch(TINY, j=4)
    with pytest.raises(ValueError, match="as many prompts"):
        cross_marginals(abstract_params(TINY), TINY, contexts, traces)


DEVICES = """
import jax, numpy as np, jax.numpy as jnp
from test_scoring_cross import TINY, batch, random_params
from ragen_jax.scoring import cross, cross_score, cross_marginals, token_logprobs

assert jax.device_count() == 8
auto = jax.sharding.AxisType.Auto
meshes = {
    "8": (jax.make_mesh((8,), ("data",), axis_types=(auto,)), None),
    "4x2": (jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(auto,) * 2), None),
    "4": (jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(auto,) * 2), ("data",)),
}
params = random_params(TINY)
for p, name in ((8, "8"), (8, "4"), (5, "4x2")):
    contexts, traces = batch(TINY, p=p)
    want = cross_score(params, TINY, contexts, traces), cross_marginals(params, TINY, contexts, traces)
    mesh, axes = meshes[name]
    rows = axes or mesh.axis_names
    place = lambda tree, *spec: jax.device_put(tree, jax.NamedSharding(mesh, jax.P(*spec)))
    placed = place(params), place(contexts, rows) if name == "8" else place(contexts), place(traces)
    for reduce in (False, True):
        static = (TINY, reduce, None, mesh, tuple(rows), 2**28)
        program = cross._program.lower(*placed, jnp.float32(1), *static).compile()
        got = program(*placed, jnp.float32(1))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want[reduce]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4, err_msg=f"{p} {name}")
        kinds = "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "all-reduce"
        moves = [kind for kind in kinds if kind in program.as_text()]
        if reduce:  # P and G numbers a device, and nothing larger
            assert moves == ["all-reduce"], (p, name, moves)
        elif p == 8:
            assert moves == [] and got.sharding.spec == jax.P(None, None, rows), (p, name, moves)
scores = cross_score(placed[0], TINY, *placed[1:], mesh=mesh)
np.testing.assert_allclose(scores, want[0], atol=1e-4)

# token_logprobs under shard_map: the replicated weight's gradient is summed over the rows' axis once
rng = np.random.default_rng(0)
hidden, weight = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((16, 6), (37, 6)))
targets = jnp.asarray(rng.integers(0, 37, 16), jnp.int32)
mesh, rows = meshes["8"][0], jax.P("data")
for blocks in ({}, {"row_block": 1, "vocab_block": 10}):
    def total(h, w, t):
        logprob, entropy = token_logprobs(h, w, t, **blocks)
        return logprob.sum() + 0.3 * entropy.sum()
    def split(h, w, t):
        local = lambda *a: jax.lax.psum(total(*a), "data")
        return jax.shard_map(local, mesh=mesh, in_specs=(rows, jax.P(), rows), out_specs=jax.P())(h, w, t)
    for f in (total, split):
        got = jax.jit(jax.grad(f, (0, 1)))(hidden, weight, targets)
        want = want_grads = got if f is total else want_grads
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    # and under the compiler's own partitioning
    put = lambda x, spec: jax.device_put(x, jax.NamedSharding(mesh, spec))
    got = jax.jit(jax.grad(total, (0, 1)))(put(hidden, rows), put(weight, jax.P()), put(targets, rows))
    for a, b in zip(got, want_grads):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
print("equal")
"""


def test_eight_devices():
    """Meshes of 8, 4 x 2, and 4 with a free axis; P that divides and not; the collectives compiled."""
    env = child_environment(8)
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("equal")
