"""WebShop's reward for a purchase, as look-ups (Yao et al. 2022, section 2.2 and the published code).

    raw = r_type (attributes matched + options matched + price in bounds) / (attributes + options + 1)

r_type is 1 if the query is the same, or two categories, or more than a fifth of the goal's title words are found in the
bought title; else 0.5. It is 0.1 where less than a tenth of them are found and 0 where none is, whatever the query. A
goal whose title has no words counts as a fifth. Words of a title are those of `matching.title_words`. An option counts
if a chosen value of any kind matches it: as published, "x-small" is satisfied by "small", whose words it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.tasks.webshop.tables import Goals, RewardTables


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Purchase:
    """The reward and its parts. `full`: the raw reward is 1."""

    raw: Float[Array, ""]
    full: Bool[Array, ""]
    type_reward: Float[Array, ""]
    attribute_share: Float[Array, ""]  # 1 where the goal has none
    option_share: Float[Array, ""]
    price_ok: Bool[Array, ""]


def _shared(a: Int[Array, " n"], b: Int[Array, " m"]) -> Int[Array, ""]:
    return jnp.sum((a >= 0) & jnp.any(a[:, None] == b[None], axis=1), dtype=jnp.int32)


def judge(
    goal: Int[Array, ""],
    product: Int[Array, ""],
    chosen: Int[Array, " K"],
    goals: Goals,
    tables: RewardTables,
) -> Purchase:
    """Reward for buying `product` with the option values `chosen` (-1 for none) where `goal` was asked for."""
    wanted = goals.product[goal]
    found = _shared(tables.words[wanted], tables.words[product])
    total = tables.word_count[wanted]
    alike = tables.query[wanted] == tables.query[product]
    alike |= _shared(tables.categories[wanted], tables.categories[product]) >= 2
    alike |= 5 * found > total
    kind = jnp.where(alike, 1.0, 0.5)
    kind = jnp.where(10 * found < total, 0.1, kind)
    kind = jnp.where((found == 0) & (total > 0), 0.0, kind).astype(jnp.float32)

    attributes, options = goals.attributes[goal], goals.options[goal]
    has = jax.vmap(lambda a: (a >= 0) & tables.matched.holds(product, a))(attributes)
    texts = jnp.where(chosen >= 0, tables.value_text[jnp.maximum(chosen, 0)], -1)
    fits = jax.vmap(lambda o: jnp.any(jax.vmap(lambda t: (t >= 0) & tables.same_option.holds(o, t))(texts)))(
        options
    )
    price_ok = tables.price[product] <= goals.cap[goal]

    def count(flags: Array) -> Array:
        return jnp.sum(flags, dtype=jnp.int32)

    n_attributes, n_options = count(attributes >= 0), count(options >= 0)
    met = count(has) + count(fits) + price_ok
    needed = n_attributes + n_options + 1
    return Purchase(
        raw=kind * met.astype(jnp.float32) / needed.astype(jnp.float32),
        full=(kind == 1.0) & (met == needed),
        type_reward=kind,
        attribute_share=jnp.where(n_attributes > 0, count(has) / jnp.maximum(n_attributes, 1), 1.0),
        option_share=jnp.where(n_options > 0, count(fits) / jnp.maximum(n_options, 1), 1.0),
        price_ok=price_ok,
    )
