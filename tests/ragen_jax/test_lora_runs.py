"""Runs with adapters: what a checkpoint holds, that going on is exact, and that other base weights are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from micro_run import UNTRAINED, micro_config, run

from ragen_jax.models.export import save_pretrained
from ragen_jax.models.fingerprint import fingerprint
from ragen_jax.training.checkpoints import CheckpointError
from ragen_jax.training.config import Config
from ragen_jax.training.metrics import read_jsonl
from ragen_jax.training.policy import load_policy
from ragen_jax.training.run_dir import resumed_config
from ragen_jax.training.setup import build

RANK, WIDTH, STATE = 2, 32, "state"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of the micro run's own policy and tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    setup = build(micro_config(folder))
    return save_pretrained(setup.params, setup.model, folder / "base", setup.tokenizer)


def adapted(folder: Path, base: Path, steps: int) -> Config:
    return micro_config(
        folder, model={"path": str(base), "lora": {"rank": RANK, "targets": ["q", "down"]}},
        training={"total_training_steps": steps}, diagnosis={"compute_freq": 0}, algorithm={"entropy_coeff": 0.1},
        run={"keep_checkpoints": 5}, evaluation={"test_freq": 1}, **UNTRAINED,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return run(adapted(tmp_path_factory.mktemp("runs"), base, 2)).run_dir


def stored(run_dir: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by its path, read without any of this package's code."""
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore((run_dir / "checkpoints" / str(step) / STATE).absolute())
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def test_a_checkpoint_holds_adapters_and_no_base_weight(finished: Path) -> None:
    arrays = stored(finished, 2)
    policy = {n.partition("['policy']")[2]: x.shape for n, x in arrays.items() if "['trainable']" in n}
    assert policy == {
        "['layers']['down']['a']": (1, 64, RANK), "['layers']['down']['b']": (1, RANK, WIDTH),
        "['layers']['q']['a']": (1, WIDTH, RANK), "['layers']['q']['b']": (1, RANK, WIDTH),
    }  # fmt: skip
    total = sum(x.size for x in arrays.values())
    adapters = sum(int(np.prod(shape)) for shape in policy.values())
    assert 3 * adapters <= total < 3 * adapters + 20, "adapters, two moments of each, and counters"


def test_adapters_learn_and_go_on_bit_for_bit(finished: Path, base: Path, tmp_path: Path) -> None:
    first, last = stored(finished, 0), stored(finished, 2)
    moved = [n for n, x in last.items() if "['trainable']" in n and (x != first[n]).any()]
    assert len(moved) == 4
    short = run(adapted(tmp_path, base, 1)).run_dir
    run(resumed_config(short, ["training.total_training_steps=2"]), resume=short)
    again = stored(short, 2)
    assert again.keys() == last.keys()
    for name, value in last.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)

    def kept(run_dir: Path) -> list[dict[str, Any]]:
        table = read_jsonl(run_dir / "metrics.jsonl")
        return [{n: v for n, v in r.items() if not n.startswith("timing_s/") and n != "time"} for r in table]

    assert kept(short) == kept(finished)


def test_other_base_weights_are_refused_by_name(finished: Path, base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "base"))
    policy = load_policy(str(finished), [f"model.path={other}"])  # a copy is the same model
    params = jax.tree.map(jnp.array, policy.base)
    params["layers"]["v"] = params["layers"]["v"].at[0, 3, 1].add(1e-6)
    shutil.rmtree(other)
    save_pretrained(params, policy.setup.model, other, policy.setup.tokenizer)
    with pytest.raises(CheckpointError, match=r"step 2: its adapters are of base weights .* model\.path"):
        load_policy(str(finished), [f"model.path={other}"])
    moved = Path(shutil.copytree(finished, tmp_path / "run"))
    text = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(text.replace(str(base), str(other)))
    with pytest.raises(CheckpointError, match=r"restore the files that the run was trained on"):
        run(resumed_config(moved, ["training.total_training_steps=3"]), resume=moved)


def test_fingerprint_depends_on_every_element_and_its_place() -> None:
    tree = {"a": jax.random.normal(jax.random.key(0), (3, 4, 5)), "b": {"c": jnp.ones(7)}}
    seen = {fingerprint(tree)}
    for i in range(60):
        at = np.unravel_index(i, (3, 4, 5))
        next_up = np.nextafter(tree["a"][at], np.float32(9))
        seen.add(fingerprint(tree | {"a": tree["a"].at[at].set(next_up)}))
    assert len(seen) == 61
    assert fingerprint(jax.tree.map(np.asarray, tree)) in seen
    swapped = tree["a"].at[0, 0, 0].set(tree["a"][2, 1, 0]).at[2, 1, 0].set(tree["a"][0, 0, 0])
    for other in (
        tree | {"a": swapped}, tree | {"a": tree["a"].reshape(4, 3, 5)}, tree | {"b": {"d": jnp.ones(7)}},
        tree | {"b": {"c": -jnp.ones(7)}},
    ):  # fmt: skip
        assert fingerprint(other) not in seen
