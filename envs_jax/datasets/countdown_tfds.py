"""Countdown as a tensorflow-datasets builder, from the published table of targets and numbers.

Reads `countdown.parquet` (Jiayi-Pan/Countdown-Tasks-3to4: target, nums) if pyarrow is there, or `countdown.jsonl` with
the same two fields. Instances that differ in the order of their numbers alone are one; each is in a single split.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from envs_jax.datasets.countdown import Instance, parse_instance
from envs_jax.datasets.splits import SHARES, split_of
from envs_jax.datasets.table import Record, check_rows, number, read_json_lines

FILES = ("countdown.parquet", "countdown.jsonl")
_LOG = logging.getLogger("envs_jax.datasets")


def read_parquet(path: Path) -> Iterator[Record]:
    """Records of a parquet file, numbered by row; needs pyarrow."""
    from pyarrow import parquet

    def rows() -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()

    return number(rows())


class CountdownTasks(tfds.core.GeneratorBasedBuilder):
    """Instances in splits train, validation and test that share none."""

    name = "countdown"
    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put the parquet file of the data set Jiayi-Pan/Countdown-Tasks-3to4 into the manual folder as "
        f"{FILES[0]}, or the same rows as JSON lines as {FILES[1]}."
    )
    on_bad_row = "refuse"

    def _info(self) -> Any:
        features = {
            "target": tfds.features.Scalar(dtype=np.int32),
            "nums": tfds.features.Sequence(tfds.features.Scalar(dtype=np.int32)),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        folder = Path(dl_manager.manual_dir)
        path = next((folder / name for name in FILES if (folder / name).exists()), None)
        if path is None:
            raise FileNotFoundError(f"{folder} holds neither {FILES[0]} nor {FILES[1]}")
        parquet = path.suffix == ".parquet"
        records: Iterable[Record] = read_parquet(path) if parquet else read_json_lines(path)
        table = check_rows(
            records,
            parse_instance,
            source=path.name,
            on_bad_row=self.on_bad_row,
            place="row" if parquet else "line",
        )
        splits: dict[str, dict[str, Instance]] = {name: {} for name, _ in SHARES}
        for row in table.rows:
            splits[split_of(row.content)].setdefault(row.content, row)
        merged = len(table.rows) - sum(map(len, splits.values()))
        if merged:
            _LOG.warning("%s: %d rows repeat an instance and were merged", path.name, merged)
        return {name: self._generate_examples(list(rows.values())) for name, rows in splits.items()}

    def _generate_examples(self, rows: list[Instance]) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, row in enumerate(rows):
            yield index, {"target": row.target, "nums": list(row.numbers)}
