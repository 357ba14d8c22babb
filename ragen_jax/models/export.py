"""Writing models for other libraries: Hugging Face folders with all that belongs to them, and PEFT adapters."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from ragen_jax.gguf_file import GGUFFile
from ragen_jax.models.config import ModelConfig, weight_specs
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.hf import INDEX, SINGLE, config_dict, read_json
from ragen_jax.models.lora import LoraConfig, lora_specs, merge
from ragen_jax.models.weights import named_layers, named_tensors
from ragen_jax.tokenizers import BPETokenizer, SmallTokenizer, bpe

SHARD_BYTES = 4 * 1024**3
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"
# What a published folder holds besides weights and config.json, as far as it is about text.
COMPANIONS = (
    bpe.FILE_NAME, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", CHAT_TEMPLATE, "chat_template.json", GENERATION,
)  # fmt: skip
# Fields of an original config.json that say again, maybe otherwise, what `config_dict` writes.
_REWRITTEN = ("rope_parameters", "dtype", "transformers_version")


def save_pretrained(
    params: dict[str, Any],
    cfg: ModelConfig,
    folder: str | Path,
    tokenizer: BPETokenizer | SmallTokenizer | None = None,
    *,
    adapters: dict[str, Any] | None = None,
    lora: LoraConfig | None = None,
    origin: Path | None = None,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes a folder that `transformers` and `read_folder` load: weights, config.json, tokenizer.

    The folder appears when it is complete; it must not exist or be empty (ModelFileError). Parameters must be
    addressable from this process. Rows of the embedding beyond the tokenizer's ids are listed in
    generation_config.json as never to be generated, as no softmax here gives them any probability.

    Args:
        adapters, lora: merged into the weights, one matrix at a time.
        origin: the folder or GGUF file that the model came from. Its tokenizer files, chat template and
            generation settings come along as they are; so does what else its config.json says.
        dtype: "float32", or "bfloat16", which rounds.
        shard_bytes: most bytes of one file, and of host memory.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ModelFileError(f"weights cannot be written as {dtype!r}; use 'float32' or 'bfloat16'")

    def leaf(group: str, name: str) -> Any:
        if adapters is None or lora is None or group != "layers" or name not in lora.targets:
            return params[group][name]
        one = dataclasses.replace(lora, targets=(name,))
        return merge({"layers": {name: params["layers"][name]}}, adapters, one)["layers"][name]

    stored = jnp.dtype(dtype)
    tensors = ((n, v.astype(stored)) for n, v in named_tensors(params, cfg, leaf))
    with _new_folder(Path(folder)) as partial:
        _write_tensors(tensors, partial, shard_bytes)
        _write_companions(partial, tokenizer, origin)
        _write_json(partial / "config.json", _config(cfg, tokenizer, origin, dtype))
        if tokenizer is not None and tokenizer.vocab_size < cfg.vocab_size:
            _suppress(partial / GENERATION, range(tokenizer.vocab_size, cfg.vocab_size))
    return Path(folder)


def save_adapter(
    adapters: dict[str, Any],
    cfg: ModelConfig,
    lora: LoraConfig,
    folder: str | Path,
    tokenizer: BPETokenizer | SmallTokenizer | None = None,
    *,
    base: str,
    origin: Path | None = None,
) -> Path:
    """Writes adapters as PEFT does: adapter_model.safetensors (float32), adapter_config.json, tokenizer.

    `base` is what PEFT is told to load underneath: a folder or a name on the hub. The rest as `save_pretrained`.
    """
    modules = [weight_specs(cfg)["layers", t].hf_name.split(".")[-2] for t in lora.targets]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": modules,
    }
    tensors: dict[str, np.ndarray] = {}
    for (group, target, part), spec in lora_specs(cfg, lora).items():
        tensors |= named_layers(spec, adapters[group][target][part], cfg)
    with _new_folder(Path(folder)) as partial:
        save_file(tensors, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        _write_json(partial / "adapter_config.json", config)
        _write_companions(partial, tokenizer, origin)
    return Path(folder)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write into; it takes that place when the block ends well."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder}: already there and not empty; choose another folder or delete it")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_tensors(tensors: Iterable[tuple[str, np.ndarray]], folder: Path, shard_bytes: int) -> None:
    shards: list[list[str]] = []
    pending: dict[str, np.ndarray] = {}

    def flush() -> None:
        shards.append(list(pending))
        save_file(pending, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        pending.clear()

    total = 0
    for name, value in tensors:
        if pending and sum(v.nbytes for v in pending.values()) + value.nbytes > shard_bytes:
            flush()
        pending[name] = value
        total += value.nbytes
    flush()
    if len(shards) == 1:
        os.replace(folder / "shard-1", folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        os.replace(folder / f"shard-{i}", folder / file)
        weight_map |= dict.fromkeys(names, file)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


# -- what belongs to the weights -----------------------------------------------------------------------------
def _config(
    cfg: ModelConfig, tokenizer: BPETokenizer | SmallTokenizer | None, origin: Path | None, dtype: str
) -> dict[str, Any]:
    content = config_dict(cfg, tokenizer) | {"torch_dtype": dtype}
    if origin is None or not (origin / "config.json").exists():
        return content
    original = {k: v for k, v in read_json(origin / "config.json").items() if k not in _REWRITTEN}
    kept = {k: original[k] for k in ("eos_token_id", "pad_token_id") if original.get(k) is not None}
    return original | content | kept


def _write_companions(
    folder: Path, tokenizer: BPETokenizer | SmallTokenizer | None, origin: Path | None
) -> None:
    """Tokenizer, chat template and generation settings: the origin's own files where it is a folder."""
    if origin is not None and origin.is_dir():
        for file in (origin / name for name in COMPANIONS if (origin / name).is_file()):
            shutil.copyfile(file, folder / file.name)
    if tokenizer is not None and not (folder / bpe.FILE_NAME).exists():
        tokenizer.save(folder)
    field = "tokenizer.chat_template"
    if isinstance(tokenizer, BPETokenizer) and origin is not None and origin.suffix == ".gguf":
        source = GGUFFile(origin)
        if source.has(field):
            (folder / CHAT_TEMPLATE).write_text(source.field(field), encoding="utf-8")


def _suppress(path: Path, ids: Iterable[int]) -> None:
    content = read_json(path) if path.exists() else {}
    listed = set(content.get("suppress_tokens") or ()) | set(ids)
    _write_json(path, content | {"suppress_tokens": sorted(listed)})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
