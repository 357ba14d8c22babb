"""A filter of system calls: threads but no processes, no sockets, no way to touch another process.

It is the second wall behind the namespaces, and where there are none nearly the only one. Linux on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments have 8 bytes each
_CLONE_THREAD = 0x10000
_X32 = 0x40000000

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of (x86-64, arm64); -1 where an architecture has no such call. From 424 on they are the same.
_DENIED = {
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "personality": (135, 92), "ioperm": (173, -1), "iopl": (172, -1),
    "modify_ldt": (154, -1), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "setpriority": (141, 140), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239), "fanotify_init": (300, 262),
}  # fmt: skip
_OWN_PROCESS = {"kill": (62, 129), "tgkill": (234, 131)}  # first argument must be the process itself
_OWN_OR_ZERO = {"prlimit64": (302, 261)}
_CLONE, _CLONE3 = (56, 220), 435

Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether this architecture is known."""
    return sys.platform == "linux" and sys.byteorder == "little" and os.uname().machine in _AUDIT_ARCH


def _guarded(number: int, argument: int, tests: list[Instruction]) -> list[Instruction]:
    """Allows call `number` if one of `tests` on its argument holds, else refuses it."""
    load = (_LOAD, 0, 0, _ARGUMENT + 8 * argument)
    last = len(tests) - 1
    checks = [(code, last - i, 0 if i < last else 1, k) for i, (code, _, _, k) in enumerate(tests)]
    block = [load, *checks, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return [(_EQUAL, 0, len(block), number), *block]


def program(machine: str, pid: int) -> bytes:
    """The filter for process `pid` (as it sees itself) on `machine`, as an array of struct sock_filter."""
    column = list(_AUDIT_ARCH).index(machine)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    code += _guarded(_CLONE[column], 0, [(_HAS_BITS, 0, 0, _CLONE_THREAD)])
    for numbers in _OWN_PROCESS.values():
        code += _guarded(numbers[column], 0, [(_EQUAL, 0, 0, pid)])
    for numbers in _OWN_OR_ZERO.values():
        code += _guarded(numbers[column], 0, [(_EQUAL, 0, 0, 0), (_EQUAL, 0, 0, pid)])
    # The C library falls back to clone, whose flags can be seen.
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    denied = sorted(n[column] for n in _DENIED.values() if n[column] >= 0)
    checks: list[tuple[int, int]] = [(_EQUAL, n) for n in denied]
    if machine == "x86_64":
        checks.insert(0, (_AT_LEAST, _X32))
    for index, (test, number) in enumerate(checks):
        code.append((test, len(checks) - index, 0, number))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> None:
    """prctl(2). Raises OSError."""
    values = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    if _LIBC.prctl(ctypes.c_int(option), *values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def no_new_privileges() -> None:
    """From here on no program that is executed gains rights."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install() -> None:
    """Puts the filter on this thread and everything that it starts, for good. Raises OSError."""
    code = program(os.uname().machine, os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    description = _Filter(len(code) // 8, ctypes.addressof(buffer))
    no_new_privileges()
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(description))
