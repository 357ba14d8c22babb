"""Programs compiled by the TPU's own compiler for pods that are not here: they fit, and what does not is refused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs_jax.errors import ConfigError
from ragen_jax.models.config import WeightSpec, weight_specs
from ragen_jax.models.presets import PRESETS
from ragen_jax.parallel import ahead

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu-compile"
)


def compile_for(*arguments: str) -> tuple[int, dict]:
    """Exit code and result of `ragen-jax compile ... --json`, in a process of its own."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ragen_jax.cli", "compile", *arguments, "--json"], env=env, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ahead.preset("qwen2.5-8b"), "--model = 'qwen2.5-8b': did you mean 'qwen2.5"),
        (lambda: ahead.topology("h100:8"), "--topology = 'h100:8': write KIND:AxB"),
    ],
)
def test_unknown_names_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_papers_batch_has_3600_slots():
    prompt, response, observation = ahead.Workload().slots
    assert prompt + 5 * response + 4 * observation == 3600
    assert min(prompt, response, observation) > 100


def test_meshes_fit_the_model():
    """Against the conditions written out: heads, key-value heads or whole copies of them, rows."""
    work = ahead.Workload()
    for name in ("qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-14b"):
        model = PRESETS[name]
        found = {(m.fsdp, m.tensor, bool(m.replicate)) for m in ahead.meshes(model, work, 64)}
        for fsdp, tensor, copies in found:
            assert fsdp * tensor == 64
            assert 128 % fsdp == 0
            assert model.num_attention_heads % tensor == 0
            assert copies == (tensor > model.num_key_value_heads)
        assert (16, 4, False) in found or model.num_key_value_heads < 4


def test_floor_is_two_flops_a_weight_and_token():
    """Of the blocks' weights, in the forward pass (Kaplan et al. 2020); norms and biases hardly count."""
    model = PRESETS["qwen2.5-14b"]
    table = 2 * model.vocab_size * model.hidden_size
    forward = ahead._forward_flops(model, tokens=1000, pairs=0, heads=0)
    assert forward == pytest.approx(2 * (model.num_parameters - table) * 1000)
    assert ahead._forward_flops(model, 0, 0, heads=10) == 2 * model.vocab_size * model.hidden_size * 10


def shard(spec: WeightSpec, layers: int) -> tuple[int, ...]:
    """A weight on one of four chips that split its embedding dimension."""
    own = tuple(n // 4 if axis == "embed" else n for n, axis in zip(spec.shape, spec.axes, strict=True))
    return (layers, *own) if spec.per_layer else own


def tiled(shape: tuple[int, ...]) -> int:
    """Elements with what pads two of the dimensions to tiles of 8 x 128, chosen so that it is least."""
    best = math.prod(shape[:-1]) * (-(-shape[-1] // 128) * 128)
    for row, column in itertools.permutations(range(len(shape)), 2):
        padded = list(shape)
        padded[row], padded[column] = -(-shape[row] // 8) * 8, -(-shape[column] // 128) * 128
        best = min(best, math.prod(padded))
    return best


@pytest.mark.pods
@needs_compiler
def test_a_small_model_compiles_with_its_memory_and_collectives():
    code, found = compile_for(
        "--model", "smollm2-135m", "--topology", "v5e:2x2", "--batch", "2x2", "--turns", "2", "--tokens", "256",
        "--tensor", "1",
    )  # fmt: skip
    assert code == 0
    programs = {p["name"]: p for p in found["programs"]}
    assert set(programs) == set(ahead.PROGRAMS)
    # Masters and two moments of policy and critic, and the reference: 4 bytes a parameter, each on 4 chips.
    model = PRESETS["smollm2-135m"]
    state = (
        4
        * (3 + 3 + 1)
        * sum(tiled(shard(spec, model.num_hidden_layers)) for spec in weight_specs(model).values())
    )
    assert programs["update"]["arguments"] == pytest.approx(state, rel=1e-3)
    plain = 4 * (3 + 3 + 1) * model.num_parameters / 4
    assert programs["rollout"]["arguments"] + programs["rollout"]["other"] == pytest.approx(plain, rel=0.02)
    assert {"all-gather", "all-reduce"} <= set(programs["update"]["collectives"])


@pytest.mark.pods
@needs_compiler
def test_a_search_ends_with_a_mesh_of_all_chips():
    code, found = compile_for(
        "--model", "smollm2-135m", "--topology", "v5e:2x2", "--batch", "2x2", "--turns", "2", "--tokens", "256",
        "--search", "--programs", "rollout",
    )  # fmt: skip
    assert code == 0
    mesh = found["mesh"]
    assert mesh["data"] * mesh["fsdp"] * mesh["tensor"] == 4
    assert [p["fits"] for p in found["programs"]] == [True]


@pytest.mark.pods
@needs_compiler
def test_what_does_not_fit_is_refused_with_the_bytes():
    code, found = compile_for(
        "--model", "qwen2.5-7b", "--topology", "v5e:2x2", "--batch", "2x2", "--programs", "update"
    )
    assert code == 1
    assert not found["programs"][0]["fits"]


@pytest.mark.pods
@needs_compiler
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("model", "topology", "tensor"),
    [
        ("qwen2.5-3b", "v5e:4x4", "2"),
        ("qwen2.5-7b", "v5e:8x8", "4"),
        ("qwen2.5-7b", "v5p:4x4x4", "4"),
        ("qwen2.5-14b", "v5p:4x4x4", "4"),
    ],
)
def test_the_papers_batch_fits(model, topology, tensor):
    code, found = compile_for("--model", model, "--topology", topology, "--tensor", tensor)
    assert [p["name"] for p in found["programs"] if not p["fits"]] == []
    assert code == 0
