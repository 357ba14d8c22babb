"""The first process of a sandbox: runs a program's tests one after another, each in a process of its own.

Messages to the caller: b"R" when everything is in place and the first test is about to run, or b"F" and the reason why
it is not; then a frame with one result for each test. The expected outputs are not here: the caller compares.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, NoReturn

from . import seccomp, values

RESULT = 3  # descriptor on which a test's process says what it returned, or what went wrong
CHUNK = 1 << 16
_PDEATHSIG = 1
# What solutions to interview questions take for granted.
ASSUMED = ("math", "string", "collections", "heapq", "bisect", "itertools", "functools", "typing")


def write_frame(channel: socket.socket, payload: bytes) -> None:
    channel.sendall(struct.pack("<I", len(payload)) + payload)


def read_exactly(channel: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_frame(channel: socket.socket) -> bytes:
    return read_exactly(channel, struct.unpack("<I", read_exactly(channel, 4))[0])


def serve(channel: socket.socket, job: dict[str, Any]) -> None:
    """Runs the tests of `job` and sends their results. The caller ends this process when it takes too long."""
    seccomp.prctl(_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    limits = job["limits"]
    null = os.open("/dev/null", os.O_RDWR)
    deadline = time.monotonic() + limits["total_seconds"]
    channel.sendall(b"R")
    results: list[dict[str, str]] = []
    for test in job["tests"]:
        left = deadline - time.monotonic()
        if left <= 0 or (results and results[-1]["status"] == "timeout"):
            results.append({"status": "skipped", "text": ""})
            continue
        results.append(_run(job, test, null, min(left, limits["test_seconds"])))
    write_frame(channel, json.dumps(results).encode())


# -- one test --------------------------------------------------------------------------------------------
def _input_file(text: str) -> int:
    """A file in memory that holds the test's input, at its beginning."""
    file = os.memfd_create("input")
    data = memoryview(text.encode())
    while data:
        data = data[os.write(file, data) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _run(job: dict[str, Any], test: dict[str, Any], null: int, seconds: float) -> dict[str, str]:
    limits = job["limits"]
    calls = test["kind"] == "call"
    stdin = null if calls else _input_file(test["input"])
    out_read, out_write = os.pipe()
    result_read, result_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_test(job, test, stdin, null if calls else out_write, null, result_write)
    os.close(out_write)
    os.close(result_write)
    if not calls:
        os.close(stdin)
    try:
        verdict, said = _watch(pid, {out_read: bytearray(), result_read: bytearray()}, seconds, limits)
    finally:
        os.close(out_read)
        os.close(result_read)
    status = _end(pid)
    out, result = (said[fd].decode("utf-8", "replace") for fd in (out_read, result_read))
    if verdict:
        return {"status": verdict, "text": ""}
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) == signal.SIGXCPU
        name = signal.Signals(os.WTERMSIG(status)).name
        return {"status": "timeout" if slow else "killed", "text": "" if slow else name}
    if os.WEXITSTATUS(status) == 0:
        return {"status": "ok", "text": result if calls else out}
    error = result[: values.REPR_LIMIT] or f"exit code {os.WEXITSTATUS(status)}"
    return {"status": "memory" if error.startswith("MemoryError") else "error", "text": error}


def _watch(
    pid: int, said: dict[int, bytearray], seconds: float, limits: dict[str, Any]
) -> tuple[str, dict[int, bytearray]]:
    """Reads what the process says until it ends; the reason to end it, or ""."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for fd in said:
        poll.register(fd, select.POLLIN)
    ended = os.pidfd_open(pid)
    poll.register(ended, select.POLLIN)
    alive = True
    try:
        while alive:
            left = deadline - time.monotonic()
            ready = poll.poll(left * 1000) if left > 0 else []
            if not ready:
                return "timeout", said
            alive = all(fd != ended for fd, _ in ready)
            # Once the process has ended, all that it left in the pipes is read.
            for fd, event in ready if alive else [(fd, 0) for fd in said]:
                if alive and not event & select.POLLIN:  # its end was closed
                    poll.unregister(fd)
                elif not _read(fd, said[fd], limits["output_bytes"]):
                    return "output", said
        return "", said
    finally:
        os.close(ended)


def _read(fd: int, said: bytearray, most: int) -> bool:
    """Appends what can be read without waiting; False if that is more than `most` bytes in all."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while any(event & select.POLLIN for _, event in poll.poll(0)):
        chunk = os.read(fd, CHUNK)
        if not chunk:
            break
        said += chunk
        if len(said) > most:
            return False
    return True


def _end(pid: int) -> int:
    """Ends the process and everything that it started; its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass
    return status


# -- in the test's own process ---------------------------------------------------------------------------
def _become_test(
    job: dict[str, Any], test: dict[str, Any], stdin: int, stdout: int, stderr: int, result: int
) -> NoReturn:
    """Everything between the fork and the exit; never returns, whatever the program does."""
    code = 1
    try:
        os.setsid()
        seccomp.prctl(_PDEATHSIG, signal.SIGKILL)
        kept = [os.dup2(fd, 64 + i) for i, fd in enumerate((stdin, stdout, stderr, result))]
        for target, fd in enumerate(kept):
            os.dup2(fd, target)
        os.closerange(RESULT + 1, 65536)
        _streams()
        _limit(job["limits"])
        if job["filter"]:
            seccomp.install()
        gc.freeze()
        code = _program(job, test)
    except BaseException as error:
        _say_error(error)
    finally:
        os._exit(code)


def _streams() -> None:
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
        buffer = io.BufferedWriter(raw) if fd else io.BufferedReader(raw)
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors="replace")
        for attribute in (name, f"__{name}__"):
            setattr(sys, attribute, stream)


def _limit(limits: dict[str, Any]) -> None:
    def cap(kind: int, soft: int, hard: int | None = None) -> None:
        ceiling = resource.getrlimit(kind)[1]
        hard = soft if hard is None else hard
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))

    cpu = int(limits["cpu_seconds"])
    cap(resource.RLIMIT_CPU, cpu, cpu + 1)
    cap(resource.RLIMIT_AS, limits["memory_bytes"])
    cap(resource.RLIMIT_FSIZE, limits["file_bytes"])
    cap(resource.RLIMIT_NOFILE, limits["open_files"])
    if limits["processes"]:
        cap(resource.RLIMIT_NPROC, limits["processes"])
    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_MEMLOCK, 0)


def _say_error(error: BaseException) -> None:
    with contextlib.suppress(BaseException):
        text = f"{type(error).__name__}: {error}"
        os.write(RESULT, text[: values.REPR_LIMIT].encode("utf-8", "replace"))


def _program(job: dict[str, Any], test: dict[str, Any]) -> int:
    """Runs the program in this process; 0 if it did not fail."""
    random.seed(0)  # the same draws in every test: a fork would seed anew
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    code = compile(job["code"], "<program>", "exec", dont_inherit=True)
    if test["kind"] == "stdin":
        with contextlib.suppress(SystemExit):
            exec(code, space)
        # What the interpreter does at its end: other threads finish, then buffers are written.
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        return 0
    space["__name__"] = "solution"
    for module in ASSUMED:
        given: dict[str, Any] = {}
        exec(f"import {module}; from {module} import *", given)
        space.update((n, v) for n, v in given.items() if not hasattr(builtins, n) and not n.startswith("_"))
    exec(code, space)
    owner = space.get("Solution")
    function = getattr(owner(), test["name"], None) if isinstance(owner, type) else None
    function = function or space.get(test["name"])
    if function is None:
        raise NameError(f"no function {test['name']}")
    text = values.dumps(function(*values.loads(test["arguments"]))).encode()
    while text:
        text = text[os.write(RESULT, text) :]
    return 0


# -- where this process does not inherit its job but is executed --------------------------------------------
def from_descriptors(channel_fd: int, job_fd: int) -> NoReturn:
    """The whole life of a sandbox that another program (bwrap) has set up around a new interpreter."""
    code = 1
    try:
        with open(job_fd, "rb") as file:
            job = json.load(file)
        prepare()
        serve(socket.socket(fileno=channel_fd), job)
        code = 0
    finally:
        os._exit(code)


def prepare() -> None:
    """Loads what programs most often import, once for all of them, and adds what `site` would have."""
    import array  # noqa: F401
    import bisect  # noqa: F401
    import collections  # noqa: F401
    import copy  # noqa: F401
    import dataclasses  # noqa: F401
    import datetime  # noqa: F401
    import decimal  # noqa: F401
    import encodings.idna  # noqa: F401
    import fractions  # noqa: F401
    import functools  # noqa: F401
    import heapq  # noqa: F401
    import itertools  # noqa: F401
    import math  # noqa: F401
    import operator  # noqa: F401
    import queue  # noqa: F401
    import re  # noqa: F401
    import statistics  # noqa: F401
    import string  # noqa: F401
    import typing  # noqa: F401

    def leave(code: object = None) -> NoReturn:
        raise SystemExit(code)

    builtins.exit = builtins.quit = leave  # type: ignore[assignment]
