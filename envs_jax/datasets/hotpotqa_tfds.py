"""HotpotQA with its paragraphs as a tensorflow-datasets builder, from the published JSON files.

The train file is parted into train and validation; the distractor dev file, whose questions differ from it, is test. A
question that both files hold stays in test alone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow_datasets as tfds

from envs_jax.datasets.hotpotqa import FILES, HotpotRow, read_split

VALIDATION_PERCENT = 5
_LOG = logging.getLogger("envs_jax.datasets")


def _folded(question: str) -> str:
    return " ".join(question.casefold().split())


def parted(train: Iterable[HotpotRow], dev: Iterable[HotpotRow]) -> dict[str, list[HotpotRow]]:
    """Rows of train, validation and test, which share no question."""
    splits: dict[str, list[HotpotRow]] = {"train": [], "validation": [], "test": list(dev)}
    seen = {_folded(r.question) for r in splits["test"]}
    repeated = 0
    for row in train:
        folded = _folded(row.question)
        if folded in seen:
            repeated += 1
            continue
        seen.add(folded)
        digest = hashlib.sha256(folded.encode("utf-8", "surrogatepass")).digest()
        held_out = int.from_bytes(digest[:8], "big") % 100 < VALIDATION_PERCENT
        splits["validation" if held_out else "train"].append(row)
    if repeated:
        _LOG.warning("HotpotQA: %d questions of the train file are repeated and were left out", repeated)
    return splits


class HotpotQAParagraphs(tfds.core.GeneratorBasedBuilder):
    """Questions with answer, supporting titles and paragraphs, in splits train, validation and test."""

    name = "hotpotqa_paragraphs"
    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put {' and '.join(FILES.values())} of HotpotQA into the manual folder."
    on_bad_row = "refuse"

    def _info(self) -> Any:
        text = tfds.features.Text()
        features = {
            "id": text,
            "question": text,
            "answer": text,
            "support": tfds.features.Sequence(text),
            "titles": tfds.features.Sequence(text),
            "paragraphs": tfds.features.Sequence(text),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), homepage="https://hotpotqa.github.io"
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        folder = str(dl_manager.manual_dir)
        train, dev = (read_split(folder, split, None, self.on_bad_row).rows for split in FILES)
        return {name: self._generate_examples(rows) for name, rows in parted(train, dev).items()}

    def _generate_examples(self, rows: list[HotpotRow]) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in rows:
            yield (
                row.id,
                {
                    "id": row.id,
                    "question": row.question,
                    "answer": row.answer,
                    "support": list(row.support),
                    "titles": [title for title, _ in row.paragraphs],
                    "paragraphs": [text for _, text in row.paragraphs],
                },
            )
