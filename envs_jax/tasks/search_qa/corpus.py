"""What SearchQA is played on: passages, and questions about them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from envs_jax.datasets.table import TableReport
from envs_jax.errors import ConfigError, suggestion


@dataclass(frozen=True)
class Passage:
    """One document. Neither text is empty."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the numbers of the passages that the answer rests on."""

    text: str
    answer: str
    support: tuple[int, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Passages, and questions by split ("train", "eval"); what was left out of the source is in `reports`."""

    passages: tuple[Passage, ...]
    questions: dict[str, tuple[Question, ...]]
    reports: tuple[TableReport, ...] = ()


@dataclass(frozen=True)
class CorpusConfig:
    """What a source may need. See the fields of `SearchQA`."""

    dataset: str
    data_dir: str | None = None
    num_passages: int = 2400
    num_questions: int = 4096
    corpus_seed: int = 0
    on_bad_row: str = "refuse"


Source = Callable[[CorpusConfig], Corpus]
_SOURCES: dict[str, Source] = {}


def register_source(name: str, source: Source) -> None:
    """Makes `dataset=name` known to SearchQA."""
    if name in _SOURCES:
        raise ConfigError("dataset", name, "it is registered already; choose another name")
    _SOURCES[name] = source


def check_dataset(name: str) -> None:
    """Raises ConfigError for an unknown dataset."""
    if name not in _SOURCES:
        raise ConfigError("dataset", name, suggestion(name, _SOURCES))


@functools.lru_cache(maxsize=4)
def load_corpus(config: CorpusConfig) -> Corpus:
    """The corpus of a configuration, read once. Raises ConfigError if it has no questions for a split."""
    check_dataset(config.dataset)
    corpus = _SOURCES[config.dataset](config)
    for split in ("train", "eval"):
        if not corpus.questions.get(split):
            raise ConfigError(
                "dataset", config.dataset, f"it has no usable questions for the split {split!r}"
            )
    return corpus
