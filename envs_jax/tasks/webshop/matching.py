"""What counts as the same in WebShop's reward: done once on the host, looked up on device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.text.retrieval import STOP_WORDS
from envs_jax.text.words import WORD

THRESHOLD = 85  # a ratio above it is a match
COLORS = tuple(
    str.split(
        "apricot aqua ash azure beige black blonde blue bronze brown burgundy camel champagne charcoal chocolate "
        "cinnamon cobalt coffee copper coral cream crimson cyan denim emerald fuchsia gold gray green grey indigo "
        "ivory jade khaki lavender lemon lilac lime magenta maroon mauve mint mustard navy nude ochre olive orange "
        "orchid peach pearl pink plum purple red rose ruby rust salmon sand sapphire scarlet silver slate tan taupe "
        "teal turquoise vanilla violet white wine yellow"
    )
)
_NOT_WORD = re.compile(r"[\W_]+")


def normalise_color(value: str) -> str:
    """The first base colour of `COLORS` that the value contains, else the value."""
    return next((c for c in COLORS if c in value), value)


def _common_subsequence(a: str, b: str) -> int:
    """Length of the longest common subsequence (bit-parallel, Hyyro 2004)."""
    masks: dict[str, int] = {}
    for i, c in enumerate(a):
        masks[c] = masks.get(c, 0) | 1 << i
    every = (1 << len(a)) - 1
    free = every
    for c in b:
        used = free & masks.get(c, 0)
        free = ((free + used) | (free - used)) & every
    return len(a) - free.bit_count()


def ratio(a: str, b: str) -> int:
    """Similarity in percent, 2 lcs(a, b) / (len(a) + len(b)), rounded; 0 if either is empty."""
    if not a or not b:
        return 0
    return round(100 * 2 * _common_subsequence(a, b) / (len(a) + len(b)))


def token_set_ratio(a: str, b: str) -> int:
    """thefuzz's token-set ratio: the best ratio among the common words and either text's words, each sorted."""
    first, second = (set(_NOT_WORD.sub(" ", t.lower()).split()) for t in (a, b))
    if not first or not second:
        return 0
    common = " ".join(sorted(first & second))
    whole = [f"{common} {' '.join(sorted(own))}".strip() for own in (first - second, second - first)]
    return max(ratio(common, whole[0]), ratio(common, whole[1]), ratio(*whole))


def title_words(title: str) -> list[str]:
    """The words of a title that stand for its nouns: not stop words, not numbers, of at least three letters.

    The published code asks a part-of-speech tagger instead.
    """
    found = (w.lower() for w in WORD.findall(title))
    return [w for w in found if len(w) > 2 and w not in STOP_WORDS and not w.isdigit()]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Relation:
    """Pairs (row, number): the numbers of row r are `numbers[offsets[r] : offsets[r + 1]]`, ascending."""

    offsets: Int[Array, " R+1"]
    numbers: Int[Array, " n"]
    steps: int = field(metadata={"static": True})  # halvings that the longest row needs

    @staticmethod
    def build(rows: Sequence[Sequence[int]]) -> Relation:
        """Relation of the numbers of each row."""
        sizes = [len(r) for r in rows]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)
        flat = np.asarray([n for row in rows for n in sorted(row)] + [-1], np.int32)
        return Relation(jnp.asarray(offsets), jnp.asarray(flat), max(sizes, default=0).bit_length())

    def holds(self, row: Int[Array, ""], number: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether `number` is in `row`; False for a row below zero."""
        safe = jnp.maximum(row, 0)
        low, stop = self.offsets[safe], self.offsets[safe + 1]
        high = stop
        for _ in range(self.steps):
            middle = (low + high) // 2
            less = (low < high) & (self.numbers[middle] < number)
            low, high = jnp.where(less, middle + 1, low), jnp.where(less, high, middle)
        return (row >= 0) & (low < stop) & (self.numbers[low] == number)
