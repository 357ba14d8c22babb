"""WebShop against a shop in plain Python, its reward against string comparisons, its loader against spoilt files."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shop_speaker import Speaker

from benchmarks.peers_shop import Postings, PythonShop, purchase_reward, similar
from envs_jax.core import Span
from envs_jax.datasets.table import BadRowsError, number
from envs_jax.errors import ConfigError
from envs_jax.tasks.webshop import WebShop, matching, products, tables
from envs_jax.tasks.webshop.env import ITEM, WebShopParams
from envs_jax.tasks.webshop.generator import make_files
from envs_jax.tasks.webshop.products import CatalogueRules, build_catalogue, parse_prices
from envs_jax.tasks.webshop.reward import judge
from envs_jax.text.retrieval import top

SMALL: dict[str, Any] = {"num_products": 240}


@functools.cache
def small_shop() -> tables.Shop:
    return WebShop(**SMALL).shop


def test_the_default_catalogue_has_a_thousand_products_with_goals() -> None:
    catalogue = WebShop().shop.catalogue
    assert len(catalogue.products) == 1000
    assert {g.product for split in catalogue.goals.values() for g in split} == set(range(1000))
    apart = [{g.product for g in catalogue.goals[s]} for s in ("train", "eval")]
    assert not apart[0] & apart[1]
    assert len(catalogue.goals["eval"]) > 300
    for product, attributes in zip(catalogue.products, catalogue.attributes, strict=True):
        assert attributes
        assert product.prices[0] <= product.price <= product.prices[-1]
    assert {len(p.options) for p in catalogue.products} == {0, 1, 2}


def test_rewards_are_those_of_the_strings() -> None:
    items, instructions, _ = make_files(240, 7)
    for number_, item in enumerate(items):
        if number_ % 3 == 0:  # long titles, of which another shares less than a tenth
            item["name"] += "".join(f" w{number_}{c}" for c in "abcdefg")
        if number_ % 5 == 0:
            item["query"] = f"query {number_}"
        if number_ % 7 == 0:
            item["product_category"] = "Home › Lamps"
    catalogue = build_catalogue(number(items), number(instructions.items()), None, CatalogueRules())
    shop = tables.build_shop(catalogue)
    goals = [*catalogue.goals["train"], *catalogue.goals["eval"]]
    rng = random.Random(0)
    by_query: dict[str, list[int]] = {}
    for i, product in enumerate(catalogue.products):
        by_query.setdefault(product.query, []).append(i)
    offsets = shop.text.value_offsets
    rows = []
    for _ in range(2000):
        g = rng.randrange(len(goals))
        goal, draw = goals[g], rng.random()
        alike = by_query[catalogue.products[goal.product].query]
        p = (
            goal.product
            if draw < 0.4
            else rng.choice(alike)
            if draw < 0.7
            else rng.randrange(len(catalogue.products))
        )
        chosen, at = [-1] * shop.pages.kinds, int(offsets[p])
        for kind, (_, values) in enumerate(catalogue.products[p].options):
            if rng.random() < 0.85:
                wanted = [i for i, v in enumerate(values) if v in goal.options and rng.random() < 0.7]
                chosen[kind] = at + (wanted[0] if wanted else rng.randrange(len(values)))
            at += len(values)
        rows.append((g, p, chosen))
    got = jax.device_get(
        jax.jit(jax.vmap(judge, in_axes=(0, 0, 0, None, None)))(
            *(jnp.asarray(column, jnp.int32) for column in zip(*rows, strict=True)), shop.goals, shop.rewards
        )
    )
    want = [
        purchase_reward(
            goals[g],
            catalogue.products[goals[g].product],
            catalogue.products[p],
            catalogue.attributes[p],
            [shop.text.value_text[v] for v in chosen if v >= 0],
        )
        for g, p, chosen in rows
    ]
    np.testing.assert_allclose(got.raw, want, atol=1e-6)
    assert np.array_equal(got.full, np.asarray(want) == 1.0)
    assert {0.0, 0.1, 0.5, 1.0} <= {round(float(k), 3) for k in got.type_reward}
    assert 200 < got.full.sum() < 1800


def test_pages_are_those_of_a_shop_in_python() -> None:
    """Random walks: the text of every page, what can be bought and for how much."""
    rows = 64
    speaker = Speaker("WebShop", rows, **SMALL, max_turns=24, max_actions_per_traj=24)
    shop = speaker.env.env.shop
    plain_search = Postings([tables.searched_text(p) for p in shop.catalogue.products])

    @jax.jit
    def device_search(data: Any, length: Any) -> Any:
        return top(shop.index.scores(shop.lexicon.terms(data, length, 16)[0]), 50)[0]

    def search(query: str, count: int) -> list[int]:
        data = np.zeros(256, np.uint8)
        data[: len(query)] = list(query.encode())
        found = [int(i) for i in device_search(data, np.int32(len(query))) if i >= 0]
        scores = plain_search.scores(query)
        ranked = [scores[i] for i in found]
        assert np.all(np.diff(ranked) < 1e-5)  # in order, up to rounding, and the best ones
        best = sorted(scores.values(), reverse=True)[:count]
        np.testing.assert_allclose(ranked, best, atol=1e-5)
        return found

    goals = [*shop.catalogue.goals["train"], *shop.catalogue.goals["eval"]]
    peers = [PythonShop(shop.catalogue, search) for _ in range(rows)]
    texts = [p.reset(goals[int(g)]) for p, g in zip(peers, speaker.state.env.goal, strict=True)]
    assert speaker.texts == texts
    rng = random.Random(1)
    over = [False] * rows
    seen: set[str] = set()
    rewards: list[float] = []
    bound = speaker.env.obs_capacity
    words = [w for p in shop.catalogue.products for w in p.title.split()]
    for _ in range(20):
        actions = []
        for text in texts:
            offered = re.findall(r"click\[(.+?)\](?:,|\n)", text.rpartition("Available actions:")[2])
            if "search[" in text.rpartition("Available actions:")[2]:
                offered = [f"search[{' '.join(rng.choices(words, k=rng.randint(1, 4)))}]"]
            else:
                offered = [f"click[{o}]" for o in offered if o != "buy now" or rng.random() < 0.2]
                if rng.random() < 0.1:
                    offered = ["click[buy now]", "search[lamp]", "click[nothing]", "click[< prev]", "click[]"]
                if "buy now" in text.lower() and rng.random() < 0.08:
                    offered = ["click[buy now]"]
            actions.append(rng.choice(offered or ["click[back to search]"]))
        out = speaker.say([a.upper() if rng.random() < 0.2 else a for a in actions])
        for row, peer in enumerate(peers):
            if over[row]:
                continue
            texts[row], raw, over[row] = peer.step(actions[row])
            assert speaker.texts[row] == texts[row]
            assert bool(out.terminated[row]) == over[row]
            assert float(out.info.metrics[row, 0]) == pytest.approx(raw, abs=1e-6)
            assert float(out.reward[row]) == (raw == 1.0)
            seen.add(peer.page)
            if over[row]:
                rewards.append(raw)
        assert not out.info.obs_overflow.any()
        assert out.obs_len.max() <= bound
        for fragments in speaker.fragments[:16]:
            canonical.assert_borders(fragments)
    assert seen == {"search", "results", "item", "sub", "done"}
    assert len(rewards) > 15


def test_a_scripted_customer_always_succeeds() -> None:
    rows = 48
    speaker = Speaker("WebShop", rows, **SMALL)
    shop = speaker.env.env.shop
    goals = [*shop.catalogue.goals["train"], *shop.catalogue.goals["eval"]]
    mine = [goals[int(g)] for g in speaker.state.env.goal]
    left = [list(g.options) for g in mine]
    success = np.zeros(rows, bool)
    total = np.zeros(rows)
    for _ in range(9):
        answers = []
        for goal, options, text in zip(mine, left, speaker.texts, strict=True):
            offered = text.rpartition("Available actions:")[2]
            product = shop.catalogue.products[goal.product]
            if "search[" in offered:
                answers.append(f"search[{product.title}]")
            elif f"click[{product.asin.lower()}]" in offered:
                answers.append(f"click[{product.asin.lower()}]")
            elif options:
                answers.append(f"click[{options.pop()}]")
            else:
                assert all(f"{o} (chosen)" in text for o in goal.options) or "Thank you" in text
                answers.append("click[buy now]")
        out = speaker.say(answers)
        success |= out.success
        total += out.reward
    assert success.all()
    assert np.array_equal(total, np.ones(rows))


@pytest.mark.parametrize("tag", ["WebShop", "SearchQA"])
def test_random_text_stays_within_the_reward_bounds(tag: str) -> None:
    rows, rng = 32, random.Random(2)
    small = SMALL if tag == "WebShop" else {"num_passages": 120}
    speaker = Speaker(tag, rows, **small)
    pieces = [
        "search[",
        "click[",
        "finish[",
        "]",
        "buy now",
        "lamp",
        "</think>",
        "<answer>",
        "</answer>",
        "[",
        "\n",
        "é",
    ]
    for _ in range(4):
        said = [
            "".join(rng.choice([*pieces, chr(rng.randrange(32, 500))]) for _ in range(rng.randrange(40)))
            for _ in range(rows)
        ]
        out = speaker.say([s if rng.random() < 0.5 else f"a</think><answer>{s}" for s in said], raw=True)
        low, high = speaker.env.env.reward_range
        assert ((out.reward >= low) & (out.reward <= high)).all()
        assert all(p == 0 or p == pytest.approx(-0.1) for p in out.penalty.tolist())
        assert np.isfinite(out.info.metrics).all()


@pytest.mark.parity
@pytest.mark.parametrize("style", ["full", "brief"])
def test_prompts_are_canonical_for_qwen(style: str) -> None:
    speaker = Speaker("WebShop", 12, **SMALL)
    for answer in ("search[summer dress navy]", "click[{}]", "click[description]"):
        offered = [re.findall(r"click\[(b0\w+)\]", t)[:1] or ["x"] for t in speaker.texts]
        speaker.say([answer.format(o[0]) for o in offered])
        for fragments in speaker.fragments:
            joined = canonical.qwen_encode("".join(fragments))
            assert [t for f in fragments for t in canonical.qwen_encode(f)] == joined


def test_options_come_before_buttons_and_brackets_may_be_in_names() -> None:
    items, instructions, _ = make_files(24, 0)
    for item in items:
        item["customization_options"] = {"style": [{"value": "Description"}, {"value": "a [b]"}]}
    catalogue = build_catalogue(number(items), number(instructions.items()), None, CatalogueRules())
    shop = tables.build_shop(catalogue)
    assert catalogue.products[0].options == (("style", ("description", "a [b]")),)
    env = WebShop()
    params = WebShopParams(
        shop.lexicon, shop.index, shop.pages, shop.goals, shop.rewards, jnp.zeros(1, jnp.int32)
    )
    state = env.level(jnp.int32(0), params)
    state = type(state)(**{**vars(state), "page": jnp.int32(ITEM), "item": jnp.int32(3)})
    for text, want in (("click[description]", 6), ("click[ a [b] ]", 7), ("click[features]", -1)):
        data = jnp.zeros(64, jnp.uint8).at[: len(text)].set(jnp.asarray(list(text.encode()), jnp.uint8))
        action, known = env.parse(Span(data, jnp.int32(len(text))), state, params)
        after = env.transition(jax.random.key(0), state, action, params)
        assert bool(known)
        assert int(after.state.chosen[0]) == want
        assert (int(after.state.page) == ITEM) == (want >= 0)


# -- matching -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("a", "b", "percent"),
    [
        ("x-small", "small", 100),
        ("long sleeve", "sleeve long", 100),
        ("navy", "black", 0),
        ("", "a", 0),
        ("abcd", "abce", 75),
    ],
)
def test_token_set_ratios_worked_by_hand(a: str, b: str, percent: int) -> None:
    if percent:
        assert matching.token_set_ratio(a, b) == percent
    assert (matching.token_set_ratio(a, b) > 85) == similar(a, b) == (percent > 85)


@pytest.mark.parity
def test_token_set_ratio_is_that_of_rapidfuzz() -> None:
    from rapidfuzz import fuzz, utils

    rng = random.Random(3)
    words = [
        "long",
        "sleeve",
        "short-sleeve",
        "navy",
        "x-small",
        "small",
        "gluten",
        "free",
        "pack",
        "of",
        "12",
        "usb",
        "é",
    ]
    for _ in range(3000):
        a, b = (
            " ".join(rng.choices(words, k=rng.randint(0, 5))) + rng.choice(["", "s", "!"]) for _ in range(2)
        )
        assert matching.token_set_ratio(a, b) == round(
            fuzz.token_set_ratio(a, b, processor=utils.default_process)
        )


def test_relation_holds_what_it_was_given() -> None:
    rng = random.Random(4)
    rows = [rng.sample(range(40), rng.choice([0, 1, 2, 7, 30])) for _ in range(30)]
    relation = matching.Relation.build(rows)
    holds = jax.jit(jax.vmap(relation.holds))
    pairs = [(r, n) for r in range(-1, 30) for n in range(-1, 41)]
    got = holds(*(jnp.asarray(x, jnp.int32) for x in zip(*pairs, strict=True)))
    assert got.tolist() == [r >= 0 and n in rows[r] for r, n in pairs]


# -- files ----------------------------------------------------------------------------------------------------
def write(folder: Path, count: int = 40, spoil: Any = None) -> Path:
    items, instructions, human = make_files(count, 1)
    lines = [json.dumps(i) for i in items]
    if spoil:
        spoil(lines, items)
    (folder / products.ITEMS).write_bytes(
        b"[\n" + b",\n".join(x if isinstance(x, bytes) else x.encode() for x in lines) + b"\n]"
    )
    (folder / products.INSTRUCTIONS).write_text(json.dumps(instructions))
    (folder / products.HUMAN).write_text(json.dumps(human))
    return folder


def test_the_public_files_make_the_same_shop(tmp_path: Path) -> None:
    made = build_catalogue(
        *(number(f if isinstance(f, list) else f.items()) for f in make_files(40, 1)[:2]),
        None,
        CatalogueRules(),
    )
    read = products.read_catalogue(str(write(tmp_path)), CatalogueRules())
    assert read.products == made.products
    assert read.goals == made.goals
    people = products.read_catalogue(str(tmp_path), CatalogueRules(human_goals=True))
    assert len(people.goals["train"]) + len(people.goals["eval"]) == 40
    assert "Please get me" in people.goals["train"][0].text
    speaker = Speaker("WebShop", 4, dataset="files", data_dir=str(tmp_path), human_goals=True)
    assert "Please get me" in speaker.texts[0]


def _spoil(lines: list[Any], items: list[dict[str, Any]]) -> None:
    lines[1] = json.dumps({**items[1], "pricing": ""})
    lines[2] = lines[0]
    lines[3] = lines[3][:-20]
    lines[4] = json.dumps({k: v for k, v in items[4].items() if k != "name"})
    lines[5] = lines[5].encode().replace(b"Model", b"Mod\xff")
    lines[6] = json.dumps({**items[6], "pricing": "call us"})
    lines[7] = json.dumps({**items[7], "asin": "no such/id"})
    lines[8] = json.dumps({**items[8], "customization_options": {"size": [{"label": "x"}]}})
    lines[9] = json.dumps({**items[9], "customization_options": {}})


def test_bad_products_are_named_counted_and_treated_as_configured(tmp_path: Path) -> None:
    write(tmp_path, spoil=_spoil)
    with pytest.raises(BadRowsError) as caught:
        products.read_catalogue(str(tmp_path), CatalogueRules())
    problems = {p.line: p.kind for p in caught.value.report.problems}
    assert problems == {
        3: "no price", 4: "duplicate id", 5: "malformed", 6: "missing field", 7: "not UTF-8", 8: "no price",
        9: "bad id", 10: "missing field",
    }  # fmt: skip
    kept = products.read_catalogue(str(tmp_path), CatalogueRules(on_bad_row="skip"))
    assert len(kept.products) == 32
    assert kept.reports[0].counts["no price"] == 2
    assert kept.notes["products without options"] >= 1
    cheap = products.read_catalogue(str(tmp_path), CatalogueRules(on_bad_row="skip", default_price=100.0))
    assert len(cheap.products) == 33
    assert sum(p.prices == (10_000,) for p in cheap.products) == 1


def test_malformed_instructions_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / products.INSTRUCTIONS).write_text('{"a": {"attributes": []},\n "b": }')
    with pytest.raises(BadRowsError, match="line 2"):
        products.read_catalogue(str(tmp_path), CatalogueRules(on_bad_row="skip"))


@pytest.mark.parametrize(
    ("text", "cents"),
    [("$9.99", (999,)), ("$1,234.50 to $20.00", (2000, 123_450)), ("12", (1200,))],
)
def test_prices(text: str, cents: tuple[int, ...]) -> None:
    assert parse_prices(text) == cents


@pytest.mark.parametrize(
    ("fields", "field", "hint"),
    [
        ({"dataset": "real"}, "dataset", "made_up"),
        ({"dataset": "files"}, "data_dir", "items_shuffle.json"),
        ({"dataset": "files", "data_dir": "/nowhere"}, "data_dir", "items_ins_v2.json"),
        ({"on_bad_row": "ignore"}, "on_bad_row", "skip"),
        ({"num_products": 0}, "num_products", "at least"),
        ({"default_price": -1.0}, "default_price", "dollars"),
    ],
)
def test_settings_are_checked(fields: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = WebShop(**fields).shop
    assert caught.value.field == field
    assert hint in caught.value.remedy


def test_webshop_builder_reads_back_without_tensorflow(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    from envs_jax.datasets.webshop_tfds import WebShopGoals

    catalogue = products.read_catalogue(str(write(tmp_path, 60)), CatalogueRules())
    made = WebShopGoals(data_dir=str(tmp_path / "out"), file_format="array_record")
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=str(tmp_path)))
    rows = {}
    for split in ("train", "validation", "test"):
        source = made.as_data_source(split=split)
        rows[split] = [source[i] for i in range(len(source))]
    asins = [{r["asin"].decode() for r in part} for part in rows.values()]
    assert all(asins)
    assert sum(map(len, asins)) == len(set.union(*asins))  # splits share no product
    goals = {s: [r["instruction"].decode() for r in part] for s, part in rows.items()}
    assert sorted(goals["train"]) == sorted(g.text for g in catalogue.goals["train"])
    assert sorted(goals["validation"] + goals["test"]) == sorted(g.text for g in catalogue.goals["eval"])
    by_asin = {p.asin: p for p in catalogue.products}
    by_text = {
        (g.text, catalogue.products[g.product].asin): g for part in catalogue.goals.values() for g in part
    }
    for row in (r for part in rows.values() for r in part):
        product = by_asin[row["asin"].decode()]
        goal = by_text[row["instruction"].decode(), product.asin]
        assert row["title"].decode() == product.title
        assert row["price_cents"] == product.price
        assert row["cap_cents"] == (-1 if goal.cap is None else goal.cap)
        assert tuple(x.decode() for x in row["attributes"]) == goal.attributes
        assert tuple(x.decode() for x in row["options"]) == goal.options
