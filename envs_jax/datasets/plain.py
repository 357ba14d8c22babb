"""Text of data files made fit for prompts."""

from __future__ import annotations

ELLIPSIS = " ..."


def plain(text: str, limit: int | None = None) -> str:
    """`text` on one line: whitespace collapsed, at most `limit` characters: cut between words, with an ellipsis.

    "<|" is written "< |", so that no text can bring a tokenizer's special tokens into a prompt.
    """
    text = " ".join(text.replace("<|", "< |").split())
    if limit is None or len(text) <= limit:
        return text
    cut = text[: limit - len(ELLIPSIS) + 1]
    head = cut.rpartition(" ")[0] or cut[:-1]
    return head.rstrip() + ELLIPSIS
