"""The caller's side of the sandbox: starts the zygote, hands out programs, collects what they said.

    pool = pool_for(Limits(), "auto")
    pool.description                            # which walls are in force
    pool.run([Job(code, (StdinTest("1 2\\n"), CallTest("add", (1, 2))))])

Expected outputs never leave the caller's process.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.sandbox import jail, seccomp, values, zygote

BACKENDS = ("namespaces", "bwrap", "rlimit")
ATTEMPTS = 3  # at a sandbox that fails by itself, as when the kernel has no room for the moment
SLACK = 30.0  # seconds beyond its own time after which a sandbox counts as failed
_USERS = 1_900_000_000  # first of the users that a root's programs run as; nobody else has these
_MEGABYTE = 1 << 20


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the program."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        test_seconds: wall clock of a test. After a test that took longer the rest are not run.
        total_seconds: wall clock of all tests of a program together.
        cpu_seconds: processor time of a test, in whole seconds.
        memory_bytes: address space of a test's process.
        output_bytes: what a test may print or return.
        file_bytes: largest file, and all files together where there is a mount namespace.
        processes: threads at once, where the kernel counts them for each sandbox.
        open_files: descriptors at once.
    """

    test_seconds: float = 3.0
    total_seconds: float = 6.0
    cpu_seconds: int = 2
    memory_bytes: int = 512 * _MEGABYTE
    output_bytes: int = 1 * _MEGABYTE
    file_bytes: int = 16 * _MEGABYTE
    processes: int = 16
    open_files: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(field.name, getattr(self, field.name), "use a number above zero")


@dataclass(frozen=True)
class StdinTest:
    """Input of a whole program."""

    text: str


@dataclass(frozen=True)
class CallTest:
    """Arguments of the program's function `name` (or of that method of its class Solution)."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """A program and its tests' inputs."""

    code: str
    tests: tuple[StdinTest | CallTest, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    `status`: ok, error, memory, timeout, output (too much of it), killed (by a signal) or skipped (no time left).
    `text`: with ok, what was printed or the value returned (see `values.loads`); else a reason, if there is one.
    """

    status: str
    text: str


_LOST = Outcome("killed", "the sandbox ended before the program did")


def _message(job: Job) -> list[dict[str, Any]]:
    return [
        {"kind": "stdin", "input": t.text}
        if isinstance(t, StdinTest)
        else {"kind": "call", "name": t.name, "arguments": values.dumps(list(t.arguments))}
        for t in job.tests
    ]


@dataclass
class _Running:
    """A job in flight."""

    index: int
    slot: int
    deadline: float
    attempt: int
    said: bytearray = dataclasses.field(default_factory=bytearray)


class Pool:
    """One zygote and up to `workers` programs at once. `run` may be called from any thread, one call at a time."""

    def __init__(self, limits: Limits, backend: str, workers: int) -> None:
        self.limits, self.backend, self.workers = limits, backend, workers
        self.filter = seccomp.supported()
        self.user = False  # whether programs have a user namespace; `check` finds out
        self.library = True  # whether programs can read the standard library; `check` finds out
        self._lock = threading.Lock()
        self._bwrap = shutil.which("bwrap")
        if backend == "bwrap" and self._bwrap is None:
            raise SandboxError("the program bwrap (package bubblewrap) is not on the path")
        self._control: socket.socket | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def description(self) -> str:
        """One sentence for people: which walls are in force."""
        walls = {
            "namespaces": f"{'user, ' if self.user else ''}mount, network, pid and ipc namespaces",
            "bwrap": "bubblewrap's namespaces",
            "rlimit": "NO namespaces: programs can read this machine's files",
        }[self.backend]
        filtered = "a system-call filter" if self.filter else "NO system-call filter"
        library = (
            ""
            if self.library
            else "; the standard library is closed to the programs' user: few modules import"
        )
        return f"sandbox {self.backend}: {walls}; {filtered}; resource limits{library}"

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = str(Path(__file__).resolve().parents[1])
        start = f"import sys; sys.path.insert(0, {folder!r}); from sandbox import zygote; del sys.path[0]"
        start += "; zygote.main()"
        # -P, -s and a bare environment are -I, except that the hash seed can be fixed: sets have one order then.
        command = [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", start]
        self._zygote = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=zygote.CLEAR_ENVIRONMENT, cwd="/",
            start_new_session=True, close_fds=True,
        )  # fmt: skip
        theirs.close()
        self._control = ours

    def close(self) -> None:
        """Ends the zygote and every sandbox."""
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._zygote.wait(1)
            self._zygote.kill()
            self._zygote.wait()

    def run(self, jobs: Sequence[Job]) -> list[list[Outcome]]:
        """Outcomes of every job's tests, in order. Raises SandboxError if a sandbox cannot be made or is lost."""
        with self._lock:
            return self._run(jobs)

    def _run(self, jobs: Sequence[Job]) -> list[list[Outcome]]:
        found: list[list[Outcome]] = [[] for _ in jobs]
        waiting = deque((i, 1) for i, job in enumerate(jobs) if job.tests)
        slots = list(range(self.workers))
        running: dict[socket.socket, _Running] = {}
        selector = selectors.DefaultSelector()
        try:
            while waiting or running:
                while waiting and slots:
                    index, attempt = waiting.popleft()
                    slot = slots.pop()
                    channel = self._send(jobs[index], slot)
                    deadline = time.monotonic() + self.limits.total_seconds + zygote.GRACE + SLACK
                    running[channel] = _Running(index, slot, deadline, attempt)
                    selector.register(channel, selectors.EVENT_READ)
                first = min(r.deadline for r in running.values())
                for key, _ in selector.select(max(0.0, first - time.monotonic())):
                    channel = key.fileobj  # type: ignore[assignment]
                    state = running[channel]
                    try:
                        chunk = channel.recv(1 << 20)
                    except ConnectionResetError:  # it ended before it had read its job
                        chunk = b""
                    state.said += chunk
                    if chunk:
                        continue
                    selector.unregister(channel)
                    channel.close()
                    del running[channel]
                    slots.append(state.slot)
                    self._finish(state, jobs, found, waiting)
                now = time.monotonic()
                for channel, state in [(c, r) for c, r in running.items() if r.deadline < now]:
                    selector.unregister(channel)
                    channel.close()  # its supervisor ends it
                    del running[channel]
                    slots.append(state.slot)
                    self._again(state, waiting, "it did not end in its time")
        finally:
            selector.close()
            for channel in running:
                channel.close()
        return found

    def _send(self, job: Job, slot: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        payload = {
            "backend": self.backend, "bwrap": self._bwrap, "filter": self.filter, "user": _USERS + slot,
            "limits": dataclasses.asdict(self.limits) | self._processes(), "code": job.code, "tests": _message(job),
        }  # fmt: skip
        data = json.dumps(payload).encode()
        try:
            assert self._control is not None
            try:
                socket.send_fds(self._control, [b"J"], [theirs.fileno()])
            except OSError as error:
                raise SandboxError(f"the sandbox's process has gone ({error.strerror})") from error
            theirs.close()
            ours.settimeout(10)
            ours.sendall(struct.pack("<I", len(data)) + data)
            ours.settimeout(None)
        except OSError as error:
            ours.close()
            raise SandboxError(f"a program could not be handed over ({error})") from error
        return ours

    def _processes(self) -> dict[str, int]:
        """The kernel counts a user's threads on the whole machine where there is no user namespace."""
        if self.backend == "rlimit" and os.geteuid() != 0:
            return {"processes": 0 if self.filter else self.limits.processes + _threads_of_user()}
        return {}

    def _finish(
        self,
        state: _Running,
        jobs: Sequence[Job],
        found: list[list[Outcome]],
        waiting: deque[tuple[int, int]],
    ) -> None:
        said, count = bytes(state.said), len(jobs[state.index].tests)
        if said[:1] == b"R":
            body = said[5:]
            whole = len(said) >= 5 and len(body) == struct.unpack("<I", said[1:5])[0]
            results = json.loads(body) if whole else []
            if not whole and self._zygote is not None and self._zygote.poll() is not None:
                raise SandboxError("the sandbox's process has gone")
            outcomes = [Outcome(r["status"], r["text"]) for r in results]
            found[state.index] = outcomes + [_LOST] * (count - len(outcomes))
            return
        failed = said[:1] == b"F"
        self._again(
            state, waiting, said[5:].decode("utf-8", "replace") if failed else "it ended before it began"
        )

    def _again(self, state: _Running, waiting: deque[tuple[int, int]], reason: str) -> None:
        """Puts a job whose sandbox failed back into the queue. Raises SandboxError after the last attempt."""
        if state.attempt >= ATTEMPTS:
            raise SandboxError(f"a sandbox ({self.backend}) failed: {reason}")
        time.sleep(0.05 * state.attempt)
        waiting.append((state.index, state.attempt + 1))


def _threads_of_user() -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count


# -- choosing ------------------------------------------------------------------------------------------------
_NO_LIBRARY = "not import"

# A program that tries what it must not be able to do; it returns what it managed.
_PROBE = """
def probe(secret):
    import os, socket
    done = []
    def attempt(name, action):
        try:
            action()
        except Exception:
            pass
        else:
            done.append(name)
    attempt("read a file outside", lambda: open(secret).read())
    attempt("write beside the standard library", lambda: open(os.path.dirname(os.__file__) + "/probe", "w"))
    attempt("open a connection", lambda: socket.create_connection(("127.0.0.1", 9), 0.1))
    if os.path.exists("/proc/1") or os.getpid() > 1000:
        done.append("see other processes")
    try:
        import colorsys
    except ImportError:
        done.append(NO_LIBRARY)
    return done, os.getuid()
""".replace("NO_LIBRARY", repr(_NO_LIBRARY))


def check(pool: Pool) -> None:
    """Raises SandboxError unless a program runs in `pool` and, with namespaces, cannot get out of it."""
    outcome = pool.run([Job(_PROBE, (CallTest("probe", (str(Path(__file__).resolve()),)),))])[0][0]
    if outcome.status != "ok":
        raise SandboxError(f"a harmless program failed: {outcome.status} {outcome.text}")
    managed, user = values.loads(outcome.text)
    pool.user = user == jail.INSIDE
    pool.library = _NO_LIBRARY not in managed
    if pool.backend != "rlimit" and (managed or not pool.library):
        raise SandboxError(f"a program could {', '.join(managed)}")


@functools.lru_cache(maxsize=8)
def pool_for(limits: Limits, sandbox: str, workers: int = 0) -> Pool:
    """A checked pool, one for equal arguments in this process; it says on stderr which walls are in force.

    Args:
        limits: of each program.
        sandbox: namespaces, bwrap, rlimit, or auto: the first of the first two that works here.
        workers: programs at once; 0: as many as this process may use processors.

    Raises:
        ConfigError: when what is asked for does not work on this machine. "auto" never falls back to rlimit, which
            is no sandbox: that has to be asked for by name.
    """
    if sandbox not in ("auto", *BACKENDS):
        raise ConfigError("sandbox", sandbox, f"use one of auto, {', '.join(BACKENDS)}")
    if workers < 0:
        raise ConfigError("workers", workers, "use a number of at least 1, or 0 for one a processor")
    if sys.platform != "linux":
        raise ConfigError("sandbox", sandbox, f"programs can be run on Linux, not on {sys.platform}")
    workers = workers or len(os.sched_getaffinity(0))
    failures = []
    for backend in BACKENDS[:2] if sandbox == "auto" else (sandbox,):
        pool = None
        try:
            pool = Pool(limits, backend, workers)
            check(pool)
        except SandboxError as error:
            failures.append(f"{backend}: {error}")
            if pool is not None:
                pool.close()
            continue
        atexit.register(pool.close)
        print(f"DeepCoder: {pool.description}", file=sys.stderr)
        return pool
    raise ConfigError(
        "sandbox", sandbox,
        f"programs cannot be contained here ({'; '.join(failures)}). Install bubblewrap, allow user namespaces, or, "
        'on a machine with nothing to lose, set sandbox = "rlimit" to run them with resource limits alone',
    )  # fmt: skip
