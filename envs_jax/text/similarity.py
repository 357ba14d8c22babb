r"""Exact match and F1 of answers, with the normalisation of the SQuAD script, on device.

An answer is lower-cased, loses ASCII punctuation, then the articles `\b(a|an|the)\b`, and is split at whitespace.
Exact match compares the sequences of words, F1 their multisets (Rajpurkar et al. 2016, evaluate-v1.1.py). HotpotQA's
rule comes on top: an answer that is "yes", "no" or "noanswer" has F1 0 with any other.

Limits against Python on Unicode: `fold_case`'s; and `\b` takes characters of three and four bytes for letters, apart
from U+2000..U+2BFF, U+3000..U+301F and U+1F000..U+1FFFF.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from envs_jax.text.scan import is_space, occurrences, running_max
from envs_jax.text.words import (
    Words,
    fold_case,
    following,
    hash_runs,
    host_hashes,
    previous,
    two_byte_characters,
)

_LETTER = np.asarray([c.isalnum() or c == "_" for c in map(chr, range(2048))])


def answer_words(data: UInt8[Array, " N"], length: Int[Array, ""], count: int | None = None) -> Words:
    """Words of a normalised answer, `data[:length]`: the first `count`, by default as many as N bytes can hold."""
    n = data.shape[0]
    slots = jnp.arange(n, dtype=jnp.int32)
    data = fold_case(data)
    punctuation = (
        ((data >= 33) & (data <= 47))
        | ((data >= 58) & (data <= 64))
        | ((data >= 91) & (data <= 96))
        | ((data >= 123) & (data <= 126))
    )
    keep = (slots < length) & ~punctuation
    target = jnp.where(keep, jnp.cumsum(keep, dtype=jnp.int32) - 1, n)
    data = jnp.zeros((n,), jnp.uint8).at[target].set(data, mode="drop")
    inside = slots < jnp.sum(keep, dtype=jnp.int32)

    letter, space = _classes(data)
    letter, space = letter & inside, space | ~inside
    starts = letter & ~previous(letter)
    for article in (b"a", b"an", b"the"):
        size = len(article)
        found = starts & occurrences(data, article) & ~following(letter, size)
        covered = found
        for _ in range(size - 1):
            covered = found | previous(covered)
        space |= covered
    return hash_runs(data, ~space, count or (n + 1) // 2)


def _classes(data: UInt8[Array, " N"]) -> tuple[Bool[Array, " N"], Bool[Array, " N"]]:
    """Whether each byte belongs to a letter or digit (`\\w`), and whether to whitespace."""
    slots = jnp.arange(data.shape[0], dtype=jnp.int32)
    second, third = following(data), following(data, 2)
    two, code = two_byte_characters(data)
    letter = ((data >= 48) & (data <= 57)) | ((data >= 97) & (data <= 122))
    letter |= two & jnp.asarray(_LETTER)[jnp.where(two, code, 0)]
    symbol = (data == 0xE2) & (second < 0xB0)
    symbol |= (data == 0xE3) & (second == 0x80) & (third < 0xA0)
    symbol |= (data == 0xF0) & (second == 0x9F)
    letter |= (data >= 0xE0) & ~symbol

    space = is_space(data) | (two & ((code == 0x85) | (code == 0xA0)))
    space |= (
        (data == 0xE2)
        & (second == 0x80)
        & ((third <= 0x8A) | (third == 0xA8) | (third == 0xA9) | (third == 0xAF))
    )
    space |= (data == 0xE2) & (second == 0x81) & (third == 0x9F)
    space |= (data == 0xE1) & (second == 0x9A) & (third == 0x80)
    space |= (data == 0xE3) & (second == 0x80) & (third == 0x80)

    lead = jnp.maximum(running_max(jnp.where((data & 0xC0) != 0x80, slots, -1)), 0)
    return letter[lead], space[lead]


def exact_match(said: Words, gold: Words) -> Bool[Array, ""]:
    """Whether two normalised answers are equal word by word. False if either has overflowed."""
    width = min(said.hash.shape[0], gold.hash.shape[0])  # hashes beyond the count are zero
    same = jnp.all(said.hash[:width] == gold.hash[:width])
    return same & (said.count == gold.count) & ~said.overflow & ~gold.overflow


def shared_words(said: Words, gold: Words) -> Int[Array, ""]:
    """Size of the intersection of the two multisets of words."""
    used_said = jnp.arange(said.hash.shape[0], dtype=jnp.int32) < said.count
    used_gold = jnp.arange(gold.hash.shape[0], dtype=jnp.int32) < gold.count
    among = jnp.all(gold.hash[:, None] == gold.hash[None], axis=2) & used_gold[:, None] & used_gold[None]
    rank = jnp.sum(jnp.tril(among, -1), axis=1, dtype=jnp.int32)  # equal words before each word of `gold`
    both = jnp.all(gold.hash[:, None] == said.hash[None], axis=2) & used_gold[:, None] & used_said[None]
    return jnp.sum(rank < jnp.sum(both, axis=1, dtype=jnp.int32), dtype=jnp.int32)


def _is_closed(answer: Words) -> Bool[Array, ""]:
    closed = jnp.asarray(host_hashes(["yes", "no", "noanswer"]))
    return (answer.count == 1) & jnp.any(jnp.all(answer.hash[0] == closed, axis=1))


def f1_parts(said: Words, gold: Words) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Numerator and denominator of F1 = 2 shared / (words said + words of gold), i32; the denominator is at least 1."""
    shared = shared_words(said, gold)
    barred = (_is_closed(said) | _is_closed(gold)) & ~exact_match(said, gold)
    return jnp.where(barred, 0, 2 * shared), jnp.maximum(said.count + gold.count, 1)


def f1(said: Words, gold: Words) -> Float[Array, ""]:
    """F1 in [0, 1], f32."""
    above, below = f1_parts(said, gold)
    return above.astype(jnp.float32) / below.astype(jnp.float32)
