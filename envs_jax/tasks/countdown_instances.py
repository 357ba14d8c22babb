"""Countdown instances: which are solvable, and random ones that are, under `jit`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from envs_jax.errors import ConfigError

MAX_ATTEMPTS = 20_000  # draws of one instance before generation gives up
MAX_NUMBERS = 5  # that the solver with all four operations takes
BLOCK = 64  # instances that the solver with all operations takes at a time
LANES = 1024  # instances drawn at a time
OPERATIONS = ("+-", "+-*/", "any")


def check_solver(sizes: tuple[int, int], largest: int) -> None:
    """Raises unless the solver with all four operations is exact for that many numbers up to `largest`."""
    most = sizes[1]
    if most > MAX_NUMBERS or 2 ** (most - 1) * largest**most >= 2**31:
        raise ConfigError(
            "operations",
            "+-*/",
            'solving is exact for 4 numbers up to 127 or 5 up to 42; use fewer or smaller ones, or "+-"',
        )


def solvable_by_signs(numbers: Int[Array, " S"], target: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether some choice of signs sums to the target. Padding with zeros changes nothing."""
    signs = np.asarray(list(itertools.product((1, -1), repeat=numbers.shape[0])), np.int32)
    return jnp.any(jnp.sum(jnp.asarray(signs) * numbers, axis=1, dtype=jnp.int32) == target)


def solvable(numbers: Int[Array, " S"], target: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the target is made of all the numbers, each once, with + - * / and parentheses.

    The values of each subset are those of its two parts, joined by a + b, a - b, b - a, a * b, a / b and b / a, as
    unreduced fractions in int32: exact while 2 ** (S - 1) * max(numbers) ** S < 2 ** 31. A fraction with the
    denominator zero is no value and makes none.
    """
    size = numbers.shape[0]
    values: dict[int, tuple[Array, Array]] = {
        1 << i: (numbers[i : i + 1], jnp.ones((1,), jnp.int32)) for i in range(size)
    }
    whole = (1 << size) - 1
    found = jnp.zeros((), bool)
    for subset in sorted(range(1, whole + 1), key=lambda s: (s.bit_count(), s)):
        if subset in values and size > 1:
            continue
        above, below = [], []
        lowest = subset & -subset
        part = (subset - 1) & subset
        while part:
            if part & lowest:  # each pair of parts once
                n, d = _joined(values[part], values[subset ^ part])
                if subset == whole:
                    found |= _reaches(n, d, target)
                above.append(n)
                below.append(d)
            part = (part - 1) & subset
        if subset != whole:
            values[subset] = jnp.concatenate(above), jnp.concatenate(below)
    return found if size > 1 else numbers[0] == target


def _joined(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    n, d = (x[:, None] for x in a)
    m, e = (x[None, :] for x in b)
    left, right, below = n * e, m * d, d * e
    tops = [left + right, left - right, right - left, n * m, left, right]
    bottoms = [below, below, below, below, right, left]
    # What is made of no value is none.
    bottoms = [jnp.where(below == 0, 0, bottom) for bottom in bottoms]
    return jnp.stack(tops).reshape(-1), jnp.stack(bottoms).reshape(-1)


def _reaches(above: Array, below: Array, target: Array) -> Array:
    """Whether some fraction equals the target: above = target * below, where that product fits in int32."""
    most = jnp.int32(2**31 - 1) // jnp.maximum(target, 1)
    return jnp.any((below != 0) & (jnp.abs(below) <= most) & (above == target * below))


@partial(jax.jit, static_argnames=("operations", "sizes"))
def are_solvable(
    numbers: Int[Array, "N S"],
    count: Int[Array, " N"],
    target: Int[Array, " N"],
    *,
    operations: str,
    sizes: tuple[int, int],
) -> Bool[Array, " N"]:
    """Solvability of N instances. `numbers` is zero beyond `count`, which is within `sizes`."""
    if operations == "+-":
        return jax.vmap(solvable_by_signs)(numbers, target)

    def one(instance: tuple[Array, Array, Array]) -> Array:
        numbers, count, target = instance
        found = jnp.zeros((), bool)
        for size in range(sizes[0], sizes[1] + 1):
            found |= (count == size) & solvable(numbers[:size], target)
        return found

    return jax.lax.map(one, (numbers, count, target), batch_size=BLOCK)


_Carry = tuple[
    Array, Array, Array, Array, Array
]  # attempts, numbers, count, target, valid; a row an instance


@partial(jax.jit, static_argnames=("levels", "sizes", "number_range", "target_range", "operations"))
def generate(
    key: Array,
    *,
    levels: int,
    sizes: tuple[int, int],
    number_range: tuple[int, int],
    target_range: tuple[int, int],
    operations: str,
) -> tuple[Int[Array, "N S"], Int[Array, " N"], Int[Array, " N"], Bool[Array, " N"]]:
    """Draws instances: numbers (zero beyond the count), count, target, and whether each is solvable.

    Size, numbers and target are uniform in their closed ranges; an instance is drawn again until it is solvable, so
    the result is uniform over solvable ones. Instance i depends on (key, i) alone.
    """
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(levels, dtype=jnp.uint32))
    slots = jnp.arange(sizes[1], dtype=jnp.int32)
    lanes = min(levels, LANES)

    def draw(key: Array) -> tuple[Array, Array, Array]:
        size_key, number_key, target_key = jax.random.split(key, 3)
        count = jax.random.randint(size_key, (), sizes[0], sizes[1] + 1, jnp.int32)
        low, high = number_range
        numbers = jax.random.randint(number_key, (sizes[1],), low, high + 1, jnp.int32)
        target = jax.random.randint(target_key, (), target_range[0], target_range[1] + 1, jnp.int32)
        return jnp.where(slots < count, numbers, 0), count, target

    def attempt(carry: _Carry) -> _Carry:
        """Draws once for some of the instances that have none yet."""
        attempts, numbers, count, target, valid = carry
        open_ = ~valid & (attempts < MAX_ATTEMPTS)
        rows = jnp.nonzero(open_, size=lanes, fill_value=levels)[0].astype(jnp.int32)
        at = jnp.minimum(rows, levels - 1)
        new = jax.vmap(draw)(jax.vmap(jax.random.fold_in)(keys[at], attempts[at]))
        found = are_solvable(*new, operations=operations, sizes=sizes)
        put = jnp.where(found, rows, levels)
        return (
            attempts.at[rows].add(1, mode="drop"),
            numbers.at[put].set(new[0], mode="drop"),
            count.at[put].set(new[1], mode="drop"),
            target.at[put].set(new[2], mode="drop"),
            valid.at[put].set(True, mode="drop"),
        )

    empty = jnp.zeros((levels,), jnp.int32)
    carry: _Carry = (
        jnp.zeros((levels,), jnp.uint32),
        jnp.zeros((levels, sizes[1]), jnp.int32),
        empty,
        empty,
        jnp.zeros((levels,), bool),
    )
    carry = jax.lax.while_loop(lambda c: jnp.any(~c[4] & (c[0] < MAX_ATTEMPTS)), attempt, carry)
    return carry[1], carry[2], carry[3], carry[4]


def pad(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Rows of numbers as one array, zero beyond the end of each."""
    out = np.zeros((len(rows), width), np.int32)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out
