"""Arithmetic word problems from a seed: questions with one exact answer, so that the tasks work without any file.

Answers are whole numbers, decimals written without trailing zeros, or fractions in lowest terms where the question asks
for one. Problem i of a seed depends on (seed, i) alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

NAMES = ("Ada", "Ben", "Carla", "Dmitri", "Emi", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kofi", "Lena", "Mara",
         "Nils", "Olga", "Pablo", "Quinn", "Rosa", "Sven", "Tara", "Uma", "Victor", "Wanda", "Yusuf")  # fmt: skip
GOODS = ("apples", "pencils", "stickers", "marbles", "cards", "buttons", "shells", "coins", "stamps", "beads")
WARES = ("notebook", "mug", "lamp", "scarf", "puzzle", "basket", "candle", "kettle", "cushion", "clock")

Template = Callable[[random.Random], tuple[str, Fraction]]


def decimal(value: Fraction) -> str:
    """`value` as a decimal without trailing zeros. Raises ValueError where none is exact."""
    scaled, places = value, 0
    while scaled.denominator != 1:
        if places == 9:
            raise ValueError(f"{value} is no decimal of nine places")
        scaled, places = scaled * 10, places + 1
    digits = f"{abs(scaled.numerator):0{places + 1}d}"
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return f"-{text}" if value < 0 else text


def _money(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02d}" if cents % 100 else f"${cents // 100}"


def _boxes(rng: random.Random) -> tuple[str, Fraction]:
    name, goods, boxes, each = rng.choice(NAMES), rng.choice(GOODS), rng.randint(3, 19), rng.randint(4, 24)
    given = rng.randint(1, boxes * each - 1)
    return (
        f"{name} has {boxes} boxes with {each} {goods} in each. {name} gives away {given} {goods}. "
        f"How many {goods} are left?",
        Fraction(boxes * each - given),
    )


def _shopping(rng: random.Random) -> tuple[str, Fraction]:
    name, ware, other = rng.choice(NAMES), *rng.sample(WARES, 2)
    count, price, extra = rng.randint(2, 9), 5 * rng.randint(20, 400), 5 * rng.randint(20, 900)
    return (
        f"{name} buys {count} of the same {ware} at {_money(price)} each and one {other} for {_money(extra)}. "
        "How many dollars does that cost altogether? Give a number without the dollar sign.",
        Fraction(count * price + extra, 100),
    )


def _change(rng: random.Random) -> tuple[str, Fraction]:
    name, ware = rng.choice(NAMES), rng.choice(WARES)
    count, price = rng.randint(2, 6), 5 * rng.randint(15, 180)
    note = next(n for n in (10, 20, 50, 100) if 100 * n > count * price)
    return (
        f"A {ware} costs {_money(price)}. {name} buys {count} of them and pays with a ${note} note. "
        "How many dollars of change are due? Give a number without the dollar sign.",
        note - Fraction(count * price, 100),
    )


def _distance(rng: random.Random) -> tuple[str, Fraction]:
    name, speed, halves = rng.choice(NAMES), rng.randint(8, 95), rng.randint(3, 13)
    stop = rng.randint(1, speed)
    return (
        f"{name} drives at {speed} kilometres an hour for {decimal(Fraction(halves, 2))} hours and then {stop} "
        "kilometres more. How many kilometres is the whole way?",
        Fraction(speed * halves, 2) + stop,
    )


def _share(rng: random.Random) -> tuple[str, Fraction]:
    name, parts = rng.choice(NAMES), rng.randint(6, 16)
    eaten, shared = rng.randint(1, parts // 2), rng.randint(1, parts // 2 - 1)
    return (
        f"A cake is cut into {parts} equal slices. {name} eats {eaten} of them and a friend eats {shared}. "
        "What fraction of the cake is left? Answer with a fraction in lowest terms such as 7/19.",
        Fraction(parts - eaten - shared, parts),
    )


def _tank(rng: random.Random) -> tuple[str, Fraction]:
    first, second = rng.sample(range(2, 13), 2)
    return (
        f"One tap fills a tank in {first} hours and another one in {second} hours. What fraction of the tank do both "
        "fill together in one hour? Answer with a fraction in lowest terms such as 7/19.",
        Fraction(1, first) + Fraction(1, second),
    )


def _discount(rng: random.Random) -> tuple[str, Fraction]:
    ware, price, off = rng.choice(WARES), rng.randint(8, 240), rng.choice((5, 10, 15, 20, 25, 30, 40, 60, 75))
    return (
        f"A {ware} that costs ${price} is sold {off}% cheaper. How many dollars does it cost now? Give a number "
        "without the dollar sign.",
        Fraction(price * (100 - off), 100),
    )


def _ages(rng: random.Random) -> tuple[str, Fraction]:
    old, young = rng.sample(NAMES, 2)
    age, times, years = rng.randint(3, 17), rng.randint(2, 4), rng.randint(2, 15)
    return (
        f"{young} is {age} years old, and {old} is {times} times as old. How old will {old} be in {years} years?",
        Fraction(age * times + years),
    )


def _rectangle(rng: random.Random) -> tuple[str, Fraction]:
    long, wide = Fraction(rng.randint(11, 99), 2), Fraction(rng.randint(4, 60), 4)
    return (
        f"A garden is {decimal(long)} metres long and {decimal(wide)} metres wide. What is its area in square metres?",
        long * wide,
    )


def _fence(rng: random.Random) -> tuple[str, Fraction]:
    name, long, wide, cost = rng.choice(NAMES), rng.randint(6, 60), rng.randint(4, 40), rng.randint(2, 30)
    return (
        f"{name} puts a fence around a field of {long} by {wide} metres. A metre of fence costs ${cost}. How many "
        "dollars does the fence cost? Give a number without the dollar sign.",
        Fraction(2 * (long + wide) * cost),
    )


def _average(rng: random.Random) -> tuple[str, Fraction]:
    name, count = rng.choice(NAMES), rng.choice((4, 5))
    scores = [rng.randint(40, 100) for _ in range(count)]
    listed = ", ".join(map(str, scores[:-1])) + f" and {scores[-1]}"
    return (f"{name} scored {listed} in {count} tests. What is the mean score?", Fraction(sum(scores), count))


def _wages(rng: random.Random) -> tuple[str, Fraction]:
    name, wage, hours, over = rng.choice(NAMES), rng.randint(9, 48), rng.randint(20, 40), rng.randint(1, 12)
    return (
        f"{name} earns ${wage} an hour, and one and a half times as much for overtime. How many dollars does {name} "
        f"earn in a week with {hours} normal hours and {over} hours of overtime? Give a number without the dollar "
        "sign.",
        Fraction(wage * hours) + Fraction(3 * wage * over, 2),
    )


def _temperature(rng: random.Random) -> tuple[str, Fraction]:
    start, fall, rise = rng.randint(-5, 18), rng.randint(4, 25), rng.randint(1, 9)
    return (
        f"It was {start} degrees at noon. By midnight it had become {fall} degrees colder, and then {rise} degrees "
        "warmer by the morning. How many degrees was it in the morning?",
        Fraction(start - fall + rise),
    )


def _mixture(rng: random.Random) -> tuple[str, Fraction]:
    name, whole, parts = rng.choice(NAMES), rng.randint(3, 16), rng.choice((3, 4, 5, 6, 8))
    part = rng.randint(1, parts - 1)
    return (
        f"{name} has a ribbon of {whole} metres and uses {part}/{parts} of it. How many metres are left? Answer with "
        "a fraction in lowest terms such as 7/19, or a whole number.",
        Fraction(whole * (parts - part), parts),
    )


TEMPLATES: tuple[tuple[Template, Callable[[Fraction], str]], ...] = (
    (_boxes, decimal),
    (_shopping, decimal),
    (_change, decimal),
    (_distance, decimal),
    (_share, str),
    (_tank, str),
    (_discount, decimal),
    (_ages, decimal),
    (_rectangle, decimal),
    (_fence, decimal),
    (_average, decimal),
    (_wages, decimal),
    (_temperature, decimal),
    (_mixture, str),
)


def problem(seed: int, index: int) -> tuple[str, str]:
    """Question and answer number `index` of `seed`."""
    rng = random.Random(f"word problems {seed} {index}")
    template, written = TEMPLATES[rng.randrange(len(TEMPLATES))]
    question, answer = template(rng)
    return question, written(answer)


def problems(seed: int) -> Iterator[tuple[str, str]]:
    """Endless questions and answers."""
    return (problem(seed, index) for index in itertools.count())
