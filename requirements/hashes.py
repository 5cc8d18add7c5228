"""Leaves out the hashes of files that no supported machine installs. Usage: hashes.py UV_LOCK REQUIREMENTS

`uv export` writes a hash for every file of a version: for Windows, for old processors, for interpreters from PyPy to
free-threaded builds. Those of Linux and macOS on the usual processors are a third of them. REQUIREMENTS is rewritten.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

PLATFORMS = re.compile(r"any|(many)?linux\w*_(x86_64|aarch64)|macosx_\w+_(arm64|universal2)")
INTERPRETERS = re.compile(r"py3|py2\.py3|cp3(11|12|13|14)")


def installable(tag: Tag) -> bool:
    """Whether CPython from 3.11 on Linux or macOS may install a wheel with this tag."""
    by_abi = tag.abi == "abi3" or (not tag.abi.endswith("t") and INTERPRETERS.fullmatch(tag.interpreter))
    return bool(by_abi and PLATFORMS.fullmatch(tag.platform))


def needed(package: dict[str, Any]) -> Iterator[str]:
    """The hashes of a package's wheels that are installable; of its source where there is no such wheel."""
    wheels = {each["url"].rsplit("/", 1)[-1]: each["hash"] for each in package.get("wheels", [])}
    kept = [digest for name, digest in wheels.items() if any(map(installable, parse_wheel_filename(name)[3]))]
    yield from kept or [each["hash"] for each in (package.get("sdist"),) if each]


def pruned(requirements: str, hashes: set[str]) -> str:
    """The requirements with those of their hashes that are in `hashes`.

    Raises:
        ValueError: A requirement would be left without any hash.
    """
    entries = []
    for entry in re.split(r"\n(?=\S)", requirements.rstrip("\n")):
        first, *listed = entry.split(" \\\n")
        kept = [each for each in listed if each.split("--hash=")[1] in hashes]
        if listed and not kept:
            raise ValueError(f"no file of {first} can be installed on Linux or macOS")
        entries.append(" \\\n".join([first, *kept]))
    return "\n".join(entries) + "\n"


if __name__ == "__main__":
    lock, requirements = map(Path, sys.argv[1:])
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    hashes = {digest for package in packages for digest in needed(package)}
    requirements.write_text(pruned(requirements.read_text(encoding="utf-8"), hashes), encoding="utf-8")
