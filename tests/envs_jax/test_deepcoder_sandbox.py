"""Programs that try to get out of the sandbox, and programs that use too much. Bombs bound themselves as well."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs_jax.errors import ConfigError
from envs_jax.tasks.deepcoder.problems import Case, Problem, judge
from envs_jax.tasks.deepcoder.sandbox import pool as pool_module
from envs_jax.tasks.deepcoder.sandbox import seccomp, values
from envs_jax.tasks.deepcoder.sandbox.pool import (
    CallTest,
    Job,
    Limits,
    Outcome,
    Pool,
    SandboxError,
    StdinTest,
    check,
    pool_for,
)

LIMITS = Limits(
    test_seconds=20, total_seconds=40, cpu_seconds=1, memory_bytes=256 << 20, output_bytes=100_000
)
NONE = CallTest("attack", ())
CONTAINED = ("namespaces", "namespaces without filter", "bwrap")


@functools.cache
def started(name: str, limits: Limits = LIMITS) -> Pool | None:
    """A pool of one kind, None where this machine cannot have it."""
    backend, _, unfiltered = name.partition(" ")
    if backend == "bwrap" and shutil.which("bwrap") is None:
        return None
    pool = Pool(limits, backend, 2)
    if unfiltered:
        pool.filter = False
    try:
        check(pool)
    except SandboxError:
        pool.close()
        return None
    return pool


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    for name in (*CONTAINED, "rlimit"):
        pool = started(name)
        if pool is not None:
            pool.close()


def kind(name: str) -> Pool:
    pool = started(name)
    if pool is None:
        pytest.skip(f"{name} does not work on this machine")
    return pool


@pytest.fixture(params=[*CONTAINED, "rlimit"])
def any_pool(request: pytest.FixtureRequest) -> Pool:
    return kind(request.param)


@pytest.fixture(params=CONTAINED)
def contained(request: pytest.FixtureRequest) -> Pool:
    return kind(request.param)


def one(pool: Pool, code: str, test: StdinTest | CallTest = NONE) -> Outcome:
    return pool.run([Job(code, (test,))])[0][0]


def attack(pool: Pool, body: str, *arguments: Any) -> Any:
    """What `attack(*arguments)` with that body returned; it must not fail."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    names = ", ".join("abc"[: len(arguments)])
    outcome = one(pool, f"import os\ndef attack({names}):\n{lines}\n", CallTest("attack", arguments))
    assert outcome.status == "ok", outcome
    return values.loads(outcome.text)


# -- the ordinary ------------------------------------------------------------------------------------------
def test_this_machine_can_contain_programs() -> None:
    """On Linux with user namespaces, as in CI, everything below runs; elsewhere DeepCoder refuses to work."""
    if sys.platform == "linux":
        assert any(started(name) for name in CONTAINED)


def test_programs_and_functions_run(any_pool: Pool) -> None:
    jobs = [
        Job("print(sum(map(int, input().split())))", (StdinTest("1 2\n"), StdinTest("5 6"))),
        Job(
            "class Solution:\n    def add(self, a: List[int]):\n        return sum(a)",
            (CallTest("add", ([1, 2],)),),
        ),
        Job("def f(a, b):\n    return {a: b}, (a,), {b}", (CallTest("f", ("x", 2.5)),)),
        Job(
            "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])\nexit(3)",
            (StdinTest("ab\ncd\n"),),
        ),
        Job(
            "import threading\nt = threading.Thread(target=lambda: print('late'))\nt.start()",
            (StdinTest(""),),
        ),
        Job("print(len(open(0).read()), '\u00e9')", (StdinTest("x" * 300_000),)),
        Job("open('note', 'w').write('hi')\nprint(open('note').read())", (StdinTest(""),)),
        Job("", ()),
    ]
    found = [[(o.status, o.text) for o in outs] for outs in any_pool.run(jobs)]
    assert found[0] == [("ok", "3\n"), ("ok", "11\n")]
    assert found[1] == [("ok", "3")]
    assert values.loads(found[2][0][1]) == ({"x": 2.5}, ("x",), frozenset({2.5}))
    told = [[("ok", "ba\ndc\n")], [("ok", "late\n")], [("ok", "300000 é\n")], [("ok", "hi\n")], []]
    assert found[3:] == told


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("1 / 0", "error", "ZeroDivisionError: division by zero"),
        ("def attack(:", "error", "SyntaxError"),
        ("x = 1", "error", "NameError: no function attack"),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
        ("def attack():\n    return attack()", "error", "RecursionError"),
        ("def attack():\n    x = []\n    x.append(x)\n    return x", "error", "RecursionError"),
        ("import os\nos.abort()", "killed", "SIGABRT"),
        ("'\udcff'", "error", "UnicodeEncodeError"),
        ("a\0b", "error", ""),
    ],
)
def test_failures_are_named(code: str, status: str, text: str) -> None:
    outcome = one(kind("namespaces"), code)
    assert (outcome.status, outcome.text[: len(text)]) == (status, text)


def test_nothing_is_left_for_the_next_test_or_program(any_pool: Pool) -> None:
    code = "import builtins, random\nprint(len('ab'), random.random())\nbuiltins.len = lambda x: 7\nopen('left', 'w')"
    first, second = any_pool.run([Job(code, (StdinTest(""), StdinTest("")))] * 2)
    assert len({o.text for o in (*first, *second)}) == 1, "every test starts from the same process"
    assert first[0].text.startswith("2 ")


# -- getting out ----------------------------------------------------------------------------------------
def test_no_network(any_pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        managed = attack(
            any_pool,
            """
            import socket
            done = []
            for family, kind, address in (
                (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", a)),
                (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
                (socket.AF_UNIX, socket.SOCK_STREAM, "/run/dbus/system_bus_socket"),
            ):
                try:
                    s = socket.socket(family, kind)
                    s.settimeout(0.2)
                    s.connect(address)
                    s.send(b"x")
                    done.append(str(address))
                except OSError:
                    pass
            return done
            """.replace("\n            ", "\n"),
            server.getsockname()[1],
        )
        assert managed == []
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_reading_outside(contained: Pool, tmp_path: Path) -> None:
    secret = tmp_path / "expected.json"
    secret.write_text("swordfish")
    for path in (tmp_path, *tmp_path.parents[:-1]):
        assert path.exists()
    os.chmod(tmp_path, 0o755)
    found = attack(
        contained,
        """
        out = []
        for path in a:
            try:
                out.append(open(path).read() if not os.path.isdir(path) else " ".join(os.listdir(path)))
            except OSError:
                pass
        for top, folders, files in os.walk("/"):
            if top.startswith(("/usr", "/lib", b)):
                folders[:] = []
                continue
            out += [os.path.join(top, f) for f in files]
        return [o for o in out if not o.startswith("/dev/")]
        """.replace("\n        ", "\n"),
        [str(secret), str(Path(__file__)), "/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/maps",
         os.path.expanduser("~"), "/home", "/sys/kernel", str(Path(pool_module.__file__).parents[2] / "core.py")],
        os.path.dirname(os.__file__),
    )  # fmt: skip
    # The way to the standard library's folder is there; bwrap's sandbox also holds the interpreter and the runner.
    way = Path(os.__file__).parts
    seen = [f for f in found if f not in way and not f.startswith(("/judge/", sys.base_prefix))]
    assert seen == []


def test_installed_packages_are_out_of_sight(contained: Pool) -> None:
    """They may hold a data set's expected outputs."""
    listed = attack(contained, "import sysconfig\nreturn [p for p in a if os.path.isdir(p) and os.listdir(p)]",
                    [str(Path(os.__file__).parent / "site-packages"), "/usr/lib/python3/dist-packages"])  # fmt: skip
    assert listed == []


def test_no_writing_outside(contained: Pool, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    library = os.path.dirname(os.__file__)
    places = [
        str(tmp_path),
        library,
        f"{library}/json",
        "/",
        "/usr/lib",
        "/dev",
        "/etc",
        "/var/tmp",
        os.getcwd(),
    ]
    managed = attack(
        contained,
        """
        done = []
        for place in a:
            for action in (
                lambda: open(place + "/written-by-a-program", "w"), lambda: os.mkdir(place + "/made-by-a-program"),
                lambda: os.chmod(place, 0o777), lambda: os.symlink("/", place + "/linked-by-a-program"),
            ):
                try:
                    action()
                    done.append(place)
                except OSError:
                    pass
        return done
        """.replace("\n        ", "\n"),
        places,
    )  # fmt: skip
    assert managed == []
    assert list(tmp_path.iterdir()) == []
    assert not os.path.exists(f"{library}/written-by-a-program")


def test_no_way_back_to_the_old_root_or_to_new_rights(contained: Pool) -> None:
    managed = attack(
        contained,
        """
        import ctypes
        libc, done = ctypes.CDLL(None), []
        if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0: done.append("mount")
        if libc.umount2(b"/dev/null", 2) == 0: done.append("umount")
        if libc.mount(b"none", b"/", None, 32 | 4096, None) == 0: done.append("remount")
        if libc.chroot(b"/tmp") == 0: done.append("chroot")
        if libc.setns(0, 0) == 0: done.append("setns")
        for uid in (0, 1, 65534):
            if libc.setresuid(uid, uid, uid) == 0: done.append("setuid")
        if os.getuid() == 0 or os.geteuid() == 0: done.append("root")
        for path in ("../../../../../../etc/passwd", "/old/etc/passwd", "/proc/1/root/etc/passwd"):
            if os.path.exists(path): done.append(path)
        if sum(os.path.exists(f"/dev/{d}") for d in ("sda", "vda", "mem", "kmsg", "kvm")): done.append("devices")
        return done
        """.replace("\n        ", "\n"),
    )  # fmt: skip
    assert managed == []


def test_fork_bombs(any_pool: Pool) -> None:
    born = attack(
        any_pool,
        """
        count = 0
        for _ in range(40):
            try:
                if os.fork() == 0:
                    import time
                    time.sleep(30)
                    os._exit(0)
                count += 1
            except OSError:
                pass
        try:
            os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {})
            count += 1
        except OSError:
            pass
        return count
        """.replace("\n        ", "\n"),
    )
    assert born <= (LIMITS.processes if not any_pool.filter else 0)
    assert one(any_pool, "print('fine')", StdinTest("")).text == "fine\n"
    assert_nobody_left(any_pool)


def assert_nobody_left(pool: Pool) -> None:
    """The zygote has no descendants once it is idle."""
    assert pool._zygote is not None
    process = pool._zygote.pid
    for _ in range(100):
        children = "".join(p.read_text() for p in Path(f"/proc/{process}/task").glob("*/children")).split()
        if not children:
            return
        time.sleep(0.05)
    raise AssertionError(children)


def test_memory_bombs(any_pool: Pool) -> None:
    bombs = (
        "def attack():\n    return len(bytearray(2 << 30))",
        "def attack():\n    x = []\n    while len(x) < 64:\n        x.append(bytearray(16 << 20))\n    return 1",
        "import mmap\ndef attack():\n    m = mmap.mmap(-1, 1 << 30)\n    return 1",
        "def attack():\n    return 'x' * (1 << 30)",
    )
    statuses = [outs[0].status for outs in any_pool.run([Job(b, (NONE,)) for b in bombs])]
    assert statuses == ["memory", "memory", "error", "memory"]


def test_memory_outside_the_address_space(contained: Pool) -> None:
    """Files in memory: the folder is limited, and anonymous files are refused."""
    written = attack(
        contained,
        """
        total = 0
        try:
            for i in range(64):
                with open(f"/tmp/{i}", "wb") as f:
                    total += f.write(b"x" * (1 << 20))
        except OSError:
            pass
        return total
        """.replace("\n        ", "\n"),
    )
    assert written <= LIMITS.file_bytes
    if contained.filter:
        assert one(contained, "import os\ndef attack():\n    os.memfd_create('x')").status == "error"


def test_endless_output(any_pool: Pool) -> None:
    programs = [
        (Job("while True:\n    print('x' * 1000)", (StdinTest(""),)), "output"),
        (Job("def attack():\n    return 'x' * 200_000", (NONE,)), "output"),
        (Job("import sys\nfor _ in range(20_000):\n    sys.stderr.write('x' * 1000)", (StdinTest(""),)), "ok"),
        (Job("import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'x' * 200_000)\n"
             "    except OSError:\n        pass", (StdinTest(""),)), "output"),
    ]  # fmt: skip
    assert [outs[0].status for outs in any_pool.run([j for j, _ in programs])] == [s for _, s in programs]
    size = one(any_pool, "open('big', 'wb').write(b'x' * (100 << 20))", StdinTest("")).status
    assert size in ("error", "killed")


def test_time_is_limited_and_the_rest_is_skipped() -> None:
    pool = Pool(Limits(test_seconds=1.0, total_seconds=1.5, cpu_seconds=1), "namespaces", 2)
    try:
        begun = time.monotonic()
        sleeper = Job("import time\ntime.sleep(60)", (StdinTest(""), StdinTest("")))
        stubborn = Job(
            "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\nwhile True: pass", (StdinTest(""),),
        )  # fmt: skip
        slow = Job("import time\ntime.sleep(0.6)", (StdinTest(""),) * 4)
        found = pool.run([sleeper, stubborn, slow])
        assert [o.status for o in found[0]] == ["timeout", "skipped"]
        assert found[1][0].status == "timeout"
        assert [o.status for o in found[2]][-1] == "skipped"
        assert time.monotonic() - begun < 15
        assert_nobody_left(pool)
    finally:
        pool.close()


def test_processor_time_is_limited(any_pool: Pool) -> None:
    assert one(any_pool, "while True:\n    pass", StdinTest("")).status == "timeout"


def test_signals_reach_nobody_else(any_pool: Pool) -> None:
    zygote = any_pool._zygote
    assert zygote is not None
    code = (
        "import os, signal\ndef attack():\n    done = []\n"
        f"    for pid in (os.getppid(), 1, {os.getpid()}, {zygote.pid}, -1):\n"
        "        try:\n            os.kill(pid, signal.SIGKILL)\n            done.append(pid)\n"
        "        except OSError:\n            pass\n    return done\n"
    )
    outcome = one(any_pool, code)
    if any_pool.filter:
        assert (outcome.status, outcome.text) == ("ok", "[]")
    # Without the filter the signals go nowhere, or to nobody but the program itself.
    assert zygote.poll() is None
    assert one(any_pool, "print(1)", StdinTest("")) == Outcome("ok", "1\n")


# -- lying to the judge -----------------------------------------------------------------------------------
SECRET = "7315920846"
PROBLEM = Problem("p", "", (Case(CallTest("attack", ()), SECRET),))
ECHO = Problem("q", "", (Case(StdinTest("give it\n"), SECRET),))
EQUAL = "    def __eq__(self, o): return True\n"
FORGED = '{"t": "any", "v": 1}'
LIES = {
    "an object equal to everything": f"class E:\n{EQUAL}    __hash__ = None\ndef attack(): return E()",
    "a text equal to everything": f"class E(str):\n{EQUAL}def attack(): return E('no')",
    "a number equal to everything": f"class E(int):\n{EQUAL}    def __repr__(self): return 'x'\n"
    "def attack(): return E(3)",
    "sys.exit(0)": "import sys\ndef attack(): sys.exit(0)",
    "sys.exit(0) at once": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\ndef attack(): os._exit(0)",
    "os._exit(0) at once": "import os\nos._exit(0)",
    "another serialiser": "import json\njson.dumps = lambda *a, **k: 'null'\ndef attack(): return 1",
    "the runner's serialiser": "import sys\nfor n, m in list(sys.modules.items()):\n"
    f"    if n.endswith('values'): m.dumps = lambda x: {FORGED!r}\ndef attack(): return 1",
    "malformed results": "import os\ndef attack():\n    os.write(3, b'[' * 50_000)\n    os._exit(0)",
    "two results": "import os\ndef attack():\n    os.write(3, b'null')\n    return None",
    "True": "def attack(): return True",
    "None": "def attack(): return None",
}


def test_the_judge_accepts_the_truth() -> None:
    run = kind("namespaces").run
    told = judge([PROBLEM, ECHO], [f"def attack(): return {SECRET!r}", f"print({SECRET})"], run)
    assert [v.passed for v in told] == [1, 1]


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_not_believed(lie: str) -> None:
    assert judge([PROBLEM], [LIES[lie]], kind("namespaces").run)[0].passed == 0


def test_expected_outputs_are_nowhere(contained: Pool, tmp_path: Path) -> None:
    """Neither in frames, nor among the objects of the process, nor in its memory, nor in files or descriptors."""
    (tmp_path / "tests.json").write_text(SECRET)
    hunt = """
import gc, os, sys
def attack():
    needle, found = a_part + b_part, []
    frame = sys._getframe()
    while frame:
        if needle in repr({k: v for k, v in frame.f_locals.items() if k not in ("needle", "frame", "found")}):
            found.append("frame")
        frame = frame.f_back
    for thing in gc.get_objects():
        inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        if any(isinstance(v, str) and needle in v and v is not needle for v in inside):
            found.append("object")
    for fd in range(64):
        try:
            if needle.encode() in os.pread(fd, 1 << 20, 0):
                found.append("descriptor")
        except OSError:
            pass
    for top, folders, files in os.walk("/"):
        if top.startswith(("/usr", "/lib", "/dev", os.path.dirname(os.__file__))):
            continue
        for name in files:
            try:
                if needle in open(os.path.join(top, name), errors="replace").read(1 << 20):
                    found.append(name)
            except OSError:
                pass
    return found or needle
"""
    code = f"a_part, b_part = {SECRET[:5]!r}, {SECRET[5:]!r}\n{hunt}"
    outcomes: list[list[Outcome]] = []

    def run(jobs: list[Job]) -> list[list[Outcome]]:
        outcomes.extend(contained.run(jobs))
        return outcomes

    verdict = judge([PROBLEM], [code], run)[0]
    # It returns the needle, which is right, only if it was found nowhere.
    assert (verdict.passed, outcomes[0][0].text) == (1, f'"{SECRET}"')


# -- the pool ---------------------------------------------------------------------------------------------
def test_a_lost_zygote_is_an_error_and_not_a_reward() -> None:
    pool = Pool(LIMITS, "namespaces", 1)
    zygote = pool._zygote
    assert zygote is not None

    def strike() -> None:
        while not (below := [p for p in descendants(zygote.pid) if len(descendants(p)) > 0]):
            time.sleep(0.01)
        struck.extend([*below, *descendants(below[0])])
        zygote.kill()
        zygote.wait()

    struck: list[int] = []
    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(SandboxError):
        one(pool, "import time\ntime.sleep(30)", StdinTest(""))
    thread.join()
    for _ in range(200):
        if not any(Path(f"/proc/{pid}").exists() for pid in struck):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("processes outlive the zygote")
    with pytest.raises(SandboxError):
        one(pool, "print(1)", StdinTest(""))
    pool.close()


def descendants(pid: int) -> list[int]:
    """Children of a process and theirs."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children: list[int] = []
    for file in files:
        with contextlib.suppress(OSError):
            children += map(int, file.read_text().split())
    return children + [d for child in children for d in descendants(child)]


def test_a_sandbox_that_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SLACK", 0.5)
    monkeypatch.setattr(pool_module.zygote, "GRACE", 0.1)
    pool = Pool(Limits(test_seconds=1.0, total_seconds=1.0), "namespaces", 2)
    zygote = pool._zygote
    assert zygote is not None
    os.kill(zygote.pid, signal.SIGSTOP)
    timer = threading.Timer(2.0, lambda: os.kill(zygote.pid, signal.SIGCONT))
    timer.start()
    assert one(pool, "print(1)", StdinTest("")).status in ("ok", "timeout")
    timer.join()
    os.kill(zygote.pid, signal.SIGSTOP)
    with pytest.raises(SandboxError, match="did not end in its time"):
        one(pool, "print(1)", StdinTest(""))
    os.kill(zygote.pid, signal.SIGCONT)
    pool.close()


def test_without_isolation_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pool: Pool) -> None:
        raise SandboxError("not allowed here")

    monkeypatch.setattr(pool_module, "check", fails)
    monkeypatch.setattr(pool_module.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"not allowed here.*bwrap.*sandbox = \"rlimit\""):
        pool_for(Limits(test_seconds=3.5), "auto")
    with pytest.raises(ConfigError, match="use one of auto"):
        pool_for(Limits(), "none")
    with pytest.raises(ConfigError, match="memory_bytes"):
        Limits(memory_bytes=0)


def test_it_says_which_walls_are_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    kind("namespaces")
    pool = pool_for(Limits(test_seconds=3.25), "auto", 1)
    assert pool.backend in ("namespaces", "bwrap")
    assert capsys.readouterr().err == f"DeepCoder: {pool.description}\n"
    assert pool_for(Limits(test_seconds=3.25), "auto", 1) is pool
    unconfined = kind("rlimit").description
    assert "NO namespaces" in unconfined
    pool.close()


@pytest.mark.skipif(
    not Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").exists(), reason="no kernel headers"
)
def test_call_numbers_are_the_kernels() -> None:
    text = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    kernel = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    ours = {**seccomp._DENIED, **seccomp._OWN_PROCESS, **seccomp._OWN_OR_ZERO, "clone": seccomp._CLONE}
    known = {name: numbers[0] for name, numbers in ours.items() if name in kernel}
    assert known == {name: kernel[name] for name in known}
    assert len(known) > 90


def test_filter_decides_as_its_rules_say() -> None:
    """The instructions run by a small interpreter written here, for calls of both architectures."""

    def decide(machine: str, arch: int, number: int, arguments: tuple[int, ...]) -> int:
        code, at, register = seccomp.program(machine, 77), 0, 0
        words = {0: number, 4: arch, **{16 + 8 * i: a for i, a in enumerate(arguments)}}
        while True:
            op, jt, jf, k = (int.from_bytes(code[8 * at + a : 8 * at + b], "little") for a, b in
                             ((0, 2), (2, 3), (3, 4), (4, 8)))  # fmt: skip
            at += 1
            if op == 0x20:
                register = words[k]
            elif op == 0x06:
                return k
            else:
                holds = {0x15: register == k, 0x35: register >= k, 0x45: bool(register & k)}[op]
                at += jt if holds else jf

    allow, refuse = 0x7FFF0000, 0x00050001
    for column, (machine, arch) in enumerate(seccomp._AUDIT_ARCH.items()):
        for name, numbers in seccomp._DENIED.items():
            if numbers[column] >= 0:
                assert decide(machine, arch, numbers[column], (0,)) == refuse, name
        kill, clone, limit = (t[column] for t in (seccomp._OWN_PROCESS["kill"], seccomp._CLONE, (302, 261)))
        assert [decide(machine, arch, kill, (pid,)) for pid in (77, 1, 2**32 - 1)] == [allow, refuse, refuse]
        assert [decide(machine, arch, clone, (flags,)) for flags in (0x3D0F00, 17)] == [allow, refuse]
        assert [decide(machine, arch, limit, (pid,)) for pid in (0, 77, 1)] == [allow, allow, refuse]
        assert decide(machine, arch, 435, (0,)) == 0x00050000 | 38
        for harmless in (0, 1, 9, 39) if column == 0 else (63, 64, 222, 172):
            assert decide(machine, arch, harmless, (0,)) == allow
        assert decide(machine, 0x40000003, 1, (0,)) == 0x80000000
    assert decide("x86_64", 0xC000003E, 0x40000000 + 41, (0,)) == refuse
