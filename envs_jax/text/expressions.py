"""Arithmetic in text, evaluated exactly on device.

The grammar is the arithmetic of Python restricted to whole numbers:

    sum     = product (("+" | "-") product)*
    product = factor (("*" | "/") factor)*
    factor  = ("+" | "-") factor | number | "(" sum ")"
    number  = a run of digits that begins with 0 only if all are 0

with spaces and tabs between any two symbols. Nothing else is read: no `**`, `//`, decimals, names, `2(3)` or line
breaks. Division is that of fractions.

Every question about the syntax is one about neighbours or nesting depth, so it is answered for all bytes at once. The
evaluation then takes one step for each operator, innermost and strongest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8, UInt32

from envs_jax.text.rational import Rational, combine, whole
from envs_jax.text.scan import running_max

MAX_DIGITS = 9  # significant digits of a number
POWERS = 10 ** np.arange(MAX_DIGITS, dtype=np.uint32)
_SUM, _PRODUCT, _GROUP = range(3)  # strength of +, of *, and of a minus before a parenthesis


_Carry = tuple[Rational, Array, Array, Array]  # values, numbers that are still apart, urgency, overflow


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DigitRuns:
    """The runs of digits in a text, in order.

    `value[k]` is the k-th of the first K (0 beyond the last); `count` is the number of all, also of those beyond K;
    `overflow` tells that there are more than K, or that one has more than MAX_DIGITS significant digits.
    `index[i]` is the number of runs that begin before or at byte i.
    """

    value: UInt32[Array, " K"]
    count: Int[Array, ""]
    overflow: Bool[Array, ""]
    index: Int[Array, " A"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Expression:
    """A text that was read: whether it is an expression, its numbers, and the order of its operators.

    `urgency[i]` is positive where byte i is an operator, greater for those that come first. `negative[k]` tells that
    number k has a minus of its own.
    """

    valid: Bool[Array, ""]
    numbers: DigitRuns
    negative: Bool[Array, " K"]
    urgency: Int[Array, " A"]
    operator: UInt8[Array, " A"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Evaluation:
    """Value of an expression. It counts where `ok`; otherwise one of the others says why there is none."""

    value: Rational
    ok: Bool[Array, ""]
    zero_division: Bool[Array, ""]
    overflow: Bool[Array, ""]


def is_digit(data: UInt8[Array, " A"]) -> Bool[Array, " A"]:
    return (data >= ord("0")) & (data <= ord("9"))


def digit_runs(data: UInt8[Array, " A"], max_numbers: int) -> DigitRuns:
    """The numbers that `re.findall(r"[0-9]+", text)` finds. `data` is zero beyond the text."""
    size = data.shape[0]
    digit = is_digit(data)
    slots = jnp.arange(size, dtype=jnp.int32)
    starts = digit & ~jnp.pad(digit[:-1], (1, 0))
    index = jnp.cumsum(starts, dtype=jnp.int32)
    # Digits from here to the end of the run, this one not counted: distance to the next byte that is no digit.
    stop = size - running_max(jnp.where(digit, -1, size - slots)[::-1])[::-1]
    place = jnp.where(stop > size, size, stop) - slots - 1
    figure = jnp.where(digit, data - ord("0"), 0).astype(jnp.uint32)
    power = jnp.asarray(POWERS)[jnp.clip(place, 0, MAX_DIGITS - 1)]
    too_long = jnp.any(digit & (place >= MAX_DIGITS) & (figure > 0))
    target = jnp.where(digit & (place < MAX_DIGITS), index - 1, max_numbers)
    value = jnp.zeros((max_numbers,), jnp.uint32).at[target].add(figure * power, mode="drop")
    return DigitRuns(value, index[-1], too_long | (index[-1] > max_numbers), index)


def read(data: UInt8[Array, " A"], length: Int[Array, ""], *, max_numbers: int) -> Expression:
    """Reads `data[:length]`; a length beyond A is no expression. `data` is zero beyond the length.

    Args:
        data: the text.
        length: its bytes.
        max_numbers: K, numbers that can be kept.
    """
    size = data.shape[0]
    runs = digit_runs(data, max_numbers)
    digit = is_digit(data)
    plus, minus = data == ord("+"), data == ord("-")
    times, over = data == ord("*"), data == ord("/")
    opening, closing = data == ord("("), data == ord(")")
    space = (data == ord(" ")) | (data == ord("\t"))
    slots = jnp.arange(size, dtype=jnp.int32)
    inside = slots < length
    known = digit | plus | minus | times | over | opening | closing | space
    visible = inside & ~space

    # Whether the last visible byte before this one ends an operand.
    last = running_max(jnp.where(visible, 2 * slots + (digit | closing), -1))
    before = jnp.pad(last[:-1], (1, 0), constant_values=-1)
    after_operand = (before >= 0) & (before % 2 == 1)
    begins = digit & ~jnp.pad(digit[:-1], (1, 0))
    signs = plus | minus
    unary = signs & ~after_operand
    binary = (signs & after_operand) | times | over
    wants_operand = times | over | closing
    misplaced = ((begins | opening) & after_operand) | (wants_operand & ~after_operand)
    follows = jnp.pad(digit[1:], (0, 1))
    zero_led = begins & (data == ord("0")) & follows
    bad_zero = jnp.any(zero_led) & jnp.any(_in_zero_led_run(zero_led, runs.index) & (data > ord("0")) & digit)

    depth = jnp.cumsum(opening.astype(jnp.int32) - closing.astype(jnp.int32), dtype=jnp.int32)
    ends_well = (last[-1] >= 0) & (last[-1] % 2 == 1)
    balanced = jnp.all(depth >= 0) & (depth[-1] == 0)
    valid = (
        (length <= size) & ends_well & balanced & ~jnp.any(inside & ~known) & ~jnp.any(misplaced) & ~bad_zero
    )

    # Minuses in the run of signs before a number or a parenthesis: those since the last visible byte that is no sign.
    minuses = jnp.cumsum(unary & minus, dtype=jnp.int32)
    settled = running_max(jnp.where(visible & ~unary, minuses, 0))
    odd = (minuses - jnp.pad(settled[:-1], (1, 0))) % 2 == 1
    target = jnp.where(begins & odd, runs.index - 1, max_numbers)
    negative = jnp.zeros((max_numbers,), bool).at[target].set(True, mode="drop")

    group = opening & odd
    outer = jnp.where(group, depth - 1, depth)
    strength = jnp.where(group, _GROUP, jnp.where(times | over, _PRODUCT, _SUM))
    urgency = ((outer * 3 + strength) * size + (size - 1 - slots)) + 1
    return Expression(
        valid=valid,
        numbers=runs,
        negative=negative,
        urgency=jnp.where(binary | group, urgency, 0),
        operator=data,
    )


def _in_zero_led_run(zero_led: Bool[Array, " A"], index: Int[Array, " A"]) -> Bool[Array, " A"]:
    """Bytes from the start of a run that begins with a zero to the start of the next run."""
    return running_max(jnp.where(zero_led, index, -1)) == index


def evaluate(expression: Expression, *, limbs: int = 8) -> Evaluation:
    """Value of a valid expression whose numbers were all kept; one step for each operator.

    Numerators and denominators have `limbs` limbs of 16 bits and are not reduced. With n numbers none of which is
    above m they stay below 2 ** (n - 1) * m ** n, so that many bits cannot overflow; what does is flagged.
    """
    runs = expression.numbers
    count = runs.value.shape[0]
    ids = jnp.arange(count, dtype=jnp.int32)
    start = whole(runs.value, limbs)
    usable = expression.valid & ~runs.overflow
    values = Rational(expression.negative, start.numerator, start.denominator)
    false = jnp.zeros((), bool)
    urgency = jnp.where(usable, expression.urgency, 0)
    slots = jnp.arange(urgency.shape[0], dtype=jnp.int32)

    def pick(values: Rational, at: Array) -> Rational:
        here = ids == at
        column = here[:, None]
        return Rational(
            jnp.any(here & values.negative),
            jnp.sum(jnp.where(column, values.numerator, 0), axis=0, dtype=jnp.uint32),
            jnp.sum(jnp.where(column, values.denominator, 0), axis=0, dtype=jnp.uint32),
        )

    def step(carry: _Carry) -> _Carry:
        values, live, urgency, overflow = carry
        at = jnp.argmax(urgency).astype(jnp.int32)
        symbol, following = expression.operator[at], runs.index[at]
        # Number `following` opens the right operand; the left one begins at the last live number before it.
        root = jnp.max(jnp.where(live & (ids < following), ids, 0))
        left, right = pick(values, root), pick(values, following)
        result, over = combine(
            left,
            right,
            divide=symbol == ord("/"),
            times=symbol == ord("*"),
            minus=symbol == ord("-"),
        )
        group = symbol == ord("(")
        put = (ids == root) & ~group
        values = Rational(
            jnp.where(put, result.negative, values.negative ^ ((ids == following) & group)),
            jnp.where(put[:, None], result.numerator, values.numerator),
            jnp.where(put[:, None], result.denominator, values.denominator),
        )
        live = live & ~((ids == following) & ~group)
        return values, live, jnp.where(slots == at, 0, urgency), overflow | (over & ~group)

    carry = (values, jnp.ones((count,), bool), urgency, false)
    values, _, _, overflow = jax.lax.while_loop(lambda c: jnp.any(c[2] > 0), step, carry)
    value = pick(values, jnp.zeros((), jnp.int32))
    overflow = expression.valid & (runs.overflow | overflow)
    zero = usable & ~overflow & jnp.all(value.denominator == 0)
    return Evaluation(value, usable & ~overflow & ~zero, zero, overflow)
