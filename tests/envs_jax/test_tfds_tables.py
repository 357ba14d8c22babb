"""Published files through tensorflow-datasets, read back without TensorFlow, into environments."""

from __future__ import annotations

import itertools
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from speak import answer, play

import envs_jax
from envs_jax.datasets.table import BadRowsError
from envs_jax.datasets.tfds_source import prepare, read_split
from envs_jax.errors import ConfigError

SPLITS = ("train", "validation", "test")


def metamath_rows() -> list[dict[str, str]]:
    """200 original questions with four variants each, among them repeated queries, in the published form."""
    rows = []
    for i in range(200):
        original = f"Ann has {i} apples and eats 1. How many are left?"
        texts = [
            ("GSM_AnsAug", original),
            ("GSM_AnsAug", original.upper()),
            ("GSM_Rephrased", f"If Ann eats one of {i} apples, how many are there?"),
            ("GSM_SV", f"Ann has x apples and eats 1. {i - 1} are left. What is x?"),
        ]
        for kind, query in texts:
            rows.append(
                {
                    "query": query,
                    "response": f"We think.\n#### {i - 1}\nThe answer is: {i - 1}",
                    "type": kind,
                    "original_question": original,
                }
            )
    random.Random(0).shuffle(rows)
    return rows


@pytest.fixture(scope="module")
def metamath(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metamath")
    (folder / "MetaMathQA-395K.json").write_text(json.dumps(metamath_rows(), indent=1))
    prepare("metamathqa", str(folder), str(folder / "data"))
    return folder / "data"


def countdown_rows() -> list[dict[str, Any]]:
    rng = random.Random(1)
    rows = []
    for _ in range(400):
        nums = [rng.randint(1, 99) for _ in range(rng.choice([3, 4]))]
        target = (
            abs(sum(rng.choice([-1, 1]) * n for n in nums)) if rng.random() < 0.8 else rng.randint(10, 100)
        )
        rows += [{"target": target, "nums": nums}] + [{"target": target, "nums": nums[::-1]}] * (
            rng.random() < 0.2
        )
    return rows


@pytest.fixture(scope="module")
def countdown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("countdown")
    (folder / "countdown.jsonl").write_text("\n".join(map(json.dumps, countdown_rows())))
    prepare("countdown", str(folder), str(folder / "data"))
    return folder / "data"


def test_metamathqa_splits_share_no_question_and_no_original(metamath: Path) -> None:
    rows = {split: read_split("metamathqa", split, str(metamath), 10_000) for split in SPLITS}
    for name in ("query", "original_question"):
        texts = [{" ".join(row[name].casefold().split()) for row in rows[s]} for s in SPLITS]
        assert sum(map(len, texts)) == len(set.union(*texts))
    # Queries that differ in case alone are one.
    assert sum(map(len, rows.values())) == 600
    assert len(rows["train"]) > 450
    assert min(len(r) for r in rows.values()) > 5
    assert all(row["answer"] == str(int(row["original_question"].split()[2]) - 1) for row in rows["test"])


def test_rows_linked_by_a_query_stay_together(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{i // 2}", "response": "The answer is: 1", "type": "t", "original_question": f"o{i}"}
        for i in range(400)
    ]
    rows += [
        {"query": f"o{i}", "response": "The answer is: 1", "type": "t", "original_question": f"p{i}"}
        for i in range(400)
    ]
    (tmp_path / "MetaMathQA-395K.json").write_text(json.dumps(rows))
    prepare("metamathqa", str(tmp_path), str(tmp_path / "data"))
    split_of_text: dict[str, str] = {}
    for split in SPLITS:
        for row in read_split("metamathqa", split, str(tmp_path / "data"), 1000):
            for text in (row["query"], row["original_question"]):
                assert split_of_text.setdefault(text, split) == split


def test_metamathqa_is_played_from_the_table(metamath: Path) -> None:
    kwargs: dict[str, Any] = {"dataset": "tfds/metamathqa", "data_dir": str(metamath), "num_levels": 32}
    env, params = envs_jax.make("MetaMathQA", max_response_tokens=64, **kwargs)
    rows = read_split("metamathqa", "train", str(metamath), 32)
    (out,), _ = play(env, params, lambda level, _: answer(rows[level]["answer"]), 1)
    assert out.success.all()
    held_out = envs_jax.new_levels(env, params, split="eval")
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), params)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), held_out)
    rows = read_split("metamathqa", "validation", str(metamath), 32)
    (out,), _ = play(env, held_out, lambda level, _: answer(rows[level % len(rows)]["answer"]), 1)
    assert out.success.all()


def test_countdown_is_played_from_the_table(countdown: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = [
        {
            str((sorted(row["nums"]), row["target"]))
            for row in read_split("countdown", split, str(countdown), 10_000)
        }
        for split in SPLITS
    ]
    assert sum(map(len, content)) == len(set.union(*content))
    assert sum(map(len, content)) == len({str((sorted(r["nums"]), r["target"])) for r in countdown_rows()})
    kwargs: dict[str, Any] = {"dataset": "tfds/countdown", "data_dir": str(countdown), "num_levels": 40}
    with caplog.at_level(logging.WARNING, "envs_jax.datasets"):
        env, params = envs_jax.make("Countdown", max_response_tokens=64, **kwargs)
    assert "cannot be solved with +- and are left out" in caplog.text
    numbers, count, target = jax.device_get((params.env.numbers, params.env.count, params.env.target))
    from test_countdown import sign_solution

    solved = [sign_solution(n[:c].tolist(), int(t)) for n, c, t in zip(numbers, count, target, strict=True)]
    assert all(solved)
    (out,), _ = play(env, params, lambda level, _: answer(solved[level] or ""), 1)
    assert out.success.all()
    text = env.render(env.reset(np.int32(0), params)[0], params)
    assert text == f"Target: {target[0]}, nums: {numbers[0][: count[0]].tolist()}\n"


@pytest.mark.parity
def test_countdown_reads_the_published_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = countdown_rows()
    table = pyarrow.table({k: [r[k] for r in rows] for k in ("target", "nums")})
    parquet.write_table(table, tmp_path / "countdown.parquet")
    prepare("countdown", str(tmp_path), str(tmp_path / "data"))
    read = [row for split in SPLITS for row in read_split("countdown", split, str(tmp_path / "data"), 10_000)]
    assert {str((sorted(r["nums"]), r["target"])) for r in read} == {
        str((sorted(r["nums"]), r["target"])) for r in rows
    }


def test_bad_rows_of_a_published_file_are_refused_or_skipped(tmp_path: Path) -> None:
    rows = metamath_rows()[:300]
    lines = [json.dumps(row) for row in rows]
    lines[3] = '{"query": "cut short'
    lines[5] = json.dumps({**rows[5], "response": "no marker"})
    del rows[7]["type"]
    lines[7] = json.dumps(rows[7])
    (tmp_path / "MetaMathQA-395K.json").write_text("[\n" + ",\n".join(lines) + "\n]")
    with pytest.raises(BadRowsError) as caught:
        prepare("metamathqa", str(tmp_path), str(tmp_path / "data"))
    problems = [(p.line, p.kind) for p in caught.value.report.problems]
    assert problems == [(5, "malformed"), (7, "no answer"), (9, "missing field")]
    prepare("metamathqa", str(tmp_path), str(tmp_path / "data"), on_bad_row="skip")
    assert 150 < sum(len(read_split("metamathqa", s, str(tmp_path / "data"), 999)) for s in SPLITS) <= 297


def test_a_data_set_that_is_not_prepared_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prepare"):
        envs_jax.make("MetaMathQA", dataset="tfds/metamathqa", data_dir=str(tmp_path), num_levels=4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"countdown\.parquet"):
        prepare("countdown", str(tmp_path / "empty"), str(tmp_path / "data"))


def test_reading_back_does_not_import_tensorflow(countdown: Path) -> None:
    code = (
        "import sys\nfrom envs_jax.datasets.tfds_source import read_split\n"
        f"assert read_split('countdown', 'train', {str(countdown)!r}, 3)\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("tag", "dataset", "settings"),
    [
        ("MetaMathQA", "reasoning_gym/gsm_symbolic", {}),
        ("Countdown", "reasoning_gym/countdown", {"operations": "any"}),
    ],
)
def test_reasoning_gym(tag: str, dataset: str, settings: dict[str, Any]) -> None:
    import reasoning_gym

    env, params = envs_jax.make(tag, dataset=dataset, num_levels=24, max_response_tokens=96, **settings)
    name = dataset.split("/")[1]
    source = {}
    for item in itertools.islice(reasoning_gym.create_dataset(name, size=1024, seed=0), 250):
        meta = item["metadata"]
        key = (
            f"Target: {meta['target']}, nums: {meta['numbers']}\n"
            if tag == "Countdown"
            else item["question"].strip() + "\n"
        )
        source[key] = item["answer"]
    said = [source[env.render(env.reset(np.int32(i), params)[0], params)] for i in range(24)]
    (out,), _ = play(env, params, lambda level, _: answer(said[level]), 1)
    assert out.success.all()
    _, held_out = envs_jax.make(tag, dataset=dataset, num_levels=24, split="eval", **settings)
    other = {env.render(env.reset(np.int32(i), held_out)[0], held_out) for i in range(24)}
    assert not other & {env.render(env.reset(np.int32(i), params)[0], params) for i in range(24)}
