"""Exported folders and adapters: what comes along, what is refused, and what transformers and PEFT make of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file
from tiny_models import LLAMA, PLAIN, QWEN2, assert_equal_trees, random_params
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ragen_jax import cli
from ragen_jax.cli import main
from ragen_jax.models import (
    LoraConfig,
    ModelConfig,
    check,
    forward,
    init_lora,
    load_model,
    merge,
    unembedding,
)
from ragen_jax.models.check import compare
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import save_adapter, save_pretrained
from ragen_jax.tokenizers import SmallTokenizer

LORA = LoraConfig(rank=3, alpha=5.0, targets=("q", "v", "down"))
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line leaves JAX's settings alone here."""
    monkeypatch.setattr(cli, "_quiet_and_cached", lambda: None)


def adapters_of(cfg: ModelConfig) -> dict[str, Any]:
    leaves, tree = jax.tree.flatten(init_lora(cfg, LORA, jax.random.key(1)))
    return tree.unflatten([0.3 * jax.random.normal(jax.random.key(i), w.shape) for i, w in enumerate(leaves)])


def byte_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 259 ids: no merges, three special tokens."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return backend


def published_folder(folder: Path, params: dict[str, Any], cfg: ModelConfig, **kwargs: Any) -> Path:
    """A folder as a hub has it: tokenizer, chat template and settings that this package does not know."""
    save_pretrained(params, cfg, folder, **kwargs)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"bos_token_id": 256, "eos_token_id": 258, "max_window_layers": 21, "use_sliding_window": False}
    (folder / "config.json").write_text(json.dumps(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    generation = {"eos_token_id": [258, 256], "pad_token_id": 256, "temperature": 0.7, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "README.md").write_text("not a part of the model")
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-shaped: biases, tied embeddings with 34 padding rows, three shards."""
    folder = tmp_path_factory.mktemp("hub") / "Qwen2.5-tiny"
    return published_folder(folder, random_params(QWEN2), QWEN2, shard_bytes=190_000)


# -- folders -----------------------------------------------------------------------------------------------
def test_export_brings_all_that_belongs_to_it(
    qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list(qwen.glob("model-*-of-00003.safetensors"))) == 3
    assert main(["models", "export", str(qwen), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "generation_config.json",
    }  # fmt: skip
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (qwen / name).read_bytes()
    was, now = (json.loads((f / "config.json").read_text()) for f in (qwen, out))
    assert {k: v for k, v in now.items() if was.get(k) != v} == {"pad_token_id": 256}
    was, now = (json.loads((f / "generation_config.json").read_text()) for f in (qwen, out))
    assert now == was | {"suppress_tokens": list(range(259, 293))}
    cfg, params, tokenizer = load_model(out)
    assert cfg == QWEN2
    assert_equal_trees(params, load_model(qwen)[1])
    assert tokenizer is not None
    assert (tokenizer.eos_ids, tokenizer.pad_id, tokenizer.vocab_size) == ((258, 256), 256, 259)


def test_bfloat16_rounds_once(tmp_path: Path) -> None:
    params = random_params(PLAIN)
    folder = save_pretrained(params, PLAIN, tmp_path / "model", dtype="bfloat16")
    assert {str(v.dtype) for v in load_file(folder / "model.safetensors").values()} == {"bfloat16"}
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    rounded = jax.tree.map(lambda w: jnp.asarray(w).astype(jnp.bfloat16).astype(jnp.float32), params)
    assert_equal_trees(load_model(folder)[1], rounded)
    with pytest.raises(ModelFileError, match="'float16'"):
        save_pretrained(params, PLAIN, tmp_path / "other", dtype="float16")


def test_adapters_are_merged_or_written_apart(tmp_path: Path) -> None:
    params, adapters = random_params(QWEN2), adapters_of(QWEN2)
    folder = save_pretrained(params, QWEN2, tmp_path / "merged", adapters=adapters, lora=LORA)
    assert_equal_trees(load_model(folder)[1], merge(params, adapters, LORA))
    folder = save_adapter(adapters, QWEN2, LORA, tmp_path / "apart", base="Qwen/Qwen2.5-tiny")
    stored = load_file(folder / "adapter_model.safetensors")
    assert len(stored) == 3 * 2 * QWEN2.num_hidden_layers
    name = "base_model.model.model.layers.2.mlp.down_proj.lora_{}.weight"
    a, b = (stored[name.format(x)].astype(np.float64) for x in "AB")
    assert (a.shape, b.shape) == ((3, 96), (64, 3))
    change = merge(params, adapters, LORA)["layers"]["down"][2] - params["layers"]["down"][2]
    np.testing.assert_allclose(5.0 / 3 * (b @ a).T, change, atol=1e-5)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj", "down_proj"]
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 5.0, "LORA")
    with pytest.raises(ModelFileError, match="not empty"):
        save_adapter(adapters, QWEN2, LORA, folder, base="x")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["models", "export", "{qwen}", "{qwen}"], "already there and not empty"),
        (["models", "export", "{tmp}/none", "{tmp}/x"], "neither a .gguf file, nor a model folder"),
        (["models", "export", "{qwen}", "{tmp}/x", "--adapter"], "has no adapters"),
        (["models", "export", "{qwen}", "{tmp}/x", "--step", "3"], "--step belongs to a run directory"),
        (["models", "export", "{qwen}", "{tmp}/x", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["models", "check", "{tmp}/none"], "config.json: no such file"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], words: str, qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(qwen=qwen, tmp=tmp_path) for word in argv]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_check_without_torch_says_what_is_needed(
    qwen: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["models", "check", str(qwen)]) == 2
    assert "pip install 'ragen-jax[parity]'" in capsys.readouterr().err


def test_check_of_adapters_alone_is_refused(tmp_path: Path) -> None:
    folder = save_adapter(adapters_of(PLAIN), PLAIN, LORA, tmp_path / "a", base="x")
    with pytest.raises(ModelFileError, match="export the merged model"):
        compare(folder)


# -- runs --------------------------------------------------------------------------------------------------
def test_a_run_with_adapters_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step from a folder with a byte tokenizer; the export holds what the checkpoint does."""
    from micro_run import micro_config, run

    from ragen_jax.training.policy import load_weights

    cfg = ModelConfig(
        vocab_size=293, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, attention_bias=True, max_position_embeddings=1024,
    )  # fmt: skip
    base = published_folder(tmp_path / "base", random_params(cfg), cfg)
    section = {"path": str(base), "lora": {"rank": 2, "targets": ["q", "down"]}}
    steps = {"total_training_steps": 1}
    result = run(
        micro_config(
            tmp_path / "runs",
            model=section,
            warm_start={"steps": 0},
            training=steps,
            diagnosis={"compute_freq": 0},
        )
    )
    weights = load_weights(str(result.run_dir))
    assert weights.origin == base
    assert main(["models", "export", str(result.run_dir), str(tmp_path / "merged")]) == 0
    _, merged, tokenizer = load_model(tmp_path / "merged")
    assert_equal_trees(merged, weights.merged())
    assert tokenizer == weights.tokenizer
    assert (tmp_path / "merged" / "chat_template.jinja").read_text() == TEMPLATE
    argv = ["models", "export", str(result.run_dir), str(tmp_path / "adapter"), "--adapter"]
    assert main([*argv, "--dtype", "bfloat16"]) == 2
    assert main(argv) == 0
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    a = stored["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    np.testing.assert_array_equal(a.T, weights.adapters["layers"]["q"]["a"][0])
    assert "chat_template.jinja" in {p.name for p in (tmp_path / "adapter").iterdir()}
    capsys.readouterr()


# -- parity ------------------------------------------------------------------------------------------------
def greedy(model: Any, ids: list[int], count: int, torch: Any) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=count, min_new_tokens=count, use_cache=True
        )
    return out[0, len(ids) :].tolist()


@pytest.mark.parity
def test_padding_rows_are_never_generated(tmp_path: Path) -> None:
    """Rows beyond the tokenizer would win here, were they not suppressed."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params = random_params(QWEN2)
    params["embed"]["weight"] = (
        np.asarray(params["embed"]["weight"]) * np.where(np.arange(293) < 259, 1, 9)[:, None]
    )
    source = published_folder(tmp_path / "source", params, QWEN2)
    ids = [3, 1, 4, 1, 5]
    plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    assert max(greedy(plain, ids, 8, torch)) >= 259
    assert main(["models", "export", str(source), str(tmp_path / "out")]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert max(greedy(model, ids, 8, torch)) < 259


@pytest.mark.parity
@pytest.mark.parametrize("cfg", [QWEN2, LLAMA], ids=["qwen2.5", "llama3.2"])
def test_check_agrees_with_transformers(
    cfg: ModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama-3.2-shaped: scaled rotary embedding, compared beyond its original 16 positions."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    source = published_folder(tmp_path / "source", random_params(cfg), cfg, shard_bytes=190_000)
    assert main(["models", "export", str(source), str(tmp_path / "out")]) == 0
    found = compare(tmp_path / "out")
    assert found.logit_difference < 1e-4
    assert (found.same_best, found.same_ids, found.chat_template) == (1.0, True, True)
    assert found.largest_logit > 1
    capsys.readouterr()
    assert main(["models", "check", str(tmp_path / "out")]) == 0
    assert "equal at 0.0005" in capsys.readouterr().out
    assert main(["models", "check", str(tmp_path / "out"), "--tolerance", "0"]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out

    def damaged(folder: Path) -> Any:
        cfg, params, tokenizer = load_model(folder)
        return cfg, params | {"layers": params["layers"] | {"q": -params["layers"]["q"]}}, tokenizer

    monkeypatch.setattr(check, "load_model", damaged)
    assert compare(tmp_path / "out").logit_difference > 0.1


@pytest.mark.parity
def test_adapter_loads_in_peft(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    params, adapters = random_params(QWEN2), adapters_of(QWEN2)
    base = save_pretrained(params, QWEN2, tmp_path / "base")
    folder = save_adapter(adapters, QWEN2, LORA, tmp_path / "adapter", base=str(base))
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    ids = np.random.default_rng(0).integers(0, 293, (2, 40)).astype(np.int32)
    with torch.no_grad():
        theirs = model(torch.from_numpy(ids).long()).logits.numpy()

    def logits(params: dict[str, Any]) -> np.ndarray:
        return np.asarray(forward(params, QWEN2, jnp.asarray(ids)) @ unembedding(params, QWEN2).T)

    assert np.abs(logits(params) - theirs).max() > 0.1, "the adapter must matter"
    np.testing.assert_allclose(logits(merge(params, adapters, LORA)), theirs, atol=1e-4, rtol=0)


@pytest.mark.parity
def test_smollm2_exported(smollm2: Path, tmp_path: Path) -> None:
    """From the GGUF file to a folder that transformers reads alike, chat template included, and back exactly."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert main(["models", "export", str(smollm2), str(tmp_path / "smollm2")]) == 0
    found = compare(tmp_path / "smollm2", rows=1, length=64)
    assert found.logit_difference < 5e-4
    assert (found.same_ids, found.chat_template, found.same_best) == (True, True, 1.0)
    cfg, params, tokenizer = load_model(smollm2)
    again_cfg, again, again_tokenizer = load_model(tmp_path / "smollm2")
    assert again_cfg == cfg
    assert_equal_trees(again, params)
    assert again_tokenizer == tokenizer


def test_a_small_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_pretrained(random_params(PLAIN), PLAIN, tmp_path / "a", SmallTokenizer.build(["up"]))
    assert main(["models", "export", str(source), str(tmp_path / "b")]) == 0
    assert "no tokenizer of this kind" in capsys.readouterr().err
    assert load_model(tmp_path / "b")[2] == SmallTokenizer.build(["up"])
