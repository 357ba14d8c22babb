"""Settings of the processes that tests start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def child_environment(devices: int) -> dict[str, str]:
    """This process's, with so many CPU devices."""
    return os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }


def together(processes: int, *arguments: str, timeout: float = 400) -> list[tuple[int, str]]:
    """(exit code, output) of `python *arguments` in processes with a device each, that run at the same time.

    The arguments PORT and PROCESS become a free port and the number of the process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def command(process: int) -> list[str]:
        values = {"PORT": port, "PROCESS": str(process)}
        return [sys.executable, *(values.get(a, a) for a in arguments)]

    running = [
        subprocess.Popen(
            command(i), env=child_environment(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for i in range(processes)
    ]
    try:
        out = [process.communicate(timeout=timeout)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    return [(process.returncode, text) for process, text in zip(running, out, strict=True)]
