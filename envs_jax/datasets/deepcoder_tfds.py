"""DeepCoder's problems as a tensorflow-datasets builder, from the published files.

The manual folder holds the folders of the data set's subsets (primeintellect, taco, lcbv5, codeforces) with files
train-*.parquet and test-*.parquet, or the same as .jsonl. The published test files are the split test; of the others a
twentieth, by the problem's text, is validation. A problem that stands in several files is kept once, and those of the
test files are in no other split.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from envs_jax.datasets.splits import bucket
from envs_jax.datasets.table import Record, check_rows, number, read_json_lines
from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.problems import Problem
from envs_jax.tasks.deepcoder.published import dump_cases, parse_row

SUBSETS = ("primeintellect", "taco", "lcbv5", "codeforces")
VALIDATION = 20  # one problem in so many
_COLUMNS = ("problem", "tests", "starter_code", "metadata")
_LOG = logging.getLogger("envs_jax.datasets")


def folded(statement: str) -> str:
    """The same for problems that differ in case or spacing alone."""
    return " ".join(statement.casefold().split())


def read_file(path: Path) -> Iterator[Record]:
    """Records of a Parquet file (extra `data`) or of JSON lines."""
    if path.suffix != ".parquet":
        yield from read_json_lines(path)
        return
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    columns = [c for c in _COLUMNS if c in file.schema_arrow.names]

    def rows() -> Iterator[Any]:
        for batch in file.iter_batches(batch_size=64, columns=columns):
            yield from batch.to_pylist()

    yield from number(rows())


def files(folder: Path) -> dict[str, list[Path]]:
    """The published files by what they are for, train and test. Raises ConfigError if there are none."""
    found: dict[str, list[Path]] = {"train": [], "test": []}
    for subset in SUBSETS:
        for kind, paths in found.items():
            paths += sorted(
                p for p in (folder / subset).glob(f"{kind}*") if p.suffix in (".parquet", ".jsonl")
            )
    if not any(found.values()):
        raise ConfigError(
            "manual_dir", str(folder), f"it holds no file such as {SUBSETS[0]}/train-00000-of-00005.parquet"
        )
    return found


def read_splits(folder: Path, on_bad_row: str) -> dict[str, list[Problem]]:
    """Problems by split; no two of all of them have the same text. `name` says the file and the row."""
    splits: dict[str, dict[str, Problem]] = {"test": {}, "train": {}, "validation": {}}
    repeated = 0
    for kind, paths in sorted(
        files(folder).items()
    ):  # the test files first: what they hold is in no other split
        for path in paths:
            source = f"{path.parent.name}/{path.name}"
            place = "row" if path.suffix == ".parquet" else "line"
            table = check_rows(read_file(path), parse_row, source=source, on_bad_row=on_bad_row, place=place)
            for index, row in enumerate(table.rows):
                content = folded(row.statement)
                split = kind
                if kind == "train" and bucket(content, VALIDATION) == 0:
                    split = "validation"
                if any(content in known for known in splits.values()):
                    repeated += 1
                    continue
                splits[split][content] = Problem(f"{source}:{index}", row.statement, row.cases, row.starter)
    if repeated:
        _LOG.warning("DeepCoder: %d rows repeat a problem and were left out", repeated)
    return {name: list(rows.values()) for name, rows in splits.items()}


class DeepCoder(tfds.core.GeneratorBasedBuilder):
    """Programming problems with tests, in splits train, validation and test that share no problem."""

    name = "deepcoder"
    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put the folders primeintellect, taco, lcbv5 and codeforces of agentica-org/DeepCoder-Preview-Dataset, with "
        "their train-*.parquet and test-*.parquet, into the manual folder."
    )
    on_bad_row = "refuse"

    def _info(self) -> Any:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"name": text, "statement": text, "starter": text, "tests": text}
            ),
            homepage="https://huggingface.co/datasets/agentica-org/DeepCoder-Preview-Dataset",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        splits = read_splits(Path(dl_manager.manual_dir), self.on_bad_row)
        return {name: self._generate_examples(rows) for name, rows in splits.items() if rows}

    def _generate_examples(self, rows: list[Problem]) -> Iterator[tuple[int, dict[str, str]]]:
        for index, row in enumerate(rows):
            yield (
                index,
                {
                    "name": row.name,
                    "statement": row.statement,
                    "starter": row.starter,
                    "tests": dump_cases(row.cases),
                },
            )
