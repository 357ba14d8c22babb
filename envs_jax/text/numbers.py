r"""Numbers in text as exact fractions, on device.

    number = sign? amount | sign? amount "/" amount | sign? "\frac{" sign? amount "}{" sign? amount "}"
    amount = digits, or groups of three with commas ("1,234,567"), with "." and digits after it or not; or "." digits

`\dfrac` and `\tfrac` are `\frac`. Around a number may stand, one within the other: `\boxed{...}`, `\(...\)`, `$...$`, a
currency sign (`$` or `\$`), a percent sign (`%` or `\%`), a full stop, spaces; one sign and one percent sign in all.
Everything else, a unit or "x = " among it, makes the text no number. Nothing is rounded: "0.1" is one tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8, UInt32

from envs_jax.text.expressions import is_digit
from envs_jax.text.rational import Rational, add, equal, fit, from_uint32, is_zero, multiply
from envs_jax.text.scan import first_true, is_space, last_true, occurrences

MAX_DIGITS = 18  # of an amount, without zeros in front; also after its point
LIMBS = 8  # of numerator and denominator: two amounts of 18 digits and a percent sign fit
_HEAD = 7  # bytes of the longest wrapping
_HALF = MAX_DIGITS // 2
_POWERS = 10 ** np.arange(_HALF + 1, dtype=np.uint32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Number:
    """A text that was read as a number. `value` counts where `ok`; a percent sign has divided it by 100.

    `overflow`: the text has the form of a number, but more digits than are kept; then `ok` is False.
    """

    value: Rational
    ok: Bool[Array, "*b"]
    percent: Bool[Array, "*b"]
    overflow: Bool[Array, "*b"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Rest:
    """What is left of a text, `data[low:high]`, while its wrappings are taken off."""

    low: Int[Array, ""]
    high: Int[Array, ""]
    signed: Bool[Array, ""]
    negative: Bool[Array, ""]
    percent: Bool[Array, ""]
    changed: Bool[Array, ""]


def _trim(
    data: UInt8[Array, " A"], low: Int[Array, ""], high: Int[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    slots = jnp.arange(data.shape[0], dtype=jnp.int32)
    visible = ~is_space(data) & (slots >= low) & (slots < high)
    last = last_true(visible)
    return jnp.where(last < 0, low, first_true(visible)), jnp.where(last < 0, low, last + 1)


def _begins(head: UInt8[Array, " H"], text: bytes) -> Bool[Array, ""]:
    return jnp.all(head[: len(text)] == np.frombuffer(text, np.uint8))


def _head(data: UInt8[Array, " A"], low: Int[Array, ""], high: Int[Array, ""]) -> UInt8[Array, " H"]:
    """The next bytes, zero beyond `high`."""
    at = low + jnp.arange(_HEAD, dtype=jnp.int32)
    return jnp.where(at < high, data.at[at].get(mode="fill", fill_value=0), 0).astype(jnp.uint8)


def _unwrap(data: UInt8[Array, " A"], rest: _Rest) -> _Rest:
    """Trims, then takes off one wrapping: a full stop, percent sign, currency sign, brackets, box or sign."""
    low, high = _trim(data, rest.low, rest.high)
    head = _head(data, low, high)
    back = high - 2 + jnp.arange(2, dtype=jnp.int32)
    tail = jnp.where(back >= low, data.at[jnp.maximum(back, 0)].get(mode="fill", fill_value=0), 0)
    last, escaped = tail[1], tail[0] == ord("\\")
    stop = last == ord(".")
    percent = (last == ord("%")) & ~rest.percent
    dollar_after = last == ord("$")
    dollar = jnp.where(_begins(head, b"$"), 1, jnp.where(_begins(head, b"\\$"), 2, 0))
    brackets = _begins(head, b"\\(") & escaped & (last == ord(")"))
    box = _begins(head, b"\\boxed{") & (last == ord("}"))
    minus = (head[0] == ord("-")) & ~rest.signed
    sign = minus | ((head[0] == ord("+")) & ~rest.signed)
    # (where, bytes in front, bytes behind); the first that applies is the one.
    kinds = (
        (stop, 0, 1),
        (percent, 0, jnp.where(escaped, 2, 1)),
        (dollar > 0, dollar, 0),
        (dollar_after, 0, 1),
        (brackets, 2, 2),
        (box, 7, 1),
        (sign, 1, 0),
    )
    front_cut = back_cut = jnp.zeros((), jnp.int32)
    for where, front, behind in reversed(kinds):
        front_cut = jnp.where(where, front, front_cut)
        back_cut = jnp.where(where, behind, back_cut)
    changed = front_cut + back_cut > 0
    is_sign = sign & (front_cut == 1) & ~stop & ~percent & (dollar == 0) & ~dollar_after
    is_percent = percent & ~stop
    return _Rest(
        low=(low + front_cut).astype(jnp.int32),
        high=(high - back_cut).astype(jnp.int32),
        signed=rest.signed | is_sign,
        negative=rest.negative | (is_sign & minus),
        percent=rest.percent | is_percent,
        changed=changed,
    )


def read_number(data: UInt8[Array, " A"], length: Int[Array, ""]) -> Number:
    """Reads `data[:length]`; a length beyond A is no number. `data` is zero beyond the length."""
    size = data.shape[0]
    length = jnp.asarray(length, jnp.int32)
    false = jnp.zeros((), bool)
    whole_text = _Rest(jnp.zeros((), jnp.int32), jnp.minimum(length, size), false, false, false, ~false)
    rest = jax.lax.while_loop(lambda r: r.changed, lambda r: _unwrap(data, r), whole_text)
    low, high, negative, percent = rest.low, rest.high, rest.negative, rest.percent
    slots = jnp.arange(size, dtype=jnp.int32)
    inside = (slots >= low) & (slots < high)
    head = _head(data, low, high)
    long = _begins(head, b"\\dfrac{") | _begins(head, b"\\tfrac{")
    closed = data.at[jnp.maximum(high - 1, 0)].get(mode="fill", fill_value=0) == ord("}")
    stacked = (_begins(head, b"\\frac{") | long) & closed
    middle = first_true(inside & occurrences(data, b"}{"))
    slash = first_true(inside & (data == ord("/")))
    divided = ~stacked & (slash < size)
    starts = jnp.where(
        stacked,
        jnp.stack([low + 6 + long, middle + 2]),
        jnp.stack([low, jnp.where(divided, slash + 1, high)]),
    )
    stops = jnp.where(
        stacked, jnp.stack([middle, high - 1]), jnp.stack([jnp.where(divided, slash, high), high])
    )
    parts = jax.vmap(_amount, in_axes=(None, 0, 0, None))(data, starts, stops, stacked)
    fraction = stacked | divided
    part = jax.tree.map(lambda x: x[1], parts)
    one = from_uint32(jnp.uint32(1), part.digits.shape[-1])
    below = jnp.where(fraction, part.digits, one)
    below_scale = jnp.where(fraction, part.scale, one)
    numerator = multiply(parts.digits[0], below_scale)
    denominator = multiply(parts.scale[0], below)
    hundred = from_uint32(jnp.where(percent, 100, 1).astype(jnp.uint32), 2)
    denominator, _ = fit(multiply(denominator, hundred), LIMBS)
    form = (length <= size) & parts.form[0] & (part.form | ~fraction)
    overflow = form & (parts.overflow[0] | (part.overflow & fraction))
    sign = negative ^ parts.negative[0] ^ (part.negative & fraction)
    return Number(
        Rational(sign, numerator, denominator), form & ~overflow & ~is_zero(denominator), percent, overflow
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Amount:
    """digits / scale, in limbs; whether the bytes have the form of an amount."""

    negative: Bool[Array, ""]
    digits: UInt32[Array, " W"]
    scale: UInt32[Array, " W"]
    form: Bool[Array, ""]
    overflow: Bool[Array, ""]


def _amount(
    data: UInt8[Array, " A"], start: Int[Array, ""], stop: Int[Array, ""], may_be_signed: Bool[Array, ""]
) -> _Amount:
    """The amount in `data[start:stop]`, with a sign before it if it may have one."""
    low, high = _trim(data, start, stop)
    first = data.at[low].get(mode="fill", fill_value=0)
    may_be_signed = may_be_signed & (low < high)
    minus = may_be_signed & (first == ord("-"))
    low, high = _trim(data, low + (minus | (may_be_signed & (first == ord("+")))), high)
    slots = jnp.arange(data.shape[0], dtype=jnp.int32)
    inside = (slots >= low) & (slots < high)
    digit, point, comma = (inside & kind for kind in (is_digit(data), data == ord("."), data == ord(",")))
    at = jnp.minimum(first_true(point), high)
    whole = inside & (slots < at)
    third = (at - slots) % 4 == 0
    grouped = jnp.all(jnp.where(whole, comma == (third & (slots > low)), ~comma))
    grouped &= ~jnp.any(third & (slots == low) & whole)
    form = (
        jnp.all(~inside | digit | point | comma)
        & jnp.any(digit)
        & (jnp.sum(point, dtype=jnp.int32) <= 1)
        & (grouped | ~jnp.any(comma))
    )
    count = jnp.cumsum(digit, dtype=jnp.int32)
    place = count[-1] - count
    decimals = jnp.sum(digit & (slots > at), dtype=jnp.int32)
    figure = jnp.where(digit, data - ord("0"), 0).astype(jnp.uint32)
    weight = jnp.asarray(_POWERS)[place % _HALF]
    halves = [
        jnp.sum(jnp.where(place // _HALF == half, figure * weight, 0), dtype=jnp.uint32) for half in (0, 1)
    ]
    upper = multiply(from_uint32(halves[1], 2), from_uint32(jnp.asarray(_POWERS)[_HALF], 2))
    digits, _ = add(upper, from_uint32(halves[0], 4))
    power = [jnp.asarray(_POWERS)[jnp.clip(decimals - half, 0, _HALF)] for half in (0, _HALF)]
    scale = multiply(from_uint32(power[0], 2), from_uint32(power[1], 2))
    overflow = jnp.any((place >= MAX_DIGITS) & (figure > 0)) | (decimals > MAX_DIGITS)
    return _Amount(minus, digits, scale, form, overflow)


def same_number(a: Number, b: Number) -> Bool[Array, "*b"]:
    """Whether both are numbers and equal. Where one alone has a percent sign, 50% equals 0.5 and also 50."""

    def plain(x: Number) -> Rational:
        factor = jnp.where(x.percent, 100, 1).astype(jnp.uint32)
        numerator, _ = fit(multiply(x.value.numerator, from_uint32(factor, 2)), LIMBS)
        return Rational(x.value.negative, numerator, x.value.denominator)

    return a.ok & b.ok & (equal(a.value, b.value) | equal(plain(a), plain(b)))
