"""Where numbers go: JSON lines always, TensorBoard beside them, Weights & Biases when asked."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs_jax.errors import ConfigError


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95% interval of a success rate (Wilson 1927). Raises ValueError for n < 1."""
    if n < 1:
        raise ValueError(f"an interval needs at least one trial, got {n}")
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line cut short by an interruption is left out."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as e:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: not JSON ({e.msg}); the file is damaged") from e
    return rows


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def finite(x: Any) -> Any:
    """Plain data with None in place of every number that is not finite, as JSON has no others."""
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of batches of one size as those of all: counts (`.._count`) are added, `/max` and `/min` are extremes,
    the others are means."""
    out = {}
    for name in parts[0] if parts else ():
        values = [float(part[name]) for part in parts]
        if name.endswith("_count"):
            out[name] = sum(values)
        elif name.endswith(("/max", "/min")):
            out[name] = max(values) if name.endswith("/max") else min(values)
        else:
            out[name] = sum(values) / len(values)
    return out


def check_loggers(*, wandb: bool) -> None:
    """Raises ConfigError when a logger that is asked for is not installed."""
    if wandb and importlib.util.find_spec("wandb") is None:
        raise ConfigError("run.wandb", True, "wandb is not installed: pip install 'ragen-jax[wandb]'")


class Silent:
    """Takes the place of a writer in the processes that write nothing."""

    seconds = 0.0

    def write(self, step: int, row: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class JsonLines:
    """Appends one object a step to a file. `resume_step` drops rows after that step, which a resumed run writes again.

    None: starts the file anew. `rows` are those kept.
    """

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self.rows = [r for r in read_jsonl(path) if resume_step is not None and r["step"] <= resume_step]
        write_atomically(path, "".join(json.dumps(r) + "\n" for r in self.rows))
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, row: dict[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **finite(row)}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class MetricsWriter:
    """Appends one row a step. `resume_step` drops rows after that step, which a resumed run writes again."""

    def __init__(
        self,
        run_dir: Path,
        *,
        tensorboard: bool,
        wandb: bool,
        config: dict[str, Any],
        name: str,
        resume_step: int | None,
    ) -> None:
        self._lines = JsonLines(run_dir / "metrics.jsonl", resume_step)
        kept = self._lines.rows
        self.seconds: float = kept[-1].get("time") or 0.0 if kept else 0.0  # what the run has taken so far
        self._tensorboard = self._wandb = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            purge = None if resume_step is None else resume_step + 1
            self._tensorboard = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)
        if wandb:
            check_loggers(wandb=True)
            import wandb as module

            self._wandb = module.init(
                project="ragen-jax", name=name, config=config, dir=str(run_dir), resume="allow"
            )

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a row. A value that is not finite is written as null, so that its absence is seen."""
        clean = finite(metrics)
        self._lines.write(step, clean)
        known = {k: v for k, v in clean.items() if v is not None}
        if self._tensorboard is not None:
            for k, v in known.items():
                self._tensorboard.add_scalar(k, v, step)
        if self._wandb is not None:
            self._wandb.log(known, step=step)

    def close(self) -> None:
        self._lines.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
