"""Plain Python peers of SearchQA and WebShop, one episode at a time: what a trainer without JAX would call.

`PythonShop` speaks the text of `envs_jax.tasks.webshop` and is written from the rules, not from the arrays: a
dictionary of postings, string comparisons, a reward function on strings. Both rank with the engine that they are given.
Tests use them as well, and compare them with the environments page by page. `shop_loop` and `search_loop` play the
episodes of `search_episode` and `shop_episode` for the throughput table, beside skyrl-gym's search, the one public
package with such an episode.
"""

from __future__ import annotations

import collections
import heapq
import importlib.util
import math
import re
import string
from collections.abc import Callable, Sequence
from typing import Any

from envs_jax.core import Tokenizer
from envs_jax.tasks.search_qa.corpus import Corpus, Question
from envs_jax.tasks.webshop.matching import COLORS
from envs_jax.tasks.webshop.products import Catalogue, Goal, Product
from envs_jax.text.retrieval import K1, STOP_WORDS, B, analyse

Search = Callable[[str, int], list[int]]  # query, how many -> passages, best first


class Postings:
    """BM25 (Lucene's) over a dictionary of postings."""

    def __init__(self, texts: Sequence[str], k1: float = K1, b: float = B) -> None:
        terms = [analyse(text) for text in texts]
        mean = sum(map(len, terms)) / len(terms)
        self.postings: dict[str, list[tuple[int, float]]] = {}
        for passage, words in enumerate(terms):
            norm = k1 * (1 - b + b * len(words) / mean)
            for word, times in collections.Counter(words).items():
                self.postings.setdefault(word, []).append((passage, times / (times + norm)))
        self.idf = {
            word: math.log(1 + (len(terms) - len(found) + 0.5) / (len(found) + 0.5))
            for word, found in self.postings.items()
        }

    def scores(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for word in analyse(query):
            for passage, share in self.postings.get(word, ()):
                scores[passage] = scores.get(passage, 0.0) + self.idf[word] * share
        return scores

    def __call__(self, query: str, count: int) -> list[int]:
        scores = self.scores(query)
        return heapq.nsmallest(count, scores, key=lambda p: (-scores[p], p))


def rank_bm25_search(texts: Sequence[str]) -> Search | None:
    """rank-bm25's BM25Okapi, or None where it is not installed."""
    try:
        from rank_bm25 import BM25Okapi
    except ImportError:
        return None
    index, numbers = BM25Okapi([analyse(t) for t in texts]), list(range(len(texts)))

    def search(query: str, count: int) -> list[int]:
        return index.get_top_n(analyse(query), numbers, n=count)

    return search


# -- SearchQA -------------------------------------------------------------------------------------------------
def normalised(answer: str) -> list[str]:
    """Words of an answer after SQuAD's normalisation."""
    text = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def answer_reward(said: str, gold: str) -> float:
    """1 for an exact match, F1 from 0.3 on, else 0."""
    a, b = normalised(said), normalised(gold)
    if a == b:
        return 1.0
    if {" ".join(a), " ".join(b)} & {"yes", "no", "noanswer"}:
        return 0.0
    shared = sum((collections.Counter(a) & collections.Counter(b)).values())
    f1 = 2 * shared / (len(a) + len(b)) if a and b else 0.0
    return f1 if 20 * shared >= 3 * (len(a) + len(b)) and shared else 0.0


class PythonSearchQA:
    """SearchQA's episode: `search[...]` shows passages, `finish[...]` ends it."""

    def __init__(self, corpus: Corpus, search: Search | None = None, top_k: int = 5) -> None:
        self.corpus, self.top_k = corpus, top_k
        texts = [f"{p.title} {p.text}" for p in corpus.passages]
        self.search = search or Postings(texts)

    def reset(self, question: Question) -> str:
        self.question = question
        return f"Question: {question.text}\n"

    def step(self, action: str) -> tuple[str, float, bool]:
        head = f"Question: {self.question.text}\n"
        action = action.strip()
        if action.startswith("finish[") and action.endswith("]"):
            return head, answer_reward(action[7:-1], self.question.answer), True
        if not (action.startswith("search[") and action.endswith("]")):
            return head, 0.0, False
        found = self.search(action[7:-1], self.top_k)
        passages = (self.corpus.passages[i] for i in found)
        shown = "".join(f"[Document {i}] {p.title}: {p.text[:800]}\n" for i, p in enumerate(passages, 1))
        return head + (shown or "No passage matches the query.\n"), 0.0, False


# -- WebShop --------------------------------------------------------------------------------------------------
def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _ratio(a: str, b: str) -> int:
    """2 lcs / (len + len) in percent, by the table of the textbook."""
    if not a or not b:
        return 0
    row = [0] * (len(b) + 1)
    for x in a:
        corner = 0
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], corner + 1 if x == y else max(row[j], row[j - 1])
    return round(200 * row[-1] / (len(a) + len(b)))


def similar(a: str, b: str) -> bool:
    """Token-set ratio above 85."""
    first, second = _words(a), _words(b)
    if not first or not second:
        return False
    both = " ".join(sorted(first & second))
    left = f"{both} {' '.join(sorted(first - second))}".strip()
    right = f"{both} {' '.join(sorted(second - first))}".strip()
    return max(_ratio(both, left), _ratio(both, right), _ratio(left, right)) > 85


def _color(value: str) -> str:
    for color in COLORS:
        if color in value:
            return color
    return value


def _nouns(title: str) -> list[str]:
    return [
        w
        for w in "".join(c if c.isalnum() else " " for c in title.lower()).split()
        if len(w) > 2 and not w.isdigit() and w not in STOP_WORDS
    ]


def purchase_reward(
    goal: Goal, wanted: Product, bought: Product, attributes: Sequence[str], chosen: Sequence[str]
) -> float:
    """Raw reward of WebShop on strings."""
    nouns, have = _nouns(wanted.title), set(_nouns(bought.title))
    overlap = len(set(nouns) & have) / len(nouns) if nouns else 0.2
    kind = 1.0
    same_path = len(set(wanted.product_category) & set(bought.product_category)) >= 2
    if not (wanted.query == bought.query or same_path or overlap > 0.2):
        kind = 0.5
    if overlap < 0.1:
        kind = 0.1
    if overlap == 0:
        kind = 0.0
    texts = [bought.title.lower(), " ".join(bought.features).lower(), bought.description.lower()]
    met = 0
    for attribute in goal.attributes:
        met += any(similar(a, attribute) for a in attributes) or any(attribute in text for text in texts)
    for option in goal.options:
        met += any(similar(_color(c), _color(option)) for c in chosen)
    met += goal.cap is None or bought.price <= goal.cap
    return kind * met / (len(goal.attributes) + len(goal.options) + 1)


def product_texts(catalogue: Catalogue) -> list[str]:
    """What is searched of each product."""
    return [
        " ".join([p.title, p.description, *p.features[:1], *(v for _, vs in p.options for v in vs)])
        for p in catalogue.products
    ]


class PythonShop:
    """WebShop's episode as a page machine on strings."""

    def __init__(self, catalogue: Catalogue, search: Search | None = None) -> None:
        self.catalogue = catalogue
        self.search = search or Postings(product_texts(catalogue))

    def reset(self, goal: Goal) -> str:
        self.goal, self.page, self.results, self.number = goal, "search", [], 0
        self.item, self.sub, self.chosen = -1, "", dict[str, str]()
        return self.text()

    def _shown(self) -> list[int]:
        return self.results[10 * self.number : 10 * self.number + 10]

    def text(self) -> str:
        head = f"Instruction: {self.goal.text}\n"
        if self.page == "done":
            return f"{head}Thank you for shopping with us.\n"
        pieces, clicks = ["Back to Search"], list[str]()
        if self.page == "search":
            return f"{head}WebShop [SEP] Search\nAvailable actions: search[words to look for]\n"
        if self.page == "results":
            more = 10 * (self.number + 1) < len(self.results)
            if self.number:
                pieces.append("< Prev")
            pieces.append(f"Page {self.number + 1} (Total results: {len(self.results)})")
            if more:
                pieces.append("Next >")
            for product in (self.catalogue.products[i] for i in self._shown()):
                prices = " to ".join(f"${c / 100:.2f}" for c in product.prices)
                pieces += [product.asin, product.title, prices]
                clicks.append(product.asin.lower())
            pieces.append("End of page")
            clicks += ["next >"] * more + ["< prev"] * (self.number > 0) + ["back to search"]
        else:
            product = self.catalogue.products[self.item]
            pieces.append("< Prev")
            if self.page == "item":
                for kind, values in product.options:
                    pieces.append(f"{kind}:")
                    for value in values:
                        pieces.append(value + " (chosen)" * (self.chosen.get(kind) == value))
                        clicks.append(value)
                prices = " to ".join(f"${c / 100:.2f}" for c in product.prices)
                pieces += [product.title, prices, "Description", "Features", "Reviews", "Buy Now"]
                clicks += ["description", "features", "reviews", "< prev", "back to search", "buy now"]
            else:
                text = {
                    "description": product.description or "There is no description",
                    "features": " [SEP] ".join(product.features) or "There is no list of features",
                    "reviews": " [SEP] ".join(product.reviews) or "There is no review",
                }[self.sub]
                pieces += [text, "End of page"]
                clicks += ["< prev", "back to search"]
        actions = ", ".join(f"click[{c}]" for c in clicks)
        return f"{head}{' [SEP] '.join(pieces)}\nAvailable actions: {actions}\n"

    def step(self, action: str) -> tuple[str, float, bool]:
        """Text, raw reward of a purchase (0 before it), and whether the episode is over."""
        name, _, rest = action.strip().lower().partition("[")
        argument = rest[:-1].strip() if rest.endswith("]") else None
        if argument is not None and name == "search" and self.page == "search":
            self.results, self.number, self.page = self.search(argument, 50), 0, "results"
        elif argument is not None and name == "click":
            return self._click(argument)
        return self.text(), 0.0, False

    def _click(self, target: str) -> tuple[str, float, bool]:
        products = self.catalogue.products
        if self.page == "item":
            product = products[self.item]
            for kind, values in product.options:
                if target in values:
                    self.chosen[kind] = target
                    return self.text(), 0.0, False
            if target in ("description", "features", "reviews"):
                self.page, self.sub = "sub", target
            elif target == "< prev":
                self.page = "results"
            elif target == "buy now":
                self.page = "done"
                wanted = products[self.goal.product]
                attributes = self.catalogue.attributes[self.item]
                raw = purchase_reward(self.goal, wanted, product, attributes, list(self.chosen.values()))
                return self.text(), raw, True
        elif self.page == "sub" and target == "< prev":
            self.page = "item"
        elif self.page == "results":
            found = [i for i in self._shown() if products[i].asin.lower() == target]
            if found:
                self.item, self.page, self.chosen = found[0], "item", {}
            elif target == "next >" and 10 * (self.number + 1) < len(self.results):
                self.number += 1
            elif target == "< prev" and self.number:
                self.number -= 1
        if target == "back to search" and self.page != "search":
            self.page, self.results, self.number, self.item, self.chosen = "search", [], 0, -1, {}
        return self.text(), 0.0, False


# -- loops for the throughput table ---------------------------------------------------------------------------
Loop = tuple[Callable[[], None], int]
Engine = Callable[[Sequence[str]], Search | None]


def bm25s_search(texts: Sequence[str]) -> Search | None:
    """bm25s, one query at a time, or None where it is not installed."""
    try:
        import bm25s
    except ImportError:
        return None
    index = bm25s.BM25(k1=K1, b=B)
    index.index([analyse(t) for t in texts], show_progress=False)

    def search(query: str, count: int) -> list[int]:
        terms = [t for t in analyse(query) if t in index.vocab_dict]
        if not terms:
            return []
        found, scores = index.retrieve([terms], k=min(count, len(texts)), show_progress=False)
        return [int(i) for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    return search


def search_episode(question: Question) -> list[str]:
    """Four searches, then the answer."""
    return [f"search[{question.text}]"] * 4 + [f"finish[{question.answer}]"]


def shop_episode(catalogue: Catalogue, goal: Goal) -> list[str]:
    """Search, open the product, an option, a sub-page, back, buy."""
    product = catalogue.products[goal.product]
    option = product.options[0][1][0] if product.options else "description"
    clicks = (product.asin.lower(), option, "features", "< prev", "buy now")
    return [f"search[{product.title}]", *(f"click[{c}]" for c in clicks)]


def _loop(game: PythonSearchQA | PythonShop, episodes: Sequence[Any], tokenizer: Tokenizer | None) -> Loop:
    def run() -> None:
        for task, actions in episodes:
            text = game.reset(task)
            for action in actions:
                if tokenizer is not None:
                    tokenizer.encode(text)
                text, _, _ = game.step(action)

    return run, sum(len(actions) for _, actions in episodes)


def search_loop(
    corpus: Corpus, engine: Engine, tokenizer: Tokenizer | None, episodes: int = 16
) -> Loop | None:
    search = engine([f"{p.title} {p.text}" for p in corpus.passages])
    if search is None:
        return None
    tasks = corpus.questions["train"][:episodes]
    return _loop(PythonSearchQA(corpus, search), [(q, search_episode(q)) for q in tasks], tokenizer)


def shop_loop(
    catalogue: Catalogue, engine: Engine, tokenizer: Tokenizer | None, episodes: int = 16
) -> Loop | None:
    search = engine(product_texts(catalogue))
    if search is None:
        return None
    goals = catalogue.goals["train"][:episodes]
    return _loop(PythonShop(catalogue, search), [(g, shop_episode(catalogue, g)) for g in goals], tokenizer)


def skyrl_gym_search(corpus: Corpus, tokenizer: Tokenizer | None, episodes: int = 16) -> Loop | None:
    """skyrl-gym's search episode, which asks a retrieval server (bm25s, on this machine) over HTTP as it is made to."""
    from benchmarks import retrieval_server

    url = None
    if importlib.util.find_spec("skyrl_gym") is not None:
        url = retrieval_server.start(tuple(f"{p.title}: {p.text[:800]}" for p in corpus.passages))
    if url is None:
        return None
    from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig

    asks = SearchEnvConfig(search_url=url, topk=5)
    tasks = corpus.questions["train"][:episodes]

    def run() -> None:
        for question in tasks:
            task = {"reward_spec": {"ground_truth": {"target": question.answer}}, "max_turns": 5}
            game = SearchEnv(asks, extras=task)
            text = f"Question: {question.text}\n"
            game.init([{"role": "user", "content": text}])
            actions = [f"<search>{question.text}</search>"] * 4 + [f"<answer>{question.answer}</answer>"]
            for action in actions:
                if tokenizer is not None:
                    tokenizer.encode(text)
                out = game.step(action)
                text = "".join(line["content"] for line in out["observations"])
            if not (out["done"] and out["reward"] == 1.0):
                raise RuntimeError(f"skyrl-gym did not accept the answer to {question.text!r}")

    return run, 5 * len(tasks)
