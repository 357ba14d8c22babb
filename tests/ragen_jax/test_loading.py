"""Hugging Face folders: exact weights, refusals by name; logits equal to those of transformers."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import child_environment
from safetensors.numpy import load_file, save_file
from tiny_models import LLAMA, PLAIN, QWEN2, assert_equal_trees, random_params

from ragen_jax.models import (
    ModelConfig,
    abstract_params,
    forward,
    unembedding,
)
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import save_pretrained
from ragen_jax.models.hf import config_dict, read_config, read_folder
from ragen_jax.models.load import load_model
from ragen_jax.tokenizers import SmallTokenizer


def logits(params: dict[str, Any], cfg: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    @jax.jit
    def run(params: dict[str, Any]) -> jax.Array:
        return forward(params, cfg, jnp.asarray(tokens)) @ unembedding(params, cfg).T

    return np.asarray(run(params))


# -- folders -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cfg", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("shard_bytes", [2**30, 60_000], ids=["single", "sharded"])
def test_saved_folder_reads_back_exactly(tmp_path: Path, cfg: ModelConfig, shard_bytes: int) -> None:
    params = random_params(cfg)
    small = SmallTokenizer.build(["Up Down"])
    folder = save_pretrained(params, cfg, tmp_path / "model", small, shard_bytes=shard_bytes)
    shards = list(folder.glob("*.safetensors"))
    assert (len(shards) > 1) == (shard_bytes < 2**30)
    assert {p.suffix for p in folder.iterdir()} == {".json", ".safetensors"}
    assert [p.name for p in tmp_path.iterdir()] == ["model"], "nothing partial is left behind"
    again_cfg, again, tokenizer = load_model(folder)
    assert again_cfg == cfg
    assert tokenizer == small
    assert_equal_trees(again, params)
    bf16 = load_model(folder, dtype="bfloat16")
    assert bf16[0] == dataclasses.replace(cfg, dtype="bfloat16")
    assert all(w.dtype == jnp.float32 for w in jax.tree.leaves(bf16[1])), "masters stay float32"


def test_save_refuses_an_occupied_folder(tmp_path: Path) -> None:
    params = random_params(PLAIN)
    (tmp_path / "empty").mkdir()
    folder = save_pretrained(params, PLAIN, tmp_path / "empty")
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(ModelFileError, match="not empty"):
        save_pretrained(params, PLAIN, folder)
    assert sorted(p.name for p in folder.iterdir()) == before


def test_interrupted_save_leaves_nothing(tmp_path: Path) -> None:
    params = random_params(PLAIN)
    del params["norm"]
    with pytest.raises(KeyError):
        save_pretrained(params, PLAIN, tmp_path / "model", shard_bytes=60_000)
    assert not list(tmp_path.iterdir())


def test_half_precision_files_become_float32(tmp_path: Path) -> None:
    folder = save_pretrained(random_params(PLAIN), PLAIN, tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    for dtype in (jnp.bfloat16, np.float16):
        half = {n: v.astype(dtype) for n, v in stored.items()}
        save_file(half, folder / "model.safetensors")
        _, params = read_folder(folder)
        q = params["layers"]["q"][1]
        assert q.dtype == jnp.float32
        name = "model.layers.1.self_attn.q_proj.weight"
        np.testing.assert_array_equal(q, half[name].astype(np.float32).T)


def test_placement_by_tree_and_by_function(tmp_path: Path) -> None:
    params = random_params(PLAIN)
    folder = save_pretrained(params, PLAIN, tmp_path / "model")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    _, again, _ = load_model(folder, shardings=jax.tree.map(lambda _: sharding, abstract_params(PLAIN)))
    assert all(w.sharding == sharding for w in jax.tree.leaves(again))
    assert_equal_trees(again, params)

    def only_q(cfg: ModelConfig) -> dict[str, Any]:
        tree = jax.tree.map(lambda _: None, abstract_params(cfg), is_leaf=lambda x: x is None)
        return tree | {"layers": tree["layers"] | {"q": sharding}}

    _, again, _ = load_model(folder, shardings=only_q)
    assert again["layers"]["q"].committed
    assert not again["layers"]["k"].committed
    assert_equal_trees(again, params)


SHARDED = """
import sys, threading, time, json
from pathlib import Path
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding
from jax import P
sys.path.insert(0, sys.argv[1])
from tiny_models import QWEN2, random_params
from ragen_jax.models import ModelFileError, abstract_params, weight_specs
from ragen_jax.models.hf import read_folder
from ragen_jax.models.weights import assemble, named_tensors

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("fsdp", "tensor"))
RULES = {"vocab": "tensor", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "embed": "fsdp", "norm": "fsdp"}
QWEN2 = type(QWEN2)(**{**vars(QWEN2), "vocab_size": 294, "head_dim": 16})

def rule(path):
    spec = weight_specs(QWEN2)[path]
    axes = [RULES[a] for a in spec.axes]
    return NamedSharding(mesh, P(*([None] if spec.per_layer else []), *axes))

def tree(sharding_of):
    out = {}
    for group, name in weight_specs(QWEN2):
        out.setdefault(group, {})[name] = sharding_of((group, name))
    return out

params = random_params(QWEN2)
stored, sizes = dict(named_tensors(params, QWEN2)), {}
def read(name, index):
    out = stored[name][index]
    sizes.setdefault(name, []).append(out.size)
    return out
got = assemble(QWEN2, read, lambda cfg: tree(rule))
for path in weight_specs(QWEN2):
    leaf, want = got[path[0]][path[1]], params[path[0]][path[1]]
    assert leaf.sharding == rule(path)
    np.testing.assert_array_equal(leaf, want)
for name, read_sizes in sizes.items():
    assert sum(read_sizes) == stored[name].size, name   # every number once, replicas included
    assert max(read_sizes) <= stored[name].size / 2, name
layers = NamedSharding(mesh, P("fsdp"))  # another way to split: whole layers, where their number allows
try:
    assemble(QWEN2, lambda *_: 1 / 0, tree(lambda path: layers))
except ModelFileError as error:
    assert "layers.attn_norm of shape (3, 64) cannot be split" in str(error), error
else:
    raise AssertionError("3 layers split in 2")
single = NamedSharding(mesh, P(None, None, "tensor"))
got = assemble(QWEN2, read, tree(lambda path: single if path == ("layers", "o") else None))
np.testing.assert_array_equal(got["layers"]["o"], params["layers"]["o"])

def anonymous():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
if Path("/proc/self/status").exists():
    read_folder(sys.argv[2])  # compiles
    before, most, done = anonymous(), 0, threading.Event()
    def watch():
        global most
        while not done.wait(0.001):
            most = max(most, anonymous())
    watcher = threading.Thread(target=watch); watcher.start()
    _, params = read_folder(sys.argv[2])
    most = max(most, anonymous())
    done.set(); watcher.join()
    size = sum(w.nbytes for w in jax.tree.leaves(params))
    print(json.dumps({"parameters": size, "rise": most - before}))
"""


def test_sharded_reading_and_host_memory(tmp_path: Path) -> None:
    """On four devices every stored number is read once, by slices. Memory rises by the parameters, little more."""
    cfg = ModelConfig(
        vocab_size=512, hidden_size=256, num_hidden_layers=24, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=2048, attention_bias=True,
    )  # fmt: skip
    zeros = jax.tree.map(lambda w: np.zeros(w.shape, np.float32), abstract_params(cfg))
    folder = save_pretrained(zeros, cfg, tmp_path / "model", dtype="bfloat16", shard_bytes=2**24)
    assert len(list(folder.glob("*.safetensors"))) > 3
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(Path(__file__).parent), str(folder)],
        capture_output=True, text=True, check=False,
        env=child_environment(4),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    if done.stdout:  # not where there is no /proc
        found = json.loads(done.stdout)
        largest, leaf = 2048 * 256 * 4, 24 * 2048 * 256 * 4
        assert found["parameters"] > 3 * leaf
        assert found["rise"] < found["parameters"] + 4 * largest + 2**22 < found["parameters"] + leaf / 2


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": ...}, "architecture None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of 'sliding_attention'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"hidden_size": ...}, "has no hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"intermediate_size": 97}, "belong together"),
        ({"tie_word_embeddings": True, "architectures": ["Qwen2ForCausalLM"]}, "q_proj.bias"),
        ({"num_hidden_layers": 4}, r"lacks model.layers.3.*and \d+ more"),
        ({"num_hidden_layers": 2}, "does not use: model.layers.2"),
    ],
)
def test_configurations_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = save_pretrained(random_params(PLAIN), PLAIN, tmp_path / "model")
    edit(folder / "config.json", **changes)
    with pytest.raises(ValueError, match=words):
        load_model(folder)


def test_both_spellings_of_rotary_settings(tmp_path: Path) -> None:
    content = config_dict(LLAMA)
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path) == LLAMA
    parameters = content["rope_scaling"] | {"rope_theta": content["rope_theta"]}
    edit(tmp_path / "config.json", rope_scaling=..., rope_theta=..., rope_parameters=parameters)
    assert read_config(tmp_path) == LLAMA


def test_damaged_folders_refused(tmp_path: Path) -> None:
    whole = save_pretrained(random_params(PLAIN), PLAIN, tmp_path / "whole", shard_bytes=100_000)
    shard = sorted(whole.glob("*.safetensors"))[1].name
    index = "model.safetensors.index.json"

    def damaged() -> Path:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        return Path(shutil.copytree(whole, tmp_path / "x"))

    folder = damaged()
    (folder / shard).unlink()
    with pytest.raises(ModelFileError, match=f"{shard}: missing"):
        load_model(folder)
    folder = damaged()
    content = (folder / shard).read_bytes()
    for size in (0, 4, 100, len(content) - 1):
        (folder / shard).write_bytes(content[:size])
        with pytest.raises(ModelFileError, match=f"{shard}: not a whole safetensors file"):
            load_model(folder)
    folder = damaged()
    weight_map = json.loads((folder / index).read_text())["weight_map"]
    edit(folder / index, weight_map=weight_map | {"model.norm.weight": "../whole/" + shard})
    with pytest.raises(ModelFileError, match="not a file of this folder"):
        load_model(folder)
    for place in ("..", "", None, 3, "model"):
        (folder / "model").mkdir(exist_ok=True)
        edit(folder / index, weight_map=weight_map | {"model.norm.weight": place})
        with pytest.raises(ModelFileError, match=r"not a file of this folder|missing, though"):
            load_model(folder)
    name = next(n for n, file in weight_map.items() if file != shard)
    edit(folder / index, weight_map=weight_map | {name: shard})
    with pytest.raises(ModelFileError, match=f"{shard}: lacks {name}"):
        load_model(folder)
    edit(folder / index, weight_map={})
    with pytest.raises(ModelFileError, match="no weight_map"):
        load_model(folder)
    (folder / index).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="pickles"):
        load_model(folder)
    (folder / "config.json").write_text('{"architectures": [')
    with pytest.raises(ModelFileError, match=r"config.json: broken JSON"):
        load_model(folder)
    with pytest.raises(ModelFileError, match=r"neither a \.gguf file, nor"):
        load_model(tmp_path / "nowhere")


def test_integer_weights_and_foreign_tokenizers_refused(tmp_path: Path) -> None:
    folder = save_pretrained(random_params(PLAIN), PLAIN, tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    stored["model.norm.weight"] = np.ones(PLAIN.hidden_size, np.int32)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is stored as I32"):
        load_model(folder)
    words = [chr(97 + i) + chr(97 + j) for i in range(5) for j in range(10)]
    other = save_pretrained(
        random_params(PLAIN), PLAIN, tmp_path / "other", SmallTokenizer.build([" ".join(words)])
    )
    with pytest.raises(ModelFileError, match="do not belong together"):
        load_model(other)


# -- parity --------------------------------------------------------------------------------------------------
@pytest.mark.parity
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_logits_equal_transformers_both_ways(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    common = {
        "vocab_size": 293, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    if kind == "llama":
        rope = {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }  # fmt: skip
        config = transformers.LlamaConfig(**common, rope_parameters=rope, tie_word_embeddings=False)
        model = transformers.LlamaForCausalLM(config)
    else:
        rope = {"rope_type": "default", "rope_theta": 1e6}
        config = transformers.Qwen2Config(**common, rope_parameters=rope, tie_word_embeddings=True)
        model = transformers.Qwen2ForCausalLM(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.15 + ("norm" in name))
    model = model.eval()
    tokens = np.random.default_rng(0).integers(0, 293, (2, 200)).astype(np.int32)

    def theirs(model: Any) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(tokens).long()).logits.numpy()

    wanted = theirs(model)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    cfg, params, tokenizer = load_model(tmp_path / "theirs")
    assert tokenizer is None
    assert cfg.attention_bias == (kind == "qwen2")
    assert (cfg.rope_scaling is not None) == (kind == "llama")
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(logits(params, cfg, tokens), wanted, atol=1e-4, rtol=0)

    save_pretrained(params, cfg, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert type(again) is type(model)
    np.testing.assert_allclose(theirs(again), wanted, atol=1e-6, rtol=0)


def llama_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor, written out here, not taken from the weights' description."""
    parts = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk": "model.layers",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    return ".".join(parts.get(part, part) for part in name.split("."))


@pytest.mark.parity
def test_smollm2_logits_equal_transformers(smollm2: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    cfg, params, tokenizer = load_model(smollm2)
    assert tokenizer is not None
    assert cfg.num_parameters == 134_515_008
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    text += "The capital of France is Paris. 12 + 30 = 42;\n#P_√X#\ndef f(x):\n    return x**2\n"
    tokens = np.asarray([tokenizer.encode(text)], np.int32)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=True,
        max_position_embeddings=8192, rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    stored = gguf.GGUFReader(smollm2).tensors
    state = {llama_name(t.name): torch.tensor(gguf.dequantize(t.data, t.tensor_type)) for t in stored}
    for name, weight in state.items():  # to the Hugging Face order of rotary pairs, in torch
        if "q_proj" in name or "k_proj" in name:
            state[name] = weight.view(-1, 32, 2, 576).transpose(1, 2).reshape(weight.shape)
    absent, unexpected = model.load_state_dict(state, strict=False)
    assert (absent, unexpected) == (["lm_head.weight"], [])
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens).long()).logits.numpy()
    ours = logits(params, cfg, tokens)
    assert np.abs(ours - wanted).max() < 5e-4
    logprobs = [np.asarray(jax.nn.log_softmax(jnp.asarray(x))) for x in (ours, wanted)]
    assert np.abs(logprobs[0] - logprobs[1]).max() < 5e-4
    prompt = text.index("The capital")
    last = len(tokenizer.encode(text[:prompt])) - 1
    assert tokenizer.decode([int(ours[0, last].argmax())]) == "The"
