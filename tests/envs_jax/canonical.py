"""Checks that fragments are tokenised as their joined text: three pre-tokenisers, and Qwen's real ranks."""

from __future__ import annotations

import base64
import functools
import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d"
PRETOKENIZERS = {
    "qwen2": rf"(?i:{_WORDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": rf"(?i:{_WORDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # GPT-2's pattern after single digits are cut out, as SmolLM2 does it.
    "smollm2": rf"\p{{N}}|{_WORDS}| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
}


def split(name: str, text: str) -> list[str]:
    """Pre-tokens of `text`."""
    return regex.findall(PRETOKENIZERS[name], text)


def assert_borders(fragments: Sequence[str]) -> None:
    """Every fragment border is a pre-token border, so any BPE behind the three patterns agrees."""
    for name in PRETOKENIZERS:
        joined = split(name, "".join(fragments))
        assert joined == [piece for fragment in fragments for piece in split(name, fragment)], (
            name,
            fragments,
        )


@functools.cache
def qwen_ranks() -> dict[bytes, int]:
    """Byte-pair ranks of Qwen's tokenizer, from dashscope's wheel; skips the test where it is missing."""
    spec = importlib.util.find_spec("dashscope")  # the file is enough, the package need not be importable
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("dashscope is not installed")
    path = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    lines = path.read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


@functools.lru_cache(maxsize=100_000)
def _merge(piece: bytes) -> tuple[int, ...]:
    ranks = qwen_ranks()
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        merged = [ranks.get(a + b) for a, b in itertools.pairwise(parts)]
        best = min((r for r in merged if r is not None), default=None)
        if best is None:
            break
        at = merged.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(ranks[part] for part in parts)


def qwen_encode(text: str) -> list[int]:
    """Canonical Qwen ids of a text without special tokens."""
    return [token for piece in split("qwen2", text) for token in _merge(piece.encode())]
