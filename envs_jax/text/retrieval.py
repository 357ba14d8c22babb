"""Search in a corpus, on device: BM25 over postings, and passages as vectors.

BM25 is Lucene's: a query word t with frequency f in a passage of n words adds

    idf(t) f / (f + k1 (1 - b + b n / mean n)),    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)).

The impacts are computed once, on the host, so that a score is a sum of looked-up numbers. A word repeated in a query
counts each time. A plural finds its singular: surface forms in the look-up table lead to the term of their stem. Stop
words are in no posting list. Equal scores are ordered by passage number.

Work and memory for N passages. A word in more than N * DENSE_SHARE passages has a row of impacts, f32[N]; the others
have posting lists. A query of Q words is O(N M + Q N DENSE_SHARE) for M frequent words, the first part a row of a
matrix product. A passage costs 8 bytes a distinct word for its postings and 4 bytes for each frequent word of the
corpus: about 500 + 500 bytes for 100 words of English, so a million passages need about 1 GB; its text costs 4 bytes a
token in the phrase table on top.
While a query is answered it needs 4 N bytes of scores. `search` answers those queries of a batch that are asked,
`TOGETHER` at a time: for a million passages 256 MB, whatever the batch.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from envs_jax.errors import ConfigError
from envs_jax.text.words import WORD, HashTable, host_fold_case, host_hashes, words

DENSE_SHARE = 1 / 16
TOGETHER = 64  # queries of a batch that are answered at once
_LOOKED_UP = 16  # words that are looked up at once
K1, B = 0.9, 0.4  # Anserini's and Pyserini's
STOP_WORDS = frozenset(
    str.split(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with"
    )
)  # Lucene's list for English


def stem(word: str) -> str:
    """Singular of a plural, by the three rules of the S stemmer (Harman 1991)."""
    if len(word) < 4 or not word.endswith("s"):
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    if word.endswith("es"):
        return word if word.endswith(("aes", "ees", "oes")) else word[:-1]
    return word if word.endswith(("us", "ss")) else word[:-1]


def forms(term: str) -> list[str]:
    """Every word whose stem is `term`."""
    candidates = [term, term + "s", term[:-1] + "ies"]
    return [c for c in dict.fromkeys(candidates) if stem(c) == term]


def analyse(text: str) -> list[str]:
    """Terms of a text, as queries and passages are cut into them: lower-cased, without stop words, stemmed."""
    return [stem(w) for w in WORD.findall(host_fold_case(text)) if w not in STOP_WORDS]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lexicon:
    """From words to the terms of an index."""

    table: HashTable

    @staticmethod
    def build(terms: Sequence[str]) -> Lexicon:
        """Term i is `terms[i]`; all forms of it are known."""
        return Lexicon(HashTable.build({form: i for i, term in enumerate(terms) for form in forms(term)}))

    def terms(
        self, data: UInt8[Array, " A"], length: Int[Array, ""], count: int
    ) -> tuple[Int[Array, " Q"], Bool[Array, ""]]:
        """The first Q = `count` known terms of a query, -1 beyond, and whether it has more."""
        most = (data.shape[0] + 1) // 2
        found = words(data, length, -(-most // _LOOKED_UP) * _LOOKED_UP)

        def look_up(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            out, number = carry
            first = i * _LOOKED_UP
            ids = self.table.find(jax.lax.dynamic_slice_in_dim(found.hash, first, _LOOKED_UP))
            known = (ids >= 0) & (first + jnp.arange(_LOOKED_UP, dtype=jnp.int32) < found.count)
            place = jnp.where(known, number + jnp.cumsum(known, dtype=jnp.int32) - 1, count)
            return out.at[place].set(ids, mode="drop"), number + jnp.sum(known, dtype=jnp.int32)

        none = jnp.full((count,), -1, jnp.int32), jnp.zeros((), jnp.int32)
        out, number = jax.lax.fori_loop(0, -(-found.count // _LOOKED_UP), look_up, none)
        return out, number > count


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bm25Index:
    """BM25 impacts of V terms in N passages.

    Postings of term t are `passages` and `impacts` in `offsets[t] : offsets[t + 1]`, in order of passages. A frequent
    term has none, and its impacts are `rows[row[t]]`; row M is zeros, and `row` of the other terms is M.
    """

    offsets: Int[Array, " V+1"]
    passages: Int[Array, " P"]
    impacts: Float[Array, " P"]
    row: Int[Array, " V"]
    rows: Float[Array, "M+1 N"]
    longest: int = field(metadata={"static": True})  # postings of the longest list

    @property
    def size(self) -> int:
        """N."""
        return self.rows.shape[1]

    @staticmethod
    def build(
        texts: Iterable[str], *, k1: float = K1, b: float = B, dense_share: float = DENSE_SHARE
    ) -> tuple[Lexicon, Bm25Index]:
        """Lexicon and index of the passages `texts`, which may be empty; the corpus may not.

        Raises ConfigError for no passages, for k1 < 0 and for b outside [0, 1].
        """
        if k1 < 0:
            raise ConfigError("k1", k1, "use a number of at least 0")
        if not 0 <= b <= 1:
            raise ConfigError("b", b, "use a number in [0, 1]")
        ids: dict[str, int] = {}
        owner, term, frequency, sizes = [], [], [], []
        for passage, text in enumerate(texts):
            analysed = analyse(text)
            sizes.append(len(analysed))
            for word, times in collections.Counter(analysed).items():
                owner.append(passage)
                term.append(ids.setdefault(word, len(ids)))
                frequency.append(times)
        if not sizes:
            raise ConfigError("texts", (), "an index needs at least one passage")
        size = len(sizes)
        terms, owners = np.asarray(term, np.int64), np.asarray(owner, np.int64)
        df = np.bincount(terms, minlength=len(ids))
        length = np.asarray(sizes, np.float64)
        norm = k1 * (1 - b + b * length / max(length.mean(), 1e-9))
        times_ = np.asarray(frequency, np.float64)
        idf = np.log1p((size - df + 0.5) / (df + 0.5))
        impact = (idf[terms] * times_ / (times_ + norm[owners])).astype(np.float32)

        frequent = df > max(size * dense_share, 1)
        row = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum()).astype(np.int32)
        rows = np.zeros((int(frequent.sum()) + 1, size), np.float32)
        dense = frequent[terms]
        rows[row[terms[dense]], owners[dense]] = impact[dense]
        order = np.lexsort((owners[~dense], terms[~dense]))
        counts = np.where(frequent, 0, df)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        index = Bm25Index(
            offsets=jnp.asarray(offsets),
            passages=jnp.asarray(np.append(owners[~dense][order], 0).astype(np.int32)),
            impacts=jnp.asarray(np.append(impact[~dense][order], 0).astype(np.float32)),
            row=jnp.asarray(np.append(row, rows.shape[0] - 1).astype(np.int32)),
            rows=jnp.asarray(rows),
            longest=max(int(counts.max(initial=1)), 1),
        )
        return Lexicon.build(list(ids) or ["a"]), index

    def scores(self, terms: Int[Array, " Q"]) -> Float[Array, " N"]:
        """BM25 score of every passage for a query's terms (ids below zero are left out)."""
        known = terms >= 0
        safe = jnp.where(known, terms, 0)
        # How often each frequent term is asked for, times their rows: over a batch of queries one matrix product.
        none = self.rows.shape[0] - 1
        row = jnp.where(known, self.row[safe], none)
        asked = jnp.sum(row[:, None] == jnp.arange(none + 1, dtype=jnp.int32), axis=0).astype(jnp.float32)
        total = jnp.dot(asked, self.rows, precision=jax.lax.Precision.HIGHEST)
        # The lists of the others, one term after another, as many as the longest query of a batch has.
        starts, ends = self.offsets[safe], jnp.where(known, self.offsets[safe + 1], 0)
        lanes = jnp.arange(self.longest, dtype=jnp.int32)

        def add(i: Array, total: Array) -> Array:
            index = starts[i] + lanes
            passage = jnp.where(index < ends[i], self.passages.at[index].get(mode="clip"), self.size)
            return total.at[passage].add(self.impacts.at[index].get(mode="clip"), mode="drop")

        last = jnp.max(jnp.where(known, jnp.arange(1, terms.shape[0] + 1, dtype=jnp.int32), 0))
        return jax.lax.fori_loop(0, last, add, total)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseIndex:
    """Passages as vectors f32[N, D], and a vector for each term of the lexicon, f32[V, D].

    A query's vector is the mean of its terms' vectors, divided by its length: encoders that give a vector a word
    (word2vec, GloVe, model2vec) run on device as they are. A passage costs 4 D bytes, and a query one matrix product.
    """

    passages: Float[Array, "N D"]
    terms: Float[Array, "V D"]

    @property
    def size(self) -> int:
        """N."""
        return self.passages.shape[0]

    def scores(self, terms: Int[Array, " Q"]) -> Float[Array, " N"]:
        """Inner product of every passage with the query; zeros for a query without known terms."""
        return self.passages @ self.encode(terms)

    def encode(self, terms: Int[Array, " Q"]) -> Float[Array, " D"]:
        """Unit vector of a query, or zeros."""
        total = jnp.sum(jnp.where((terms >= 0)[:, None], self.terms[jnp.maximum(terms, 0)], 0.0), axis=0)
        length = jnp.sqrt(jnp.sum(total * total))
        return jnp.where(length > 0, total / jnp.maximum(length, 1e-12), 0.0)

    @staticmethod
    def of_words(
        lexicon: Lexicon, passages: np.ndarray, names: Sequence[str], vectors: np.ndarray
    ) -> DenseIndex:
        """Index of given vectors: f32[N, D] of the passages, and f32[n, D] of the words `names`.

        A term's vector is that of the first of its forms among `names`, and zeros where there is none.
        """
        ids = np.asarray(lexicon.table.find(jnp.asarray(host_hashes([host_fold_case(n) for n in names]))))
        terms = np.zeros((int(np.asarray(lexicon.table.values).max()) + 1, vectors.shape[1]), np.float32)
        for place in np.flatnonzero(ids >= 0)[::-1]:
            terms[ids[place]] = vectors[place]
        return DenseIndex(jnp.asarray(passages, jnp.float32), jnp.asarray(terms))

    @staticmethod
    def project(index: Bm25Index, dimensions: int, seed: int = 0) -> DenseIndex:
        """Vectors made from the corpus alone, by random indexing: each term has a random direction, and a passage the
        sum of its terms' directions, weighted by their impacts. For trying the path out, not for its quality."""
        rng = np.random.default_rng(seed)
        count = index.offsets.shape[0] - 1
        vectors = rng.standard_normal((max(count, 1), dimensions)).astype(np.float32) / dimensions**0.5
        offsets, row, rows = (np.asarray(x) for x in (index.offsets, index.row, index.rows))
        passages = np.zeros((index.size, dimensions), np.float32)
        term = np.repeat(np.arange(count), np.diff(offsets))
        used = len(term)
        np.add.at(
            passages,
            np.asarray(index.passages)[:used],
            np.asarray(index.impacts)[:used, None] * vectors[term],
        )
        frequent = np.flatnonzero(row[:count] < rows.shape[0] - 1)
        passages += rows[row[frequent]].T @ vectors[frequent]
        length = np.linalg.norm(passages, axis=1, keepdims=True)
        return DenseIndex(jnp.asarray(passages / np.maximum(length, 1e-12)), jnp.asarray(vectors))


def top(scores: Float[Array, " N"], count: int) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """The `count` best passages with a positive score, best first: numbers (-1 where there are fewer), scores."""
    best, found = jax.lax.top_k(scores, min(count, scores.shape[0]))
    missing = count - best.shape[0]
    best, found = jnp.pad(best, (0, missing)), jnp.pad(found, (0, missing))
    hit = best > 0
    return jnp.where(hit, found, -1).astype(jnp.int32), jnp.where(hit, best, 0.0)


def search(
    index: Bm25Index | DenseIndex, terms: Int[Array, " Q"], count: int, wanted: Bool[Array, ""]
) -> Int[Array, " k"]:
    """The `count` best passages of a query, as `top` numbers them, where it is `wanted`; -1 elsewhere.

    Under `jax.vmap` the queries that are wanted are gathered and answered `TOGETHER` at a time, so that a batch pays
    for the rows that search.
    """

    def best(index: Bm25Index | DenseIndex, terms: Array) -> Array:
        return top(index.scores(terms), count)[0]

    @jax.custom_batching.custom_vmap
    def one(index: Bm25Index | DenseIndex, terms: Array, wanted: Array) -> Array:
        return jnp.where(wanted, best(index, terms), -1)

    @one.def_vmap
    def batch(size: int, batched: Any, index: Any, terms: Array, wanted: Array) -> tuple[Array, bool]:
        own_index, own_terms, own_wanted = batched
        terms = terms if own_terms else jnp.broadcast_to(terms, (size, *terms.shape))
        wanted = wanted if own_wanted else jnp.broadcast_to(wanted, (size,))
        if any(jax.tree.leaves(own_index)):
            axes = jax.tree.map(lambda own: 0 if own else None, own_index)
            found = jax.vmap(best, in_axes=(axes, 0))(index, terms)
            return jnp.where(wanted[:, None], found, -1), True
        chunk = min(TOGETHER, size)
        order = jnp.argsort(~wanted, stable=True).astype(jnp.int32)
        asked = jnp.sum(wanted, dtype=jnp.int32)
        lanes = jnp.arange(chunk, dtype=jnp.int32)

        def answer(i: Array, out: Array) -> Array:
            place = i * chunk + lanes
            row = order[jnp.minimum(place, size - 1)]
            found = jax.vmap(best, in_axes=(None, 0))(index, terms[row])
            return out.at[jnp.where(place < asked, row, size)].set(found, mode="drop")

        none = jnp.where(wanted[:, None], jnp.int32(-1), jnp.full((size, count), -1, jnp.int32))
        return jax.lax.fori_loop(0, -(-asked // chunk), answer, none), True

    return one(index, terms, wanted)
