"""Loading a model from whatever a path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.gguf import read_gguf
from ragen_jax.models.hf import read_folder
from ragen_jax.models.hub import pulled
from ragen_jax.models.weights import Shardings
from ragen_jax.tokenizers import BPETokenizer, SmallTokenizer, bpe, load_tokenizer, small


def locate(path: str | Path) -> Path:
    """The GGUF file or the folder that `load_model` reads. Raises ModelFileError where there is neither."""
    if isinstance(path, str) and not Path(path).exists():
        path = pulled(path) or path
    path = Path(path)
    if path.is_dir() and not (path / "config.json").exists() and len(ggufs := list(path.glob("*.gguf"))) == 1:
        path = ggufs[0]
    if path.suffix != ".gguf" and not path.is_dir():
        raise ModelFileError(
            f"{path}: neither a .gguf file, nor a model folder, nor a name of `ragen-jax models list`"
        )
    return path


def load_model(
    path: str | Path, *, dtype: str = "float32", shardings: Shardings = None, cache: bool = True
) -> tuple[ModelConfig, dict[str, Any], BPETokenizer | SmallTokenizer | None]:
    """(configuration, float32 parameters, tokenizer or None) of a GGUF file, a folder, or a pulled model.

    `path`: a .gguf file, a Hugging Face folder, a folder with exactly one .gguf file, or a name that `pull`
    knows and has fetched. `dtype` is the compute dtype. `shardings` as in `weights.Shardings`. `cache`: keep
    a dequantised GGUF on disk. Raises ValueError subclasses that name the file and the remedy.
    """
    path = locate(path)
    if path.suffix == ".gguf" and not path.is_dir():
        return read_gguf(path, dtype=dtype, shardings=shardings, cache=cache)
    cfg, params = read_folder(path, dtype=dtype, shardings=shardings)
    has_tokenizer = any((path / name).exists() for name in (bpe.FILE_NAME, small.FILE_NAME))
    tokenizer = load_tokenizer(path) if has_tokenizer else None
    if tokenizer is not None and tokenizer.vocab_size > cfg.vocab_size:
        raise ModelFileError(
            f"{path}: its tokenizer has {tokenizer.vocab_size} ids, its model {cfg.vocab_size}; "
            "they do not belong together"
        )
    return cfg, params, tokenizer
