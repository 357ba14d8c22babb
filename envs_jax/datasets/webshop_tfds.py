"""WebShop's goals as a tensorflow-datasets builder, from the public product files in `manual_dir`.

One row a goal, with the product that it comes from. Splits are by product, so no product is in two of them: those of
`envs_jax.tasks.webshop`, whose evaluation products are parted into validation and test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from envs_jax.tasks.webshop.products import (
    INSTRUCTIONS,
    ITEMS,
    Catalogue,
    CatalogueRules,
    Goal,
    read_catalogue,
)


def parted(catalogue: Catalogue) -> dict[str, list[Goal]]:
    """Goals of train, validation and test, which share no product."""
    held_out = catalogue.goals["eval"]
    numbers = {p: i for i, p in enumerate(dict.fromkeys(g.product for g in held_out))}
    return {
        "train": list(catalogue.goals["train"]),
        "validation": [g for g in held_out if numbers[g.product] % 2 == 0],
        "test": [g for g in held_out if numbers[g.product] % 2 == 1],
    }


class WebShopGoals(tfds.core.GeneratorBasedBuilder):
    """Goals with their products, in splits train, validation and test."""

    name = "webshop_goals"
    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put {ITEMS} and {INSTRUCTIONS} of WebShop into the manual folder."
    on_bad_row = "refuse"

    def _info(self) -> Any:
        text = tfds.features.Text()
        features = {
            "instruction": text,
            "attributes": tfds.features.Sequence(text),
            "options": tfds.features.Sequence(text),
            "cap_cents": tfds.features.Scalar(np.int64),  # -1: no cap
            "asin": text,
            "title": text,
            "price_cents": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            homepage="https://webshop-pnlp.github.io",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        catalogue = read_catalogue(str(dl_manager.manual_dir), CatalogueRules(on_bad_row=self.on_bad_row))
        return {name: self._generate_examples(catalogue, goals) for name, goals in parted(catalogue).items()}

    def _generate_examples(
        self, catalogue: Catalogue, goals: list[Goal]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, goal in enumerate(goals):
            product = catalogue.products[goal.product]
            yield (
                number,
                {
                    "instruction": goal.text,
                    "attributes": list(goal.attributes),
                    "options": list(goal.options),
                    "cap_cents": -1 if goal.cap is None else goal.cap,
                    "asin": product.asin,
                    "title": product.title,
                    "price_cents": product.price,
                },
            )
