"""MetaMathQA as a tensorflow-datasets builder, from the published `MetaMathQA-395K.json`.

The file is one JSON array of objects with query, response, type and original_question. Many rows are variants of one
original question, so a split takes all of a question's variants together, and rows that share a query stay together
too. Rows that repeat a query are merged; the first one's answer is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from envs_jax.datasets.questions import answer_of
from envs_jax.datasets.splits import SHARES, split_of
from envs_jax.datasets.table import check_rows, read_json_array, text_field

FILE = "MetaMathQA-395K.json"
_LOG = logging.getLogger("envs_jax.datasets")


@dataclass(frozen=True)
class Row:
    query: str
    answer: str
    kind: str
    original: str


def parse_row(record: Any) -> Row:
    """A row of the published file; raises RowError."""
    return Row(
        query=text_field(record, "query"),
        answer=answer_of(text_field(record, "response")),
        kind=text_field(record, "type"),
        original=text_field(record, "original_question"),
    )


def folded(text: str) -> str:
    """The same for texts that differ in case or spacing alone."""
    return " ".join(text.casefold().split())


def families(rows: tuple[Row, ...]) -> list[str]:
    """For each row a name that it shares with all rows that a query or an original question links it to."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        at = text
        while parent.setdefault(at, at) != at:
            at = parent[at]
        while parent[text] != at:
            parent[text], text = at, parent[text]
        return at

    for row in rows:
        a, b = root(folded(row.original)), root(folded(row.query))
        parent[max(a, b)] = min(a, b)
    return [root(folded(row.original)) for row in rows]


class MetaMathQA(tfds.core.GeneratorBasedBuilder):
    """Questions with answers in splits train, validation and test that share no question."""

    name = "metamathqa"
    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"Put {FILE} of the MetaMathQA data set (meta-math/MetaMathQA) into the manual folder."
    )
    on_bad_row = "refuse"

    def _info(self) -> Any:
        text = tfds.features.Text()
        features = {"query": text, "answer": text, "type": text, "original_question": text}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            homepage="https://meta-math.github.io",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        path = Path(dl_manager.manual_dir) / FILE
        table = check_rows(read_json_array(path), parse_row, source=FILE, on_bad_row=self.on_bad_row)
        splits: dict[str, dict[str, Row]] = {name: {} for name, _ in SHARES}
        conflicting = 0
        for row, family in zip(table.rows, families(table.rows), strict=True):
            kept = splits[split_of(family)].setdefault(folded(row.query), row)
            conflicting += kept.answer != row.answer
        merged = len(table.rows) - sum(map(len, splits.values()))
        if merged:
            _LOG.warning(
                "%s: %d rows repeat a query and were merged, %d of them with another answer",
                FILE, merged, conflicting,
            )  # fmt: skip
        return {name: self._generate_examples(list(rows.values())) for name, rows in splits.items()}

    def _generate_examples(self, rows: list[Row]) -> Iterator[tuple[int, dict[str, str]]]:
        for index, row in enumerate(rows):
            yield (
                index,
                {
                    "query": row.query,
                    "answer": row.answer,
                    "type": row.kind,
                    "original_question": row.original,
                },
            )
