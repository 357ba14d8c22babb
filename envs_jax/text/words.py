"""Words of a byte string: lower case, borders, and 64-bit hashes that host and device compute alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8, UInt32

MULTIPLIERS = (0x9E3779B1, 0x85EBCA77)  # odd; one for each half of a hash
WORD = re.compile("[0-9A-Za-z\u00c0-\u1fff\u2080-\u2fff\u3020-\U0010ffff]+")  # a word as `word_bytes` sees it


def _lower_two_bytes() -> np.ndarray:
    """Lower case of the characters U+0000..U+07FF, where it is one character of that range."""
    table = np.arange(2048, dtype=np.uint16)
    for code in range(0x80, 0x800):
        small = chr(code).lower()
        if len(small) == 1 and 0x80 <= ord(small) < 0x800:
            table[code] = ord(small)
    return table


_LOWER = _lower_two_bytes()


def previous(x: Array) -> Array:
    """`x` one place later, with zero (False) in front."""
    return jnp.pad(x, (1, 0))[: x.shape[0]]


def following(x: Array, by: int = 1) -> Array:
    """`x` `by` places earlier, with zeros behind."""
    return jnp.pad(x, (0, by))[by:]


def two_byte_characters(data: UInt8[Array, " N"]) -> tuple[Bool[Array, " N"], Int[Array, " N"]]:
    """Where characters of two bytes begin, and their code points there (i32, meaningless elsewhere)."""
    after = following(data)
    leads = (data >= 0xC2) & (data <= 0xDF) & (after >= 0x80) & (after <= 0xBF)
    code = ((data & 0x1F).astype(jnp.int32) << 6) | (after & 0x3F).astype(jnp.int32)
    return leads, code


def fold_case(data: UInt8[Array, " N"]) -> UInt8[Array, " N"]:
    """`str.lower` on UTF-8: ASCII, and letters of two bytes (Latin, Greek, Cyrillic, Armenian...).

    Letters of three bytes, and the few whose lower case has another number of bytes, stay as they are; a capital
    sigma becomes the medial form everywhere.
    """
    data = jnp.where((data >= 65) & (data <= 90), data + 32, data)
    leads, code = two_byte_characters(data)
    small = jnp.asarray(_LOWER)[jnp.where(leads, code, 0)].astype(jnp.int32)
    first, second = 0xC0 | (small >> 6), 0x80 | (small & 0x3F)
    data = jnp.where(leads, first, data.astype(jnp.int32))
    return jnp.where(previous(leads), previous(second), data).astype(jnp.uint8)


def host_fold_case(text: str) -> str:
    """What `fold_case` makes of `text`, on the host."""
    return "".join(
        chr(int(_LOWER[ord(c)])) if 0x80 <= ord(c) < 0x800 else c.lower() if c.isascii() else c for c in text
    )


def word_bytes(data: UInt8[Array, " N"]) -> Bool[Array, " N"]:
    """Bytes of words, of which `WORD` is the pattern: ASCII letters and digits, and what is not ASCII.

    Apart from that, the characters U+0080..U+00BF, U+2000..U+207F and U+3000..U+301F (spaces, dashes, quotes) part
    words.
    """
    ascii_word = (
        ((data >= 97) & (data <= 122)) | ((data >= 65) & (data <= 90)) | ((data >= 48) & (data <= 57))
    )
    after, third = following(data), following(data, 2)
    two = data == 0xC2
    three = ((data == 0xE2) & ((after == 0x80) | (after == 0x81))) | (
        (data == 0xE3) & (after == 0x80) & (third < 0xA0)
    )
    parting = two | three
    parting |= previous(parting)
    parting |= previous(previous(three))
    return ascii_word | ((data >= 0x80) & ~parting)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Words:
    """The first W words of a text: `hash[:count]`, zeros beyond. `overflow`: there were more than W."""

    hash: UInt32[Array, "W 2"]
    count: Int[Array, ""]
    overflow: Bool[Array, ""]


def _mix(x: Any) -> Any:
    """A bijection of u32, of JAX or numpy, in which every bit of the argument counts (MurmurHash3's last step)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _powers(n: int, of: tuple[int, ...] = MULTIPLIERS) -> np.ndarray:
    """multiplier ** i modulo 2 ** 32, u32[n, 2]."""
    rows = np.ones((n, 2), np.uint32)
    for i in range(1, n):
        rows[i] = [int(rows[i - 1, j]) * m & 0xFFFFFFFF for j, m in enumerate(of)]
    return rows


def _inverse_powers(n: int) -> np.ndarray:
    """multiplier ** -i modulo 2 ** 32, u32[n, 2]."""
    return _powers(n, tuple(pow(m, -1, 2**32) for m in MULTIPLIERS))


def _hash(sums: UInt32[Array, "... 2"], sizes: Int[Array, "..."]) -> UInt32[Array, "... 2"]:
    """Of runs of `sizes` bytes whose weighted sums these are."""
    return _mix(sums ^ jnp.stack([jnp.zeros_like(sizes), sizes], axis=-1).astype(jnp.uint32))


def hash_runs(data: UInt8[Array, " N"], inside: Bool[Array, " N"], count: int) -> Words:
    """Hashes of the first `count` runs of bytes that are `inside`. N is below 2^16.

    The hash of bytes b_0 .. b_n is the sum of b_i m^i modulo 2^32, mixed, for two multipliers m; the number of bytes
    goes into the second half. A run's sum is a difference of running sums, divided by m^start: m is odd.
    """
    n = data.shape[0]
    slots = jnp.arange(n, dtype=jnp.uint32)
    starts = inside & ~previous(inside)
    ends = inside & ~following(inside)
    run = jnp.cumsum(starts, dtype=jnp.int32) - 1
    borders = jnp.where(starts, slots, 0) + (jnp.where(ends, slots + 1, 0) << 16)
    borders = (
        jnp.zeros((count,), jnp.uint32).at[jnp.where(starts | ends, run, count)].add(borders, mode="drop")
    )
    first, end = (borders & 0xFFFF).astype(jnp.int32), (borders >> 16).astype(jnp.int32)
    terms = jnp.asarray(_powers(n)) * jnp.where(inside, data, 0)[:, None].astype(jnp.uint32)
    sums = jnp.pad(jnp.cumsum(terms, axis=0, dtype=jnp.uint32), ((1, 0), (0, 0)))
    hashes = _hash((sums[end] - sums[first]) * jnp.asarray(_inverse_powers(n))[first], end - first)
    total = jnp.sum(starts, dtype=jnp.int32)
    kept = jnp.arange(count, dtype=jnp.int32) < total
    return Words(jnp.where(kept[:, None], hashes, 0), jnp.minimum(total, count), total > count)


def words(data: UInt8[Array, " N"], length: Int[Array, ""], count: int) -> Words:
    """The first `count` words of `data[:length]`, lower-cased."""
    folded = fold_case(data)
    slots = jnp.arange(data.shape[0], dtype=jnp.int32)
    return hash_runs(folded, word_bytes(folded) & (slots < length), count)


def hash_all(data: UInt8[Array, " N"], length: Int[Array, ""]) -> UInt32[Array, "2"]:
    """Hash of the whole of `data[:length]`; of nothing 0, 0."""
    n = data.shape[0]
    length = jnp.minimum(length, n)
    counted = jnp.where(jnp.arange(n, dtype=jnp.int32) < length, data, 0).astype(jnp.uint32)
    sums = jnp.sum(jnp.asarray(_powers(n)) * counted[:, None], axis=0, dtype=jnp.uint32)
    return jnp.where(length > 0, _hash(sums, length), 0)


def host_hashes(texts: Sequence[str]) -> np.ndarray:
    """Hashes u32[n, 2] of texts as they are, equal to the device's; an empty text has the hash 0, 0."""
    rows = [t.encode() for t in texts]
    sizes = np.asarray([len(r) for r in rows], np.int64)
    if not len(rows) or not sizes.sum():
        return np.zeros((len(rows), 2), np.uint32)
    starts = np.cumsum(sizes) - sizes
    pool = np.frombuffer(b"".join(rows), np.uint8).astype(np.uint32)
    place = np.arange(len(pool)) - np.repeat(starts, sizes)
    filled = sizes > 0
    sums = np.zeros((len(rows), 2), np.uint32)
    sums[filled] = np.add.reduceat(
        _powers(int(sizes.max()))[place] * pool[:, None], starts[filled], axis=0, dtype=np.uint32
    )
    sums[:, 1] ^= sizes.astype(np.uint32)
    with np.errstate(over="ignore"):
        mixed = np.asarray(_mix(sums), np.uint32)
    mixed[~filled] = 0
    return mixed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HashTable:
    """From hashes to numbers. Keys lie in buckets by the first bits of their first half; `width` is the largest one."""

    offsets: Int[Array, " B"]
    keys: UInt32[Array, "K 2"]
    values: Int[Array, " K"]
    bits: int = field(metadata={"static": True})
    width: int = field(metadata={"static": True})

    @staticmethod
    def build(entries: Mapping[str, int]) -> HashTable:
        """Table of texts to numbers. Raises ValueError should two texts have one hash."""
        hashes = host_hashes(list(entries))
        values = np.fromiter(entries.values(), np.int32, len(entries))
        if len(np.unique(hashes, axis=0)) != len(entries):
            raise ValueError("two of the words have the same 64-bit hash; leave one of them out")
        bits = max(1, int(2 * len(entries)).bit_length() - 1)
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        sizes = np.bincount(hashes[:, 0] >> np.uint32(32 - bits), minlength=2**bits)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return HashTable(
            jnp.asarray(offsets),
            jnp.asarray(np.concatenate([hashes[order], np.zeros((1, 2), np.uint32)])),
            jnp.asarray(np.concatenate([values[order], [-1]]).astype(np.int32)),
            bits,
            max(1, int(sizes.max(initial=1))),
        )

    def find(self, hashes: UInt32[Array, "Q 2"]) -> Int[Array, " Q"]:
        """The number of each hash, -1 where it is not in the table."""
        bucket = (hashes[:, 0] >> np.uint32(32 - self.bits)).astype(jnp.int32)
        slot = self.offsets[bucket][:, None] + jnp.arange(self.width, dtype=jnp.int32)
        slot = jnp.minimum(slot, self.keys.shape[0] - 1)
        same = jnp.all(self.keys[slot] == hashes[:, None], axis=2)
        same &= slot < self.offsets[bucket + 1][:, None]
        return jnp.max(jnp.where(same, self.values[slot], -1), axis=1)
