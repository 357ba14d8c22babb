"""Chat formats: how roles are written around messages. Plain data; special tokens are written out as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChatFormat:
    """Text put around each role's message.

    A dialogue is `begin + system_open + .. + system_close + user_open + .. + user_close + assistant_open + .. +
    assistant_close + user_open + ..`. `required` lists the special tokens that the tokenizer must have.
    """

    name: str
    begin: str
    system_open: str
    system_close: str
    user_open: str
    user_close: str
    assistant_open: str
    assistant_close: str
    required: tuple[str, ...]


CHATML = ChatFormat(
    name="chatml",
    begin="",
    system_open="<|im_start|>system\n",
    system_close="<|im_end|>\n",
    user_open="<|im_start|>user\n",
    user_close="<|im_end|>\n",
    assistant_open="<|im_start|>assistant\n",
    assistant_close="<|im_end|>\n",
    required=("<|im_start|>", "<|im_end|>"),
)

LLAMA3 = ChatFormat(
    name="llama3",
    begin="<|begin_of_text|>",
    system_open="<|start_header_id|>system<|end_header_id|>\n\n",
    system_close="<|eot_id|>",
    user_open="<|start_header_id|>user<|end_header_id|>\n\n",
    user_close="<|eot_id|>",
    assistant_open="<|start_header_id|>assistant<|end_header_id|>\n\n",
    assistant_close="<|eot_id|>",
    required=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)

PLAIN = ChatFormat(
    name="plain",
    begin="",
    system_open="",
    system_close="\n",
    user_open="",
    user_close="\n",
    assistant_open="",
    assistant_close="\n",
    required=(),
)

CHAT_FORMATS = {f.name: f for f in (CHATML, LLAMA3, PLAIN)}
