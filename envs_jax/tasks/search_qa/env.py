"""SearchQA: questions answered with the help of a search engine over a corpus that lives on the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Span, Transition
from envs_jax.datasets.plain import plain
from envs_jax.datasets.table import check_on_bad_row
from envs_jax.errors import ConfigError
from envs_jax.tasks.answering import AnswerTask, shuffled_rows
from envs_jax.tasks.search_qa.corpus import Corpus, CorpusConfig, Question, check_dataset, load_corpus
from envs_jax.text import similarity
from envs_jax.text.call import Call, match_call
from envs_jax.text.retrieval import Bm25Index, DenseIndex, Lexicon, search
from envs_jax.text.scan import if_any
from envs_jax.text.words import Words

SEARCH, FINISH = 0, 1
MIN_F1 = (3, 10)  # an F1 below 3/10 earns nothing
RETRIEVERS = ("bm25", "dense")
DENSE_DIMENSIONS = 128  # of the vectors made from the corpus where none are given
GOLD_BYTES = 128
NOTHING = "No passage matches the query.\n"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SearchQAParams:
    """Tables of N passages and M questions of both splits; `levels` is the pool."""

    lexicon: Lexicon
    index: Bm25Index | DenseIndex
    levels: Int[Array, " num_levels"]  # question of each level
    gold: Words  # leading axis M
    support: Int[Array, "M S"]  # passages that the answer rests on, padded with -1
    passage_phrase: Int[Array, " N"]
    question_phrase: Int[Array, " M"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SearchQAState:
    """`results` are the passages of the last search, padded with -1; `seen[s]`: supporting passage s was retrieved."""

    question: Int[Array, ""]
    results: Int[Array, " K"]
    searched: Bool[Array, ""]
    seen: Bool[Array, " S"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SearchQAAction:
    """`kind` 0: search for `terms` (`cut`: there were more); 1: finish with `answer`."""

    kind: Int[Array, ""]
    terms: Int[Array, " Q"]
    cut: Bool[Array, ""]
    answer: Words


@functools.lru_cache(maxsize=4)
def _index(config: CorpusConfig) -> tuple[Lexicon, Bm25Index]:
    return Bm25Index.build(f"{p.title} {p.text}" for p in load_corpus(config).passages)


@dataclass(frozen=True)
class SearchQA(AnswerTask):
    """Open questions over a corpus: `search[query]`, then `finish[answer]`. Any other text is no action.

    A search shows the `top_k` best passages, and earns nothing. Finishing ends the episode with reward 1 for an exact
    match after SQuAD's normalisation, else F1 where it is at least 0.3, else 0; success is a reward above 0.

    `metric_names`: exact match and F1 of the answer (0 before it), the share of the supporting passages retrieved so
    far, and whether the query had more known words than `max_query_terms`, which are left out.

    Fields:
        dataset: "encyclopedia" (made up, offline), "factbook" or "hotpotqa", or what `register_source` added.
        data_dir: folder of the dataset's files, where it has some.
        num_passages: passages of the encyclopedia.
        num_questions: most questions that are used, per split where the source has splits.
        corpus_seed: of the encyclopedia, and of the choice among too many questions.
        on_bad_row: "refuse" or "skip", for rows of files that cannot be used.
        top_k: passages shown after a search.
        passage_chars: most characters shown of a passage; the whole of it is searched.
        max_query_terms: most known words of a query that count.
        retriever: "bm25", or "dense" (see `DenseIndex`).
        vectors: for "dense", an .npz file with `passages` f32[N, D] and, for the words in `words`, `word_vectors`; None
            to make vectors from the corpus.
        query_bytes: most bytes of an action; longer ones are no action.

    Level i is question i of the split in a random order, which begins anew where there are more levels than questions.
    """

    dataset: str = "encyclopedia"
    data_dir: str | None = None
    num_passages: int = 2400
    num_questions: int = 4096
    corpus_seed: int = 0
    on_bad_row: str = "refuse"
    top_k: int = 5
    passage_chars: int = 800
    max_query_terms: int = 16
    retriever: str = "bm25"
    vectors: str | None = None
    query_bytes: int = 256

    def __post_init__(self) -> None:
        check_dataset(self.dataset)
        check_on_bad_row(self.on_bad_row)
        self._check_least(
            num_levels=1,
            num_passages=1,
            num_questions=1,
            top_k=1,
            max_query_terms=1,
            passage_chars=40,
            query_bytes=16,
        )
        if self.retriever not in RETRIEVERS:
            raise ConfigError("retriever", self.retriever, f"use one of {', '.join(RETRIEVERS)}")
        if self.vectors is not None and self.retriever != "dense":
            raise ConfigError("vectors", self.vectors, 'they are for retriever = "dense"')

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("exact_match", "f1", "support_found", "query_cut")

    @property
    def answer_bytes(self) -> int:
        return self.query_bytes

    # -- data on the host ----------------------------------------------------------------------------------
    @property
    def _source(self) -> CorpusConfig:
        return CorpusConfig(
            self.dataset,
            self.data_dir,
            self.num_passages,
            self.num_questions,
            self.corpus_seed,
            self.on_bad_row,
        )

    @property
    def corpus(self) -> Corpus:
        """Passages and questions, read once for equal settings."""
        return load_corpus(self._source)

    @property
    def questions(self) -> tuple[Question, ...]:
        """Questions of every split, in the order of the tables: those of "train", then those of "eval"."""
        return self.corpus.questions["train"] + self.corpus.questions["eval"]

    @functools.cached_property
    def _text(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Phrases; the phrase of each passage; the phrase of each question."""
        known = {NOTHING: 0}
        for rank in range(self.top_k):
            known[f"[Document {rank + 1}]"] = len(known)
        passages = [
            known.setdefault(f" {plain(p.title)}: {plain(p.text, self.passage_chars)}\n", len(known))
            for p in self.corpus.passages
        ]
        questions = [known.setdefault(f"Question: {plain(q.text)}\n", len(known)) for q in self.questions]
        return list(known), np.asarray(passages, np.int32), np.asarray(questions, np.int32)

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        return (
            "You answer questions with the help of a search engine over a collection of documents. Each answer of "
            "yours is one of two actions: search[words to look for] shows the documents that match best, and "
            "finish[your final answer] ends the task. A final answer is a name, a number, a date, yes or no, without "
            "further words. It is compared with the right one, and part of the reward is given for part of its words.\n"
            "Examples: <answer>search[author of The Silent Lantern]</answer>, <answer>finish[1846]</answer>"
        )

    def phrases(self) -> Sequence[str]:
        return self._text[0]

    def state_tokens(self, lengths: np.ndarray, params: SearchQAParams) -> tuple[int, int]:
        _, passages, questions = self._text
        question = int(lengths[questions].max())
        documents = np.sort(lengths[passages])[-self.top_k :].sum() + lengths[1 : 1 + self.top_k].sum()
        return question, question + max(int(documents), int(lengths[0]))

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> SearchQAParams:
        train, evaluation = (len(self.corpus.questions[s]) for s in ("train", "eval"))
        first, count = (0, train) if split == "train" else (train, evaluation)
        return replace(_tables(self), levels=first + shuffled_rows(key, count, self.num_levels))

    def _dense(self, lexicon: Lexicon, index: Bm25Index) -> DenseIndex:
        if self.vectors is None:
            return DenseIndex.project(index, DENSE_DIMENSIONS, self.corpus_seed)
        with np.load(Path(self.vectors), allow_pickle=False) as file:
            missing = [n for n in ("passages", "words", "word_vectors") if n not in file]
            if missing:
                raise ConfigError("vectors", self.vectors, f"the file lacks {', '.join(missing)}")
            passages, names, vectors = file["passages"], file["words"].tolist(), file["word_vectors"]
        if passages.shape != (index.size, vectors.shape[-1]) or len(names) != len(vectors):
            raise ConfigError(
                "vectors",
                self.vectors,
                f"passages {passages.shape} and word_vectors {vectors.shape} do not fit {index.size} passages and "
                f"{len(names)} words",
            )
        return DenseIndex.of_words(lexicon, passages, names, vectors)

    def level(self, index: Int[Array, ""], params: SearchQAParams) -> SearchQAState:
        return SearchQAState(
            question=params.levels[jnp.asarray(index, jnp.int32)],
            results=jnp.full((self.top_k,), -1, jnp.int32),
            searched=jnp.zeros((), bool),
            seen=jnp.zeros((params.support.shape[1],), bool),
        )

    def observe(self, state: SearchQAState, params: SearchQAParams) -> Int[Array, " F"]:
        found = state.results >= 0
        ranks = jnp.where(found, 1 + jnp.arange(self.top_k, dtype=jnp.int32), -1)
        texts = jnp.where(found, params.passage_phrase[jnp.maximum(state.results, 0)], -1)
        nothing = jnp.where(state.searched & ~jnp.any(found), 0, -1)
        return jnp.concatenate(
            [
                params.question_phrase[state.question][None],
                nothing[None],
                jnp.stack([ranks, texts], 1).reshape(-1),
            ]
        ).astype(jnp.int32)

    def parse(
        self, span: Span, state: SearchQAState, params: SearchQAParams
    ) -> tuple[SearchQAAction, Bool[Array, ""]]:
        call: Call = match_call(span, ("search", "finish"))
        terms, cut = params.lexicon.terms(call.argument, call.length, self.max_query_terms)
        answer = _answer_words(call.found & (call.name == FINISH), call.argument, call.length)
        return SearchQAAction(call.name, terms, cut, answer), call.found

    def transition(
        self, key: Array, state: SearchQAState, action: SearchQAAction, params: SearchQAParams
    ) -> Transition:
        finish = action.kind == FINISH
        gold = jax.tree.map(lambda x: x[state.question], params.gold)
        exact = similarity.exact_match(action.answer, gold) & finish
        above, below = similarity.f1_parts(action.answer, gold)
        above = jnp.where(finish, above, 0)
        f1 = above.astype(jnp.float32) / below.astype(jnp.float32)
        reward = jnp.where(exact, 1.0, jnp.where(above * MIN_F1[1] >= below * MIN_F1[0], f1, 0.0))

        results = search(params.index, action.terms, self.top_k, ~finish)
        support = params.support[state.question]
        wanted = support >= 0
        seen = state.seen | (~finish & wanted & jnp.any(support[:, None] == results[None], axis=1))
        share = jnp.sum(seen) / jnp.maximum(jnp.sum(wanted), 1)
        metrics: Float[Array, " M"] = jnp.stack(
            [exact, jnp.where(exact, 1.0, f1), share, action.cut & ~finish]
        ).astype(jnp.float32)
        return Transition(
            state=SearchQAState(
                question=state.question,
                results=jnp.where(finish, state.results, results),
                searched=state.searched | ~finish,
                seen=seen,
            ),
            reward=reward.astype(jnp.float32),
            terminated=finish,
            success=reward > 0,
            valid=jnp.ones((), bool),
            effective=finish | jnp.any(results >= 0),
            metrics=metrics,
        )


_answer_words = if_any(similarity.answer_words)


@functools.lru_cache(maxsize=4)
def _tables(env: SearchQA) -> SearchQAParams:
    """Everything but the pool of levels, which is empty."""
    lexicon, index = _index(env._source)
    questions = env.questions
    answers = [q.answer.encode() for q in questions]
    data = np.zeros((len(answers), GOLD_BYTES), np.uint8)
    for row, answer in zip(data, answers, strict=True):
        if len(answer) > GOLD_BYTES:
            raise ConfigError(
                "dataset", answer.decode(), f"answers of more than {GOLD_BYTES} bytes do not fit"
            )
        row[: len(answer)] = np.frombuffer(answer, np.uint8)
    sizes = jnp.asarray([len(a) for a in answers], jnp.int32)
    gold = jax.jit(jax.vmap(similarity.answer_words))(jnp.asarray(data), sizes)
    empty = np.flatnonzero(np.asarray(gold.count) == 0)
    if len(empty):
        raise ConfigError("dataset", questions[empty[0]].answer, "an answer of articles or punctuation alone")
    longest = int(gold.count.max())
    support = np.full((len(questions), max([1, *(len(q.support) for q in questions)])), -1, np.int32)
    for place, question in enumerate(questions):
        support[place, : len(question.support)] = question.support
    _, passage_phrase, question_phrase = env._text
    return SearchQAParams(
        lexicon=lexicon,
        index=env._dense(lexicon, index) if env.retriever == "dense" else index,
        levels=jnp.zeros(0, jnp.int32),
        gold=Words(gold.hash[:, :longest], gold.count, gold.overflow),
        support=jnp.asarray(support),
        passage_phrase=jnp.asarray(passage_phrase),
        question_phrase=jnp.asarray(question_phrase),
    )
