"""Prepared tensorflow-datasets, read back as plain Python without TensorFlow.

`as_data_source` gives random access to array_record files; it needs the array-record package and no TensorFlow.
tensorflow-datasets brings that package along on Linux alone; without it there is an error that says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from envs_jax.errors import ConfigError

BUILDERS = {
    "metamathqa": "envs_jax.datasets.metamathqa_tfds:MetaMathQA",
    "countdown": "envs_jax.datasets.countdown_tfds:CountdownTasks",
    "deepcoder": "envs_jax.datasets.deepcoder_tfds:DeepCoder",
    "hotpotqa": "envs_jax.datasets.hotpotqa_tfds:HotpotQAParagraphs",
    "webshop": "envs_jax.datasets.webshop_tfds:WebShopGoals",
}


def builder(name: str, data_dir: str | None) -> Any:
    """The builder of data set `name`, with array_record as its file format."""
    if importlib.util.find_spec("array_record") is None:
        raise ConfigError(
            "dataset", f"tfds/{name}", "tables are array_record files: pip install array-record"
        )
    module, _, cls = BUILDERS[name].partition(":")
    return getattr(importlib.import_module(module), cls)(data_dir=data_dir, file_format="array_record")


def prepare(name: str, manual_dir: str, data_dir: str | None = None, on_bad_row: str = "refuse") -> Any:
    """Builds data set `name` from the published files in `manual_dir`, unless it was built before.

    Raises FileNotFoundError, with what to put there, where `manual_dir` is missing or empty.
    """
    import tensorflow_datasets as tfds

    made = builder(name, data_dir)
    folder = Path(manual_dir)
    if not folder.is_dir() or not any(folder.iterdir()):
        raise FileNotFoundError(f"{folder} is missing or empty. {made.MANUAL_DOWNLOAD_INSTRUCTIONS}")
    made.on_bad_row = on_bad_row
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir))
    return made


def read_split(name: str, split: str, data_dir: str | None, count: int) -> list[dict[str, Any]]:
    """The first `count` rows of a prepared split; texts are decoded, arrays become lists.

    Raises ConfigError where the data set has not been prepared.
    """
    made = builder(name, data_dir)
    if not made.is_prepared():
        raise ConfigError(
            "dataset",
            f"tfds/{name}",
            "it is not prepared: put the published file into a folder and call "
            f'envs_jax.datasets.tfds_source.prepare("{name}", manual_dir=..., data_dir={data_dir!r})',
        )
    source = made.as_data_source(split=split)
    return [_plain(source[i]) for i in range(min(count, len(source)))]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):  # what a Sequence of scalars comes back as, scalars of NumPy inside
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value.tolist() if hasattr(value, "tolist") else value
