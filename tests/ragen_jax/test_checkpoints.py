"""Which checkpoints stay."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import optax
import pytest

from ragen_jax.rl import TrainState
from ragen_jax.training.checkpoints import Checkpoints, HostState, RunState

SUCCESS = [0.1, 0.5, None, 0.7, 0.5, 0.2, 0.3]


def state(step: int) -> RunState:
    trainable = {"policy": jnp.full(4, step, jnp.float32)}
    return RunState(TrainState(trainable, optax.sgd(1.0).init(trainable), jnp.int32(step), jnp.int32(0)), {})


@pytest.mark.parametrize(("newest", "best", "kept"), [(1, 2, [3, 4, 6]), (2, 1, [3, 5, 6]), (2, 0, [5, 6])])
def test_the_newest_and_the_best_stay(tmp_path: Path, newest: int, best: int, kept: list[int]) -> None:
    """0.7 is the best and 0.5 the next, of whose two steps the later one counts; resuming is from the newest."""
    checkpoints = Checkpoints(tmp_path, newest, best)
    for step, success in enumerate(SUCCESS):
        assert checkpoints.save(state(step), HostState(step=step), success) is None
        assert checkpoints.wait() is None
    checkpoints.close()
    found = Checkpoints(tmp_path, read_only=True)
    assert [s for s in range(9) if (tmp_path / "checkpoints" / str(s)).exists()] == kept
    assert found.latest() == 6
    restored, host = found.restore(state(0), kept[0])
    assert host.step == kept[0]
    assert restored.train.trainable["policy"][0] == kept[0]
    found.close()


def test_an_evaluation_improves_on_those_before_it() -> None:
    host = HostState()
    assert [host.improves(s) for s in SUCCESS] == [True, True, False, True, False, False, False]
    assert HostState(**host.plain()).best_success == 0.7
