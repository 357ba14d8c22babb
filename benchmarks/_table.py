"""One way to show and keep a benchmark: a table on the terminal, the same table appended to RESULTS.md."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("RESULTS.md")


def machine() -> str:
    """One line: processor, cores usable by this process, accelerators, operating system, versions."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices: dict[str, int] = {}
    for device in jax.devices():
        devices[device.device_kind] = devices.get(device.device_kind, 0) + 1
    chips = ", ".join(f"{count} x {kind}" for kind, count in devices.items())
    return (
        f"{name}, {cores} cores; JAX devices: {chips}; {platform.system()}; "
        f"Python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}"
    )


def cell(value: Any) -> str:
    """Text of one cell: floats with four significant digits, large numbers with thousands separators."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    return str(value)


def report(
    title: str, columns: list[str], rows: list[list[Any]], notes: str = "", record: bool = True
) -> None:
    """Prints a table and, if `record`, appends it to benchmarks/RESULTS.md with date, machine and versions.

    Every row has one value a column, numbers unformatted. Raises ValueError for a row of another length.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{title}: a row has {len(row)} cells for {len(columns)} columns: {row}")
    text = [[cell(value) for value in row] for row in rows]
    table = Table(title=title, caption=notes or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for line in text:
        table.add_row(*line)
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    Console(width=wide).print(table)
    if not record:
        return
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")

    def markdown(cells: list[str]) -> str:
        return "| " + " | ".join(value.replace("|", "\\|") for value in cells) + " |"

    lines = [f"## {title}", "", f"{date}. {machine()}.", "", markdown(columns)]
    lines.append("|" + "|".join(" :-- " if index == 0 else " --: " for index in range(len(columns))) + "|")
    lines += [markdown(line) for line in text]
    if notes:
        lines += ["", notes]
    head = "" if RESULTS.exists() else "# Benchmark results\n\nAppended by the scripts beside this file.\n"
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(head + "\n" + "\n".join(lines) + "\n")
