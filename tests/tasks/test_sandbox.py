from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from thiefbench.tasks import _sandbox_jail, sandbox
from thiefbench.tasks._sandbox_worker import decode, encode
from thiefbench.tasks.sandbox import Limits, RunResult, SandboxUnavailable

SHORT = Limits(seconds=0.4)
# A busy machine may take long for what ends by itself, so nothing but what is to run out of time is short of it.
PATIENT = Limits(seconds=60)
run, run_many, check = (partial(each, limits=PATIENT) for each in (sandbox.run, sandbox.run_many, sandbox.check))


# Tests of what does not depend on the back end run on the one that is picked.
once = pytest.mark.parametrize("jail", [""], indirect=True)


@pytest.fixture(params=sandbox.BACKENDS, autouse=True)
def jail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The back end, set in the environment; every test runs on all back ends that work here."""
    monkeypatch.setenv(sandbox.VARIABLE, request.param)
    try:
        return sandbox.backend()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that no program may read, change or remove."""
    path = tmp_path / "canary"
    path.write_text("alive")
    path.chmod(0o644)
    yield path
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "alive"
    assert path.stat().st_mode & 0o777 == 0o644


def family(process: int) -> set[int]:
    """All processes, dead ones included, that descend from one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    processes: set[int] = set()
    while True:
        more = {child for child, parent in parents.items() if parent == process or parent in processes} - processes
        if not more:
            return processes
        processes |= more


def spins(process: int) -> bool:
    """Whether a process has computed for longer than starting one takes."""
    try:
        user = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])
    except OSError:
        return False
    return user > os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@once
def test_one_back_end_works() -> None:
    assert sandbox.backend() in sandbox.BACKENDS


# --- what a program may do ---


def test_output_and_errors_of_ordinary_programs() -> None:
    assert run("print('größer', '→', '😀')") == RunResult("ok", "größer → 😀\n", "")
    assert run("print(input()[::-1] + input())", stdin="läb\n2") == RunResult("ok", "bäl2\n", "")
    assert run("print(1)\n1 / 0") == RunResult("error", "1\n", "ZeroDivisionError: division by zero")
    assert run("x = (").status == "error"
    assert run("a\0b").status == "error"
    assert run("print('\ud800')").error.startswith("UnicodeEncodeError")
    assert run("import os; os.write(1, b'a\\xffb')").stdout == "a\ufffdb"
    assert run("if __name__ == '__main__': print(__name__)").stdout == "__main__\n"
    assert run("import statistics, difflib, csv; print(statistics.mean([1, 3]))").stdout == "2\n"
    assert run("import hashlib, ctypes, zlib, uuid; print(len(hashlib.sha256().digest()))").stdout == "32\n"
    assert run("x = '" + "y" * 1_000_000 + "'\nprint(len(x))").stdout == "1000000\n"
    assert run("x = 1" + " " * sandbox.MAX_PROGRAM).error == "the program is too long"


@once
@pytest.mark.parametrize(
    ("leave", "ran"),
    [
        ("sys.exit()", RunResult("ok", "1\n", "")),
        ("exit(0)", RunResult("ok", "1\n", "")),
        ("sys.exit(3)", RunResult("error", "1\n", "")),
        ("sys.exit('no')", RunResult("error", "1\n", "no")),
        ("raise KeyboardInterrupt", RunResult("error", "1\n", "KeyboardInterrupt")),
        ("raise MemoryError", RunResult("memory", "1\n", "MemoryError")),
    ],
)
def test_exits(leave: str, ran: RunResult) -> None:
    assert run(f"import sys\nprint(1)\n{leave}\nprint(2)") == ran


@once
def test_error_text_is_one_bounded_line() -> None:
    ran = run("raise ValueError('x' * 100_000 + '\\n' + 'y' * 100_000)")
    assert (ran.status, ran.error) == ("error", "y" * sandbox.MAX_ERROR)
    ran = run("class E(Exception):\n    def __str__(self): raise self\nraise E")
    assert ran.status == "error"
    assert "E" in ran.error


@once
def test_libraries() -> None:
    libraries = {"tool": "from tool_box.nails import N\ndef f(): return N", "tool_box": "", "tool_box.nails": "N = 7"}
    assert run("import tool; print(tool.f())", libraries=libraries) == RunResult("ok", "7\n", "")
    assert run("import tool").error == "ModuleNotFoundError: No module named 'tool'"
    assert run("import json; print(json.dumps(1))", libraries={"json": "1 / 0"}).stdout == "1\n"
    assert run("import bad", libraries={"bad": "1 / 0"}).error == "ZeroDivisionError: division by zero"


def test_the_same_program_prints_the_same() -> None:
    program = "import random; print(random.random(), {'a', 'b', 'c', 'd', 'e'}, hash('x'))"
    assert len({ran.stdout for ran in run_many([program] * 8)}) == 1


def test_many_programs_keep_their_order_and_leave_nothing() -> None:
    run("pass")
    files, before = len(list(Path("/proc/self/fd").iterdir())), len(family(os.getpid()))
    ran = run_many([f"print({number})" for number in range(200)])
    assert [int(one.stdout) for one in ran] == list(range(200))
    for number in range(10):
        run("while True: print('x' * 1000)" if number % 2 else "while True: pass", limits=Limits(seconds=0.05))
        check("def f(): return 1", "f", "def check(f): assert f() == 1")
    grown = 2 * os.cpu_count()  # type: ignore[operator]  # processes and sockets of workers that started meanwhile
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + grown
    assert eventually(lambda: len(family(os.getpid())) <= before + grown)

    def zombies() -> list[int]:
        found = []
        for process in family(os.getpid()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now and was waited for
                found += [process] if ") Z " in Path(f"/proc/{process}/stat").read_text() else []
        return found

    assert eventually(lambda: not zombies()), "one that ended just now is waited for in a moment"


def test_threads_of_the_caller() -> None:
    with ThreadPoolExecutor(4) as threads:
        ran = list(threads.map(lambda number: run(f"print({number})").stdout, range(40)))
    assert ran == [f"{number}\n" for number in range(40)]


def test_a_forked_caller_has_workers_of_its_own() -> None:
    run("pass")
    child = os.fork()
    if not child:
        try:
            os._exit(0 if run("print(1)").stdout == "1\n" and check("f = abs", "f", COUNTS).status == "error" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run("print(2)").stdout == "2\n"


def test_a_dead_worker_is_replaced(jail: str) -> None:
    assert run("print(1)") == RunResult("ok", "1\n", "")
    for worker in list(sandbox._workers):
        worker.process.kill()
    assert run("print(2)") == RunResult("ok", "2\n", "")
    alive, idle = list(sandbox._workers), len(family(os.getpid()))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, "import time; time.sleep(1); print(3)")
        assert eventually(lambda: len(family(os.getpid())) > idle)  # the program runs
        for worker in alive:
            worker.process.kill()
        assert running.result() == RunResult("ok", "3\n", "")


def test_programs_die_with_their_caller(jail: str) -> None:
    program = """
from thiefbench.tasks import sandbox
sandbox.run("while True: pass", limits=sandbox.Limits(seconds=60))
"""
    caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert eventually(lambda: any(map(spins, family(caller.pid)))), "the program is running"
    processes = family(caller.pid)
    caller.kill()
    caller.communicate()
    assert eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))


# --- limits ---


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(60)", "timeout"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "timeout"),
        ("import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
         "    except (OSError, ValueError): pass\nwhile True: pass", "timeout"),
        ("import re; re.match('(a*)*b', 'a' * 60)", "timeout"),
        ("pow(3, 10 ** 9)", "timeout"),
        ("input()\nwhile True: pass", "error"),
        ("x = 'a' * 10 ** 10", "memory"),
        ("x = []\nwhile True: x.append('a' * 10 ** 6)", "memory"),
        ("x = b'a' * 50_000_000; y = b'a' * 50_000_000", "memory"),
        ("import mmap; mmap.mmap(-1, 1 << 30)", "error"),
        ("while True: print('x' * 1000)", "output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
        ("def f(): f()\nf()", "error"),
        ("import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()", "error memory timeout"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("import os\nwhile True: os.fork()", "error"),
        ("import threading\nwhile True: threading.Thread(target=print).start()", "error"),
        ("f = open('/tmp/x', 'w')\nwhile True: f.write('x' * 10 ** 6)", "error"),
        ("import os\nwhile True: os.dup(1)", "error"),
        ("import os\nwhile True: os.pipe()", "error"),
    ],
)  # fmt: skip
def test_limits(program: str, status: str) -> None:
    ran = run(program, limits=SHORT if "timeout" in status else replace(PATIENT, memory=64 << 20))
    assert ran.status in status.split(), ran
    assert len(ran.stdout) <= Limits().output
    assert run("print(6 * 7)").stdout == "42\n"


@once
def test_output_is_cut_at_its_limit() -> None:
    assert run("print('é' * 10)", limits=replace(PATIENT, output=5)) == RunResult(
        "output", "éé\ufffd", "too much output"
    )
    assert run("print('abcd')", limits=replace(PATIENT, output=5)).status == "ok"


@once
def test_limits_are_checked() -> None:
    for wrong in ({"seconds": 0}, {"seconds": float("nan")}, {"memory": 0}, {"output": -1}):
        with pytest.raises(ValueError, match="seconds must be"):
            Limits(**wrong)  # type: ignore[arg-type]


# --- what a hostile program tries ---

ATTEMPT = """
import ctypes, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def system(number, *arguments):
    if libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def attempt(what):
    try: what()
    except (OSError, RuntimeError, ImportError, LookupError, ValueError) as why: print("refused", type(why).__name__)
    else: print("ESCAPED")
"""

# Each is an expression that works without a sandbox; {canary} and {caller} are filled in.
ATTEMPTS = {
    "tcp": "socket.create_connection(('127.0.0.1', {port}))",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "ipv6": "socket.socket(socket.AF_INET6)",
    "unix": "socket.socket(socket.AF_UNIX)",
    "abstract": "socket.socket(socket.AF_UNIX).bind('\\0thiefbench{caller}')",
    "socketpair": "socket.socketpair()",
    "passwd": "open('/etc/passwd').read()",
    "read the canary": "open('{canary}').read()",
    "read it by ctypes": "system({open}, b'{canary}', 0)",
    "list its folder": "os.listdir('{folder}')",
    "list the root of the host": "os.listdir('/usr/bin')",
    "environment of the caller": "open('/proc/{caller}/environ', 'rb').read()",
    "environment of process 1": "open('/proc/1/environ', 'rb').read()",
    "own environment": "open('/proc/self/environ', 'rb').read()",
    "memory of the caller": "open('/proc/{caller}/mem', 'rb')",
    "own memory": "open('/proc/self/mem', 'rb')",
    "own files": "os.listdir('/proc/self/fd')",
    "device": "open('/dev/zero', 'rb').read(1)",
    "terminal": "open('/dev/null', 'w')",
    "shared memory": "open('/dev/shm/thiefbench-{caller}', 'w')",
    "write beside the canary": "open('{folder}/new', 'w')",
    "append to the canary": "open('{canary}', 'a').write('x')",
    "write /tmp": "open('/tmp/thiefbench-{caller}', 'w')",
    "write into the library": "open(os.__file__, 'a')",
    "truncate by reading": "os.open(os.__file__, os.O_RDONLY | os.O_APPEND)",
    "mkdir": "os.mkdir('{folder}/new')",
    "chmod": "os.chmod('{canary}', 0)",
    "utime": "os.utime('{canary}', (0, 0))",
    "xattr": "os.setxattr('{canary}', 'user.x', b'')",
    "symlink out": "os.symlink('/etc', '{folder}/link')",
    "link": "os.link('{canary}', '{folder}/link')",
    "rename": "os.rename('{canary}', '{folder}/gone')",
    "remove": "os.remove('{canary}')",
    "truncate": "os.truncate('{canary}', 0)",
    "chdir": "os.chdir('/usr')",
    "chroot": "os.chroot('/')",
    "fork": "os.fork() or os._exit(0)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "subprocess": "__import__('subprocess').run(['/bin/true'])",
    "execve": "os.execv('/bin/true', ['true'])",
    "exec python": "os.execv('/proc/self/exe', ['python', '-c', 'print(\"ESCAPED\")'])",
    "memfd": "os.memfd_create('x')",
    "thread": "__import__('threading').Thread(target=int).start()",
    "new session": "os.setsid()",
    "process group": "os.setpgid(0, 0)",
    "signal 0 to the caller": "os.kill({caller}, 0)",
    "kill the caller": "os.kill({caller}, signal.SIGKILL)",
    "kill the worker": "os.kill(os.getppid(), signal.SIGKILL)",
    "kill process 1": "os.kill(1, signal.SIGKILL)",
    "kill everybody": "os.kill(-1, signal.SIGKILL)",
    "kill the group": "os.killpg(0, signal.SIGKILL)",
    "kill by handle": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)",
    "signal by ownership": "__import__('fcntl').fcntl(0, 8, {caller})",
    "limits of the caller": "resource.prlimit({caller}, resource.RLIMIT_CPU, (1, 1))",
    "raise a limit": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise the size of files": "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))",
    "priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "become root": "os.setuid(0)",
    "read another's memory": "libc.process_vm_readv({caller}, None, 0, None, 0, 0) and os.truncate('', 0)",
    "shared memory of system v": "libc.shmget(0, 4096, 0o1600) == -1 and os.truncate('', 0)",
    "packages beside the library": "os.listdir(os.path.dirname(os.__file__) + '/site-packages')[0]",
    "their files": "open(os.path.dirname(os.__file__) + '/site-packages/README.txt')",
    "the package": "__import__('thiefbench')",
    "torch": "__import__('torch')",
    "pip": "__import__('pip')",
    "pytest by path": "sys.path.extend({path}) or __import__('pytest')",
    "its files by path": "[open(f'{{p}}/pytest/__init__.py') for p in {path}][0]",
}  # fmt: skip


@pytest.fixture
def places(canary: Path) -> Iterator[dict[str, object]]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        packages = str(Path(pytest.__file__).parent.parent)
        number = _sandbox_jail._SYSCALLS["x86_64"]["open"]
        yield {"canary": canary, "folder": canary.parent, "caller": os.getpid(), "port": server.getsockname()[1],
               "open": number, "path": [packages]}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTS)
def test_refused(name: str, places: dict[str, object]) -> None:
    ran = run(f"{ATTEMPT}\nattempt(lambda: {ATTEMPTS[name].format(**places)})")
    assert re.fullmatch(r"refused \w+\n", ran.stdout), ran
    assert ran.status == "ok"
    assert run("print(6 * 7)").stdout == "42\n"


@once
def test_what_is_refused_works_without_a_sandbox(places: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox.VARIABLE, sandbox.UNSAFE)
    sandbox._probe.cache_clear()
    with pytest.warns(RuntimeWarning, match="without a sandbox"):
        assert run("pass").status == "ok"
    names = [
        "tcp", "udp", "unix", "abstract", "socketpair", "passwd", "read the canary", "list its folder", "own memory",
        "environment of the caller", "own environment", "device", "fork", "spawn", "thread", "memfd",
        "signal 0 to the caller", "pytest by path", "its files by path",
    ]  # fmt: skip
    ran = run_many([f"{ATTEMPT}\nattempt(lambda: {ATTEMPTS[name].format(**places)})" for name in names])
    assert {name: one.stdout for name, one in zip(names, ran, strict=True)} == dict.fromkeys(names, "ESCAPED\n")


# System calls that Python has no function for, by name (x86_64 and aarch64 numbers).
CALLS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "add_key": (248, 217), "clone": (56, 220), "clone3": (435, 435), "execveat": (322, 281), "prctl": (157, 167),
    "seccomp": (317, 277), "memfd_create": (319, 279), "memfd_secret": (447, 447), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "open_by_handle_at": (304, 265), "fsopen": (430, 430), "move_mount": (429, 429),
    "name_to_handle_at": (303, 264), "personality": (135, 92), "init_module": (175, 105), "kexec_load": (246, 104),
    "swapon": (167, 224), "reboot": (169, 142), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "capset": (126, 91), "splice": (275, 76), "vmsplice": (278, 75), "sched_setaffinity": (203, 122),
    "mbind": (237, 235), "inotify_init1": (294, 26), "eventfd2": (290, 19), "epoll_create1": (291, 20),
    "timer_create": (222, 107), "openat2": (437, 437), "landlock_create_ruleset": (444, 444), "sendmsg": (46, 211),
    "mq_open": (240, 180), "sethostname": (170, 161), "acct": (163, 89), "setuid": (105, 146),
    "quotactl": (179, 60), "fchmodat2": (452, 452),
}  # fmt: skip


def test_system_calls_by_number_are_refused() -> None:
    column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    numbers = {name: numbers[column] for name, numbers in CALLS.items()}
    ran = run(
        f"{ATTEMPT}\nimport errno\nfor name, number in {numbers}.items():\n"
        "    result = libc.syscall(number, *[ctypes.c_long(0)] * 6)\n"
        "    if result != -1 or ctypes.get_errno() != errno.EPERM: print('ESCAPED', name, result)\nprint('done')"
    )
    assert ran == RunResult("ok", "done\n", "")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the other system call tables are those of x86")
def test_other_system_call_tables_are_closed() -> None:
    machine_code = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write({code})
call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
print(call())
"""
    get_pid = b"\xb8\x27\x00\x00\x00\x0f\x05\xc3"  # mov eax, 39; syscall; ret
    assert int(run(machine_code.format(code=get_pid)).stdout) > 0
    get_pid_32 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
    assert run(machine_code.format(code=get_pid_32)).status == "killed"
    get_pid_x32 = b"\xb8\x27\x00\x00\x40\x0f\x05\xc3"  # mov eax, 39 + the x32 bit; syscall; ret
    assert run(machine_code.format(code=get_pid_x32)).stdout == "-1\n"


def test_a_program_sees_an_empty_world() -> None:
    ran = run(
        "import os, sys\nprint(dict(os.environ), sys.argv, os.getcwd(), sys.path)\n"
        "for file in range(3, 2000):\n"
        "    try: os.fstat(file)\n"
        "    except OSError: continue\n"
        "    print('open', file)"
    )
    assert ran.status == "ok"
    assert ran.stdout.startswith("{} [''] / [")
    assert "open" not in ran.stdout
    assert "site-packages" not in ran.stdout


def test_nothing_outlives_a_program(jail: str) -> None:
    run("pass")
    before = family(os.getpid())
    program = """
import atexit, os, sys, threading, time
atexit.register(lambda: time.sleep(60))
sys.settrace(lambda *_: None)
for start in (os.fork, os.setsid, threading.Thread(target=time.sleep, args=(60,)).start):
    try: start()
    except (OSError, RuntimeError): pass
print("left")
"""
    assert run(program).stdout == "left\n"
    assert run("import os; os._exit(0)") == RunResult("ok", "", "")
    assert eventually(lambda: family(os.getpid()) <= before)


def test_a_program_leaves_no_trace_in_the_next() -> None:
    run(
        "import builtins, json, sys, os, random\nbuiltins.print = builtins.len = None\njson.loads = json.dumps = None\n"
        "sys.modules.clear()\nos.environ['x'] = 'y'\nsys.setrecursionlimit(50)\nos.write = os._exit = None"
    )
    assert run("import json, os, sys; print(json.dumps([len('abc'), dict(os.environ), sys.getrecursionlimit()]))") == (
        RunResult("ok", "[3, {}, 1000]\n", "")
    )


# Looks through all memory that hangs together with one of its objects or the heap. A system call that only looks at its
# arguments tells whether there is memory at an address.
SCAN = r"""
import ctypes, gc, os, re, sys
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_long]
RT_SIGPROCMASK = {"x86_64": 14, "aarch64": 135}[os.uname().machine]
def readable(page):
    return libc.syscall(RT_SIGPROCMASK, 0, ctypes.c_void_p(page), None, ctypes.c_long(8)) == 0
def find(pattern):
    starts = {address // 4096 * 4096 for address in (*map(id, gc.get_objects()), id("x" * 10 ** 5), libc.sbrk(0) - 1)}
    seen = set()
    found = 0
    for start in starts:
        for first, step in ((start, 4096), (start - 4096, -4096)):
            page = first
            while page not in seen and readable(page):
                seen.add(page)
                found += len(pattern.findall(ctypes.string_at(page, 4096)))
                page += step
    return len(seen) > 1000, found
"""
SECRET = "4815162342"


def test_what_other_programs_said_is_not_in_memory() -> None:
    ran = run_many([f"answer = {SECRET!r}; print(answer)"] * 10)
    assert {one.stdout for one in ran} == {f"{SECRET}\n"}
    for mine, found in (("'2423615184'", "True True"), ("''", "True False")):
        ran = run(
            f"{SCAN}\nmine = {mine}[::-1]\nenough, n = find(re.compile(rb'481516324[2]'))\nprint(enough, n > 0)",
        )
        assert ran == RunResult("ok", f"{found}\n", "")
    ran = run(f"{SCAN}\nprint(*find(re.compile(rb'481516234[2]')))")
    assert ran == RunResult("ok", "True 0\n", "")


# --- tests of a candidate ---

COUNTS = "def check(candidate):\n    assert candidate(2) == 5\n    assert candidate(3) == 10"


def test_check_passes_and_fails() -> None:
    assert check("def f(x): return x * x + 1", "f", COUNTS) == RunResult("ok", "", "")
    assert check("def f(x): return x + 3", "f", COUNTS) == RunResult("error", "", "AssertionError")
    printing = "f = lambda x: print('so', x) or 5"
    for _ in range(20):  # the tests end with the candidate's last answer, and what it printed is there by then
        assert check(printing, "f", COUNTS) == RunResult("error", "so 2\nso 3\n", "AssertionError")
    assert check("g = 1", "f", COUNTS) == RunResult("error", "", "NameError: name 'f' is not defined")
    assert check("f = (", "f", COUNTS).error.startswith("SyntaxError")
    assert check("import lib\nf = lib.f", "f", COUNTS, libraries={"lib": "f = lambda x: x * x + 1"}).status == "ok"
    assert check("def f(x): return x * x + 1", "f", "check = 1").status == "error"
    assert check("def f(x):\n    while True: pass", "f", COUNTS, limits=SHORT).status == "timeout"
    assert check("def f(x): return 'x' * 10 ** 10", "f", COUNTS).status != "ok"


VALUES = """
VALUES = [
    None, True, False, 0, -1, 2 ** 100000, -(3 ** 500), 0.1, -0.0, float("inf"), 1e-320, 1 + 2j,
    "", "ä\\0\\ud800", b"\\xff", [],
    [1, [2, (3,)]], (), (1,), {}, {1: "a", "1": [2], (1, 2): None, None: {}}, set(), {1, "1", (2,)}, frozenset({1}),
    {"int": ["int", "0x1"]}, [True, 1, 1.0],
]
def check(candidate):
    for value in VALUES:
        got = candidate(value)
        assert got == value and type(got) is type(value) and repr(got) == repr(value), value
    assert candidate(float("nan")) != candidate(float("nan"))
    assert [type(item) for item in candidate([True, 1, 1.0])] == [bool, int, float]
"""


@once
def test_plain_data_crosses_unchanged() -> None:
    assert check("import sys; sys.set_int_max_str_digits(0)\ndef f(x): return x", "f",
                 "import sys; sys.set_int_max_str_digits(0)\n" + VALUES) == RunResult("ok", "", "")  # fmt: skip
    assert check("def f(a, *b, c=1, **d): return [a, b, c, d]", "f", """
def check(candidate):
    assert candidate(1, 2, 3, c=4, d=5) == [1, (2, 3), 4, {"d": 5}]
    mine = [1]
    candidate(mine).append(2)
    assert mine == [1]
""").status == "ok"  # fmt: skip


@once
def test_exceptions_cross_by_name() -> None:
    tests = """
def check(candidate):
    for kind in (ValueError, KeyError, ZeroDivisionError, RuntimeError, UnicodeError, OSError, RecursionError):
        try: candidate(kind.__name__)
        except kind as error: assert type(error) is kind and "why" in str(error)
        else: raise AssertionError(kind)
    for kind in ("Own", "ExceptionGroup"):
        try: candidate(kind)
        except ValueError as error: assert kind == "Own"
        except Exception as error: assert type(error) is Exception
        else: raise AssertionError(kind)
"""
    candidate = """
class Own(ValueError): pass
def f(name):
    if name == "ExceptionGroup": raise ExceptionGroup("why", [ValueError()])
    if name == "UnicodeError": raise UnicodeDecodeError("utf-8", b"x", 0, 1, "why")
    raise (Own if name == "Own" else __builtins__.__dict__[name])("why")
"""
    assert check(candidate, "f", tests) == RunResult("ok", "", "")


LOOPS = {
    "map": "for got in map(candidate, [1, 2]): assert got == 1",
    "map in zip": "for got, right in zip(map(candidate, [1, 2]), [1, 2]): assert got == right",
    "map in all": "assert all(map(lambda x: candidate(x) == x, [1, 2]))",
    "map in list": "assert len(list(map(candidate, [1, 2]))) in (0, 1, 2)",
    "filter": "for got in filter(candidate, [1, 2]): raise AssertionError(got)",
    "iter of a callable": "for got in iter(candidate, None): raise AssertionError(got)",
    "a starmap": "import itertools\n    for got in itertools.starmap(candidate, [(1,)]): raise AssertionError(got)",
    "an asynchronous iterator": """class Calls:
        def __aiter__(self): return self
        async def __anext__(self): return candidate(1)
    async def every():
        async for got in Calls(): raise AssertionError(got)
    try: every().send(None)
    except StopIteration: pass""",
}  # fmt: skip


@once
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_end_of_an_iteration_ends_no_loop_of_the_tests(loop: str) -> None:
    tests = f"def check(candidate):\n    {loop}"
    for raised in ("StopIteration", "StopAsyncIteration", "Own"):
        candidate = f"class Own(StopIteration, ValueError): pass\ndef f(*given): raise {raised}('why')"
        ran = check(candidate, "f", tests)
        assert (ran.status, ran.error) == ("error", f"RuntimeError: the program raised {raised}")
    for name in ("StopIteration", "StopAsyncIteration"):  # sent past the candidate's own side
        frame = f'[false, "{name}", ""]'.encode()
        candidate = (
            f"import os, struct\nt = {frame!r}\nos.write(4, struct.pack('<I', len(t)) + t)\ndef f(*given): return 0"
        )
        assert check(candidate, "f", tests).status == "error"


LIARS = {
    "equal to everything": "class E:\n    def __eq__(self, other): return True\ndef f(x): return E()",
    "equal inside a list": "class E:\n    def __eq__(self, other): return True\ndef f(x): return [E()]",
    "an int": "class I(int):\n    __eq__ = lambda *_: True\n    __hash__ = lambda s: 5\ndef f(x): return I(1)",
    "a str": "class S(str):\n    __eq__ = lambda *_: True\ndef f(x): return S()",
    "a bool": "def f(x): return True",
    "a type": "class M(type):\n    __eq__ = lambda *_: True\nclass C(metaclass=M): pass\ndef f(x): return C",
    "a faked type": "class I:\n    __class__ = int\n    __eq__ = lambda *_: True\ndef f(x): return I()",
    "itself": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "a bomb": "def f(x):\n    y = []\n    for _ in range(60): y = [y, y]\n    return y",
    "deep": "def f(x):\n    y = []\n    for _ in range(100_000): y = [y]\n    return y",
    "huge": "def f(x): return 'x' * 100_000_000",
    "exit": "import sys\ndef f(x): sys.exit(0)",
    "exit at once": "raise SystemExit(0)",
    "hard exit": "import os\ndef f(x): os._exit(0)",
    "hard exit at once": "import os\nos._exit(0)",
    "kill itself": "import os\ndef f(x): os.abort()",
    "raise an exit": "def f(x): raise SystemExit(0)",
    "raise anything": "class E(BaseException): pass\ndef f(x): raise E",
    "raise an AssertionError": "def f(x): raise AssertionError",
    "patched builtins": "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.all = lambda _: True\n"
    "builtins.isinstance = lambda *_: True\nbuiltins.type = lambda _: int\ndef f(x): return 0",
    "patched json": "import json\njson.dumps = lambda _: '[true, null]'\ndef f(x): return 0",
    "patched modules": "import sys\nfor m in list(sys.modules): sys.modules[m] = None\ndef f(x): return 0",
    "patched encoder": "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    if 'encode' in frame.f_globals: frame.f_globals['encode'] = lambda _: None\n    frame = frame.f_back\n"
    "def f(x): return 0",
    "traced": "import sys\nsys.settrace(lambda *_: None)\ndef f(x): return 0",
    "printed verdicts": "def f(x):\n    print('ok', 'passed', flush=True)\n    return 0",
    "closed files": "import os\nos.closerange(0, 64)\ndef f(x): return 5",
    "closed answers": "import os\nos.close(4)\ndef f(x): return 5",
    "noise": "import os\nos.write(4, b'\\xff' * 5000)\ndef f(x): return 0",
    **{
        f"its own frame {text[:40]}": f"import os, struct\nt = {text.encode()!r}\n"
        "os.write(4, struct.pack('<I', len(t)) + t)\ndef f(x): return 0"
        for text in ("[true, true]", "[true]", "true", "{}", '[false, "SystemExit", "0"]', '[false, "exit", ""]',
                     '[true, ["eval", "exit(0)"]]', '[true, ["dict", [[["list", []], null]]]]', "[" * 50_000)
    },
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0",
}  # fmt: skip


@pytest.mark.parametrize("name", LIARS)
@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
def test_lying_gains_nothing(name: str, lenient: bool, canary: Path) -> None:
    tests = COUNTS
    if lenient:  # such tests pass whatever raises an Exception, and then fail: nothing else may end them early
        tests = (
            "def check(candidate):\n    try: candidate(2)\n    except Exception: pass\n    assert candidate(3) == 10"
        )
    ran = check(LIARS[name], "f", tests, limits=Limits(seconds=1))
    assert ran.status != "ok", ran
    assert check("def f(x): return x * x + 1", "f", COUNTS).status == "ok"


def test_an_exit_passes_no_test_that_accepts_every_exception() -> None:
    tests = "def check(candidate):\n    try: candidate()\n    except BaseException: pass"
    assert check("def f(): raise ValueError", "f", tests).status == "ok"
    for leave in ("raise SystemExit", "os._exit(0)", "os.close(4)", "os.write(4, bytes(4))"):
        ran = check(f"import os\ndef f(): {leave}", "f", tests)
        assert ran.status == "error", leave


def test_tests_that_end_early_did_not_pass() -> None:
    for tests in ("import sys\ndef check(f): sys.exit(0)", "raise SystemExit", "def check(f): raise SystemExit(0)"):
        assert check("def f(): pass", "f", tests).error == "RuntimeError: the tests ended themselves"


def test_the_tests_are_not_in_the_candidates_memory() -> None:
    candidate = f"""
{SCAN}
def f():
    pattern = re.compile(rb"481516234[2]")
    places = [repr(dict(os.environ)).encode()]
    frame = sys._getframe()
    while frame:
        places.append(repr((frame.f_locals, list(frame.f_globals))).encode(errors="replace"))
        frame = frame.f_back
    for file in range(100):
        try: places.append(os.pread(file, 10 ** 6, 0))
        except OSError: pass
    enough, found = find(pattern)
    return [enough, found, pattern.findall(b"".join(places))]
"""
    tests = f"def check(candidate):\n    assert candidate() == [True, 0, []]\n    secret = '{SECRET}'"
    for _ in range(2):
        assert check(candidate, "f", tests) == RunResult("ok", "", "")


# --- parts ---


@once
def test_encode_takes_exact_types_only() -> None:
    class Int(int):
        pass

    for value in (Int(1), range(3), object(), bytearray(), [Int(1)], {"a": {1: Int(2)}}, {Int(1)}, int, test_limits):
        with pytest.raises(TypeError, match="cannot cross"):
            encode(value)
    for data in (1, 1.5, [], ["int"], ["int", 1], ["eval", "1"], {"a": 1}, ["set", [["list", []]]], ["bytes", "x"]):
        with pytest.raises((TypeError, ValueError, KeyError)):
            decode(data)


Arguments = tuple[int, ...]
ALLOW, DENY, KILL = _sandbox_jail._ALLOW, _sandbox_jail._DENY, _sandbox_jail._KILL


def verdict(machine: str, number: int, arguments: Arguments = (), architecture: int | None = None) -> int:
    """Interpret the filter as the kernel does."""
    program = _sandbox_jail.system_call_filter(machine)
    audit = _sandbox_jail._AUDIT[machine] if architecture is None else architecture
    words = {0: number, 4: audit}
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        words |= {16 + 8 * index: value & 0xFFFFFFFF, 20 + 8 * index: value >> 32 & 0xFFFFFFFF}
    position, accumulator = 0, 0
    while True:
        code, true, false, operand = program[position]
        position += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            accumulator = words[operand]
        else:
            holds = accumulator == operand if code == 0x15 else bool(accumulator & operand)
            position += true if holds else false


@once
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_both_architectures(machine: str) -> None:
    column = {"x86_64": 0, "aarch64": 1}[machine]
    numbers = _sandbox_jail._SYSCALLS[machine]
    denied = {name: verdict(machine, calls[column]) for name, calls in CALLS.items()}
    assert set(denied.values()) == {DENY}, denied
    assert len(set(numbers.values())) == len(numbers)
    for name in ("read", "write", "mmap", "futex", "exit_group", "getrandom"):
        assert verdict(machine, numbers[name]) == ALLOW
    assert verdict(machine, numbers["read"], architecture=0x40000003) == KILL
    assert verdict(machine, numbers["read"] | 0x40000000) == DENY
    opened = numbers["openat"]
    assert verdict(machine, opened, (0, 0, os.O_RDONLY | os.O_CLOEXEC)) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_PATH, 0x400000):
        assert verdict(machine, opened, (0, 0, flag)) == DENY
    assert verdict(machine, numbers["fcntl"], (0, 1)) == ALLOW
    assert verdict(machine, numbers["fcntl"], (0, 8)) == DENY  # F_SETOWN
    assert verdict(machine, numbers["ioctl"], (0, 0x5401)) == ALLOW  # TCGETS
    assert verdict(machine, numbers["ioctl"], (0, 0x5412)) == DENY  # TIOCSTI
    limits = numbers["prlimit64"]
    assert verdict(machine, limits, (0, 9, 0, 1)) == ALLOW
    for arguments in ((7, 9, 0, 1), (0, 9, 1), (0, 9, 1 << 32)):
        assert verdict(machine, limits, arguments) == DENY


SHOWN = """
import sys
from pathlib import Path
sys.path.append({tasks!r})
import _sandbox_jail
sys.path.pop()
site, extra = Path({site!r}), Path({extra!r})
_sandbox_jail.enter({jail!r}, [site / "shown", extra])
def reads(path):
    try:
        return path.read_text()
    except OSError:
        return ""
print(reads(site / "shown" / "a.py"), reads(extra), reads(site / "hidden" / "a.py"), reads(extra.with_name("other")))
"""


def test_what_else_is_readable_is_shown_alone(jail: str, tmp_path: Path) -> None:
    """A library whose folder contains the user's packages, as without a virtual environment."""
    site = tmp_path / "lib" / "site-packages"
    for name in ("shown", "hidden"):
        (site / name).mkdir(parents=True)
        (site / name / "a.py").write_text(name)
    for name in ("extra", "other"):
        (tmp_path / name).write_text(name)
    code = SHOWN.format(
        tasks=str(Path(_sandbox_jail.__file__).parent), site=str(site), extra=str(tmp_path / "extra"), jail=jail
    )
    code = f"import sys; sys.path.append({str(tmp_path / 'lib')!r})\n{code}"
    python = getattr(sys, "_base_executable", "") or sys.executable
    done = subprocess.run([python, "-s", "-S", "-P", "-B", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shown", "extra"], "only what is named is visible"


@once
def test_an_unknown_back_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox.VARIABLE, "docker")
    with pytest.raises(ValueError, match="THIEFBENCH_SANDBOX must be one of namespaces, landlock, unsafe-none"):
        run("1")


@once
def test_no_back_end_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise SandboxUnavailable(f"{name} is closed")

    monkeypatch.delenv(sandbox.VARIABLE)
    monkeypatch.setattr(sandbox, "_Worker", refuse)
    sandbox._probe.cache_clear()
    with pytest.raises(SandboxUnavailable) as error:
        run_many(["1"])
    sandbox._probe.cache_clear()
    assert str(error.value) == (
        "This machine cannot run untrusted programs: namespaces: namespaces is closed; landlock: landlock is closed."
    )
