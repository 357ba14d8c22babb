"""What WebShop says: phrases, and which of them belong to which product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs_jax.datasets.plain import plain
from envs_jax.tasks.webshop.products import MAX_TEXT, Catalogue, Product

PAGE_SIZE = 10  # products on a page of results
MAX_RESULTS = 50
BUTTONS = ("back to search", "next >", "< prev", "description", "features", "reviews", "buy now")

SEP = " [SEP] "
SEARCH_PAGE = "WebShop [SEP] Search\n"
BACK_TO_SEARCH = "Back to Search"
PREV, NEXT = f"{SEP}< Prev", f"{SEP}Next >"
END_OF_PAGE = f"{SEP}End of page\n"
END_OF_ITEM = f"{SEP}Description [SEP] Features [SEP] Reviews [SEP] Buy Now\n"
CHOSEN = " (chosen)"
DONE = "Thank you for shopping with us.\n"
AVAILABLE = "Available actions:"
CAN_SEARCH = " search[words to look for]\n"
CAN_NEXT, CAN_PREV, CAN_BACK = " click[next >],", " click[< prev],", " click[back to search]\n"
CAN_ITEM = " click[description], click[features], click[reviews], click[< prev], click[back to search], click[buy now]\n"  # noqa: E501
CAN_SUB = " click[< prev], click[back to search]\n"
NO_TEXT = tuple(f"{SEP}There is no {name}" for name in ("description", "list of features", "review"))
FIXED = (
    SEARCH_PAGE, BACK_TO_SEARCH, PREV, NEXT, END_OF_PAGE, END_OF_ITEM, CHOSEN, DONE, AVAILABLE, CAN_SEARCH, CAN_NEXT,
    CAN_PREV, CAN_BACK, CAN_ITEM, CAN_SUB, *NO_TEXT,
)  # fmt: skip
AT = {phrase: place for place, phrase in enumerate(FIXED)}
FIRST_PAGE = len(FIXED)  # page k of the results is FIRST_PAGE + k
FIRST_TOTAL = FIRST_PAGE + MAX_RESULTS // PAGE_SIZE  # a total of n results is FIRST_TOTAL + n

ADVICE = """Advice:
Buy a product before your actions run out; it need not match in every respect.
Leave size and colour out of the search words.
Search at most twice.
Do not be too strict about a description.
Rather click a product of this page than go on to the next one.
Use next and prev seldom.
With fewer than three actions left, buy the first product you see.
On a product's page click the options that are wanted, such as size and colour, then buy now.
The description is hardly ever worth a click."""


def amount(cents: int) -> str:
    """Dollars with two decimals."""
    return f"${cents / 100:.2f}"


@dataclass(frozen=True)
class ShopText:
    """Phrases, and where they are used: P products, V option values, L entries of item pages, G goals.

    The item page of product p has entries `page_offsets[p] : page_offsets[p + 1]`, an option's value in `page_value` or
    -1 for a kind's name. The values of product p are `value_offsets[p] : value_offsets[p + 1]`.
    """

    phrases: tuple[str, ...]
    row: np.ndarray  # i32[P, 3]: id, title, price
    click: np.ndarray  # i32[P]
    sub: np.ndarray  # i32[P, 3]: description, features, reviews
    page_offsets: np.ndarray
    page_phrase: np.ndarray
    page_value: np.ndarray
    value_offsets: np.ndarray
    value_kind: np.ndarray
    value_click: np.ndarray
    value_text: tuple[str, ...]
    goal: np.ndarray  # i32[G], train goals first


def _subs(product: Product) -> tuple[str, str, str]:
    texts = (product.description, SEP.join(product.features), SEP.join(product.reviews))
    return tuple(  # type: ignore[return-value]
        SEP + plain(text, MAX_TEXT) if text else missing for text, missing in zip(texts, NO_TEXT, strict=True)
    )


def build_text(catalogue: Catalogue) -> ShopText:
    """Phrases of a catalogue; equal texts share one."""
    known = dict(AT)
    for page in range(MAX_RESULTS // PAGE_SIZE):
        known[f"{SEP}Page {page + 1}"] = len(known)
    for total in range(MAX_RESULTS + 1):
        known[f" (Total results: {total})"] = len(known)

    def number(text: str) -> int:
        return known.setdefault(text, len(known))

    row, click, sub = [], [], []
    page_phrase, page_value, page_offsets = [], [], [0]
    value_click, value_text, value_offsets = [], [], [0]
    value_kind: list[int] = []
    for product in catalogue.products:
        price = " to ".join(map(amount, product.prices))
        row.append([number(SEP + product.asin), number(SEP + product.title), number(SEP + price)])
        click.append(number(f" click[{product.asin.lower()}],"))
        sub.append([number(text) for text in _subs(product)])
        for kind, (name, values) in enumerate(product.options):
            page_phrase.append(number(f"{SEP}{name}:"))
            page_value.append(-1)
            for value in values:
                page_phrase.append(number(SEP + value))
                page_value.append(len(value_kind))
                value_kind.append(kind)
                value_click.append(number(f" click[{value}],"))
                value_text.append(value)
        page_offsets.append(len(page_phrase))
        value_offsets.append(len(value_kind))
    goals = [
        number(f"Instruction: {g.text}\n") for split in ("train", "eval") for g in catalogue.goals[split]
    ]

    def array(values: object) -> np.ndarray:
        return np.asarray(values, np.int32)

    return ShopText(
        tuple(known), array(row), array(click), array(sub), array(page_offsets), array(page_phrase), array(page_value),
        array(value_offsets), array(value_kind), array(value_click), tuple(value_text), array(goals),
    )  # fmt: skip
