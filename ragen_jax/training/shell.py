"""What a person sees of long work, and how it is interrupted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Clock:
    """Wall time of the parts of a step; waits for the device at each lap."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, wait_for: Any) -> None:
        """Ends the part that began with the lap before; each name is a lap once."""
        jax.block_until_ready(wait_for)
        now = time.monotonic()
        self._laps[name], self._last = now - self._last, now

    def metrics(self) -> dict[str, float]:
        """Seconds of each part under timing_s/, and of all of them."""
        laps = {f"timing_s/{n}": s for n, s in self._laps.items()}
        return laps | {"timing_s/step": sum(self._laps.values())}


class Interrupted:
    """Whether a signal asked the run to stop."""

    flag = False


@contextmanager
def interruptible() -> Iterator[Interrupted]:
    """Turns the first SIGINT or SIGTERM into a flag; a second one interrupts at once."""
    state = Interrupted()

    def note(number: int, frame: Any) -> None:
        if state.flag:
            raise KeyboardInterrupt
        state.flag = True
        os.write(2, b"\nStopping after this step, with a checkpoint. Once more to stop at once.\n")

    try:
        old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        old = {}
    try:
        yield state
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def progress_bar(console: Console) -> Progress:
    """A bar a task, which has a field `note`."""
    return Progress(
        TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console,
    )  # fmt: skip
