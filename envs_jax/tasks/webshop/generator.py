"""A made-up catalogue in the schema of WebShop's public files. Everything follows from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

_split = str.split


@dataclass(frozen=True)
class _Kind:
    """A type of product: where it is sold, what it may be like, what can be chosen, and its prices in dollars."""

    noun: str
    category: str
    path: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    low: int
    high: int


_WEAR = (
    "machine washable",
    "long sleeve",
    "short sleeve",
    "cotton spandex",
    "slim fit",
    "loose fit",
    "quick drying",
)
_HOME = ("easy assembly", "solid wood", "space saving", "heavy duty", "non slip", "easy clean", "memory foam")
_FOOD = (
    "gluten free",
    "low sugar",
    "non gmo",
    "dairy free",
    "high protein",
    "artificially flavored",
    "kosher certified",
)
_CARE = (
    "cruelty free",
    "sulfate free",
    "long lasting",
    "paraben free",
    "tea tree",
    "sensitive skin",
    "plant based",
)
_TECH = (
    "fast charging",
    "noise cancelling",
    "water resistant",
    "hands free",
    "wireless bluetooth",
    "high speed",
    "usb port",
)

_WOMEN, _MEN = ("Clothing", "Women"), ("Clothing", "Men")
KINDS = (
    _Kind("dress shirt", "fashion", (*_MEN, "Shirts"), _WEAR, ("color", "size"), 15, 60),
    _Kind("hiking pants", "fashion", (*_MEN, "Pants"), _WEAR, ("color", "size"), 20, 90),
    _Kind("winter coat", "fashion", (*_MEN, "Outerwear"), _WEAR, ("color", "size"), 45, 240),
    _Kind("swim trunks", "fashion", (*_MEN, "Swimwear"), _WEAR, ("color", "size"), 12, 45),
    _Kind("summer dress", "fashion", (*_WOMEN, "Dresses"), _WEAR, ("color", "size"), 18, 85),
    _Kind("yoga leggings", "fashion", (*_WOMEN, "Active"), _WEAR, ("color", "size"), 14, 55),
    _Kind("knit cardigan", "fashion", (*_WOMEN, "Sweaters"), _WEAR, ("color", "size"), 22, 95),
    _Kind("floor lamp", "garden", ("Home", "Lighting", "Lamps"), _HOME, ("color", "style"), 25, 160),
    _Kind("coffee table", "garden", ("Home", "Furniture", "Tables"), _HOME, ("color", "size"), 60, 380),
    _Kind("office chair", "garden", ("Home", "Furniture", "Chairs"), _HOME, ("color", "style"), 70, 420),
    _Kind("area rug", "garden", ("Home", "Textiles", "Rugs"), _HOME, ("color", "size"), 20, 210),
    _Kind("pillow cover", "garden", ("Home", "Textiles", "Pillows"), _HOME, ("color", "size"), 6, 35),
    _Kind("granola bar", "grocery", ("Grocery", "Snacks", "Bars"), _FOOD, ("flavor", "count"), 5, 40),
    _Kind("green tea", "grocery", ("Grocery", "Drinks", "Tea"), _FOOD, ("flavor", "count"), 4, 35),
    _Kind("trail mix", "grocery", ("Grocery", "Snacks", "Nuts"), _FOOD, ("flavor", "count"), 6, 45),
    _Kind("pasta sauce", "grocery", ("Grocery", "Pantry", "Sauces"), _FOOD, ("flavor",), 3, 25),
    _Kind("hair conditioner", "beauty", ("Beauty", "Hair", "Conditioners"), _CARE, ("scent", "count"), 6, 48),
    _Kind("face moisturizer", "beauty", ("Beauty", "Skin", "Creams"), _CARE, ("scent",), 8, 75),
    _Kind("lip balm", "beauty", ("Beauty", "Skin", "Lips"), _CARE, ("flavor", "count"), 3, 20),
    _Kind("beard oil", "beauty", ("Beauty", "Men", "Beard"), _CARE, ("scent",), 7, 42),
    _Kind("headphones", "electronics", ("Electronics", "Audio", "Headphones"), _TECH, ("color", "style"), 18, 90),
    _Kind("portable speaker", "electronics", ("Electronics", "Audio", "Speakers"), _TECH, ("color",), 16, 260),
    _Kind("phone charger", "electronics", ("Electronics", "Phones", "Chargers"), _TECH, ("color", "style"), 8, 60),
    _Kind("desk fan", "electronics", ("Electronics", "Home", "Fans"), _TECH, (), 15, 80),
)  # fmt: skip
VALUES = {
    "color": _split("black white navy red green grey burgundy teal olive beige purple mustard"),
    "size": ["x-small", "small", "medium", "large", "x-large", "xx-large"],
    "style": ["classic", "modern", "rustic", "minimalist", "vintage", "industrial"],
    "flavor": ["apple cinnamon", "dark chocolate", "peanut butter", "lemon ginger", "wild berry", "sea salt"],
    "scent": ["unscented", "cedar wood", "fresh mint", "sweet orange", "jasmine flower"],
    "count": ["pack of 1", "pack of 3", "pack of 6", "pack of 12"],
}
_BRANDS = _split(
    "Alder Birchway Cobbin Dunmore Eastfell Farrow Gildan Harlow Ironwood Juniper Kestrel Larkin Marlow Northam "
    "Ostara Pelham Quarrin Rosewell Stanmore Tarrant Underhill Verdan Westby Yarrow"
)
_FINISH = _split("premium everyday deluxe essential signature heritage compact studio weekend outdoor")
_OPENINGS = (
    "i am looking for {a} {noun} that is {x} and {y}",
    "i need {a} {noun} which should be {x} and {y}",
    "find me {a} {noun} that is {x}, {y}",
)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def make_files(count: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """`count` products as (items_shuffle, items_ins_v2, items_human_ins), decoded."""
    rng = random.Random(seed)
    items: list[dict[str, Any]] = []
    instructions: dict[str, Any] = {}
    human: dict[str, Any] = {}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        asin = f"B0{number:05d}" + "".join(rng.choice("CDFGHJKLMNPQRSTVWXZ") for _ in range(3))
        brand, finish = rng.choice(_BRANDS), rng.choice(_FINISH)
        attributes = rng.sample(kind.attributes, rng.randint(2, 4))
        x, y = attributes[:2]
        model = f"{rng.choice('ABCDEFGH')}{rng.randint(10, 99)}"
        title = f"{brand} {finish} {kind.noun} {model}, {attributes[0]}"
        amount = rng.randint(100 * kind.low, 100 * kind.high)
        pricing = f"${amount / 100:.2f}"
        if rng.random() < 0.15:
            pricing += f" to ${(amount + rng.randint(100, 1500)) / 100:.2f}"
        options = {
            name: [{"value": v} for v in rng.sample(VALUES[name], rng.randint(2, min(5, len(VALUES[name]))))]
            for name in kind.options
        }
        items.append(
            {
                "asin": asin,
                "name": title,
                "pricing": pricing,
                "category": kind.category,
                "query": kind.noun,
                "product_category": " › ".join(kind.path),
                "full_description": f"The {finish} {kind.noun} by {brand} is {attributes[-1]} and made for every "
                f"day. Model {model} comes with a guarantee of {rng.randint(1, 5)} years.",
                "small_description": [f"{a.capitalize()} {kind.noun}" for a in attributes[1:]]
                or ["Good value"],
                "customization_options": options,
                "reviews": [
                    {
                        "body": f"{rng.choice(['Good', 'Fine', 'Excellent', 'Poor'])} {kind.noun} for the price."
                    }
                ]
                if rng.random() < 0.7
                else [],
            }
        )
        opening = rng.choice(_OPENINGS).format(a=_article(kind.noun), noun=kind.noun, x=x, y=y)
        instructions[asin] = {
            "attributes": [*attributes, kind.noun],
            "instruction": opening,
            "instruction_attributes": [x, y],
        }
        human[asin] = [
            {
                "instruction": f"Please get me the {brand} {kind.noun}, it has to be {x}.",
                "instruction_attributes": [x],
                "instruction_options": [rng.choice(values)["value"] for values in options.values()],
            }
        ]
    rng.shuffle(items)
    return items, instructions, human
