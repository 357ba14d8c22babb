"""The tokenizer of policies from scratch: counts, round trips, borders, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.tokenizers import SmallTokenizer, TokenizerError, load_tokenizer
from ragen_jax.tokenizers.small import SPECIALS, TAGS

TEXTS = [
    "You are solving the Sokoban puzzle. Push the box √ to the goal.\n#P_√X#\n<answer>Up || Down</answer>",
    "Turn 1: the player (P) is at 3, 4; nothing changed.",
]
SMALL = SmallTokenizer.build(TEXTS, extra_words=["Left", " Right"])


def test_small_layout() -> None:
    text = SMALL.token_bytes()
    assert len(text) == SMALL.vocab_size
    assert [i for i, b in enumerate(text) if not b] == [SMALL.pad_id, *SMALL.eos_ids] == [0, 1]
    assert SMALL.special_ids() == {"<|pad|>": 0, "<|end|>": 1}
    real = text[2:]
    assert len(set(real)) == len(real), "two ids stand for the same bytes"
    assert {bytes([b]) for b in range(256)} <= set(real)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *((tag, 1) for tag in TAGS + SPECIALS),
        ("√", 1), ("_", 1), ("7", 1), ("Left", 1), (" Right", 1), (" the", 1), ("You", 1),
        ("Right", 5), (" Left", 2), ("123", 3), ("##", 2), ("é", 2),
        ("</think><answer>Up || Down</answer>", 7), ("</thin", 6), ("   the", 3), ("", 0),
    ],
)  # fmt: skip
def test_small_counts(text: str, count: int) -> None:
    assert len(SMALL.encode(text)) == count
    assert SMALL.decode(SMALL.encode(text)) == text


SMALL_TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            [*TAGS, *SPECIALS, " the", "the", "Left", " Right", "√", "√√", "\n", "  ", "<", "|", "/"]
        ),
        st.text(max_size=6),
    ),
    max_size=12,
).map("".join)


@given(SMALL_TEXT)
def test_small_round_trip(text: str) -> None:
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    pieces = SMALL.token_bytes()
    special = {i: t.encode() for t, i in SMALL.special_ids().items()}
    assert b"".join(special.get(i, pieces[i]) for i in ids) == text.encode()


WORD = st.sampled_from(
    [" the", " box", " √", "#P_√X#", "\n", ".", " 12", "<think>", "</answer>", " unseen", ", 4"]
)


@given(st.lists(WORD, max_size=12))
def test_small_is_canonical_under_concatenation(parts: list[str]) -> None:
    assert [i for part in parts for i in SMALL.encode(part)] == SMALL.encode("".join(parts))


@given(st.binary(max_size=12))
def test_small_decodes_any_bytes(raw: bytes) -> None:
    assert SMALL.decode([2 + b for b in raw]) == raw.decode(errors="replace")


def test_small_is_deterministic_and_saved(tmp_path: Path) -> None:
    again = SmallTokenizer.build(reversed(TEXTS), extra_words=[" Right", "Left", "Left"])
    assert again == SMALL
    assert hash(again) == hash(SMALL)
    assert again.fingerprint == SMALL.fingerprint
    assert SmallTokenizer.build(TEXTS).fingerprint != SMALL.fingerprint
    path = SMALL.save(tmp_path / "new" / "folder")
    for where in (path, path.parent):
        assert load_tokenizer(where) == SMALL
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_small_files_refused(tmp_path: Path) -> None:
    path = SMALL.save(tmp_path)
    whole = path.read_text()
    for content, words in [
        (whole[:50], "broken JSON"),
        ("[]", "JSON list"),
        ('{"pieces": []}', '"format" is None'),
        (whole.replace('"version": 1', '"version": 9'), "version 9"),
        (whole.replace('"pieces"', '"words"'), 'no list "pieces"'),
        (whole.replace('" the"', '"the box"'), "'the box'"),
        (whole.replace('" the"', '" to"'), "given twice"),
    ]:
        path.write_text(content)
        with pytest.raises(TokenizerError, match=words) as error:
            load_tokenizer(path)
        assert str(path) in str(error.value)


def test_small_misuse_refused() -> None:
    with pytest.raises(TokenizerError, match="two words"):
        SmallTokenizer.build([], extra_words=["two words"])
    for bad in (-1, SMALL.vocab_size):
        with pytest.raises(IndexError, match=f"id {bad} "):
            SMALL.decode([5, bad])
