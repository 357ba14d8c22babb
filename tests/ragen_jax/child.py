"""Settings of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

from fast_compilation import FLAGS

HERE = Path(__file__).parent


def child_environment(devices: int) -> dict[str, str]:
    """This process's, with so many CPU devices and tests' compilation."""
    return os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {FLAGS}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
