"""Rollouts of other trainers: JSON lines with a context and what was generated, read into pairs (X, Z).

docs/diagnose.md describes the lines. Ids are taken as they are; text is encoded with the scorer's tokenizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs_jax.text.chat import CHAT_FORMATS, ChatFormat
from ragen_jax.training.setup import AnyTokenizer

# Each field under the names that trainers give it; the first one present counts.
_CONTEXT_IDS = ("prompt_ids", "context_ids", "prompt_token_ids")
_CONTEXT = ("prompt", "context", "input")
_REASONING_IDS = ("reasoning_ids",)
_REASONING = ("reasoning",)
_RESPONSE_IDS = ("response_ids", "completion_ids", "response_token_ids")
_RESPONSE = ("response", "completion", "output")
_REWARD = ("reward", "score")
_GROUP = ("group", "group_id", "uid")


class RolloutFileError(ValueError):
    """A file of rollouts cannot be used. The message names the file, the line and the remedy."""


@dataclass(frozen=True)
class Pair:
    """A reasoning trace Z and what was read before it, X; both as ids, neither empty."""

    line: int  # from 1
    turn: int  # from 0
    context: tuple[int, ...]
    trace: tuple[int, ...]


@dataclass(frozen=True)
class Rollout:
    """One line. `invalid` counts its responses without a closed, non-empty reasoning span."""

    line: int
    group: str
    reward: float | None
    pairs: tuple[Pair, ...]
    invalid: int


@dataclass(frozen=True)
class Reader:
    """How lines become ids. `tags` enclose the reasoning in a response; None: the whole response is reasoning."""

    tokenizer: AnyTokenizer
    chat: ChatFormat
    tags: tuple[str, str] | None = ("<think>", "</think>")

    def read(self, path: str | Path) -> list[Rollout]:
        """Every line of the file; blank ones are passed over. Raises RolloutFileError at the first bad one."""
        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise RolloutFileError(
                f"{path}: cannot be read ({error.strerror}); give a JSON-lines file"
            ) from None
        except UnicodeDecodeError:
            raise RolloutFileError(f"{path}: is not text; give a JSON-lines file") from None
        rollouts = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rollouts.append(self._rollout(number, _json_object(line)))
            except RolloutFileError as error:
                raise RolloutFileError(f"{path}, line {number}: {error}") from None
        if not rollouts:
            raise RolloutFileError(f"{path}: holds no rollout")
        return rollouts

    def _rollout(self, number: int, row: dict[str, Any]) -> Rollout:
        turns = self._turns(row)
        pairs, invalid = [], 0
        for turn, (context, trace) in enumerate(turns):
            if not context:
                raise RolloutFileError("the context is empty; give what was read before the reasoning")
            if trace:
                pairs.append(Pair(number, turn, tuple(context), tuple(trace)))
            else:
                invalid += 1
        name, group = _field(row, _GROUP)
        if group is None:
            group = json.dumps(self._first_context(row))
        elif not isinstance(group, str | int) or isinstance(group, bool):
            raise RolloutFileError(f"{name} is {group!r}; give a string or a whole number")
        return Rollout(number, str(group), _reward(row), tuple(pairs), invalid)

    # -- context and response ------------------------------------------------------------------------------
    def _turns(self, row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
        """(X, Z) of each response in a row; Z is empty where there is no valid reasoning."""
        name, ids = _field(row, _REASONING_IDS)
        if ids is not None:
            return [(self._context(row), self._ids(name, ids))]
        name, text = _field(row, _REASONING)
        if text is not None:
            return [(self._context(row), self.tokenizer.encode(_text(name, text)))]
        name, ids = _field(row, _RESPONSE_IDS)
        if ids is not None:
            return [self._split_ids(self._context(row), self._ids(name, ids))]
        name, text = _field(row, _RESPONSE)
        if text is not None:
            if isinstance(text, list):
                text = "".join(content for _, content in _messages(name, text))
            text = _text(name, text)
            if _field(row, _CONTEXT_IDS)[1] is not None:
                return [self._split_ids(self._context(row), self.tokenizer.encode(text))]
            return [self._split_text(self._context_text(row), text)]
        if "messages" in row:
            messages = _messages("messages", row["messages"])
            answers = [i for i, (role, _) in enumerate(messages) if role == "assistant"]
            if not answers:
                raise RolloutFileError("messages holds no message of the assistant, and there is no response")
            return [self._split_text(self._dialogue(messages[:i]), messages[i][1]) for i in answers]
        raise RolloutFileError(
            f"has no response; give one of {', '.join((*_REASONING_IDS, *_REASONING, *_RESPONSE_IDS, *_RESPONSE))}"
        )

    def _context(self, row: dict[str, Any]) -> list[int]:
        name, ids = _field(row, _CONTEXT_IDS)
        return self._ids(name, ids) if ids is not None else self.tokenizer.encode(self._context_text(row))

    def _context_text(self, row: dict[str, Any]) -> str:
        name, text = _field(row, _CONTEXT)
        if text is None:
            name, text = "messages", row.get("messages")
        if text is None:
            known = (*_CONTEXT_IDS, *_CONTEXT, "messages")
            raise RolloutFileError(f"has no context; give one of {', '.join(known)}")
        if isinstance(text, list):
            return self._dialogue(_messages(name, text))
        return _text(name, text)

    def _first_context(self, row: dict[str, Any]) -> Any:
        """What tells groups apart where the file does not: the context of the first response."""
        for names in (_CONTEXT_IDS, _CONTEXT):
            _, value = _field(row, names)
            if value is not None:
                return value
        first = [m["role"] for m in row["messages"]]
        return row["messages"][: first.index("assistant")] if "assistant" in first else row["messages"]

    def _dialogue(self, messages: Sequence[tuple[str, str]]) -> str:
        """Messages in the chat format, open for the assistant's next one."""
        around = {
            "system": (self.chat.system_open, self.chat.system_close),
            "user": (self.chat.user_open, self.chat.user_close),
            "assistant": (self.chat.assistant_open, self.chat.assistant_close),
        }
        said = "".join(around[role][0] + content + around[role][1] for role, content in messages)
        return self.chat.begin + said + self.chat.assistant_open

    # -- the reasoning in a response -----------------------------------------------------------------------
    def _split_text(self, context: str, response: str) -> tuple[list[int], list[int]]:
        encode = self.tokenizer.encode
        if self.tags is None:
            return encode(context), encode(response)
        opening, closing = self.tags
        start = response.find(opening)
        start = 0 if start < 0 else start + len(opening)
        end = response.find(closing, start)
        reasoning = response[start:end] if end >= 0 else ""
        return encode(context + response[:start]), encode(reasoning) if reasoning.strip() else []

    def _split_ids(self, context: list[int], response: list[int]) -> tuple[list[int], list[int]]:
        """The span between the tags, found in the bytes; a token that straddles a tag is outside."""
        if self.tags is None:
            return context, response
        special = {i: text.encode() for text, i in self.tokenizer.special_ids().items()}
        table = _bytes_of(self.tokenizer)
        pieces = [special.get(i, table[i]) for i in response]
        text = b"".join(pieces)
        opening, closing = (tag.encode() for tag in self.tags)
        begin = text.find(opening)
        begin = 0 if begin < 0 else begin + len(opening)
        end = text.find(closing, begin)
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece))
        first = next((i for i, at in enumerate(starts[:-1]) if at >= begin), len(response))
        inside = [i for i in range(first, len(response)) if starts[i + 1] <= end]
        x = context + response[:first]
        return x, [response[i] for i in inside] if end >= 0 and text[begin:end].strip() else []

    def _ids(self, name: str, value: Any) -> list[int]:
        size = self.tokenizer.vocab_size
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < size for i in value):
            raise RolloutFileError(
                f"{name} must be a list of ids below {size}, those of the scorer's tokenizer"
            )
        return value


def chat_format(tokenizer: AnyTokenizer, name: str | None) -> ChatFormat:
    """The format of that name, or the first whose tokens the tokenizer has. Raises RolloutFileError."""
    if name is not None and name not in CHAT_FORMATS:
        raise RolloutFileError(f"no chat format {name!r}; known are {', '.join(CHAT_FORMATS)}")
    special = tokenizer.special_ids()
    if name is not None and (missing := [t for t in CHAT_FORMATS[name].required if t not in special]):
        raise RolloutFileError(
            f"chat format {name!r} needs the token {missing[0]}, which this tokenizer lacks"
        )
    named = [CHAT_FORMATS[name]] if name is not None else list(CHAT_FORMATS.values())
    return next(f for f in named if all(token in special for token in f.required))


_TABLES: dict[str, list[bytes]] = {}


def _bytes_of(tokenizer: AnyTokenizer) -> list[bytes]:
    """`token_bytes`, made once for each tokenizer."""
    if tokenizer.fingerprint not in _TABLES:
        _TABLES[tokenizer.fingerprint] = tokenizer.token_bytes()
    return _TABLES[tokenizer.fingerprint]


# -- fields --------------------------------------------------------------------------------------------------
def _json_object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RolloutFileError(f"not JSON ({error.msg} at character {error.pos})") from None
    if not isinstance(row, dict):
        raise RolloutFileError(f"holds a JSON {type(row).__name__}, not an object")
    return row


def _field(row: dict[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    return next(((n, row[n]) for n in names if row.get(n) is not None), (names[0], None))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RolloutFileError(f"{name} is a JSON {type(value).__name__}; give text")
    return value


def _messages(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise RolloutFileError(f"{name} must be a list of messages with role and content")
    for message in value:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "user", "assistant") or not isinstance(message.get("content"), str):
            raise RolloutFileError(
                f"{name} holds {json.dumps(message)[:80]}; a message has role system, user or assistant, and content"
            )
    return [(m["role"], m["content"]) for m in value]


def _reward(row: dict[str, Any]) -> float | None:
    name, value = _field(row, _REWARD)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RolloutFileError(f"{name} is {value!r}; give a finite number, the reward of the whole episode")
    return float(value)
