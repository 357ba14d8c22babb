"""Settings of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def child_environment(devices: int) -> dict[str, str]:
    """This process's, with so many CPU devices and the fast compilation of conftest.py."""
    flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    return os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {flags}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
