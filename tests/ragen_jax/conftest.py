"""Fixtures shared by the tests of this package."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.hub import pull


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; skips where it is neither kept nor to be had."""
    try:
        return pull("smollm2-135m")
    except ModelFileError as error:
        pytest.skip(f"SmolLM2 cannot be had: {error}")
