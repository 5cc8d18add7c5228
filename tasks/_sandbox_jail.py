"""The two jails around a worker, and the seccomp filter around every program in it.

The filter is an allow list. It is the same in both jails, so that a program behaves alike on every host. System calls
that it does not name fail with EPERM: sockets, new processes and threads, signals, ptrace, execve, mounts, every way to
write, rename, chmod or lock a file, pipes, memfds, io_uring, bpf, prctl, raising a limit, and every call that a future
kernel adds. A deny list would have to name all of these, and would be incomplete with the next kernel.

Sources: seccomp(2), landlock(7), namespaces(7), user_namespaces(7), pivot_root(2), capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
import sys
import termios
from collections.abc import Iterable, Sequence
from pathlib import Path

PACKAGES = ("site-packages", "dist-packages")
"""Folders in the standard library's folder that contain the user's packages, which programs must not see."""

NOBODY = 65534


class JailError(Exception):
    """The kernel refuses a jail. The message is one clause that names the missing setting."""


def enter(backend: str, readable: Sequence[Path] = ()) -> None:
    """Lock this process, which must have one thread, and all its children into a jail for good.

    Afterwards it can read only the standard library, cannot write anything, and has no capabilities. With "namespaces"
    the caller continues as process 1 of a new pid namespace, while its original process waits for that one.

    Args:
        backend: "namespaces" or "landlock".
        readable: more files and folders to read, by paths without symbolic links, none inside another one. Of the
            user's packages only these are visible.

    Raises:
        JailError: the kernel refuses.
    """
    if platform.machine() not in _SYSCALLS or sys.maxsize < 2**32:
        raise JailError(f"no system call table for {platform.machine()}")
    {"namespaces": _enter_namespaces, "landlock": _enter_landlock}[backend](readable)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


# --- libc ---

_LIBC = ctypes.CDLL(None, use_errno=True)


def _libc(function: str, *arguments: object) -> int:
    """Call a C function, integers passed as long; raises OSError where it returns -1."""
    long = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result: int = getattr(_LIBC, function)(*long)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")
    return result


def _prctl(option: int, *arguments: object) -> int:
    return _libc("prctl", option, *arguments, *[0] * (4 - len(arguments)))


def _drop_privileges() -> None:
    """Give up every capability, for programs that are executed later too."""
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    for capability in range(64):
        try:
            _prctl(24, capability)  # PR_CAPBSET_DROP
        except OSError:  # beyond the last capability, or not allowed to drop any: then there is none to drop
            break
    _prctl(47, 4)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
    _libc("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))  # _LINUX_CAPABILITY_VERSION_3, this process


# --- the namespaces jail ---

_NEW = {"ns": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _PRIVATE = 32, 4096, 16384, 1 << 18
_DETACH = 2

# A setting that closes user namespaces, the value that does, and the one that opens them.
_CLOSED = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)


def _enter_namespaces(readable: Sequence[Path]) -> None:
    try:
        _unshare()
        if child := os.fork():  # this process only waits; the child is process 1 of the new pid namespace
            os.closerange(0, 256)
            os.waitpid(child, 0)
            os._exit(0)
        _pivot(readable)
        _drop_privileges()
    except OSError as error:
        raise JailError(f"{error.strerror}{_userns_hint()}") from None
    die_with_parent()  # last: a change of credentials resets it


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    _libc("unshare", sum(_NEW.values()))
    # Inside the user is nobody, outside it is the caller. Capabilities in the new namespace do not depend on the name.
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1"),
    ):  # fmt: skip
        Path(f"/proc/self/{name}").write_text(text)


def _pivot(readable: Sequence[Path]) -> None:
    """Make a read-only root with what may be read and nothing else: no /proc, no /dev, no /tmp."""
    _libc("sethostname", b"sandbox", 7)
    _libc("mount", None, b"/", None, _REC | _PRIVATE, None)
    # Opened before the new root hides the path they came from.
    sources = [(path, path.is_dir(), os.open(path, os.O_PATH)) for path in (*_library(), *readable)]
    root = Path("/tmp")
    _libc("mount", b"tmpfs", bytes(root), b"tmpfs", _NO_SUID | _NO_DEV, b"size=256k,mode=0755")
    covered = []
    for path, folder, source in sources:
        target = root / path.relative_to("/")
        if folder:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        _bind(f"/proc/self/fd/{source}", target)
        os.close(source)
        for name in PACKAGES:
            if path not in readable and (target / name).is_dir():
                options = b"size=256k,mode=0755"
                _libc("mount", b"tmpfs", bytes(target / name), b"tmpfs", _NO_SUID | _NO_DEV, options)
                covered.append(target / name)
    for target in covered:  # the readable ones among the user's packages are mounted in them by now
        _libc("mount", None, bytes(target), None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV, None)
    os.chdir(root)
    number = _SYSCALLS[platform.machine()]["pivot_root"]
    _libc("syscall", number, b".", b".")  # the old root now lies on top of the new one, which is this directory
    _libc("umount2", b".", _DETACH)
    os.chdir("/")
    _libc("mount", None, b"/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV, None)


def _bind(source: str, target: Path) -> None:
    _libc("mount", source.encode(), bytes(target), None, _BIND | _REC, None)
    kept = os.statvfs(target).f_flag & _NO_EXEC  # a user namespace may add a flag to a mount, never take one away
    _libc("mount", None, bytes(target), None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV | kept, None)


def _userns_hint() -> str:
    for setting, closed, opened in _CLOSED:
        try:
            value = Path("/proc/sys", *setting.split(".")).read_text().strip()
        except OSError:
            continue
        if value == closed:
            return f" (sysctl {setting} is {closed}; {opened} opens user namespaces)"
    return " (a container must allow unshare and mount, CAP_SYS_ADMIN does)"


def _library() -> list[Path]:
    """The folders of the standard library: those in `sys.path`, without folders inside other ones."""
    folders = [Path(path) for path in sys.path if Path(path).is_dir()]
    return [folder for folder in folders if not set(folder.parents) & set(folders)]


# --- the Landlock jail ---

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3


def _enter_landlock(readable: Sequence[Path]) -> None:
    """Landlock allows one thing that the other jail forbids: stat of any path, which shows its existence and size."""
    try:
        abi = _libc("syscall", _CREATE_RULESET, None, 0, 1)
    except OSError:
        raise JailError(
            "Landlock is not enabled (Linux 5.13 or later, booted with landlock in its lsm= list)"
        ) from None
    # Everything that this kernel's Landlock can deny, by the version that added it: the file system, TCP, and abstract
    # sockets and signals to the outside. The seccomp filter denies all but reading anyway.
    files = (1 << 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)) - 1
    attributes = struct.pack("=QQQ", files, 3 * (abi >= 4), 3 * (abi >= 6))[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    try:
        ruleset = _libc("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
        for folder in _library():
            for path in folder.iterdir():
                if path.name not in PACKAGES and not path.is_symlink():  # a rule for a link would allow its target
                    _allow_reading(ruleset, path)
        for path in readable:
            _allow_reading(ruleset, path)
        _drop_privileges()
        _libc("syscall", _RESTRICT_SELF, ruleset, 0)
    except OSError as error:
        raise JailError(f"Landlock: {error.strerror}") from None
    os.close(ruleset)


def _allow_reading(ruleset: int, path: Path) -> None:
    """Allow reading one file or folder.

    The standard library's folder itself is not allowed, as it may contain the user's packages. Imports still find its
    modules, in the listing that the import system made before.
    """
    handle = os.open(path, os.O_PATH)
    rule = struct.pack("=Qi", _READ_FILE | (_READ_DIR if path.is_dir() else 0), handle)
    _libc("syscall", _ADD_RULE, ruleset, 1, rule, 0)  # LANDLOCK_RULE_PATH_BENEATH
    os.close(handle)


# --- the seccomp filter ---

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SYSCALLS = {
    "x86_64": {
        "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
        "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
        "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23,
        "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36,
        "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "fcntl": 72, "getcwd": 79,
        "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
        "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
        "pivot_root": 155, "gettid": 186, "time": 201, "futex": 202, "getdents64": 217, "restart_syscall": 219,
        "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "openat": 257,
        "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "dup3": 292,
        "prlimit64": 302, "getrandom": 318, "statx": 332, "faccessat2": 439,
    },
    "aarch64": {
        "getcwd": 17, "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "pivot_root": 41, "faccessat": 48,
        "openat": 56, "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66,
        "pread64": 67, "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93,
        "exit_group": 94, "futex": 98, "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113,
        "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132,
        "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160, "getrusage": 165,
        "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176,
        "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222,
        "mprotect": 226, "madvise": 233, "prlimit64": 261, "getrandom": 278, "statx": 291, "faccessat2": 439,
    },
}  # fmt: skip
"""Numbers of the system calls: all that a program may make, and pivot_root, which only the jail itself makes."""

# struct seccomp_data: the call's number, the architecture, 8 bytes that are not needed, six arguments of 8 bytes.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000

Instruction = tuple[int, int, int, int]
"""One BPF instruction: code, how many instructions to skip if true, if false, and its operand (linux/filter.h)."""


def system_call_filter(machine: str) -> list[Instruction]:
    """The seccomp program that every hostile program runs under, for "x86_64" or "aarch64"."""
    numbers = dict(_SYSCALLS[machine])
    del numbers["pivot_root"]
    reading = os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_LARGEFILE
    # Calls that are allowed only with some arguments. Opening for reading could otherwise truncate a file; fcntl and
    # ioctl could reach other processes through F_SETOWN and FIOASYNC; prlimit64 could set limits, even of others.
    narrowed = {
        "open": [(_LOAD, 0, 0, _low(1)), (_JUMP_IF_ANY_BIT, 1, 0, ~reading & 0xFFFFFFFF), *_allow()],
        "openat": [(_LOAD, 0, 0, _low(2)), (_JUMP_IF_ANY_BIT, 1, 0, ~reading & 0xFFFFFFFF), *_allow()],
        "ioctl": _allow_values(1, (termios.TCGETS, termios.FIOCLEX, termios.FIONCLEX)),
        "fcntl": _allow_values(1, (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL)),
        "prlimit64": [*_continue_if_zero(0), *_continue_if_zero(2), *_continue_if_zero(2, high=True), *_allow()],
    }
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for name, number in numbers.items():
        rule = [*narrowed[name], (_RETURN, 0, 0, _DENY)] if name in narrowed else _allow()
        program += [(_JUMP_IF_EQUAL, 0, len(rule), number), *rule]
    return [*program, (_RETURN, 0, 0, _DENY)]


def _low(argument: int, high: bool = False) -> int:
    """Where the low (or high) 32 bits of an argument are; both architectures are little-endian."""
    return _ARGUMENTS + 8 * argument + 4 * high


def _allow() -> list[Instruction]:
    return [(_RETURN, 0, 0, _ALLOW)]


def _allow_values(argument: int, values: Iterable[int]) -> list[Instruction]:
    tests = [step for value in values for step in ((_JUMP_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [(_LOAD, 0, 0, _low(argument)), *tests]


def _continue_if_zero(argument: int, high: bool = False) -> list[Instruction]:
    return [(_LOAD, 0, 0, _low(argument, high)), (_JUMP_IF_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _DENY)]


class Filter:
    """A seccomp program, encoded for the kernel once and installed by many processes."""

    def __init__(self, program: list[Instruction]) -> None:
        self._code = b"".join(struct.pack("=HBBI", *step) for step in program)
        address = ctypes.cast(ctypes.c_char_p(self._code), ctypes.c_void_p).value
        self._header = struct.pack("@HP", len(program), address)

    def install(self) -> None:
        """Put this process under the filter for good. This needs no_new_privs, which both jails set."""
        _prctl(22, 2, self._header)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
