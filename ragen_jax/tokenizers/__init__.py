"""Tokenizers: `SmallTokenizer` for policies from scratch, `BPETokenizer` for published models."""

from ragen_jax.tokenizers.bpe import BPETokenizer
from ragen_jax.tokenizers.errors import TokenizerError
from ragen_jax.tokenizers.load import load_tokenizer
from ragen_jax.tokenizers.small import SmallTokenizer

__all__ = ["BPETokenizer", "SmallTokenizer", "TokenizerError", "load_tokenizer"]
