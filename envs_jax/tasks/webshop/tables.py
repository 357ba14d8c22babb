"""WebShop as arrays: everything that the pages, the search and the reward look up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, UInt32

from envs_jax.datasets.table import number
from envs_jax.tasks.webshop.generator import make_files
from envs_jax.tasks.webshop.matching import (
    THRESHOLD,
    Relation,
    normalise_color,
    title_words,
    token_set_ratio,
)
from envs_jax.tasks.webshop.products import (
    Catalogue,
    CatalogueRules,
    Goal,
    Product,
    build_catalogue,
    read_catalogue,
)
from envs_jax.tasks.webshop.text import BUTTONS, ShopText, build_text
from envs_jax.text.retrieval import Bm25Index, Lexicon
from envs_jax.text.words import host_hashes

NO_CAP = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pages:
    """Phrase ids and hashes of what is shown and can be clicked; see `ShopText`."""

    row: Int[Array, "P 3"]
    click: Int[Array, " P"]
    sub: Int[Array, "P 3"]
    page_offsets: Int[Array, " P+1"]
    page_phrase: Int[Array, " L"]
    page_value: Int[Array, " L"]
    value_offsets: Int[Array, " P+1"]
    value_kind: Int[Array, " V"]
    value_click: Int[Array, " V"]
    value_hash: UInt32[Array, "V 2"]
    product_hash: UInt32[Array, "P 2"]
    button_hash: UInt32[Array, "7 2"]
    page_width: int = field(metadata={"static": True})  # most entries of an item page
    value_width: int = field(metadata={"static": True})  # most option values of a product
    kinds: int = field(metadata={"static": True})  # most kinds of options of a product


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Goals:
    """G goals of both splits. Ids are padded with -1; `cap` is in cents."""

    product: Int[Array, " G"]
    phrase: Int[Array, " G"]
    attributes: Int[Array, "G A"]
    options: Int[Array, "G O"]
    cap: Int[Array, " G"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RewardTables:
    """What the reward compares. Words and categories are ids, without repetition, padded with -1."""

    price: Int[Array, " P"]  # cents
    query: Int[Array, " P"]
    categories: Int[Array, "P C"]
    words: Int[Array, "P W"]
    word_count: Int[Array, " P"]  # with repetition
    matched: Relation  # product -> goal attributes that it has
    same_option: Relation  # goal option -> texts of option values that match it
    value_text: Int[Array, " V"]


@dataclass(frozen=True)
class Shop:
    """A catalogue, its phrases, and the arrays that do not depend on a split."""

    catalogue: Catalogue
    text: ShopText
    lexicon: Lexicon
    index: Bm25Index
    pages: Pages
    goals: Goals
    rewards: RewardTables


@dataclass(frozen=True)
class ShopConfig:
    """What a shop is made from. See the fields of `WebShop`."""

    dataset: str
    data_dir: str | None
    num_products: int
    rules: CatalogueRules


def _padded(rows: Sequence[Sequence[int]]) -> Array:
    table = np.full((len(rows), max([1, *map(len, rows)])), -1, np.int32)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return jnp.asarray(table)


def _numbering() -> tuple[dict[str, int], Callable[[str], int]]:
    ids: dict[str, int] = {}
    return ids, lambda text: ids.setdefault(text, len(ids))


def searched_text(product: Product) -> str:
    """What the search looks at: title, description, the first feature and the options, as published."""
    values = [v for _, group in product.options for v in group]
    return " ".join([product.title, product.description, *product.features[:1], *values])


def attribute_matches(product: Product, attributes: Sequence[str], wanted: str) -> bool:
    """Whether a product has an attribute: by name, or in its title, features or description."""
    if any(token_set_ratio(a, wanted) > THRESHOLD for a in attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(wanted in text.lower() for text in texts)


def option_matches(wanted: str, chosen: str) -> bool:
    """Whether a chosen option value is as good as the wanted one."""
    return token_set_ratio(normalise_color(chosen), normalise_color(wanted)) > THRESHOLD


def _rewards(
    catalogue: Catalogue, goals: Sequence[Goal], text: ShopText
) -> tuple[RewardTables, Array, Array]:
    products = catalogue.products
    attribute_ids, attribute = _numbering()
    option_ids, option = _numbering()
    value_ids, value = _numbering()
    _, query = _numbering()
    _, category = _numbering()
    _, word = _numbering()
    goal_attributes = [[attribute(a) for a in g.attributes] for g in goals]
    goal_options = [[option(o) for o in g.options] for g in goals]
    value_text = [value(v) for v in text.value_text]

    similar = functools.cache(lambda a, b: token_set_ratio(a, b) > THRESHOLD)
    matched = []
    for product, named in zip(products, catalogue.attributes, strict=True):
        searched = "\n".join([product.title, " ".join(product.features), product.description]).lower()
        matched.append(
            [i for a, i in attribute_ids.items() if a in searched or any(similar(n, a) for n in named)]
        )
    same = [[i for v, i in value_ids.items() if option_matches(o, v)] for o in option_ids]
    titles = [title_words(p.title) for p in products]
    return (
        RewardTables(
            price=jnp.asarray([p.price for p in products], jnp.int32),
            query=jnp.asarray([query(p.query) for p in products], jnp.int32),
            categories=_padded([[category(c) for c in dict.fromkeys(p.product_category)] for p in products]),
            words=_padded([[word(w) for w in dict.fromkeys(t)] for t in titles]),
            word_count=jnp.asarray([len(t) for t in titles], jnp.int32),
            matched=Relation.build(matched),
            same_option=Relation.build(same),
            value_text=jnp.asarray([*value_text, -1], jnp.int32),
        ),
        _padded(goal_attributes),
        _padded(goal_options),
    )


@functools.lru_cache(maxsize=4)
def load_shop(config: ShopConfig) -> Shop:
    """The shop of a configuration, prepared once."""
    if config.dataset == "files":
        catalogue = read_catalogue(config.data_dir, config.rules)
    else:
        items, instructions, human = make_files(config.num_products, config.rules.seed)
        catalogue = build_catalogue(
            number(items),
            number(instructions.items()),
            number(human.items()) if config.rules.human_goals else None,
            config.rules,
            names=("made-up products", "made-up instructions", "made-up human goals"),
        )
    return build_shop(catalogue)


def build_shop(catalogue: Catalogue) -> Shop:
    """Phrases, index and tables of a catalogue."""
    text = build_text(catalogue)
    goals = [*catalogue.goals["train"], *catalogue.goals["eval"]]
    lexicon, index = Bm25Index.build(searched_text(p) for p in catalogue.products)
    rewards, goal_attributes, goal_options = _rewards(catalogue, goals, text)

    def array(values: np.ndarray, *, pad: int = -1) -> Array:
        return jnp.asarray(np.append(values, np.int32(pad)))  # never empty

    pages = Pages(
        row=jnp.asarray(text.row),
        click=jnp.asarray(text.click),
        sub=jnp.asarray(text.sub),
        page_offsets=jnp.asarray(text.page_offsets),
        page_phrase=array(text.page_phrase),
        page_value=array(text.page_value),
        value_offsets=jnp.asarray(text.value_offsets),
        value_kind=array(text.value_kind),
        value_click=array(text.value_click),
        value_hash=jnp.asarray(host_hashes([*text.value_text, ""])),
        product_hash=jnp.asarray(host_hashes([p.asin.lower() for p in catalogue.products])),
        button_hash=jnp.asarray(host_hashes(BUTTONS)),
        page_width=max(1, int(np.diff(text.page_offsets).max())),
        value_width=max(1, int(np.diff(text.value_offsets).max())),
        kinds=max([1, *(len(p.options) for p in catalogue.products)]),
    )
    return Shop(
        catalogue,
        text,
        lexicon,
        index,
        pages,
        Goals(
            product=jnp.asarray([g.product for g in goals], jnp.int32),
            phrase=jnp.asarray(text.goal),
            attributes=goal_attributes,
            options=goal_options,
            cap=jnp.asarray([NO_CAP if g.cap is None else g.cap for g in goals], jnp.int32),
        ),
        rewards,
    )
