"""Namespaces of their own for one program: what it sees of files is the standard library, read-only, and an empty /tmp.

`enter` runs in a process that is about to fork the program's first process, `drop` in that first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sysconfig

from . import seccomp

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_OTHERS = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_REC, _PRIVATE = 16384, 1 << 18
# Flags of a mount that a less privileged remount must keep: (of statvfs, of mount).
_KEPT = ((2, _NOSUID), (4, _NODEV), (8, _NOEXEC), (1024, 1024), (2048, 2048), (4096, 1 << 21))
_DETACH = 2
_SET_DUMPABLE = 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION = 0x20080522
INSIDE = 1000  # the program's user and group as it sees them
DEVICES = ("null", "zero", "urandom", "random")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")

_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    try:
        _call(
            "mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags),
            data and data.encode(),
        )  # fmt: skip
    except OSError as error:
        raise OSError(error.errno, f"mount {source} on {target}: {os.strerror(error.errno or 0)}") from None


def library_folders() -> tuple[list[str], list[str]]:
    """Folders that a program may read, and those among them that hold installed packages, which it may not."""
    paths = sysconfig.get_paths()
    wanted = {os.path.realpath(paths[n]) for n in ("stdlib", "platstdlib")}
    shown = sorted(wanted | {p for p in LIBRARIES if os.path.isdir(p)})
    hidden = [f"{s}/{name}" for s in sorted(wanted) for name in ("site-packages", "dist-packages")]
    hidden += ["/usr/lib/python3/dist-packages"]
    return shown, [h for h in hidden if os.path.isdir(h)]


def _write(path: str, text: str, proc: int) -> None:
    file = os.open(path, os.O_WRONLY, dir_fd=proc)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _map_user(uid: int, gid: int, proc: int) -> None:
    """Maps `INSIDE` of this process's new user namespace to the user and group outside."""
    _write("self/setgroups", "deny", proc)
    _write("self/uid_map", f"{INSIDE} {uid} 1", proc)
    _write("self/gid_map", f"{INSIDE} {gid} 1", proc)


def _read_only(target: str) -> None:
    now = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in _KEPT if now & bit)
    _mount("none", target, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | kept)


def _build_root(tmp_bytes: int) -> None:
    """Replaces the root of this mount namespace."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    os.chdir("/tmp")
    os.mkdir("old")
    if _LIBC.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"old") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root failed")
    os.chdir("/")
    shown, hidden = library_folders_cached()
    for folder in shown:
        if os.path.islink(f"/old{folder}"):
            os.symlink(os.readlink(f"/old{folder}"), folder)
        elif not os.path.isdir(folder):
            os.makedirs(folder)
            _mount(f"/old{folder}", folder, None, _BIND | _REC)
    for folder in hidden:
        _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV | _RDONLY, "size=4k")
    for folder in shown:
        if not os.path.islink(folder) and os.path.ismount(folder):
            _read_only(folder)
    os.mkdir("/dev")
    for name in DEVICES:
        if os.path.exists(f"/old/dev/{name}"):
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
            _mount(f"/old/dev/{name}", f"/dev/{name}", None, _BIND)
    os.mkdir("/tmp")
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={tmp_bytes},nr_inodes=512")
    _call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _read_only("/")
    os.chdir("/tmp")


_folders: tuple[list[str], list[str]] | None = None


def library_folders_cached() -> tuple[list[str], list[str]]:
    """`library_folders`, looked up once; must first be called before the root is replaced."""
    global _folders
    if _folders is None:
        _folders = library_folders()
    return _folders


class Entered:
    """What `enter` leaves for `drop`."""

    def __init__(self, proc: int, user: bool) -> None:
        self.proc, self.user = proc, user


def enter(tmp_bytes: int) -> Entered:
    """New mount, network, pid, ipc, uts and cgroup namespaces, and a user namespace unless this is a real root.

    The calling process stays out of the new pid namespace, in which its next child is the first process; when that one
    ends the kernel ends all. Raises OSError where the kernel does not allow it.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    user = False
    try:
        if os.geteuid() != 0:
            raise PermissionError
        _call("unshare", _OTHERS)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        _call("unshare", _OTHERS | _NEWUSER)
        _map_user(uid, gid, proc)
        user = True
    _build_root(tmp_bytes)
    return Entered(proc, user)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop(entered: Entered, outside: int) -> None:
    """Gives up every right, in the first process of the namespaces. `outside`: the user that a root becomes."""
    if not entered.user:
        os.setgroups([])
        os.setresgid(outside, outside, outside)
        os.setresuid(outside, outside, outside)
        seccomp.prctl(_SET_DUMPABLE, 1)
        with contextlib.suppress(OSError):  # without it the program is another user all the same
            _call("unshare", _NEWUSER)
            _map_user(outside, outside, entered.proc)
    os.close(entered.proc)
    header, nothing = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(nothing))
    seccomp.no_new_privileges()
    seccomp.prctl(_SET_DUMPABLE, 0)


def drop_user(outside: int) -> None:
    """Where there are no namespaces: a root becomes user `outside`."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(outside, outside, outside)
        os.setresuid(outside, outside, outside)
    seccomp.no_new_privileges()
