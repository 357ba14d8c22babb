"""Numbers in text, against regular expressions and Python's fractions."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.text.numbers import MAX_DIGITS, Number, read_number, same_number

WIDTH, ROWS = 64, 4000

AMOUNT = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+")


def amount(text: str, signed: bool = False) -> tuple[Fraction, bool] | None:
    """Value, and whether it has too many digits."""
    text, sign = text.strip(), 1
    if signed and text[:1] in ("-", "+"):
        text, sign = text[1:].strip(), -1 if text[0] == "-" else 1
    if not AMOUNT.fullmatch(text):
        return None
    whole, _, decimals = text.replace(",", "").partition(".")
    digits = (whole + decimals).lstrip("0")
    value = sign * Fraction(int(whole + decimals), 10 ** len(decimals))
    return value, max(len(digits), len(decimals)) > MAX_DIGITS


def unwrapped(text: str) -> tuple[str, int, bool]:
    """`text` without what may stand around a number; its sign and percent sign."""
    sign, percent = 0, False
    while True:
        text = text.strip()
        if text.endswith("."):
            text = text[:-1]
        elif text.endswith("%") and not percent:
            text, percent = text[:-1].removesuffix("\\"), True
        elif text.startswith(("\\$", "$")):
            text = text[text.index("$") + 1 :]
        elif text.endswith("$"):
            text = text[:-1]
        elif found := re.fullmatch(r"\\\((.*)\\\)|\\boxed\{(.*)\}", text):
            text = found[1] or found[2] or ""
        elif text[:1] in ("-", "+") and not sign:
            text, sign = text[1:], -1 if text[0] == "-" else 1
        else:
            return text, sign or 1, percent


def reference(text: str) -> tuple[Fraction, bool] | None:
    """Value and percent sign of `text`, None where it is no number; OverflowError where it is too long a one."""
    text, sign, percent = unwrapped(text)
    if found := re.fullmatch(r"\\[dt]?frac\{(.*?)\}\{(.*)\}", text):
        above, below = amount(found[1], True), amount(found[2], True)
    elif "/" in text:
        left, right = text.split("/", 1)
        above, below = amount(left), amount(right)
    else:
        above, below = amount(text), (Fraction(1), False)
    if above is None or below is None:
        return None
    if above[1] or below[1]:
        raise OverflowError
    if not below[0]:
        return None
    return sign * above[0] / below[0] / (100 if percent else 1), percent


def read(texts: list[str], rows: int = 64) -> Number:
    rows = max(rows, len(texts))
    data, length = np.zeros((rows, WIDTH), np.uint8), np.zeros(rows, np.int32)
    for row, text in enumerate(texts):
        raw = text.encode()
        length[row] = len(raw)
        data[row, : len(raw[:WIDTH])] = np.frombuffer(raw[:WIDTH], np.uint8)
    return jax.device_get(_read(data, length))


_read = jax.jit(jax.vmap(read_number))


def value(number: Number, row: int) -> Fraction:
    above, below = (
        sum(int(limb) << 16 * i for i, limb in enumerate(limbs[row]))
        for limbs in (number.value.numerator, number.value.denominator)
    )
    return Fraction(above, below) * (-1 if number.value.negative[row] else 1)


def random_text(rng: random.Random) -> str:
    def one() -> str:
        digits = str(rng.randint(0, 10 ** rng.choice([1, 2, 4, 7, 12, 17]) - 1))
        kind = rng.random()
        if kind < 0.3:
            digits = f"{int(digits):,}"
        if kind > 0.6 or rng.random() < 0.2:
            digits += "." + "".join(rng.choices("0123456789", k=rng.randint(0, 6)))
        return digits

    text = one()
    kind = rng.random()
    if kind < 0.2:
        text += rng.choice(["/", " / "]) + one()
    elif kind < 0.4:
        text = rf"\{rng.choice(['', 'd', 't'])}frac{{{rng.choice(['', '-'])}{text}}}{{{one()}}}"
    for _ in range(rng.randint(0, 3)):
        text = rng.choice(
            [" {} ", "${}$", r"\({}\)", r"\boxed{{{}}}", "{}.", "{}%", r"{}\%", "-{}", "+ {}", "${}", r"\${}"]
        ).format(text)
    if rng.random() < 0.3:
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice("0123456789.,/-+%$ {}\\x") + text[at + rng.randint(0, 1) :]
    return text


def test_random_texts_equal_regular_expressions_and_fractions() -> None:
    rng = random.Random(0)
    texts: list[str] = []
    while len(texts) < ROWS:
        text = random_text(rng)
        if len(text) <= WIDTH:
            texts.append(text)
    got = read(texts, ROWS)
    seen = {"value": 0, "none": 0, "overflow": 0}
    for row, text in enumerate(texts):
        try:
            expected = reference(text)
        except OverflowError:
            assert got.overflow[row], text
            assert not got.ok[row], text
            seen["overflow"] += 1
            continue
        assert bool(got.ok[row]) == (expected is not None), text
        assert not got.overflow[row], text
        if expected is not None:
            assert (value(got, row), bool(got.percent[row])) == expected, text
        seen["none" if expected is None else "value"] += 1
    assert seen["value"] > 2000
    assert seen["none"] > 200
    assert seen["overflow"] > 20


EXAMPLES = {
    "42": Fraction(42),
    "-0.125": Fraction(-1, 8),
    "3.14": Fraction(157, 50),
    ".5": Fraction(1, 2),
    "1,234,567.89": Fraction(123456789, 100),
    "3/4": Fraction(3, 4),
    r"\frac{7}{3}": Fraction(7, 3),
    r"$-\dfrac{1}{2}$": Fraction(-1, 2),
    r"\boxed{\frac{-10}{4}}.": Fraction(-5, 2),
    "50%": Fraction(1, 2),
    r"12.5\%": Fraction(1, 8),
    r"\boxed{1{,}000}": None,
    "$1,000": Fraction(1000),
    r"-\$3.50": Fraction(-7, 2),
    "0.1": Fraction(1, 10),
    "999999999999999999": Fraction(10**18 - 1),
    "0000000000000000000000007": Fraction(7),
    "1,23": None,
    "12,345,6": None,
    "1,2345": None,
    ",123": None,
    "1.2.3": None,
    "1/0": None,
    "1/2/3": None,
    "--3": None,
    "5 apples": None,
    "x = 5": None,
    "1 2": None,
    "": None,
    "-": None,
    ".": None,
    "%": None,
    r"\frac{1}{}": None,
    "1e5": None,
    "½": None,
}


def test_worked_by_hand() -> None:
    got = read(list(EXAMPLES))
    for row, (text, expected) in enumerate(EXAMPLES.items()):
        assert bool(got.ok[row]) == (expected is not None), text
        assert expected is None or value(got, row) == expected, text
    assert not got.overflow.any()


def test_more_digits_than_are_kept_are_flagged() -> None:
    texts = ["1" * 19, "0." + "0" * 18 + "1", "1/" + "9" * 19, "1" + "0" * 18, "9" * 18, "1." + "0" * 18]
    got = read(texts)
    # Zeros in front take no room, so one followed by 18 decimals is the first with 19 digits.
    assert got.overflow[: len(texts)].tolist() == [True, True, True, True, False, True]
    assert got.ok[: len(texts)].tolist() == [False, False, False, False, True, False]
    assert not read(["1" + " " * WIDTH]).ok[0]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("0.5", "1/2", True),
        ("0.50", r"\frac{2}{4}", True),
        ("1,000", "1000.0", True),
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50", r"\boxed{50\%}", True),
        ("50%", "50%", True),
        ("50%", "5000%", False),
        ("0.5%", "50%", False),
        ("0.1", "0.10000000000000001", False),
        ("-0", "0", True),
        ("-1", "1", False),
        ("1/3", "0.333333333333333333", False),
        ("7", "seven", False),
        ("x", "x", False),
    ],
)
def test_equality(a: str, b: str, same: bool) -> None:
    got = read([a, b])
    one, two = (jax.tree.map(lambda x, k=k: jnp.asarray(x[k]), got) for k in (0, 1))
    assert bool(_same(one, two)) == bool(_same(two, one)) == same


_same = jax.jit(same_number)
