"""Leaves out the hashes of files that no supported machine installs. Usage: hashes.py UV_LOCK REQUIREMENTS

`uv export` writes a hash for every file of a version: for Windows, for old processors, for interpreters from PyPy to
free-threaded builds. What Linux and macOS on the usual processors install is a fifth of them; sources stay, for all
others. REQUIREMENTS is rewritten.
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
INTERPRETERS = re.compile(r"py3(1[1-5])?|cp31[1-5]")


def installable(tag: Tag) -> bool:
    """Whether CPython from 3.11 on Linux or macOS may install a wheel with this tag."""
    by_abi = tag.abi == "abi3" or (not tag.abi.endswith("t") and INTERPRETERS.fullmatch(tag.interpreter))
    return bool(by_abi and PLATFORMS.fullmatch(tag.platform))


def needed(package: dict[str, Any]) -> Iterator[str]:
    """The hashes of a package's installable wheels, and of its source."""
    for wheel in package.get("wheels", []):
        if any(map(installable, parse_wheel_filename(wheel["url"].rsplit("/", 1)[-1])[3])):
            yield wheel["hash"]
    if "sdist" in package:
        yield package["sdist"]["hash"]


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
