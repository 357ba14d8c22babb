"""Settings for every test, made before JAX starts."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Most of a small test's time is LLVM's: its optimiser changes neither what is computed nor how often it is compiled.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def release_programs() -> Iterator[None]:
    """Frees a file's compiled programs after it: a process may map only so many pieces of memory."""
    yield
    jax.clear_caches()
