"""Text on device against Python's `re` and `str`."""

from __future__ import annotations

import functools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs_jax.core import Span
from envs_jax.errors import ConfigError
from envs_jax.text.actions import NameTable, check_separator, match_name, split_actions
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.detokenise import VocabTable, detokenise
from envs_jax.text.phrases import PhraseTable, join
from envs_jax.text.scan import if_any, is_space, occurrences, running_max
from envs_jax.text.tags import find_tags

PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "</think><answer>", "</think> \n<answer>", "</think"),
    *("think>", "<answer", "/answer>", "</answer", "<", ">", "/", "||", "|", "|||", "||||", " ", "\n", "\t"),
    *(
        "\x1c",
        "\x1f",
        "\x0b",
        "\r",
        "Up",
        "down",
        "LEFT",
        "up ",
        "a",
        "é",
        "√",
        "日本",
        ";",
        "->",
        "ab",
        "x y",
    ),
    "\x00",
]
FORMS = ["why</think><answer>", "</think>\x1c<answer>", "</answer>"]
CAPACITY = 128
NAMES = ("Up", "Down", "Left", "Right")


def random_text(rng: random.Random) -> str:
    """A few pieces, often with the parts of a well-formed response between them."""

    def some(most: int) -> str:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, most)))

    if rng.random() < 0.3:
        text = some(14)
    else:
        text = some(4) + rng.choice(["</think>", FORMS[0], FORMS[1]]) + some(2)
        text += rng.choice(["<answer>", " <answer>", ""]) + some(8) + FORMS[2] + some(3)
    return text if len(text.encode()) <= CAPACITY else random_text(rng)


def padded(texts: list[str]) -> tuple[jax.Array, jax.Array]:
    data = np.zeros((len(texts), CAPACITY), np.uint8)
    for row, text in zip(data, texts, strict=True):
        row[: len(text.encode())] = list(text.encode())
    return jnp.asarray(data), jnp.asarray([len(t.encode()) for t in texts], jnp.int32)


@functools.cache
def fuzz_texts(count: int = 6000) -> list[str]:
    rng = random.Random(7)
    return [random_text(rng) for _ in range(count)]


def bytes_before(text: str, characters: int) -> int:
    return len(text[:characters].encode())


@pytest.mark.parametrize("think", [True, False])
def test_tags_are_found_as_re_finds_them(think: bool) -> None:
    texts = fuzz_texts()
    found = jax.device_get(jax.jit(jax.vmap(lambda d, n: find_tags(d, n, think=think)))(*padded(texts)))
    opening = "<think>" if think else "<answer>"
    form = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>" if think else r"<answer>(.*?)</answer>"
    matched = closed = 0
    for i, text in enumerate(texts):
        whole = opening + text
        match = re.search(form, whole, re.DOTALL)
        assert bool(found.format_ok[i]) == bool(match), text
        shift = len(opening)
        if match:
            matched += 1
            start, stop = (bytes_before(whole, p) - shift for p in match.span(2 if think else 1))
            assert (found.answer_start[i], found.answer_stop[i]) == (start, stop), text
        if not think:
            continue
        close = match.end(1) if match else whole.find("</think>")
        assert bool(found.think_closed[i]) == (close >= 0), text
        assert found.think_stop[i] == (bytes_before(whole, close) - shift if close >= 0 else 0), text
        closed += close >= 0 and not match
    assert 500 < matched < len(texts) - 500
    assert closed > 500 or not think


@pytest.mark.parametrize("separator", ["||", "|", ";", "->", "|||", None])
@pytest.mark.parametrize("most", [1, 3])
def test_actions_are_split_as_str_splits_them(separator: str | None, most: int) -> None:
    width = 7
    rng = random.Random(most)
    texts, regions = [], []
    for text in fuzz_texts()[:2500]:
        left = rng.randint(0, len(text))
        right = rng.randint(left, len(text)) if rng.random() < 0.7 else len(text)
        texts.append(text)
        regions.append((left, right))
    data, _ = padded(texts)
    starts = jnp.asarray([bytes_before(t, a) for t, (a, _) in zip(texts, regions, strict=True)], jnp.int32)
    stops = jnp.asarray([bytes_before(t, b) for t, (_, b) in zip(texts, regions, strict=True)], jnp.int32)

    def cut(d: jax.Array, a: jax.Array, b: jax.Array) -> tuple[Span, jax.Array]:
        return split_actions(d, a, b, separator=separator, max_actions=most, width=width)

    spans, count = jax.device_get(jax.jit(jax.vmap(cut))(data, starts, stops))
    several = 0
    for i, (text, (a, b)) in enumerate(zip(texts, regions, strict=True)):
        answer = text[a:b]
        pieces = answer.split(separator) if separator else [answer]
        kept = [p.strip() for p in pieces if p.strip()][:most]
        several += len(kept) > 1
        assert count[i] == len(kept), (text, answer)
        for k in range(most):
            expected = kept[k].encode().lower() if k < len(kept) else b""
            assert spans.length[i, k] == len(expected), (text, answer)
            assert spans.data[i, k].tobytes() == expected[:width].ljust(width, b"\0"), (text, answer)
    assert several > 100 or most == 1 or separator is None


def test_separators_that_overlap_themselves_are_refused() -> None:
    for good in ("||", "|", ";", "->", ", ", "AND"):
        check_separator(good)
    for bad in ("", "aba", "<><"):
        with pytest.raises(ConfigError, match="action_sep"):
            check_separator(bad)


def test_names_match_whole_and_without_case() -> None:
    table = NameTable.build(NAMES, 5)
    cases = ["up", "down", "left", "right", "u", "upp", "rights", "rightsright", "", "ри", "up\x00"]
    data = np.zeros((len(cases), 5), np.uint8)
    for row, case in zip(data, cases, strict=True):
        row[: len(case.encode()[:5])] = list(case.encode()[:5])
    span = Span(jnp.asarray(data), jnp.asarray([len(c.encode()) for c in cases], jnp.int32))
    index, known = jax.vmap(match_name, in_axes=(0, None))(span, table)
    lowered = [n.lower() for n in NAMES]
    assert known.tolist() == [c in lowered for c in cases]
    assert index.tolist() == [lowered.index(c) if c in lowered else 0 for c in cases]
    with pytest.raises(ConfigError, match="answer_bytes"):
        NameTable.build(NAMES, 4)


class PieceTokenizer:
    """Vocabulary given as bytes; enough of a tokenizer for the table."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.vocab_size = len(pieces)

    def token_bytes(self) -> list[bytes]:
        return self.pieces


def test_detokenise_gives_bytes_and_owners() -> None:
    rng = random.Random(3)
    vocab = [b"", b"", *{bytes(rng.choices(range(256), k=rng.randint(1, 9))) for _ in range(300)}]
    table = VocabTable.build(PieceTokenizer(vocab))  # type: ignore[arg-type]
    rows, t, capacity = 1500, 24, 96
    tokens = np.asarray(
        [[rng.randrange(-2, len(vocab) + 2) for _ in range(t)] for _ in range(rows)], np.int32
    )
    tokens[: rows // 2, ::3] = rng.randrange(2)  # many tokens without bytes
    lengths = np.asarray([rng.randint(0, t) for _ in range(rows)], np.int32)
    run = jax.jit(jax.vmap(lambda a, n: detokenise(table, a, n, capacity)))
    out = jax.device_get(run(tokens, lengths))
    overflows = 0
    for i in range(rows):
        pieces = [vocab[v] if 0 <= v < len(vocab) else b"" for v in tokens[i, : lengths[i]]]
        text = b"".join(pieces)
        owner = [k for k, piece in enumerate(pieces) for _ in piece]
        kept = min(len(text), capacity)
        overflows += len(text) > capacity
        assert out.overflow[i] == (len(text) > capacity)
        assert out.length[i] == kept
        assert out.data[i].tobytes() == text[:capacity].ljust(capacity, b"\0")
        assert out.owner[i, :kept].tolist() == owner[:kept]
        ends = np.cumsum([len(p) for p in pieces] + [0] * (t - len(pieces)))
        assert out.ends[i].tolist() == ends.tolist()
    assert 50 < overflows < rows - 50


def test_join_equals_concatenation_and_flags_overflow() -> None:
    rng = random.Random(5)
    tokenizer = ByteTokenizer()
    phrases = ["", "a", "no\n", "√", "<|im_end|>", "longer phrase", " x"]
    table = PhraseTable.build(phrases, tokenizer)
    rows, f, capacity = 2000, 9, 48
    ids = np.asarray([[rng.randrange(-1, len(phrases)) for _ in range(f)] for _ in range(rows)], np.int32)
    tokens, length, overflow = jax.device_get(jax.jit(jax.vmap(lambda x: join(table, x, capacity)))(ids))
    for i in range(rows):
        parts = [tokenizer.encode(phrases[p]) for p in ids[i] if p >= 0]
        expected: list[int] = []
        for part in parts:
            if len(expected) + len(part) > capacity:
                break
            expected += part
        assert overflow[i] == (sum(map(len, parts)) > capacity)
        assert length[i] == len(expected)
        assert tokens[i].tolist() == expected + [0] * (capacity - len(expected))
    assert 50 < overflow.sum() < rows - 50


@given(st.text(max_size=30), st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|pad|>"]), max_size=3))
@settings(max_examples=200, deadline=None)
def test_byte_tokenizer_round_trip(text: str, specials: list[str]) -> None:
    tokenizer = ByteTokenizer()
    whole = text + "".join(s + text for s in specials)
    ids = tokenizer.encode(whole)
    assert tokenizer.decode(ids) == whole
    table = tokenizer.token_bytes()
    plain = re.sub("|".join(re.escape(s) for s in tokenizer.specials), "", whole)
    assert b"".join(table[i] for i in ids) == plain.encode()
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 200])
def test_running_max(n: int) -> None:
    x = np.random.default_rng(n).integers(-1, 50, (20, n)).astype(np.int32)
    assert np.array_equal(jax.vmap(running_max)(jnp.asarray(x)), np.maximum.accumulate(x, 1))


def test_space_is_that_of_str() -> None:
    table = np.asarray(is_space(jnp.arange(128, dtype=jnp.uint8)))
    assert table.tolist() == [chr(i).isspace() for i in range(128)]
    assert not np.asarray(is_space(jnp.arange(128, 256).astype(jnp.uint8))).any()


def test_occurrences_do_not_wrap_at_the_end() -> None:
    data = jnp.frombuffer(b"b>ab>a", jnp.uint8)
    assert occurrences(data, b"ab").tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("wanted", [[False] * 3, [True, False, True], [True] * 3])
def test_if_any_computes_for_batches_in_which_some_row_wants_it(wanted: list[bool]) -> None:
    ran: list[int] = []

    @if_any
    def both(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        jax.debug.callback(lambda: ran.append(1))
        return {"sum": x + y, "less": x < y}

    x, y = jnp.arange(6.0).reshape(3, 2), jnp.array([1.0, 9.0])  # y has no axis of the batch
    out = jax.jit(jax.vmap(both, in_axes=(0, 0, None)))(jnp.array(wanted), x, y)
    jax.effects_barrier()
    assert bool(ran) == any(wanted)
    want = np.array(wanted)[:, None]
    np.testing.assert_array_equal(out["sum"], np.where(want, np.asarray(x + y), 0))
    np.testing.assert_array_equal(out["less"], want & np.asarray(x < y))
    assert out["less"].dtype == bool
    alone = both(jnp.array(wanted[1]), x[1], y)
    np.testing.assert_array_equal(alone["sum"], out["sum"][1])
