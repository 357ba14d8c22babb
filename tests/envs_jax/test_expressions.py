"""Arithmetic in text, against Python's own parser with fractions."""

from __future__ import annotations

import ast
import functools
import random
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.text.expressions import MAX_DIGITS, Evaluation, Expression, evaluate, read
from envs_jax.text.rational import Rational, combine, equal, near

WIDTH, NUMBERS, COUNT = 96, 8, 5000
SYMBOLS = set("0123456789+-*/() \t")


def reference(text: str) -> Fraction | ZeroDivisionError | None:
    """Value of `text`, None where it is not plain arithmetic, an error where it divides by zero."""
    if set(text) - SYMBOLS:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return None

    def value(node: ast.AST) -> Fraction:
        match node:
            case ast.Expression(body):
                return value(body)
            case ast.Constant(int(number)):
                return Fraction(number)
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.UnaryOp(ast.UAdd(), operand):
                return value(operand)
            case ast.BinOp(left, ast.Add(), right):
                return value(left) + value(right)
            case ast.BinOp(left, ast.Sub(), right):
                return value(left) - value(right)
            case ast.BinOp(left, ast.Mult(), right):
                return value(left) * value(right)
            case ast.BinOp(left, ast.Div(), right):
                return value(left) / value(right)
        raise TypeError

    def allowed(node: ast.AST) -> bool:
        try:
            value(node)
        except TypeError:
            return False
        except ZeroDivisionError:
            pass
        return all(isinstance(n, _NODES) for n in ast.walk(node))

    if not allowed(tree):
        return None
    try:
        return value(tree)
    except ZeroDivisionError as error:
        return error


_NODES = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div,
)  # fmt: skip


def well_formed(rng: random.Random, numbers: int, largest: int) -> str:
    """A random expression of the grammar."""
    if numbers == 1:
        text = str(rng.choice([rng.randint(0, largest), rng.randint(0, 3)]))
    else:
        left = rng.randint(1, numbers - 1)
        space = rng.choice(["", " ", "  ", "\t"])
        a, b = well_formed(rng, left, largest), well_formed(rng, numbers - left, largest)
        text = f"{a}{space}{rng.choice('+-*/')}{space}{b}"
    for _ in range(2):
        kind = rng.random()
        if kind < 0.3:
            text = f"({text})"
        elif kind < 0.42:
            text = rng.choice("-+") + rng.choice(["", " "]) + text
    return text


def mutated(rng: random.Random, text: str) -> str:
    """`text` with one to three bytes put in, taken out or changed."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(text))
        byte = rng.choice("0123456789+-*/()   \t.,=x_\n")
        text = text[:at] + rng.choice([byte, ""]) + text[at + rng.randint(0, 1) :]
    return text


def corpus(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    texts = []
    while len(texts) < count:
        text = well_formed(rng, rng.randint(1, NUMBERS), rng.choice([9, 99, 9999]))
        texts.append(mutated(rng, text) if rng.random() < 0.4 else text)
        texts = [t for t in texts if len(t.encode()) <= WIDTH]
    return texts


def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and lengths, with empty rows up to a few fixed sizes, so that little is compiled."""
    rows = 64 if len(texts) <= 64 else COUNT
    data, length = np.zeros((rows, WIDTH), np.uint8), np.zeros(rows, np.int32)
    for row, text in enumerate(texts):
        raw = text.encode()
        length[row] = len(raw)
        data[row, : len(raw[:WIDTH])] = np.frombuffer(raw[:WIDTH], np.uint8)
    return data, length


@functools.partial(jax.jit, static_argnames=("limbs", "max_numbers"))
def run(
    data: jax.Array, length: jax.Array, limbs: int = 8, max_numbers: int = NUMBERS
) -> tuple[Expression, Evaluation]:
    def one(data: jax.Array, length: jax.Array) -> tuple[Expression, Evaluation]:
        expression = read(data, length, max_numbers=max_numbers)
        return expression, evaluate(expression, limbs=limbs)

    return jax.vmap(one)(data, length)


def natural(limbs: np.ndarray) -> int:
    return sum(int(limb) << (16 * i) for i, limb in enumerate(limbs))


def fraction(value: Rational, row: int) -> Fraction:
    size = Fraction(natural(value.numerator[row]), natural(value.denominator[row]))
    return -size if value.negative[row] else size


def check(texts: list[str], limbs: int = 8) -> dict[str, int]:
    """Compares every text with the reference; returns how often each kind of outcome came up."""
    expression, result = jax.device_get(run(*encode(texts), limbs=limbs))
    seen = dict.fromkeys(("value", "refused", "zero division", "overflow"), 0)
    for row, text in enumerate(texts):
        expected = reference(text)
        found = re.findall("[0-9]+", text)
        assert expression.numbers.count[row] == len(found), text
        if len(found) <= NUMBERS and all(int(n) < 10**MAX_DIGITS for n in found):
            values = [int(v) for v in expression.numbers.value[row, : len(found)]]
            assert values == [int(n) for n in found], text
        assert bool(expression.valid[row]) == (expected is not None), text
        if expected is None:
            assert not any((result.ok[row], result.zero_division[row], result.overflow[row])), text
            seen["refused"] += 1
        elif result.overflow[row]:
            assert not any((result.ok[row], result.zero_division[row])), text
            seen["overflow"] += 1
        elif isinstance(expected, ZeroDivisionError):
            assert result.zero_division[row], text
            assert not result.ok[row], text
            seen["zero division"] += 1
        else:
            assert result.ok[row], text
            assert not result.zero_division[row], text
            assert fraction(result.value, row) == expected, text
            seen["value"] += 1
    return seen


def test_5000_expressions_equal_pythons_parser() -> None:
    seen = check(corpus(0, COUNT), limbs=8)
    assert sum(seen.values()) == COUNT
    assert seen["value"] > 2500
    assert seen["refused"] > 500
    assert seen["zero division"] > 50
    assert seen["overflow"] < 20  # more than 8 numbers after a mutation


CASES = {
    "8/3-1": Fraction(5, 3),
    "1/3+1/6": Fraction(1, 2),
    "-(3-5)*-2": Fraction(-4),
    "--3": Fraction(3),
    "- -(-(2))": Fraction(-2),
    "2--3": Fraction(5),
    "2*-3/-4": Fraction(3, 2),
    "12 - 3 - 4": Fraction(5),
    "100/10/5": Fraction(2),
    "2+3*4": Fraction(14),
    "(2+3)*4": Fraction(20),
    "-2*(3+4)": Fraction(-14),
    "6/(1-3/4)": Fraction(24),
    "000": Fraction(0),
    "0-0": Fraction(0),
    "((((((7))))))": Fraction(7),
    "5*(0/3)": Fraction(0),
    "999999999*999999999": Fraction(999999998000000001),
}


def test_worked_by_hand() -> None:
    _, result = jax.device_get(run(*encode(list(CASES))))
    assert [fraction(result.value, row) for row in range(len(CASES))] == list(CASES.values())
    assert result.ok[: len(CASES)].all()


@pytest.mark.parametrize(
    "text",
    ["2**3", "7//2", "3.5", "2(3)", "(2)(3)", "2 3", "()", "", " ", "3+", "*3", "(3", "3)", ")3(", "007", "1_0",
     "1,2", "abs(3)", "3=3", "0x10", "1e3", "3;", "3 if 1 else 2", "2\n+3", "(2\n+3)", "²", "３", "3+()", "/2"],
)  # fmt: skip
def test_refused(text: str) -> None:
    expression, result = jax.device_get(run(*encode([text])))
    assert not expression.valid[0]
    assert not result.ok[0]
    assert not result.overflow[0]


def test_a_text_longer_than_its_buffer_is_refused() -> None:
    text = "1" + "+0" * 60
    assert not jax.device_get(run(*encode([text])))[0].valid[0]


def test_overflow_is_flagged_never_silent() -> None:
    texts = [
        "65535*65537",
        "65536*65536",
        "99999*99999-99999*99999",
        "1/65536/65536",
        "1000000000",
        "0000000001*0",
    ]
    texts += ["+".join("123456789"), "+".join("12345678"), "4294967295", "9" * 9, "1/(9-9*1)"]
    expression, result = jax.device_get(run(*encode(texts), limbs=2))
    # 65535 * 65537 = 2 ** 32 - 1 is the last that two limbs hold.
    count = len(texts)
    assert result.overflow[:count].tolist() == [
        False, True, True, True, True, False, True, False, True, False, False,
    ]  # fmt: skip
    assert (
        result.ok[:count] == [True, False, False, False, False, False, False, True, False, True, False]
    ).all()
    assert not expression.valid[5]  # leading zeros before another digit
    assert result.zero_division[:count].tolist() == [False] * 10 + [True]


def test_numbers_in_a_few_limbs_cannot_overflow() -> None:
    """The stated bound: n numbers up to m stay below 2 ** (n - 1) * m ** n."""
    rng = random.Random(3)
    texts = [t for t in (well_formed(rng, 4, 99) for _ in range(800)) if len(t) <= WIDTH]
    seen = check(texts, limbs=2)  # 2 ** 3 * 99 ** 4 < 2 ** 32
    assert seen["overflow"] == 0
    assert seen["value"] > 500


def rational(value: Fraction, limbs: int) -> Rational:
    def split(n: int) -> jax.Array:
        assert n < 1 << (16 * limbs)
        return jnp.asarray([n >> (16 * i) & 0xFFFF for i in range(limbs)], jnp.uint32)

    return Rational(jnp.bool_(value < 0), split(abs(value.numerator)), split(value.denominator))


def test_fractions_combine_and_compare_as_pythons() -> None:
    rng = random.Random(1)
    a = [Fraction(rng.randint(-(10**9), 10**9), rng.randint(1, 10**9)) for _ in range(300)]
    b = [Fraction(rng.randint(-20, 20), rng.randint(1, 9)) for _ in range(300)]
    b = [
        x if rng.random() < 0.7 else y + Fraction(rng.choice([-1, 0, 1]), 100_001)
        for x, y in zip(b, a, strict=True)
    ]
    left, right = (
        jax.tree.map(lambda *x: jnp.stack(x), *[rational(v, 8) for v in values]) for values in (a, b)
    )
    same, close = jax.jit(lambda x, y: (equal(x, y), near(x, y, 100_000)))(left, right)
    assert same.tolist() == [x == y for x, y in zip(a, b, strict=True)]
    assert close.tolist() == [abs(x - y) < Fraction(1, 100_000) for x, y in zip(a, b, strict=True)]
    assert 20 < int(same.sum()) < int(close.sum()) < 200
    none = jnp.zeros(300, bool)
    out, over = jax.jit(lambda x, y: combine(x, y, divide=none, times=none, minus=~none))(left, right)
    out = jax.device_get(out)
    assert not over.any()
    assert [fraction(out, i) for i in range(300)] == [x - y for x, y in zip(a, b, strict=True)]


def test_dtypes_do_not_depend_on_x64() -> None:
    data, length = encode(["(1+2)*3/4"])
    plain = jax.eval_shape(run, data, length)
    with jax.enable_x64(True):
        wide = jax.eval_shape(run, jnp.asarray(data, jnp.uint8), jnp.asarray(length, jnp.int32))
        value = run(jnp.asarray(data, jnp.uint8), jnp.asarray(length, jnp.int32))[1]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), plain) == jax.tree.map(
        lambda x: (x.shape, x.dtype), wide
    )
    assert fraction(jax.device_get(value).value, 0) == Fraction(9, 4)
