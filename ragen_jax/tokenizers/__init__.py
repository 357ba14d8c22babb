"""Tokenizers: `SmallTokenizer` for policies from scratch, `BPETokenizer` for published models."""

from ragen_jax.tokenizers.errors import TokenizerError
from ragen_jax.tokenizers.small import SmallTokenizer

__all__ = ["SmallTokenizer", "TokenizerError"]
