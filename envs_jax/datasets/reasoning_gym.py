"""Tasks of the reasoning-gym package (extra `data`)."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

from envs_jax.errors import ConfigError

CHUNK = 1024


def items(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Endless items of reasoning-gym's data set `name`: question, answer and metadata; the same for the same seed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError(
            "dataset", f"reasoning_gym/{name}", 'install the extra: pip install "ragen-jax[data]"'
        )
    package = importlib.import_module("reasoning_gym")
    for chunk in itertools.count():
        # Item i draws from seed + i, so the chunks of one seed do not overlap, and seeds are a million apart.
        yield from package.create_dataset(name, size=CHUNK, seed=seed * 1_000_003 + chunk * CHUNK)
