"""The process that programs are forked from: a bare interpreter that never sees a job.

Its standard input is a socket. Each message carries the descriptor of a channel; a fork of the process, fresh as the
first, reads the job from the channel, builds the sandbox, and watches over it. End of file ends the process.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from typing import Any, NoReturn

from . import inner, jail, seccomp

GRACE = 2.0  # seconds that a sandbox may take beyond the time of its tests
CLEAR_ENVIRONMENT = {"PATH": "/nonexistent", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def main() -> NoReturn:
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    jail.library_folders_cached()
    inner.prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _supervise(descriptors[0])
        os.close(descriptors[0])


def _supervise(fd: int) -> NoReturn:
    """Reads a job, runs it, and leaves nothing alive."""
    try:
        seccomp.prctl(1, signal.SIGKILL)  # dies with the zygote
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel = socket.socket(fileno=fd)
        job = json.loads(inner.read_frame(channel))
        try:
            _START[job["backend"]](channel, job)
        except OSError as error:
            channel.sendall(b"F")
            inner.write_frame(channel, str(error).encode())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the caller has gone
    finally:
        os._exit(0)


def _guard(pid: int, channel: socket.socket, job: dict[str, Any]) -> None:
    """Waits for the sandbox's first process, and ends it when its time is up or the caller has gone."""
    deadline = time.monotonic() + job["limits"]["total_seconds"] + GRACE
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(channel, 0)  # only hang-up
    poll.poll(max(0, deadline - time.monotonic()) * 1000)
    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    os.waitpid(pid, 0)


def _namespaces(channel: socket.socket, job: dict[str, Any]) -> None:
    entered = jail.enter(job["limits"]["file_bytes"])
    pid = os.fork()
    if pid == 0:
        try:
            try:
                jail.drop(entered, job["user"])
            except OSError as error:
                channel.sendall(b"F")
                inner.write_frame(channel, str(error).encode())
            else:
                inner.serve(channel, job)
        finally:
            os._exit(0)
    _guard(pid, channel, job)


def _rlimit(channel: socket.socket, job: dict[str, Any]) -> None:
    folder = tempfile.mkdtemp(prefix="program-")
    try:
        if os.geteuid() == 0:
            os.chown(folder, job["user"], job["user"])
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(folder)
                seccomp.prctl(36, 1)  # orphans of the program become this process's children
                jail.drop_user(job["user"])
                inner.serve(channel, job)
            finally:
                os._exit(0)
        _guard(pid, channel, job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bwrap(channel: socket.socket, job: dict[str, Any]) -> None:
    file = os.memfd_create("job")
    with open(os.dup(file), "wb") as writer:
        writer.write(json.dumps(job).encode())
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(file, True)
    channel.set_inheritable(True)
    package = os.path.dirname(os.path.abspath(__file__))
    shown, hidden = jail.library_folders_cached()
    command = [
        job["bwrap"], "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL",
        "--uid", str(jail.INSIDE), "--gid", str(jail.INSIDE), "--hostname", "sandbox", "--clearenv",
    ]  # fmt: skip
    for name, value in CLEAR_ENVIRONMENT.items():
        command += ["--setenv", name, value]
    for folder in shown:
        link = os.path.islink(folder)
        command += ["--symlink", os.readlink(folder), folder] if link else ["--ro-bind", folder, folder]
    interpreter = os.path.realpath(sys.executable)
    command += ["--ro-bind", interpreter, interpreter, "--ro-bind", package, "/judge/sandbox"]
    library = os.path.join(
        sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or ""
    )
    if library.endswith(".so") and os.path.exists(library):
        for path in {library, os.path.realpath(library), f"{library}.1.0"}:
            if os.path.exists(path) and not path.startswith(tuple(shown)):
                command += ["--ro-bind", path, path]
    for folder in hidden:
        command += ["--tmpfs", folder, "--remount-ro", folder]
    command += [
        "--dev",
        "/dev",
        "--size",
        str(job["limits"]["file_bytes"]),
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
    ]
    start = (
        "import sys; sys.path.insert(0, '/judge'); from sandbox import inner; del sys.path[0]; "
        f"inner.from_descriptors({channel.fileno()}, {file})"
    )
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--", interpreter, "-P", "-s", "-S", "-c", start]
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(command[0], command)
        finally:
            os._exit(127)
    _guard(pid, channel, job)


_START = {"namespaces": _namespaces, "rlimit": _rlimit, "bwrap": _bwrap}
