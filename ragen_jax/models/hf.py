"""Hugging Face model folders: config.json and safetensors files, read slice by slice."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ragen_jax.models.config import Llama3Rope, ModelConfig
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.weights import Index, Shardings, assemble, check_shapes
from ragen_jax.tokenizers import BPETokenizer, SmallTokenizer

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


# -- configuration -------------------------------------------------------------------------------------------
def read_config(folder: str | Path, *, dtype: str = "float32") -> ModelConfig:
    """config.json of a Llama or Qwen2 model. `dtype` is the compute dtype; the file's own does not matter.

    Raises ModelFileError for another architecture and for options that would change the network's output.
    """
    path = Path(folder) / "config.json"
    content = read_json(path)
    architectures = content.get("architectures") or [None]
    if architectures[0] not in ARCHITECTURES:
        raise ModelFileError(f"{path}: architecture {architectures[0]}; known are {', '.join(ARCHITECTURES)}")
    qwen = architectures[0] == "Qwen2ForCausalLM"
    for name, allowed in (
        ("hidden_act", ("silu",)),
        ("mlp_bias", (False,)),
        ("use_sliding_window", (False,)),
        ("quantization_config", (None,)),
        ("partial_rotary_factor", (None, 1, 1.0)),
        *(() if qwen else (("attention_bias", (False,)),)),
    ):
        if content.get(name, allowed[0]) not in allowed:
            raise ModelFileError(
                f"{path}: {name} is {content[name]!r}; this release supports {allowed[-1]!r}"
            )
    if other := set(content.get("layer_types") or ()) - {"full_attention"}:
        raise ModelFileError(f"{path}: layers of {min(other)!r}; this release supports 'full_attention'")
    try:
        theta, scaling = _rope(content, path)
        return ModelConfig(
            vocab_size=content["vocab_size"],
            hidden_size=content["hidden_size"],
            num_hidden_layers=content["num_hidden_layers"],
            num_attention_heads=content["num_attention_heads"],
            num_key_value_heads=content.get("num_key_value_heads") or content["num_attention_heads"],
            intermediate_size=content["intermediate_size"],
            head_dim=content.get("head_dim") or 0,
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=content["rms_norm_eps"],
            tie_word_embeddings=content.get("tie_word_embeddings", False),
            attention_bias=qwen,
            max_position_embeddings=content["max_position_embeddings"],
            dtype=dtype,
        )
    except KeyError as error:
        raise ModelFileError(f"{path}: has no {error.args[0]}; get the model's config.json again") from None


def _rope(content: dict[str, Any], path: Path) -> tuple[float, Llama3Rope | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or content.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelFileError(f"{path}: rotary scaling {kind!r}; this release supports 'default' and 'llama3'")
    return theta, Llama3Rope(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
    )


def config_dict(cfg: ModelConfig, tokenizer: BPETokenizer | SmallTokenizer | None = None) -> dict[str, Any]:
    """What `read_config` reads, in the form that every version of transformers understands."""
    scaling = None
    if (s := cfg.rope_scaling) is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_max_position_embeddings,
        }
    content: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM" if cfg.attention_bias else "LlamaForCausalLM"],
        "model_type": "qwen2" if cfg.attention_bias else "llama",
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.hidden_size,
        "num_hidden_layers": cfg.num_hidden_layers,
        "num_attention_heads": cfg.num_attention_heads,
        "num_key_value_heads": cfg.num_key_value_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.intermediate_size,
        "hidden_act": "silu",
        "rope_theta": cfg.rope_theta,
        "rope_scaling": scaling,
        "rms_norm_eps": cfg.rms_norm_eps,
        "tie_word_embeddings": cfg.tie_word_embeddings,
        "max_position_embeddings": cfg.max_position_embeddings,
        "torch_dtype": "float32",
    }
    if tokenizer is not None:
        eos = list(tokenizer.eos_ids)
        content |= {"eos_token_id": eos if len(eos) > 1 else eos[0], "pad_token_id": tokenizer.pad_id}
    return content


# -- reading -------------------------------------------------------------------------------------------------
def read_folder(
    folder: str | Path, *, dtype: str = "float32", shardings: Shardings = None
) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and float32 parameters of a model folder.

    Every file, name and shape is checked before memory is taken. `shardings` as in `weights.assemble`. Raises
    ModelFileError for a missing shard or tensor, a wrong shape, a file cut short, another architecture.
    """
    folder = Path(folder)
    cfg = read_config(folder, dtype=dtype)
    with contextlib.ExitStack() as stack:
        tensors = _open_tensors(folder, stack)
        check_shapes(cfg, {name: tuple(t.get_shape()) for name, t in tensors.items()}, str(folder))
        for name, tensor in tensors.items():
            if tensor.get_dtype() not in ("F32", "F16", "BF16", "F64"):
                raise ModelFileError(f"{folder}: {name} is stored as {tensor.get_dtype()}, not as floats")

        def read(name: str, index: Index) -> np.ndarray:
            return np.asarray(tensors[name][index])

        return cfg, assemble(cfg, read, shardings)


def _open_tensors(folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Handles of all stored tensors by name; nothing is read yet."""
    index = folder / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{index}: has no weight_map; get the model's files again")
        files = sorted({file if isinstance(file, str) else repr(file) for file in weight_map.values()})
    elif (folder / SINGLE).exists():
        weight_map, files = {}, [SINGLE]
    else:
        other = " (files of pickles are never loaded)" if list(folder.glob("*.bin")) else ""
        raise ModelFileError(f"{folder}: holds neither {SINGLE} nor {INDEX}{other}")
    for file in files:
        if Path(file).name != file or file == "..":
            raise ModelFileError(f"{index}: names {file!r}, which is not a file of this folder")
        if not (folder / file).is_file():
            raise ModelFileError(f"{folder / file}: missing, though {INDEX} names it; get this shard")
    tensors: dict[str, Any] = {}
    for file in files:
        try:
            handle = stack.enter_context(safe_open(folder / file, framework="np"))
        except SafetensorError as error:
            raise ModelFileError(
                f"{folder / file}: not a whole safetensors file ({error}); delete it and get it again"
            ) from None
        stored = set(handle.keys())
        wanted = {name for name, place in weight_map.items() if place == file} or stored
        if absent := sorted(wanted - stored):
            raise ModelFileError(f"{folder / file}: lacks {absent[0]}, which {INDEX} places there")
        tensors |= {name: handle.get_slice(name) for name in wanted}
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises ModelFileError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; a model folder holds one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: broken JSON ({error}); get the file again") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value
