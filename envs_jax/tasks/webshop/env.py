"""WebShop: find a product in a shop, choose its options, and buy it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt32

from envs_jax.core import Span, Transition
from envs_jax.datasets.table import check_on_bad_row
from envs_jax.errors import ConfigError
from envs_jax.tasks.answering import AnswerTask, shuffled_rows
from envs_jax.tasks.webshop import text as t
from envs_jax.tasks.webshop.products import CatalogueRules
from envs_jax.tasks.webshop.reward import judge
from envs_jax.tasks.webshop.tables import Goals, Pages, RewardTables, Shop, ShopConfig, load_shop
from envs_jax.text.call import match_call
from envs_jax.text.retrieval import Bm25Index, Lexicon, search
from envs_jax.text.scan import first_true
from envs_jax.text.words import hash_all

DATASETS = ("made_up", "files")
SEARCH, RESULTS, ITEM, SUB, DONE = range(5)
DO_SEARCH, DO_CLICK = 0, 1
BACK, NEXT, PREV, FIRST_SUB, LAST_SUB, BUY = 0, 1, 2, 3, 5, 6  # places in `text.BUTTONS`


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WebShopParams:
    """Tables of P products and G goals of both splits; `levels` is the pool."""

    lexicon: Lexicon
    index: Bm25Index
    pages: Pages
    goals: Goals
    rewards: RewardTables
    levels: Int[Array, " num_levels"]  # goal of each level


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WebShopState:
    """Where the customer is. All i32.

    `page` is 0 search, 1 results, 2 item, 3 sub-page, 4 done; `number` the page of results from 0; `results` are
    products, padded with -1; `item` the product looked at, or -1; `sub` 0 description, 1 features, 2 reviews; `chosen`
    the option value of each kind, or -1.
    """

    goal: Int[Array, ""]
    page: Int[Array, ""]
    number: Int[Array, ""]
    results: Int[Array, " 50"]
    item: Int[Array, ""]
    sub: Int[Array, ""]
    chosen: Int[Array, " K"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WebShopAction:
    """`kind` 0: search for `terms` (`cut`: there were more); 1: click what has the hash `target`."""

    kind: Int[Array, ""]
    terms: Int[Array, " Q"]
    cut: Bool[Array, ""]
    target: UInt32[Array, "2"]


def _window(offsets: Array, row: Array, width: int) -> tuple[Int[Array, " w"], Bool[Array, " w"]]:
    """Places `offsets[row]` up to `offsets[row + 1]`, in `width` slots, and which of them there are."""
    places = offsets[row] + jnp.arange(width, dtype=jnp.int32)
    return places, places < offsets[row + 1]


@dataclass(frozen=True)
class WebShop(AnswerTask):
    """A shop with a search page, pages of results, item pages with options and sub-pages, and a buy button.

    Actions are `search[words]` on the search page and `click[name]` of something on the page. An action that is written
    so but cannot be done here changes nothing and counts as an action; other text is no action. Buying ends the episode
    with reward 1 if the raw reward (see `reward`) is 1, else 0.

    `metric_names`: raw reward, whether something was bought, whether it was the very product, the parts of the raw
    reward (all 0 before buying), and whether the query had more known words than `max_query_terms`.

    Fields:
        dataset: "made_up", a catalogue drawn from `catalogue_seed`; "files", the public files in `data_dir`.
        data_dir: folder of items_shuffle.json, items_ins_v2.json and, for human goals, items_human_ins.json.
        num_products: products of the made-up catalogue.
        catalogue_seed: of the made-up catalogue, of the split, and of what is drawn for goals and prices.
        human_goals: goals written by people instead of one for each combination of options.
        max_goals_per_product: most combinations of options that become goals; 0 for all.
        on_bad_row: "refuse" or "skip", for rows of files that cannot be used.
        default_price: in dollars, for products without a price, which are bad rows otherwise (published: 100).
        max_query_terms: most known words of a query that count.
        query_bytes: most bytes of an action; longer ones are no action.
        advice: whether the instruction ends with the published advice.

    Level i is goal i of the split in a random order, which begins anew where there are more levels than goals. The
    products of the splits differ.
    """

    dataset: str = "made_up"
    data_dir: str | None = None
    num_products: int = 1000
    catalogue_seed: int = 233
    human_goals: bool = False
    max_goals_per_product: int = 4
    on_bad_row: str = "refuse"
    default_price: float | None = None
    max_query_terms: int = 16
    query_bytes: int = 256
    advice: bool = True

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ConfigError("dataset", self.dataset, f"use one of {', '.join(DATASETS)}")
        check_on_bad_row(self.on_bad_row)
        self._check_least(
            num_levels=1, num_products=2, max_goals_per_product=0, max_query_terms=1, query_bytes=32
        )
        if self.default_price is not None and not 0 <= self.default_price < 1e7:
            raise ConfigError("default_price", self.default_price, "use a number of dollars, or None")

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (
            "raw_reward", "success_purchase", "success_find", "type_reward", "attribute_share", "option_share",
            "price_ok", "query_cut",
        )  # fmt: skip

    @property
    def answer_bytes(self) -> int:
        return self.query_bytes

    @property
    def shop(self) -> Shop:
        """Catalogue and tables, prepared once for equal settings."""
        rules = CatalogueRules(
            self.on_bad_row,
            self.default_price,
            self.human_goals,
            self.max_goals_per_product,
            self.catalogue_seed,
        )
        return load_shop(ShopConfig(self.dataset, self.data_dir, self.num_products, rules))

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        text = (
            "You are shopping on a website. Buy the product that comes closest to the instruction: search for it, "
            "click a product of the results, click the options that are asked for, and click buy now. Answer with "
            "one of the available actions of the page: search[words to look for] or click[what to click].\n"
            "Example: <answer>search[loose fit hiking pants]</answer>, then <answer>click[b012345678]</answer>"
        )
        return f"{text}\n{t.ADVICE}" if self.advice else text

    def phrases(self) -> Sequence[str]:
        return self.shop.text.phrases

    def state_tokens(self, lengths: np.ndarray, params: WebShopParams) -> tuple[int, int]:
        text = self.shop.text

        def fixed(*phrases: str) -> int:
            return int(lengths[[t.AT[p] for p in phrases]].sum())

        def of_product(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
            return np.diff(np.concatenate([[0], np.cumsum(values)])[offsets])

        goal = int(lengths[text.goal].max())
        start = fixed(t.SEARCH_PAGE, t.AVAILABLE, t.CAN_SEARCH)
        rows = np.sort(lengths[text.row].sum(1) + lengths[text.click])[-t.PAGE_SIZE :].sum()
        pages = lengths[t.FIRST_PAGE : t.FIRST_TOTAL].max()
        pages += lengths[t.FIRST_TOTAL : t.FIRST_TOTAL + t.MAX_RESULTS + 1].max()
        results = rows + pages + fixed(
            t.BACK_TO_SEARCH, t.PREV, t.NEXT, t.END_OF_PAGE, t.AVAILABLE, t.CAN_NEXT, t.CAN_PREV, t.CAN_BACK
        )  # fmt: skip
        shown = of_product(lengths[text.page_phrase], text.page_offsets)
        shown = (
            shown
            + of_product(lengths[text.value_click], text.value_offsets)
            + lengths[text.row[:, 1:]].sum(1)
        )
        shown = shown + fixed(t.CHOSEN) * max(len(p.options) for p in self.shop.catalogue.products)
        item = shown.max() + fixed(t.BACK_TO_SEARCH, t.PREV, t.END_OF_ITEM, t.AVAILABLE, t.CAN_ITEM)
        sub = lengths[text.sub].max() + fixed(t.BACK_TO_SEARCH, t.PREV, t.END_OF_PAGE, t.AVAILABLE, t.CAN_SUB)
        return goal + start, goal + int(max(start, results, item, sub))

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> WebShopParams:
        shop = self.shop
        train, evaluation = (len(shop.catalogue.goals[s]) for s in ("train", "eval"))
        first, count = (0, train) if split == "train" else (train, evaluation)
        levels = first + shuffled_rows(key, count, self.num_levels)
        return WebShopParams(shop.lexicon, shop.index, shop.pages, shop.goals, shop.rewards, levels)

    def level(self, index: Int[Array, ""], params: WebShopParams) -> WebShopState:
        zero, none = jnp.zeros((), jnp.int32), jnp.full((), -1, jnp.int32)
        return WebShopState(
            goal=params.levels[jnp.asarray(index, jnp.int32)],
            page=zero,
            number=zero,
            results=jnp.full((t.MAX_RESULTS,), -1, jnp.int32),
            item=none,
            sub=zero,
            chosen=jnp.full((params.pages.kinds,), -1, jnp.int32),
        )

    def _shown(self, state: WebShopState) -> Int[Array, " 10"]:
        """Products on the page of results, -1 where there is none."""
        return jax.lax.dynamic_slice(state.results, (state.number * t.PAGE_SIZE,), (t.PAGE_SIZE,))

    def observe(self, state: WebShopState, params: WebShopParams) -> Int[Array, " F"]:
        pages = params.pages
        item = jnp.maximum(state.item, 0)
        on = [state.page == page for page in range(5)]

        def when(flag: Array, phrase: str | Array) -> Array:
            return jnp.where(flag, t.AT[phrase] if isinstance(phrase, str) else phrase, -1).astype(jnp.int32)

        total = jnp.sum(state.results >= 0, dtype=jnp.int32)
        more, back = (state.number + 1) * t.PAGE_SIZE < total, state.number > 0
        shown = self._shown(state)
        product = jnp.maximum(shown, 0)
        rows = jnp.where((on[RESULTS] & (shown >= 0))[:, None], pages.row[product], -1)

        entries, there = _window(pages.page_offsets, item, pages.page_width)
        there &= on[ITEM]
        value = jnp.where(there, pages.page_value.at[entries].get(mode="clip"), -1)
        mark = (value >= 0) & jnp.any(value[:, None] == state.chosen[None], axis=1)
        entry = jnp.where(there, pages.page_phrase.at[entries].get(mode="clip"), -1)
        options = jnp.stack([entry, jnp.where(mark, t.AT[t.CHOSEN], -1)], axis=1).reshape(-1)

        values, named = _window(pages.value_offsets, item, pages.value_width)
        clicks = jnp.where(named & on[ITEM], pages.value_click.at[values].get(mode="clip"), -1)
        open_shop = ~on[DONE]
        parts = [
            params.goals.phrase[state.goal],
            when(on[SEARCH], t.SEARCH_PAGE),
            when(on[RESULTS] | on[ITEM] | on[SUB], t.BACK_TO_SEARCH),
            when((on[RESULTS] & back) | on[ITEM] | on[SUB], t.PREV),
            when(on[RESULTS], t.FIRST_PAGE + state.number),
            when(on[RESULTS], t.FIRST_TOTAL + total),
            when(on[RESULTS] & more, t.NEXT),
            rows.reshape(-1),
            options,
            jnp.where(on[ITEM], pages.row[item, 1:], -1),
            when(on[SUB], pages.sub[item, state.sub]),
            when(on[ITEM], t.END_OF_ITEM),
            when(on[RESULTS] | on[SUB], t.END_OF_PAGE),
            when(on[DONE], t.DONE),
            when(open_shop, t.AVAILABLE),
            when(on[SEARCH], t.CAN_SEARCH),
            jnp.where(on[RESULTS] & (shown >= 0), pages.click[product], -1),
            when(on[RESULTS] & more, t.CAN_NEXT),
            when(on[RESULTS] & back, t.CAN_PREV),
            when(on[RESULTS], t.CAN_BACK),
            clicks,
            when(on[ITEM], t.CAN_ITEM),
            when(on[SUB], t.CAN_SUB),
        ]
        return jnp.concatenate([jnp.atleast_1d(p).astype(jnp.int32) for p in parts])

    def parse(
        self, span: Span, state: WebShopState, params: WebShopParams
    ) -> tuple[WebShopAction, Bool[Array, ""]]:
        call = match_call(span, ("search", "click"))
        terms, cut = params.lexicon.terms(call.argument, call.length, self.max_query_terms)
        return WebShopAction(call.name, terms, cut, hash_all(call.argument, call.length)), call.found

    def transition(
        self, key: Array, state: WebShopState, action: WebShopAction, params: WebShopParams
    ) -> Transition:
        pages = params.pages
        on = [state.page == page for page in range(5)]
        click = action.kind == DO_CLICK
        item = jnp.maximum(state.item, 0)

        # What was clicked: an option's value comes before a button of the same name.
        values, named = _window(pages.value_offsets, item, pages.value_width)
        hashes = pages.value_hash.at[values].get(mode="clip")
        is_value = click & on[ITEM] & named & jnp.all(hashes == action.target, axis=1)
        pick = jnp.any(is_value)
        value = values[jnp.minimum(first_true(is_value), pages.value_width - 1)]
        shown = self._shown(state)
        is_product = on[RESULTS] & (shown >= 0)
        is_product &= jnp.all(pages.product_hash[jnp.maximum(shown, 0)] == action.target, axis=1)
        opened = click & jnp.any(is_product)
        product = shown[jnp.minimum(first_true(is_product), t.PAGE_SIZE - 1)]
        button = first_true(jnp.all(pages.button_hash == action.target, axis=1) & click & ~pick & ~opened)

        total = jnp.sum(state.results >= 0, dtype=jnp.int32)
        back = (button == BACK) & (on[RESULTS] | on[ITEM] | on[SUB])
        following = (button == NEXT) & on[RESULTS] & ((state.number + 1) * t.PAGE_SIZE < total)
        earlier = (button == PREV) & on[RESULTS] & (state.number > 0)
        to_results = (button == PREV) & on[ITEM]
        to_item = (button == PREV) & on[SUB]
        to_sub = (button >= FIRST_SUB) & (button <= LAST_SUB) & on[ITEM]
        buy = (button == BUY) & on[ITEM]
        asks = (action.kind == DO_SEARCH) & on[SEARCH]

        page = state.page
        for flag, target in (
            (asks, RESULTS), (back, SEARCH), (opened, ITEM), (to_results, RESULTS), (to_item, ITEM), (to_sub, SUB),
            (buy, DONE),
        ):  # fmt: skip
            page = jnp.where(flag, target, page)
        results = jnp.where(asks, search(params.index, action.terms, t.MAX_RESULTS, asks), state.results)
        kind = jnp.where(pick, pages.value_kind[jnp.maximum(value, 0)], -1)
        chosen = jnp.where(jnp.arange(pages.kinds, dtype=jnp.int32) == kind, value, state.chosen)
        after = WebShopState(
            goal=state.goal,
            page=page.astype(jnp.int32),
            number=jnp.where(asks | back, 0, state.number + following - earlier).astype(jnp.int32),
            results=jnp.where(back, -1, results).astype(jnp.int32),
            item=jnp.where(back, -1, jnp.where(opened, product, state.item)).astype(jnp.int32),
            sub=jnp.where(to_sub, button - FIRST_SUB, state.sub).astype(jnp.int32),
            chosen=jnp.where(back | opened, -1, chosen).astype(jnp.int32),
        )
        bought = judge(state.goal, item, state.chosen, params.goals, params.rewards)
        bought = jax.tree.map(lambda x: jnp.where(buy, x, jnp.zeros_like(x)), bought)
        found = buy & (item == params.goals.product[state.goal])
        metrics = jnp.stack(
            [
                bought.raw, buy, found, bought.type_reward, bought.attribute_share, bought.option_share,
                bought.price_ok, action.cut & asks,
            ]
        ).astype(jnp.float32)  # fmt: skip
        changed = jax.tree.map(lambda a, b: jnp.any(a != b), after, state)
        return Transition(
            state=after,
            reward=bought.full.astype(jnp.float32),
            terminated=buy,
            success=bought.full,
            valid=asks | back | following | earlier | to_results | to_item | to_sub | buy | pick | opened,
            effective=jnp.any(jnp.stack(jax.tree.leaves(changed))),
            metrics=metrics,
        )
