"""A root for guests whose folders are the jail's own, with every file bound into them by itself.

The sandbox's jail (`thiefbench.tasks._sandbox_jail`) binds whole folders of the disk. Of these, the kernel remembers
which names were looked for and are not there (negative dentries), and how long another look takes tells whether it
does. A name is one bit for the whole machine, so a guest could leave messages for guests of later cells and of later
verifications, and a chain of names is a counter. In a folder in memory (tmpfs), nothing is remembered of a name that is
not there, and a folder of the jail ends with it.

Sources: mount(2), mount_setattr(2), tmpfs(5).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from thiefbench.tasks import _sandbox_jail as jail

_ROOT = Path("/tmp")
_MOUNT_SETATTR = 442
"""The number of mount_setattr(2) on every architecture; Linux has it from 5.12 on."""
_HERE, _RECURSIVE = -100, 0x8000
"""AT_FDCWD and AT_RECURSIVE (linux/fcntl.h)."""
_FORBIDDEN = 1 | 2 | 4
"""MOUNT_ATTR_RDONLY, NOSUID and NODEV (linux/mount.h)."""
_FLAGS = jail._REMOUNT | jail._BIND | jail._READ_ONLY | jail._NO_SUID | jail._NO_DEV
_LEFT_OUT = (*jail.PACKAGES, "test")
"""Folders in the standard library's that guests do not see: those of the user's packages, and the library's tests."""


def pivot(readable: Sequence[Path]) -> None:
    """Make a read-only root with what may be read and nothing else, as the sandbox's jail does.

    Args:
        readable: see `thiefbench.tasks._sandbox_jail.enter`.

    Raises:
        OSError: the kernel refuses.
    """
    jail._libc("sethostname", b"sandbox", 7)
    jail._libc("mount", None, b"/", None, jail._REC | jail._PRIVATE, None)
    # Opened before the new root hides the path they came from.
    library = jail._library()
    sources = [(path, os.open(path, os.O_PATH)) for path in (*library, *readable)]
    jail._libc("mount", b"tmpfs", bytes(_ROOT), b"tmpfs", jail._NO_SUID | jail._NO_DEV, b"size=256k,mode=0755")
    bound: list[Path] = []
    for path, source in sources:
        target, at = _ROOT / path.relative_to("/"), Path(f"/proc/self/fd/{source}")
        if stat.S_ISDIR(os.fstat(source).st_mode):
            bound += _lay_out(at, target, _LEFT_OUT if path in library else ())
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            bound += _bind(at, target)
        os.close(source)
    os.chdir(_ROOT)
    jail._libc("syscall", jail._SYSCALLS[os.uname().machine]["pivot_root"], b".", b".")
    jail._libc("umount2", b".", jail._DETACH)  # the old root, which lay on top
    os.chdir("/")
    _forbid_writing([Path("/", path.relative_to(_ROOT)) for path in bound])


def _lay_out(source: Path, target: Path, left_out: Sequence[str]) -> list[Path]:
    """Make a folder's folders anew, and bind its files; returns the paths of the files."""
    bound: list[Path] = []
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            path, here = Path(entry.path), target / entry.name
            if entry.name in left_out:
                continue
            if entry.is_symlink():
                if not (here.is_symlink() or here.exists()):
                    here.symlink_to(path.readlink())
            elif entry.is_dir():
                bound += _lay_out(path, here, ())
            elif entry.is_file():
                bound += _bind(path, here)
    return bound


def _bind(source: Path, target: Path) -> list[Path]:
    """Bind a file, unless one is there already; returns where, if anywhere."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return []
    jail._libc("mount", bytes(source), bytes(target), None, jail._BIND, None)
    return [target]


def _forbid_writing(bound: Sequence[Path]) -> None:
    """Make all mounts read-only, without devices and without programs of other users."""
    try:
        attributes = struct.pack("=QQQQ", _FORBIDDEN, 0, 0, 0)
        jail._libc("syscall", _MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, attributes, len(attributes))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # a container may refuse what it does not know
            raise
        for path in bound:  # one by one, as an older kernel wants it
            kept = os.statvfs(path).f_flag & jail._NO_EXEC
            jail._libc("mount", None, bytes(path), None, _FLAGS | kept, None)
        jail._libc("mount", None, b"/", None, _FLAGS, None)
