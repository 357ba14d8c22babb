"""Several processes, one a host: starting together, agreeing, writing from the first alone.

Every process runs the same program on the same inputs; a collective must be entered by all. What is decided on the
host is decided from values that are the same everywhere, or by `anyone`, `gathered` and `on_first`, which all must
call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the coordination service; JAX has no public way to it
from jax.experimental import multihost_utils

from envs_jax.errors import ConfigError
from ragen_jax.parallel.rules import Placement

HEARTBEAT_SECONDS = 30
"""How long a process may be silent before the others take it for dead."""
_MESSAGE_BYTES = 2048


def start(
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
    timeout: int = 300,
) -> None:
    """Joins the other processes. Must come before anything else that uses JAX's devices.

    With no argument JAX finds the others by itself: on Cloud TPU from the metadata, under SLURM, Open MPI and
    Kubernetes from the environment. Otherwise give all three: `coordinator` is process 0's "host:port".

    Raises ConfigError when only some are given, when no cluster is recognised, or when the others do not come.
    """
    given = (coordinator, processes, process)
    if any(g is not None for g in given) and not all(g is not None for g in given):
        raise ConfigError(
            "--distributed", given, "give --coordinator, --processes and --process together, or none"
        )
    if processes is not None and not (processes >= 1 and 0 <= (process or 0) < processes):
        raise ConfigError("--process", process, f"it must lie in 0 .. {processes - 1}")
    where = "the cluster" if coordinator is None else f"{processes} processes at {coordinator}"
    say(f"Waiting for {where}: every host must run this same command.")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, initialization_timeout=timeout,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise ConfigError(
            "--distributed", coordinator or "cluster",
            f"the processes did not come together ({words}); start the command on every host, or give --coordinator "
            "HOST:PORT --processes N --process I",
        ) from error  # fmt: skip
    say(
        f"Process {jax.process_index()} of {jax.process_count()}, {jax.local_device_count()} of "
        f"{jax.device_count()} devices."
    )


def is_first() -> bool:
    """Whether this process writes files and speaks."""
    return jax.process_index() == 0


def several() -> bool:
    return jax.process_count() > 1


def anyone(flag: bool) -> bool:
    """Whether any process has the flag. All must call."""
    return bool(multihost_utils.process_allgather(np.array([flag])).any()) if several() else flag


def gathered(text: str) -> list[str]:
    """What each process has to say, cut to 2,048 bytes, by process. All must call."""
    if not several():
        return [text]
    said = text.encode()[:_MESSAGE_BYTES]
    message = np.zeros(_MESSAGE_BYTES, np.uint8)
    message[: len(said)] = np.frombuffer(said, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(message))
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def on_first(action: Callable[[], Any]) -> None:
    """Runs `action` in the first process while the others wait; its ValueError or OSError is raised in all."""
    failure: Exception | None = None
    if is_first():
        try:
            action()
        except (ValueError, OSError) as error:
            failure = error
    words = gathered("" if failure is None else str(failure) or type(failure).__name__)[0]
    if failure is not None:
        raise failure
    if words:
        raise ValueError(words)


class OthersFailed(RuntimeError):
    """What this process did needed all others, and one of them could not do its part."""


class Barrier:
    """Where threads of all processes wait for each other, beside the programs' collectives.

    All come by the same names in the same order, but a process that failed may leave names out. Where not all have come
    by the same one, it raises OthersFailed for names that contain `needs_all`, and waits for those processes at others.
    """

    def __init__(self, needs_all: str) -> None:
        self._needs_all, self._number = needs_all, 0

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits at the name `key`. Raises JaxRuntimeError when a process is gone or does not come in time."""
        client: Any = distributed.global_state.client
        while True:
            self._number += 1
            place = f"ragen_jax/{self._needs_all}/{self._number}"
            client.key_value_set(f"{place}/{jax.process_index()}", key)
            client.wait_at_barrier(place, timeout_ms)
            names = {path.rsplit("/", 1)[1]: name for path, name in client.key_value_dir_get(f"{place}/")}
            if is_first() and self._number > 1:  # whose names all have read, or they were not here
                client.key_value_delete(f"ragen_jax/{self._needs_all}/{self._number - 1}/")
            if len(set(names.values())) == 1:
                return
            if self._needs_all in key:
                left = sorted(process for process, name in names.items() if name != key)
                raise OthersFailed(f"process {', '.join(left)} failed")
            if not any(self._needs_all in name for name in names.values()):
                raise RuntimeError(f"the processes are at different places: {names}")


def check_same(sections: Mapping[str, str]) -> None:
    """Raises ConfigError, in every process, naming the sections whose text is not the same in all."""
    if not several():
        return
    digests = np.stack(
        [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in sections.values()]
    )
    everywhere = np.asarray(multihost_utils.process_allgather(digests))  # [processes, sections, 32]
    same = (everywhere == everywhere[0]).all(axis=2)
    if same.all():
        return
    names = [name for name, ok in zip(sections, same.all(axis=0), strict=True) if not ok]
    odd = np.flatnonzero(~same.all(axis=1)).tolist()
    raise ConfigError(
        ", ".join(names), f"differs in process {', '.join(map(str, odd))}",
        "every process needs the same configuration as process 0: give all the same file and options",
    )  # fmt: skip


def everywhere(tree: Any, placement: Placement | None) -> Any:
    """Host or local arrays, the same in every process, as arrays of the whole mesh, whole on every device.

    With one process they are left as they are, as `jit` then does it by itself.
    """
    if placement is None or not several():
        return tree
    sharding = placement.sharding()

    def put(x: Any) -> Any:
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return x
        if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        value = np.asarray(x)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(put, tree)


def here(tree: Any) -> Any:
    """Arrays that are whole on every device, as this process's own, to compute with alone.

    With one process they are left as they are.
    """
    if not several():
        return tree

    def own(x: Any) -> Any:
        if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(own(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        return jax.numpy.asarray(np.asarray(x))

    return jax.tree.map(own, tree)
