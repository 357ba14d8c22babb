"""GGUF models of the Llama and Qwen2 architectures: configuration, dequantised weights, and their cache."""

from __future__ import annotations

import functools
import hashlib
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ragen_jax.gguf_file import GGUFFile
from ragen_jax.models.config import ModelConfig, weight_specs
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import save_pretrained
from ragen_jax.models.hf import read_folder
from ragen_jax.models.hub import cache_dir
from ragen_jax.models.weights import Index, Shardings, assemble, check_shapes
from ragen_jax.tokenizers import BPETokenizer, TokenizerError

ARCHITECTURES = ("llama", "qwen2")
CACHE_VERSION = 1  # raise it when the same file would be read differently


def config_from_gguf(file: GGUFFile, *, dtype: str = "float32") -> ModelConfig:
    """Configuration from a file's metadata. Raises ModelFileError for what this release cannot run."""
    arch = file.field("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelFileError(f"{file.path}: architecture {arch!r}; known are {', '.join(ARCHITECTURES)}")

    def get(name: str, default: Any = None) -> Any:
        name = f"{arch}.{name}"
        return default if default is not None and not file.has(name) else file.field(name)

    if get("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file.tensors:
        raise ModelFileError(
            f"{file.path}: scaled rotary embeddings; load the Hugging Face folder of this model"
        )
    heads, hidden = int(get("attention.head_count")), int(get("embedding_length"))
    head_dim = int(get("attention.key_length", hidden // heads))
    if int(get("rope.dimension_count", head_dim)) != head_dim:
        raise ModelFileError(f"{file.path}: rotary embeddings on a part of each head are not supported")
    if "token_embd.weight" not in file.tensors:
        raise ModelFileError(f"{file.path}: lacks token_embd.weight; download the file again")
    return ModelConfig(
        vocab_size=int(file.tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        num_hidden_layers=int(get("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(get("attention.head_count_kv", heads)),
        intermediate_size=int(get("feed_forward_length")),
        head_dim=head_dim,
        rope_theta=float(get("rope.freq_base", 10_000.0)),
        rms_norm_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),  # stored as float32
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        max_position_embeddings=int(get("context_length")),
        dtype=dtype,
    )


def cached_folder(path: Path) -> Path:
    """The model folder in which `read_gguf` keeps the file's dequantised form, named after its content."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return cache_dir() / "dequantised" / f"{path.stem}-{content[:20]}-v{CACHE_VERSION}"


def read_gguf(
    path: str | Path, *, dtype: str = "float32", shardings: Shardings = None, cache: bool = True
) -> tuple[ModelConfig, dict[str, Any], BPETokenizer | None]:
    """Configuration, dequantised float32 parameters and tokenizer (None without one; an unknown kind warns).

    With `cache`, the result is kept in `cached_folder` and read from there the next time. Raises GGUFError or
    ModelFileError, naming the file.
    """
    path = Path(path)
    folder = cached_folder(path) if cache and path.is_file() else None
    if folder is not None and folder.is_dir():
        cfg, params = read_folder(folder, dtype=dtype, shardings=shardings)
        has_tokenizer = (folder / "tokenizer.json").exists()
        return cfg, params, BPETokenizer.from_folder(folder) if has_tokenizer else None
    file = GGUFFile(path)
    cfg = config_from_gguf(file, dtype=dtype)
    hf_names, stored = _names(cfg), dict(file.tensors)
    shapes = {hf_names.get(n, n): tuple(int(d) for d in t.shape[::-1]) for n, t in stored.items()}
    check_shapes(cfg, shapes, str(path))
    by_hf_name = {hf: stored[name] for name, hf in hf_names.items()}
    permuted = {} if file.field("general.architecture") != "llama" else {
        ".q_proj.": cfg.num_attention_heads,
        ".k_proj.": cfg.num_key_value_heads,
    }  # fmt: skip

    @functools.lru_cache(maxsize=1)  # a sharded reader asks for several slices of one tensor in a row
    def whole(name: str) -> np.ndarray:
        tensor = by_hf_name[name]
        value = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        heads = next((n for part, n in permuted.items() if part in name), 0)
        return _unpermute(value, heads) if heads else value

    def read(name: str, index: Index) -> np.ndarray:
        return whole(name)[index]

    params = assemble(cfg, read, shardings)
    tokenizer = None
    try:
        if file.has("tokenizer.ggml.model"):
            tokenizer = BPETokenizer.from_gguf(file)
    except TokenizerError as error:
        warnings.warn(f"the model was loaded without a tokenizer: {error}", stacklevel=2)
    if folder is not None and shardings is None:
        try:
            save_pretrained(params, cfg, folder, tokenizer)
        except OSError as error:
            warnings.warn(f"cannot keep the dequantised model ({error}); set RAGEN_JAX_CACHE", stacklevel=2)
    return cfg, params, tokenizer


def _names(cfg: ModelConfig) -> dict[str, str]:
    """Hugging Face name of each tensor by its GGUF name."""
    return {
        spec.gguf_name.format(layer=i): spec.hf_name.format(layer=i)
        for spec in weight_specs(cfg).values()
        for i in range(cfg.num_hidden_layers if spec.per_layer else 1)
    }


def _unpermute(value: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of q and k rows: it pairs neighbours, Hugging Face i with i + dim / 2."""
    split = value.reshape(heads, -1, 2, *value.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(value.shape)
