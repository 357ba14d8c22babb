"""Settings of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def child_environment(devices: int) -> dict[str, str]:
    """This process's, with so many CPU devices."""
    return os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
