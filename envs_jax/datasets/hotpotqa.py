"""HotpotQA with its paragraphs, in the published JSON format (one array of questions a file).

{"_id", "question", "answer", "supporting_facts": [[title, sentence], ...], "context": [[title, [sentence, ...]], ...]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envs_jax.datasets.table import Record, RowError, Table, check_rows, field, read_json_array, text_field
from envs_jax.errors import ConfigError

FILES = {"train": "hotpot_train_v1.1.json", "eval": "hotpot_dev_distractor_v1.json"}
MAX_ANSWER_BYTES = 128


@dataclass(frozen=True)
class HotpotRow:
    """One question. `paragraphs` are (title, text); `support` are titles of those that the answer rests on."""

    id: str
    question: str
    answer: str
    support: tuple[str, ...]
    paragraphs: tuple[tuple[str, str], ...]


def parse_row(record: Any) -> HotpotRow:
    """A row of the published file. Raises RowError for what cannot be used, among it empty paragraphs."""
    paragraphs = []
    for place, item in enumerate(field(record, "context", list)):
        match item:
            case [str(title), list(sentences)] if all(isinstance(s, str) for s in sentences):
                text = " ".join("".join(sentences).split())
                if not text or not title.strip():
                    raise RowError("empty document", f"context[{place}]")
                paragraphs.append((title.strip(), text))
            case _:
                raise RowError("wrong type", f"context[{place}] is not [title, [sentence, ...]]")
    support: list[str] = []
    for place, item in enumerate(field(record, "supporting_facts", list)):
        match item:
            case [str(title), *_]:
                support.append(title.strip())
            case _:
                raise RowError("wrong type", f"supporting_facts[{place}] is not [title, sentence]")
    titles = {title for title, _ in paragraphs}
    lost = [t for t in support if t not in titles]
    if lost:
        raise RowError("missing paragraph", f"{lost[0]!r} is a supporting fact and not in context")
    answer = text_field(record, "answer", MAX_ANSWER_BYTES)
    if not re.sub(r"\b(a|an|the)\b", " ", re.sub(r"[!-/:-@\[-`{-~]", "", answer.lower())).strip():
        raise RowError("empty field", f"answer = {answer!r} is articles or punctuation alone")
    return HotpotRow(
        id=text_field(record, "_id"),
        question=text_field(record, "question", 2000),
        answer=answer,
        support=tuple(dict.fromkeys(support)),
        paragraphs=tuple(paragraphs),
    )


def find_file(data_dir: str | None, name: str) -> Path:
    """The file in the folder. Raises ConfigError where there is no folder or no such file."""
    if data_dir is None:
        raise ConfigError("data_dir", data_dir, f"name the folder that holds {name}")
    path = Path(data_dir) / name
    if not path.is_file():
        raise ConfigError("data_dir", data_dir, f"the folder does not hold {name}")
    return path


def read_split(data_dir: str | None, split: str, limit: int | None, on_bad_row: str) -> Table[HotpotRow]:
    """The first `limit` rows of a split's file, "train" or "eval"."""
    path = find_file(data_dir, FILES[split])
    records: Iterator[Record] = islice(read_json_array(path), limit)
    return check_rows(records, parse_row, source=path.name, on_bad_row=on_bad_row, identity=lambda r: r.id)
