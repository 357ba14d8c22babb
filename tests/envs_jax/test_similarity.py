"""Words, their hashes, and the SQuAD script's measures against rules written anew in Python."""

from __future__ import annotations

import collections
import random
import re
import string
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.text import similarity, words

N = 96
ALPHABET = (
    string.ascii_letters
    + string.digits
    + string.punctuation
    + "   \t\n\x1f\xa0éÉßñÀÿøØžŠΩωЖж–—“”…日本\u2009\u3000"
)
PIECES = [
    "a",
    "an",
    "the",
    "The",
    "AN",
    "A",
    "yes",
    "No",
    "noanswer",
    "Paris",
    "paris.",
    "the-",
    "d'Or",
    "1,000",
    "–a–",
]


def python_words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def python_scores(said: str, gold: str) -> tuple[bool, float]:
    a, b = python_words(said), python_words(gold)
    exact = a == b
    closed = {("yes",), ("no",), ("noanswer",)}
    if (tuple(a) in closed or tuple(b) in closed) and not exact:
        return exact, 0.0
    shared = sum((collections.Counter(a) & collections.Counter(b)).values())
    if not shared:
        return exact, 0.0
    precision, recall = shared / len(a), shared / len(b)
    return exact, 2 * precision * recall / (precision + recall)


def batch(texts: list[str], width: int = N) -> tuple[np.ndarray, np.ndarray]:
    data = np.zeros((len(texts), width), np.uint8)
    raw = [t.encode() for t in texts]
    for row, text in zip(data, raw, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return data, np.asarray([len(r) for r in raw], np.int32)


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(0, 9)):
        parts.append(
            rng.choice(PIECES) if rng.random() < 0.6 else "".join(rng.choices(ALPHABET, k=rng.randint(1, 6)))
        )
        parts.append(rng.choice(["", " ", " ", "  ", ", ", "–"]))
    text = "".join(parts)
    while len(text.encode()) > N:
        text = text[:-1]
    return text


def changed(rng: random.Random, text: str) -> str:
    """Something that often has the same words."""
    kind, parts = rng.randrange(4), text.split()
    if kind == 0:
        return text.upper() if "ß" not in text and "ÿ" not in text else text
    if kind == 1:
        return " ".join(p + rng.choice(["", ".", "!", " the"]) for p in parts)[: N // 4]
    if kind == 2:
        rng.shuffle(parts)
        return " ".join(parts[: rng.randint(0, len(parts))])
    return text.replace(".", "")


def test_answers_score_as_the_squad_script_says() -> None:
    rng = random.Random(0)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 5000:
        gold = random_text(rng)
        said = changed(rng, gold) if rng.random() < 0.6 else random_text(rng)
        if len(said.encode()) <= N:
            pairs.append((said, gold))

    @jax.jit
    @jax.vmap
    def score(a: Any, n: Any, b: Any, m: Any) -> Any:
        said, gold = similarity.answer_words(a, n), similarity.answer_words(b, m)
        return similarity.exact_match(said, gold), similarity.f1(said, gold), said.count

    exact, f1, count = jax.device_get(score(*batch([a for a, _ in pairs]), *batch([b for _, b in pairs])))
    wrong = []
    for (a, b), e, f, n in zip(pairs, exact, f1, count, strict=True):
        want = python_scores(a, b)
        if e != want[0] or abs(f - want[1]) > 1e-6 or n != len(python_words(a)):
            wrong.append((a, b, bool(e), float(f), want))
    assert not wrong, wrong[:5]
    assert 500 < exact.sum() < 4500  # both outcomes are met often
    assert ((f1 > 0) & (f1 < 1)).sum() > 500


@pytest.mark.parametrize(
    ("said", "gold", "exact", "f1"),
    [
        ("The Eiffel Tower!", "eiffel tower", True, 1.0),
        ("tower", "the Eiffel Tower", False, 2 / 3),
        ("yes", "yes indeed", False, 0.0),
        ("Yes.", "yes", True, 1.0),
        ("", "Paris", False, 0.0),
    ],
)
def test_scores_worked_by_hand(said: str, gold: str, exact: bool, f1: float) -> None:
    (a, b), (n, m) = batch([said, gold])
    left, right = similarity.answer_words(jnp.asarray(a), n), similarity.answer_words(jnp.asarray(b), m)
    assert bool(similarity.exact_match(left, right)) == exact
    assert float(similarity.f1(left, right)) == pytest.approx(f1)


def test_more_words_than_fit_are_flagged_and_never_equal() -> None:
    data, length = batch(["x y z"])
    cut = similarity.answer_words(jnp.asarray(data[0]), length[0], count=2)
    assert bool(cut.overflow)
    assert not bool(similarity.exact_match(cut, cut))


def test_words_and_hashes_are_those_of_the_host() -> None:
    rng = random.Random(1)
    texts = [random_text(rng) for _ in range(1000)]
    found = jax.device_get(jax.jit(jax.vmap(lambda d, n: words.words(d, n, N)))(*batch(texts)))
    whole = jax.device_get(jax.jit(jax.vmap(words.hash_all))(*batch(texts)))
    known: dict[tuple[int, int], str] = {}
    for text, hashes, count in zip(texts, found.hash, found.count, strict=True):
        want = words.WORD.findall(words.host_fold_case(text))
        assert count == len(want), text
        assert np.array_equal(hashes[:count], words.host_hashes(want))
        for word, (high, low) in zip(want, hashes, strict=False):
            assert known.setdefault((int(high), int(low)), word) == word
    assert len(known) > 500
    assert np.array_equal(whole, words.host_hashes(texts))


def test_hash_table_finds_its_words_and_no_others() -> None:
    entries = {f"word{i}": i for i in range(3000)}
    table = words.HashTable.build(entries)
    assert np.array_equal(table.find(jnp.asarray(words.host_hashes(list(entries)))), np.arange(3000))
    others = words.host_hashes([f"other{i}" for i in range(3000)] + [""])
    assert np.all(np.asarray(table.find(jnp.asarray(others))) == -1)
    assert table.width <= 8
