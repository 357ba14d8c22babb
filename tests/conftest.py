"""Settings for every test, made before JAX starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fast_compilation import FLAGS

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Files and workers compile many of the same programs: each is compiled once, and found again by the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from hypothesis import settings

# The same examples every time, so that a failure is the change's; HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True, scope="module")
def release_programs() -> Iterator[None]:
    """Frees a file's compiled programs after it: a process may map only so many pieces of memory."""
    yield
    jax.clear_caches()
