"""Products and goals of WebShop, from its public files.

    items_shuffle.json      [{"asin", "name", "pricing", "category", "query", "product_category",
                              "full_description", "small_description": [...],
                              "customization_options": {kind: [{"value"}, ...]}}, ...]
    items_ins_v2.json       {asin: {"attributes": [...], "instruction": "...", "instruction_attributes": [...]}}
    items_human_ins.json    {asin: [{"instruction", "instruction_attributes": [...], "instruction_options": [...]}]}

Prices are kept in cents.
"""

from __future__ import annotations

import collections
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs_jax.datasets.plain import plain
from envs_jax.datasets.table import (
    Record,
    RowError,
    TableReport,
    check_rows,
    field,
    read_json_array,
    text_field,
)
from envs_jax.errors import ConfigError

ITEMS, INSTRUCTIONS, HUMAN = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"
MAX_ID = 10  # characters of a product's id, as published
MAX_VALUE_BYTES = 200  # of an option's value
MAX_TEXT = 1200  # characters kept of a description or of the features
CAPS = range(1000, 100_000, 1000)  # price caps in cents: multiples of 10 dollars below 1,000
EVAL_SHARE = 8  # one product in 8 is for evaluation
_AMOUNT = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True)
class Product:
    """A product. `prices` are one amount, or the ends of a range; `price` is what it costs. In cents."""

    asin: str
    title: str
    prices: tuple[int, ...]
    price: int
    category: str
    query: str
    product_category: tuple[str, ...]
    description: str
    features: tuple[str, ...]
    reviews: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]  # kind, values


@dataclass(frozen=True)
class Goal:
    """What is to be bought: a product like number `product`, with attributes and option values, for at most `cap`."""

    product: int
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    cap: int | None  # cents


@dataclass(frozen=True)
class Catalogue:
    """Products, their attributes, goals by split, and what was left out. `notes` counts what is merely unusual."""

    products: tuple[Product, ...]
    attributes: tuple[tuple[str, ...], ...]
    goals: Mapping[str, tuple[Goal, ...]]
    reports: tuple[TableReport, ...]
    notes: Mapping[str, int]


@dataclass(frozen=True)
class CatalogueRules:
    """How files are read. See the fields of `WebShop`."""

    on_bad_row: str = "refuse"
    default_price: float | None = None
    human_goals: bool = False
    max_goals_per_product: int = 4
    seed: int = 0


@dataclass(frozen=True)
class _Instruction:
    asin: str
    attributes: tuple[str, ...]
    text: str
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class _HumanGoals:
    asin: str
    goals: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]  # text, attributes, options


# -- rows ---------------------------------------------------------------------------------------------------
def _texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts, or one text, or nothing, as texts that are not empty."""
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(i, str) for i in items):
        raise RowError("wrong type", f"{name} is not a list of texts")
    return tuple(text for i in items if (text := plain(i)))


def parse_prices(text: str) -> tuple[int, ...]:
    """Amounts in cents of "$9.99" or "$9.99 to $20.00" (at most two). Raises RowError if there is none."""
    amounts = tuple(round(float(a.replace(",", "")) * 100) for a in _AMOUNT.findall(text))[:2]
    if not amounts:
        raise RowError("no price", f"pricing = {text!r}")
    if any(a >= 2**31 for a in amounts):
        raise RowError("bad price", f"pricing = {text!r} is too much")
    return tuple(sorted(amounts))


def _options(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if value is None or value == "":
        return ()
    if not isinstance(value, Mapping):
        raise RowError("wrong type", "customization_options is not an object")
    kinds: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for kind, contents in value.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise RowError("wrong type", f"customization_options[{kind!r}] is not a list")
        values = []
        for item in contents:
            named = plain(field(item, "value", str).strip().replace("/", " | ")).lower()
            if len(named.encode()) > MAX_VALUE_BYTES:
                raise RowError("too long", f"an option of {kind!r} has more than {MAX_VALUE_BYTES} bytes")
            if named and named not in taken:
                values.append(named)
                taken.add(named)
        if values and plain(kind):
            kinds[plain(kind).lower()] = tuple(values)
    return tuple(kinds.items())


def parse_product(record: Any, rules: CatalogueRules) -> Product:
    """A product of items_shuffle.json; RowError names what is wrong with it."""
    asin = text_field(record, "asin")
    if asin == "nan" or len(asin) > MAX_ID or not asin.isalnum():
        raise RowError("bad id", f"asin = {asin!r}: at most {MAX_ID} letters and digits")
    pricing = record.get("pricing")
    if pricing is None or pricing == "":
        if rules.default_price is None:
            raise RowError("no price", f"{asin}: give default_price to sell it all the same")
        prices: tuple[int, ...] = (round(rules.default_price * 100),)
    else:
        prices = parse_prices(field(record, "pricing", str))
    price = random.Random(f"{rules.seed} {asin}").randint(prices[0], prices[-1])
    reviews = record.get("reviews")
    if isinstance(reviews, list):
        reviews = [r.get("body", r.get("text", "")) if isinstance(r, Mapping) else r for r in reviews]
    return Product(
        asin=asin,
        title=plain(text_field(record, "name")),
        prices=prices,
        price=price,
        category=plain(str(record.get("category") or "")),
        query=plain(str(record.get("query") or "")).lower(),
        product_category=tuple(
            c for c in map(plain, str(record.get("product_category") or "").split("›")) if c
        ),
        description=plain(" ".join(_texts(record.get("full_description"), "full_description"))),
        features=_texts(record.get("small_description"), "small_description"),
        reviews=_texts(reviews, "reviews"),
        options=_options(record.get("customization_options")),
    )


def _parse_instruction(record: Any) -> _Instruction:
    asin, value = record
    text = value.get("instruction") if isinstance(value, Mapping) else None
    return _Instruction(
        asin,
        tuple(a.lower() for a in _texts(field(value, "attributes", list), "attributes")),
        plain(text).rstrip(".") if isinstance(text, str) else "",
        tuple(a.lower() for a in _texts(value.get("instruction_attributes"), "instruction_attributes")),
    )


def _parse_human(record: Any) -> _HumanGoals:
    asin, value = record
    if not isinstance(value, list):
        raise RowError("wrong type", f"{asin}: not a list of goals")
    goals = []
    for item in value:
        attributes = _texts(field(item, "instruction_attributes", list), "instruction_attributes")
        options = item.get("instruction_options")
        if isinstance(options, Mapping):
            options = list(options.values())
        if attributes:  # goals without any are left out, as published
            goals.append(
                (
                    plain(text_field(item, "instruction")).rstrip("."),
                    tuple(a.lower() for a in attributes),
                    tuple(o.lower() for o in _texts(options, "instruction_options")),
                )
            )
    return _HumanGoals(asin, tuple(goals))


def read_json_object(path: Path) -> Iterator[Record]:
    """Records (key, value) of a file that is one JSON object, numbered from 1; a malformed file is one bad row."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        yield Record(1, error=RowError("not UTF-8", f"byte {error.start} of the file"))
        return
    except json.JSONDecodeError as error:
        yield Record(error.lineno, error=RowError("malformed", f"line {error.lineno}: {error.msg}"))
        return
    if not isinstance(value, dict):
        yield Record(1, error=RowError("malformed", "the file is not a JSON object"))
        return
    for row, item in enumerate(value.items(), 1):
        yield Record(row, item)


# -- goals --------------------------------------------------------------------------------------------------
def _cap(price: int, rng: random.Random) -> int | None:
    """The larger of two caps drawn from the next four above the price; None where there are less than two."""
    above = [c for c in CAPS if c > price][:4]
    return max(rng.sample(above, 2)) if len(above) > 1 else None


def _choices(product: Product, limit: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Combinations of option values, one of each kind: all of them, or `limit` different ones (0: no limit)."""
    total = 1
    for _, values in product.options:
        total *= len(values)
    numbers: Iterable[int] = (
        range(total) if not limit or total <= limit else sorted(rng.sample(range(total), limit))
    )
    chosen = []
    for number in numbers:
        picked = []
        for _, values in product.options:
            number, place = divmod(number, len(values))
            picked.append(values[place])
        chosen.append(tuple(picked))
    return chosen


def _with_cap(text: str, cap: int | None) -> str:
    return f"{text}, and price lower than {cap / 100:.2f} dollars" if cap is not None else text


def build_catalogue(
    items: Iterable[Record],
    instructions: Iterable[Record],
    human: Iterable[Record] | None,
    rules: CatalogueRules,
    *,
    names: Sequence[str] = (ITEMS, INSTRUCTIONS, HUMAN),
) -> Catalogue:
    """Products with at least one goal or none, and their goals; rows that cannot be used are treated by `rules`."""
    listed = check_rows(
        items,
        lambda r: parse_product(r, rules),
        source=names[0],
        on_bad_row=rules.on_bad_row,
        identity=lambda p: p.asin.lower(),
    )
    told = check_rows(
        instructions, _parse_instruction, source=names[1], on_bad_row=rules.on_bad_row, place="entry"
    )
    reports = [listed.report, told.report]
    by_asin = {i.asin: i for i in told.rows}
    wanted: dict[str, _HumanGoals] = {}
    if human is not None:
        people = check_rows(human, _parse_human, source=names[2], on_bad_row=rules.on_bad_row, place="entry")
        reports.append(people.report)
        wanted = {h.asin: h for h in people.rows}

    notes: collections.Counter[str] = collections.Counter()
    products = listed.rows
    draw = random.Random(f"{rules.seed} splits")
    held_out = set(draw.sample(range(len(products)), -(-len(products) // EVAL_SHARE)))
    goals: dict[str, list[Goal]] = {"train": [], "eval": []}
    attributes = []
    for number, product in enumerate(products):
        rng = random.Random(f"{rules.seed} {product.asin} goals")
        mine = goals["eval" if number in held_out else "train"]
        instruction = by_asin.get(product.asin)
        attributes.append(instruction.attributes if instruction else ())
        if not product.options:
            notes["products without options"] += 1
        if human is not None:
            for text, needed, options in wanted.get(product.asin, _HumanGoals("", ())).goals:
                cap = _cap(product.price, rng)
                mine.append(Goal(number, _with_cap(text, cap), needed, options, cap))
        elif instruction and instruction.text and instruction.wanted:
            for picked in _choices(product, rules.max_goals_per_product, rng):
                cap = _cap(product.price, rng)
                named = [f"{kind}: {value}" for (kind, _), value in zip(product.options, picked, strict=True)]
                text = instruction.text + (f" with {', and '.join(named)}" if named else "")
                mine.append(Goal(number, _with_cap(text, cap), instruction.wanted, picked, cap))
        else:
            notes["products without an instruction"] += 1
    for split, made in goals.items():
        if not made:
            raise ConfigError("dataset", names[0], f"it gives no goals for the split {split!r}")
    return Catalogue(
        products, tuple(attributes), {k: tuple(v) for k, v in goals.items()}, tuple(reports), dict(notes)
    )


def read_catalogue(data_dir: str | None, rules: CatalogueRules) -> Catalogue:
    """The public files in `data_dir`. Raises ConfigError for what is missing, BadRowsError by `rules.on_bad_row`."""
    needed = [ITEMS, INSTRUCTIONS] + ([HUMAN] if rules.human_goals else [])
    if data_dir is None:
        raise ConfigError("data_dir", data_dir, f"name the folder that holds {', '.join(needed)}")
    folder = Path(data_dir)
    missing = [n for n in needed if not (folder / n).is_file()]
    if missing:
        raise ConfigError("data_dir", data_dir, f"the folder does not hold {', '.join(missing)}")
    human = read_json_object(folder / HUMAN) if rules.human_goals else None
    return build_catalogue(
        read_json_array(folder / ITEMS), read_json_object(folder / INSTRUCTIONS), human, rules
    )
