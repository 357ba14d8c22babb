"""Exact fractions on device: natural numbers in 16-bit limbs, so no result is rounded and none wraps unseen.

A natural number of W limbs is `uint32[..., W]`, least significant first, each limb below 2 ** 16; it holds values
below 2 ** (16 W). Products of limbs fit in 32 bits, so everything works with x64 on and off. Fractions are not reduced:
that would take a loop for every operation, and W limbs that hold the product of all numbers involved are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, UInt32

LIMB = 16
MASK = (1 << LIMB) - 1


def from_uint32(value: UInt32[Array, "*b"], width: int) -> UInt32[Array, "*b W"]:
    """`value` in `width` limbs, at least 2."""
    value = jnp.asarray(value, jnp.uint32)
    zeros = [jnp.zeros_like(value)] * (width - 2)
    return jnp.stack([value & MASK, value >> LIMB, *zeros], axis=-1)


def _carry(
    columns: UInt32[Array, "*b W"], into: int = 0
) -> tuple[UInt32[Array, "*b W"], UInt32[Array, "*b"]]:
    """Columns below 2 ** 31 to limbs, and what is carried out of the last one."""
    carry = jnp.full(columns.shape[:-1], into, jnp.uint32)
    limbs = []
    for i in range(columns.shape[-1]):
        total = columns[..., i] + carry
        limbs.append(total & MASK)
        carry = total >> LIMB
    return jnp.stack(limbs, axis=-1), carry


def multiply(a: UInt32[Array, "*b V"], b: UInt32[Array, "*b W"]) -> UInt32[Array, "*b V+W"]:
    """The whole product."""
    rows, width = a.shape[-1], b.shape[-1]
    full = rows + width
    products = a[..., :, None] * b[..., None, :]

    def columns(parts: Array) -> Array:
        # Row i is moved i columns to the right: rows of length `full` read again as rows of length full - 1.
        flat = jnp.pad(parts, [(0, 0)] * (parts.ndim - 1) + [(0, rows)])
        flat = flat.reshape(*parts.shape[:-2], rows * full)[..., : rows * (full - 1)]
        return jnp.sum(flat.reshape(*parts.shape[:-2], rows, full - 1), axis=-2, dtype=jnp.uint32)

    one = [(0, 0)] * (a.ndim - 1)
    low = jnp.pad(columns(products & MASK), [*one, (0, 1)])
    high = jnp.pad(columns(products >> LIMB), [*one, (1, 0)])
    return _carry(low + high)[0]


def add(
    a: UInt32[Array, "*b W"], b: UInt32[Array, "*b W"]
) -> tuple[UInt32[Array, "*b W"], Bool[Array, "*b"]]:
    """The sum, and whether it needs another limb."""
    limbs, carry = _carry(a + b)
    return limbs, carry > 0


def difference(
    a: UInt32[Array, "*b W"], b: UInt32[Array, "*b W"]
) -> tuple[UInt32[Array, "*b W"], Bool[Array, "*b"]]:
    """`abs(a - b)`, and whether a < b."""
    down, enough = _carry(a + (MASK - b), into=1)
    up, _ = _carry(b + (MASK - a), into=1)
    less = enough == 0
    return jnp.where(less[..., None], up, down), less


def is_zero(a: UInt32[Array, "*b W"]) -> Bool[Array, "*b"]:
    return jnp.all(a == 0, axis=-1)


def fit(a: UInt32[Array, "*b V"], width: int) -> tuple[UInt32[Array, "*b W"], Bool[Array, "*b"]]:
    """The lowest `width` limbs, and whether there is more."""
    missing = max(0, width - a.shape[-1])
    kept = jnp.pad(a[..., :width], [(0, 0)] * (a.ndim - 1) + [(0, missing)])
    return kept, jnp.any(a[..., width:] != 0, axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rational:
    """The fraction numerator / denominator with a sign; a denominator of zero is no value. Zero may be negative."""

    negative: Bool[Array, "*b"]
    numerator: UInt32[Array, "*b W"]
    denominator: UInt32[Array, "*b W"]


def whole(value: UInt32[Array, "*b"], width: int) -> Rational:
    """A natural number as a fraction."""
    value = jnp.asarray(value, jnp.uint32)
    return Rational(
        jnp.zeros(value.shape, bool), from_uint32(value, width), from_uint32(jnp.ones_like(value), width)
    )


def defined(a: Rational) -> Bool[Array, "*b"]:
    """Whether the denominator is not zero."""
    return ~is_zero(a.denominator)


def equal(a: Rational, b: Rational) -> Bool[Array, "*b"]:
    """Exact equality; False where either is no value."""
    left = multiply(a.numerator, b.denominator)
    right = multiply(b.numerator, a.denominator)
    same_sign = (a.negative == b.negative) | is_zero(a.numerator)
    return jnp.all(left == right, axis=-1) & same_sign & defined(a) & defined(b)


def combine(
    a: Rational, b: Rational, *, divide: Bool[Array, "*b"], times: Bool[Array, "*b"], minus: Bool[Array, "*b"]
) -> tuple[Rational, Bool[Array, "*b"]]:
    """a / b where `divide`, a * b where `times`, a - b where `minus`, else a + b; and whether it overflowed.

    A quotient by zero has the denominator zero, and so has everything that is made of it.
    """
    width = a.numerator.shape[-1]
    scaled = divide | times
    left, over = fit(multiply(a.numerator, jnp.where(times[..., None], b.numerator, b.denominator)), width)
    below, over_below = fit(
        multiply(a.denominator, jnp.where(divide[..., None], b.numerator, b.denominator)), width
    )
    # A quotient by what is no value would otherwise have the denominator that it lacks.
    below = jnp.where((divide & is_zero(b.denominator))[..., None], 0, below).astype(jnp.uint32)
    right, over_right = fit(multiply(b.numerator, a.denominator), width)
    negative = b.negative ^ minus
    total, over_sum = add(left, right)
    apart, flipped = difference(left, right)
    same = a.negative == negative
    sum_negative = jnp.where(same, a.negative, a.negative ^ flipped)
    result = Rational(
        jnp.where(scaled, a.negative ^ b.negative, sum_negative),
        jnp.where(scaled[..., None], left, jnp.where(same[..., None], total, apart)),
        below,
    )
    return result, over | over_below | (~scaled & (over_right | (same & over_sum)))


def near(a: Rational, b: Rational, inverse: int) -> Bool[Array, "*b"]:
    """Whether abs(a - b) < 1 / inverse, exactly; inverse below 2 ** 32. False where either is no value."""
    left, right = multiply(a.numerator, b.denominator), multiply(b.numerator, a.denominator)
    total, over = add(left, right)
    apart, _ = difference(left, right)
    same = (a.negative == b.negative)[..., None]
    gap = jnp.where(same, apart, total)
    scale = jnp.broadcast_to(from_uint32(jnp.uint32(inverse), 2), (*gap.shape[:-1], 2))
    bound = multiply(a.denominator, b.denominator)
    scaled = multiply(gap, scale)
    bound = fit(bound, scaled.shape[-1])[0]
    less = difference(scaled, bound)[1]
    return less & ~(over & ~same[..., 0]) & defined(a) & defined(b)
