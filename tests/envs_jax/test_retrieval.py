"""BM25 on device against plain Python and bm25s; vectors against numpy."""

from __future__ import annotations

import collections
import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.errors import ConfigError
from envs_jax.text import retrieval
from envs_jax.text.retrieval import Bm25Index, DenseIndex, Lexicon

WIDTH, Q = 128, 12


def corpus(size: int, seed: int = 0, vocabulary: int = 3000) -> tuple[list[str], random.Random]:
    """Passages of words with Zipf's frequencies, among them stop words, plurals and empty passages."""
    rng = random.Random(seed)
    letters = "bcdfghklmnprtvz"
    names = [
        "".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(rng.randint(1, 4)))
        for _ in range(vocabulary)
    ]
    names += [n + "s" for n in names[: vocabulary // 4]] + sorted(retrieval.STOP_WORDS)
    rng.shuffle(names)
    weights = [1 / (i + 3) for i in range(len(names))]
    texts = [
        "" if rng.random() < 0.01 else " ".join(rng.choices(names, weights, k=rng.randint(3, 40))) + "."
        for _ in range(size)
    ]
    return texts, rng


def queries(texts: list[str], rng: random.Random, count: int) -> list[str]:
    out = []
    for _ in range(count):
        words = rng.choice([t for t in rng.sample(texts, 8) if t]).rstrip(".").split()
        words = [rng.choice(words) for _ in range(rng.randint(1, 6))] + rng.choice([[], ["unheardof"]])
        out.append(rng.choice([" ", ", "]).join(words))
    return out


def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    data = np.zeros((len(texts), WIDTH), np.uint8)
    for row, text in zip(data, texts, strict=True):
        row[: len(text.encode())] = np.frombuffer(text.encode(), np.uint8)
    return data, np.asarray([len(t.encode()) for t in texts], np.int32)


def search(lexicon: Lexicon, index: Any, texts: list[str], count: int) -> Any:
    """Scores [n, N], best passages, and the overflow flag of each query."""

    @jax.jit
    def run(data: Any, length: Any, lexicon: Any, index: Any) -> Any:
        def one(query: Any) -> Any:
            terms, more = lexicon.terms(*query, Q)
            scores = index.scores(terms)
            return scores, retrieval.top(scores, count)[0], more

        return jax.lax.map(one, (data, length), batch_size=50)

    return jax.device_get(run(*encode(texts), lexicon, index))


def assert_ranked(best: np.ndarray, scores: np.ndarray, count: int) -> None:
    """`best` orders `scores`: equal scores by passage, and differences below rounding in either order."""
    order = [int(i) for i in np.lexsort((np.arange(len(scores)), -scores))[:count] if scores[i] > 0]
    got = [int(i) for i in best if i >= 0]
    assert len(got) == len(order)
    for mine, theirs in zip(got, order, strict=True):
        assert mine == theirs or abs(scores[mine] - scores[theirs]) < 1e-5, (got, order)


def python_bm25(texts: list[str], query: str, k1: float, b: float) -> np.ndarray:
    analysed = [retrieval.analyse(t) for t in texts]
    mean = sum(map(len, analysed)) / len(texts)
    out = np.zeros(len(texts))
    for term in retrieval.analyse(query):
        df = sum(term in a for a in analysed)
        for i, a in enumerate(analysed):
            f = collections.Counter(a)[term]
            if f:
                idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
                out[i] += idf * f / (f + k1 * (1 - b + b * len(a) / mean))
    return out


@pytest.mark.parametrize("dense_share", [0.0, 0.05, 1.0])
def test_scores_are_those_of_the_formula(dense_share: float) -> None:
    texts, rng = corpus(60, vocabulary=80)
    lexicon, index = Bm25Index.build(texts, k1=1.2, b=0.7, dense_share=dense_share)
    asked = queries(texts, rng, 40)
    scores, best, more = search(lexicon, index, asked, 5)
    for query, row, ranked in zip(asked, scores, best, strict=True):
        want = python_bm25(texts, query, 1.2, 0.7)
        np.testing.assert_allclose(row, want, atol=1e-5)
        assert_ranked(ranked, want, 5)
    assert not more.any()


@pytest.mark.parity
@pytest.mark.parametrize(("size", "count"), [(2000, 1000), (20_000, 200)])
def test_scores_and_ranks_are_those_of_bm25s(size: int, count: int) -> None:
    import bm25s

    texts, rng = corpus(size, seed=size)
    lexicon, index = Bm25Index.build(texts)
    asked = queries(texts, rng, count)
    other = bm25s.BM25(method="lucene", k1=retrieval.K1, b=retrieval.B, dtype="float64")
    other.index([retrieval.analyse(t) for t in texts], show_progress=False)
    scores, best, more = search(lexicon, index, asked, 10)
    positive = 0
    for query, row, ranked in zip(asked, scores, best, strict=True):
        terms = [t for t in retrieval.analyse(query) if t in other.vocab_dict]
        want = other.get_scores(terms) if terms else np.zeros(size)
        np.testing.assert_allclose(row, want, atol=2e-5)
        assert_ranked(ranked, want, 10)
        positive += want.max() > 0
    assert positive > 0.9 * count
    assert not more.any()
    assert index.rows.shape[0] > 5  # frequent words and posting lists are both in use
    assert len(index.passages) > size


def test_query_words_beyond_the_limit_are_flagged() -> None:
    texts, _ = corpus(50)
    lexicon, index = Bm25Index.build(texts)
    known = sorted({w for t in texts for w in retrieval.analyse(t)})[: Q + 1]
    _, _, more = search(lexicon, index, [" ".join(known), " ".join(known[:Q])], 3)
    assert more.tolist() == [True, False]


def test_plurals_find_their_singular_and_stop_words_nothing() -> None:
    lexicon, index = Bm25Index.build(["red berry", "two dogs", "the boss", ""])
    _, best, _ = search(lexicon, index, ["berries", "DOG", "boss", "the", "", "Dogs berry"], 3)
    assert best.tolist() == [[0, -1, -1], [1, -1, -1], [2, -1, -1], [-1] * 3, [-1] * 3, [0, 1, -1]]


@pytest.mark.parametrize(
    "word", ["berries", "dogs", "boss", "bus", "trees", "horses", "gas", "aunties", "s", "shoes"]
)
def test_every_form_of_a_stem_is_known(word: str) -> None:
    assert word in retrieval.forms(retrieval.stem(word))


def test_an_index_needs_passages_and_sound_constants() -> None:
    for given, field in (
        ({"texts": []}, "texts"),
        ({"texts": ["x"], "k1": -1.0}, "k1"),
        ({"texts": ["x"], "b": 2.0}, "b"),
    ):
        with pytest.raises(ConfigError) as caught:
            Bm25Index.build(**given)  # type: ignore[arg-type]
        assert caught.value.field == field
    lexicon, index = Bm25Index.build(["", " . "])  # nothing but empty passages
    assert search(lexicon, index, ["anything"], 2)[1].tolist() == [[-1, -1]]


def test_vectors_rank_by_inner_product() -> None:
    texts, rng = corpus(300)
    lexicon, index = Bm25Index.build(texts)
    dense = DenseIndex.project(index, 64, seed=3)
    asked = queries(texts, rng, 100)
    scores, best, _ = search(lexicon, dense, asked, 10)
    passages, terms = np.asarray(dense.passages), np.asarray(dense.terms)
    ids = jax.device_get(jax.vmap(lambda d, n: lexicon.terms(d, n, Q)[0])(*map(jnp.asarray, encode(asked))))
    for row, ranked, query in zip(scores, best, ids, strict=True):
        vector = terms[query[query >= 0]].sum(0)
        want = passages @ (vector / max(np.linalg.norm(vector), 1e-12))
        np.testing.assert_allclose(row, want, atol=1e-5)
        assert_ranked(ranked, want, 10)
    # A passage asked for in its own words is found.
    whole = [i for i, t in enumerate(texts) if 4 < len(retrieval.analyse(t)) < Q and len(t) < WIDTH][:100]
    found = search(lexicon, dense, [texts[i] for i in whole], 10)[1]
    assert np.mean([i in row for i, row in zip(whole, found, strict=True)]) > 0.9


def test_vectors_made_from_the_corpus_keep_the_cosines_of_the_impacts() -> None:
    """Random indexing is a random projection: the cosine of a word with a passage errs by 1 / sqrt(D)."""
    texts, _ = corpus(200)
    _, index = Bm25Index.build(texts)
    words, dimensions = jnp.arange(index.offsets.shape[0] - 1)[:, None], 128
    exact = np.asarray(jax.jit(jax.vmap(index.scores))(words))
    filled = np.linalg.norm(exact, axis=0) > 0
    exact = exact[:, filled] / np.linalg.norm(exact[:, filled], axis=0)
    made = jax.vmap(DenseIndex.project(index, dimensions, seed=5).scores)(words)
    error = np.asarray(made)[:, filled] - exact
    assert 0.95 < np.sqrt(np.mean(error**2) * dimensions) < 1.05
    assert abs(np.mean(error)) < 0.01


def test_equal_passages_score_equal_to_the_last_bit() -> None:
    """Whatever their place, so that ties are in order of passages, and whatever the other queries of a batch."""
    texts, rng = corpus(9, vocabulary=60)
    lexicon, index = Bm25Index.build([texts[i % 9] for i in range(331)], dense_share=1 / 5)
    assert index.rows.shape[0] > 3
    assert index.longest > 1
    asked = queries(texts, rng, 37)
    scores, best, _ = search(lexicon, index, asked, 331)
    for first in range(9):
        assert (scores[:, first::9] == scores[:, first : first + 1]).all()
    for row in best:
        found = row[row >= 0]
        for first in range(9):
            assert (np.diff(found[found % 9 == first]) == 9).all()
    again = search(lexicon, index, asked[5:6], 331)[0]
    np.testing.assert_array_equal(again[0], scores[5])


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_only_the_queries_of_a_batch_that_are_wanted_are_answered(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "TOGETHER", 8)
    texts, rng = corpus(200, vocabulary=100)
    lexicon, index = Bm25Index.build(texts)
    used: Any = index if kind == "bm25" else DenseIndex.project(index, 16)
    terms = jnp.asarray(
        jax.vmap(lambda d, n: lexicon.terms(d, n, Q)[0])(*map(jnp.asarray, encode(queries(texts, rng, 29))))
    )
    every = np.stack([np.asarray(retrieval.top(used.scores(t), 7)[0]) for t in terms])
    assert (every >= 0).any(axis=1).sum() > 20
    assert (every[4] >= 0).any()
    batch = jax.jit(jax.vmap(retrieval.search, in_axes=(None, 0, None, 0)), static_argnums=2)
    for wanted in (np.zeros(29, bool), np.ones(29, bool), np.arange(29) % 3 == 1, np.arange(29) == 28):
        np.testing.assert_array_equal(batch(used, terms, 7, wanted), np.where(wanted[:, None], every, -1))
        alone = retrieval.search(used, terms[4], 7, wanted[4])
        np.testing.assert_array_equal(alone, np.where(wanted[4], every[4], -1))
    same = jax.vmap(retrieval.search, in_axes=(None, None, None, 0))(
        used, terms[3], 7, jnp.array([True, False])
    )
    np.testing.assert_array_equal(same, [every[3], np.full(7, -1)])
    several = jax.vmap(batch, in_axes=(None, 0, None, 0))(
        used, jnp.stack([terms, terms[::-1]]), 7, jnp.ones((2, 29), bool)
    )
    np.testing.assert_array_equal(several, [every, every[::-1]])
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), used)
    own = jax.vmap(retrieval.search, in_axes=(0, 0, None, 0))(stacked, terms[:2], 7, jnp.ones(2, bool))
    np.testing.assert_array_equal(own, every[:2])
