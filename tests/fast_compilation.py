"""XLA's flags for tests. Most of a small test's time is the compiler's: these change neither what is computed nor how
often it is compiled."""

from __future__ import annotations

from importlib.metadata import version

FLAGS = "--xla_backend_optimization_level=0"
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):  # a later one stops at this flag
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
