"""Finding out what kind of tokenizer a path holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_jax.tokenizers import bpe, small
from ragen_jax.tokenizers.bpe import BPETokenizer
from ragen_jax.tokenizers.errors import TokenizerError
from ragen_jax.tokenizers.small import SmallTokenizer


def load_tokenizer(path: str | Path, *, eos: Sequence[str] | None = None) -> SmallTokenizer | BPETokenizer:
    """Loads a .gguf file, a tokenizer.json, a saved small tokenizer, or the folder that holds one of these.

    `eos` names the tokens that end a turn of a BPE tokenizer, in place of those that its files name. Raises
    TokenizerError (or GGUFError), naming the file and the remedy.
    """
    path = Path(path)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if (path / small.FILE_NAME).exists():
            path = path / small.FILE_NAME
        elif (path / bpe.FILE_NAME).exists():
            path = path / bpe.FILE_NAME
        elif len(ggufs) == 1:
            path = ggufs[0]
        else:
            raise TokenizerError(
                f"{path}: holds neither {small.FILE_NAME} nor {bpe.FILE_NAME} nor exactly one .gguf file"
            )
    if path.suffix == ".gguf":
        return BPETokenizer.from_gguf(path, eos=eos)
    if path.name == small.FILE_NAME:
        return SmallTokenizer.load(path)
    if path.name == bpe.FILE_NAME:
        return BPETokenizer.from_folder(path.parent, eos=eos)
    if not path.exists():
        raise TokenizerError(f"{path}: no such file or folder")
    raise TokenizerError(f"{path}: expected a .gguf file, {bpe.FILE_NAME}, {small.FILE_NAME} or a folder")
