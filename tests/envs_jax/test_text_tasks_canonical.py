"""Whole prompts of the tasks of numbers are tokenised as their joined text, by every tokenizer at hand."""

from __future__ import annotations

import pytest
import test_canonical_prompts as prompts


@pytest.mark.parametrize("style", ["full", "brief"])
@pytest.mark.parametrize("tag", ["Countdown", "MetaMathQA"])
@pytest.mark.parametrize(
    ("name", "chat"),
    [("bytes", "chatml"), ("small", "plain"), pytest.param("qwen", "chatml", marks=pytest.mark.parity),
     pytest.param("qwen", "llama3", marks=pytest.mark.parity), ("smollm2", "chatml")],
)  # fmt: skip
def test_fragments_are_canonical(tag: str, style: str, name: str, chat: str) -> None:
    prompts.check(tag, style, chat, name)
