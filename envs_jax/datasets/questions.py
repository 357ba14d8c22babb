"""Question tables of MetaMathQA: generated problems, reasoning-gym's, and the published file.

Published rows have the fields query, response, type and original_question; what follows "The answer is: " in the
response is the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from envs_jax.datasets import reasoning_gym
from envs_jax.datasets.splits import halves
from envs_jax.datasets.table import RowError, check_rows, number, text_field
from envs_jax.datasets.tfds_source import read_split
from envs_jax.datasets.word_problems import problems
from envs_jax.errors import ConfigError, suggestion
from envs_jax.text.chat import CHAT_FORMATS

DATASETS = ("generated", "tfds/metamathqa", "reasoning_gym/gsm_symbolic")
MARKER = "The answer is: "
SPLIT_NAMES = {"train": "train", "eval": "validation"}
CONTROL = tuple(sorted({token for chat in CHAT_FORMATS.values() for token in chat.required}))
_WHITESPACE = dict.fromkeys([*range(9, 14), *range(28, 33)])
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True)
class Question:
    """A question, and its answer as the source writes it."""

    question: str
    answer: str


def normalised(answer: str) -> str:
    """`answer` without ASCII whitespace and with ASCII letters in lower case: what string equality compares."""
    return answer.translate(_WHITESPACE).translate(_UPPER)


def answer_of(response: str) -> str:
    """What follows the published marker in a worked response; raises RowError where nothing does."""
    _, found, answer = response.partition(MARKER)
    if not found or not answer.strip():
        raise RowError("no answer", f"nothing follows {MARKER!r} in the response")
    return answer.strip()


def parse_question(record: Any, *, max_question_bytes: int, max_answer_bytes: int) -> Question:
    """A question from a decoded row with the fields question and answer; raises RowError."""
    question = text_field(record, "question", max_question_bytes)
    answer = text_field(record, "answer")
    if len(normalised(answer).encode()) > max_answer_bytes:
        raise RowError("too long", f"answer has over {max_answer_bytes} bytes")
    for token in CONTROL:
        if token in question:
            raise RowError("control token", f"the question contains {token!r}")
    return Question(question, answer)


@functools.lru_cache(maxsize=8)
def load_questions(
    dataset: str,
    data_dir: str | None,
    count: int,
    seed: int,
    max_question_bytes: int,
    max_answer_bytes: int,
    on_bad_row: str,
) -> dict[str, tuple[Question, ...]]:
    """At most `count` questions for each of "train" and "eval"; no question is in both.

    Args:
        dataset: one of DATASETS.
        data_dir: of tensorflow-datasets; None for its default.
        count: for each split.
        seed: of generators.
        max_question_bytes: the window; longer questions are bad rows.
        max_answer_bytes: likewise, of the normalised answer.
        on_bad_row: "refuse" or "skip".
    """
    parse = functools.partial(
        parse_question, max_question_bytes=max_question_bytes, max_answer_bytes=max_answer_bytes
    )

    def checked(rows: Iterable[dict[str, Any]], part: str) -> tuple[Question, ...]:
        return check_rows(
            number(rows),
            parse,
            source=f"{dataset}, {part}",
            on_bad_row=on_bad_row,
            identity=lambda q: q.question,
            place="row",
        ).rows

    if dataset == "tfds/metamathqa":
        return {
            split: checked(
                (
                    {"question": row["query"], "answer": row["answer"]}
                    for row in read_split("metamathqa", name, data_dir, count)
                ),
                name,
            )
            for split, name in SPLIT_NAMES.items()
        }
    if dataset not in DATASETS:
        raise ConfigError("dataset", dataset, suggestion(dataset, DATASETS))

    def items() -> Iterator[dict[str, Any]]:
        if dataset == "generated":
            yield from ({"question": q, "answer": a} for q, a in problems(seed))
        else:
            yield from reasoning_gym.items("gsm_symbolic", seed)

    found = halves(items(), lambda item: str(item["question"]), count, limit=100 * count + 10_000)
    return {split: checked(rows, split) for split, rows in found.items()}
