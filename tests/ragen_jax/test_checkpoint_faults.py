"""Checkpoints against kills at any moment and against a full disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from child import together

pytestmark = pytest.mark.slow

# One process that forks before JAX starts any thread: each child saves step after step until it is killed.
SAVER = """
import os, signal, sys, time
from contextlib import suppress
from pathlib import Path
import jax
import jax.numpy as jnp
import orbax.checkpoint
import optax
from ragen_jax.rl import TrainState
from ragen_jax.training.checkpoints import Checkpoints, HostState, RunState

folder, delays = Path(sys.argv[1]), [float(x) for x in sys.argv[2:]]

def state(step):
    trainable = {"policy": {"layers": {"q": jnp.full((64, 512), step, jnp.float32)}}}
    return RunState(TrainState(trainable, optax.adam(1e-3).init(trainable), jnp.int32(step), jnp.int32(0)), {})

def save_on():
    checkpoints = Checkpoints(folder, keep=2)
    newest = checkpoints.latest()
    if newest is None:
        step = 0
    else:
        restored, host = checkpoints.restore(state(0))
        assert host.step == newest and int(restored.train.updates) == newest
        assert (restored.train.trainable["policy"]["layers"]["q"] == newest).all()
        step = newest
    (folder / "begun").write_text(str(newest if newest is not None else -1))
    while True:
        step += 1
        assert checkpoints.save(state(step), HostState(step=step)) is None
        checkpoints.wait()
        (folder / "done.part").write_text(str(step))
        os.replace(folder / "done.part", folder / "done")

found = -1
for delay in delays:
    (folder / "begun").unlink(missing_ok=True)
    done = int((folder / "done").read_text()) if (folder / "done").exists() else -1
    done = max(done, found)  # a saver may die between a step and its word
    child = os.fork()
    if child == 0:
        try:
            save_on()
        finally:
            os._exit(1)
    try:
        while not (folder / "begun").exists():
            assert os.waitpid(child, os.WNOHANG)[0] == 0, "the saver ended by itself"
            time.sleep(0.01)
        found = int((folder / "begun").read_text())
        assert found in (done, done + 1), (found, done)  # at most the step in flight is lost
        time.sleep(delay)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print("last", (folder / "done").read_text())
"""


def environment() -> dict[str, str]:
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}


def test_twenty_kills_lose_at_most_the_step_in_flight(tmp_path):
    rng = random.Random(0)
    delays = [f"{rng.uniform(0.05, 1.0):.3f}" for _ in range(20)]
    done = subprocess.run(
        [sys.executable, "-c", SAVER, str(tmp_path), *delays], env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 20


FULL = """
import resource, signal, sys
from pathlib import Path
import jax.numpy as jnp
from ragen_jax.rl import TrainState
from ragen_jax.training.checkpoints import Checkpoints, HostState, RunState

def state(step):
    trainable = {"policy": jnp.arange(2**20, dtype=jnp.float32) + step}
    return RunState(TrainState(trainable, (), jnp.int32(step), jnp.int32(0)), {})

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
checkpoints = Checkpoints(Path(sys.argv[1]))
problems = [checkpoints.save(state(1), HostState(step=1)), checkpoints.wait()]
assert problems == [None, None], problems
resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, resource.RLIM_INFINITY))
problems = [checkpoints.save(state(2), HostState(step=2)), checkpoints.wait()]
said = next(p for p in problems if p)
assert "could not be written" in said and "resume from step 1" in said, said
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
problems = [checkpoints.save(state(3), HostState(step=3)), checkpoints.wait()]
assert problems == [None, None], problems
restored, host = checkpoints.restore(state(0))
assert host.step == 3 and restored.train.trainable["policy"][0] == 3
checkpoints.close()
print("went on")
"""


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_next_one_is(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "went on"


# One of two processes, each with half of the weights to write: python -c SHARED FOLDER PORT PROCESS.
SHARED = """
import errno, resource, signal, sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
import jax
import numpy as np
from ragen_jax import parallel
from ragen_jax.rl import TrainState
from ragen_jax.training.checkpoints import Checkpoints, HostState, RunState

folder, process = Path(sys.argv[1]), int(sys.argv[3])
parallel.start(coordinator=f"127.0.0.1:{sys.argv[2]}", processes=2, process=process, timeout=120)
mesh = jax.make_mesh((2,), ("x",))

def placed(x, where):
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, jax.NamedSharding(mesh, where), lambda i: x[i])

def state(step):
    policy = placed(np.arange(2**16, dtype=np.float32) + step, jax.P("x"))
    count = placed(np.int32(step), jax.P())
    return RunState(TrainState({"policy": policy}, (), count, count), {})

@contextmanager
def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def save(step, there=()):
    with full() if process in there else nullcontext():
        return [checkpoints.save(state(step), HostState(step=step)), checkpoints.wait()]

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
checkpoints = Checkpoints(folder, keep=2)
problems = save(1)
assert problems == [None, None], problems
for there in ((0,), (1,), (0, 1)):
    problems = save(2, there)
    said = next(p for p in problems if p)
    print("SAID", there, said)
    assert "resume from step 1" in said, said
    for i in (0, 1):
        assert (f"process {i}: " in said) == (i in there), said
    assert checkpoints.all_steps() == [1]
    names = [p.name for p in (folder / "checkpoints").iterdir()]
    assert names == ["1"], names
    assert checkpoints.wait() is None

mkdir = Path.mkdir
def no_space(path, *args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")
if process == 0:
    Path.mkdir = no_space
problems = [checkpoints.save(state(2), HostState(step=2)), checkpoints.wait()]
Path.mkdir = mkdir
assert "process 0: [Errno 28] No space left" in problems[0] and problems[1] is None, problems

assert save(2) == [None, None]
assert save(3) == [None, None]
assert checkpoints.all_steps() == [2, 3]
restored, host = checkpoints.restore(state(0))
own = restored.train.trainable["policy"].addressable_shards[0]
assert host.step == 3 and (own.data == np.arange(2**16)[own.index] + 3).all()
checkpoints.close()
print("went on", flush=True)
"""


def test_one_process_that_cannot_write_costs_a_checkpoint_and_no_more(tmp_path):
    """Every process learns why, the half-written step is gone, and the next one is whole."""
    ended = together(2, "-c", SHARED, str(tmp_path), "PORT", "PROCESS")
    out = [text for _, text in ended]
    assert [code for code, _ in ended] == [0, 0], "\n".join(text[-3000:] for text in out)
    said = [[line for line in text.splitlines() if line.startswith("SAID")] for text in out]
    assert len(said[0]) == 3
    assert said[0] == said[1]
    assert all("went on" in text.splitlines() for text in out)  # what JAX says at its end may follow
