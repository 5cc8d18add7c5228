"""How a result was made: versions, commit, hardware."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from thiefbench.errors import UsageError

MACHINE = ("processor", "cores", "threads", "device_name")
"""Must be equal for the durations of two cells to be compared."""

CAPABILITY = "ATEN_CPU_CAPABILITY"
"""The environment variable in which torch is told the vector instructions to use."""
_FLAGS = {"avx2": "avx2", "avx512": "avx512f"}
"""What Linux calls them."""

DISTRIBUTIONS = (
    "thiefbench", "torch", "transformers", "numpy", "scipy", "safetensors", "tokenizers", "datasets", "pyarrow",
)  # fmt: skip
"""Distributions whose versions a record holds, in addition to Python's."""


def provenance(device: str, threads: int) -> dict[str, Any]:
    """How a record was made; none of it is part of a cell's identity."""
    return {
        **{name: _version(name) for name in DISTRIBUTIONS},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "processor_model": _processor_model(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device_name": _device_name(device),
        "capability": _capability(),
        **_commit(),
        "source_sha256": source_sha256(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def source_sha256() -> str:
    """SHA-256 over every Python file of the installed package."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def _commit() -> dict[str, Any]:
    """Commit and dirtiness of the checkout this package was installed from, None if it came from elsewhere."""
    unknown: dict[str, Any] = {"git_commit": None, "git_dirty": None}
    try:
        origin = json.loads(distribution("thiefbench").read_text("direct_url.json") or "{}").get("url", "")
    except (PackageNotFoundError, ValueError):
        return unknown
    checkout = Path(unquote(urlparse(origin).path))
    if not origin.startswith("file:") or not (checkout / ".git").exists():
        return unknown
    try:
        commit, dirty = (
            subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return unknown
    return {"git_commit": commit.strip(), "git_dirty": bool(dirty.strip())}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    return _first_processor().get("model name", platform.processor())


def _processor_model() -> str:
    """The processor by its numbers: libraries choose their loops by them, and a rented machine hides its name."""
    found = _first_processor()
    parts = {"": "vendor_id", "family ": "cpu family", "model ": "model", "stepping ": "stepping"}
    return " ".join(f"{said}{found[name]}" for said, name in parts.items() if name in found) or platform.machine()


@cache
def _first_processor() -> dict[str, str]:
    """Linux's description of the first processor, by field; empty on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def check_capability() -> None:
    """Check that torch is not told to use vector instructions that this CPU lacks: they end a process without a word.

    Raises:
        UsageError: it is.
    """
    asked = os.environ.get(CAPABILITY, "")
    if asked in _FLAGS and (flags := _first_processor().get("flags")) and _FLAGS[asked] not in flags.split():
        raise UsageError(f"{CAPABILITY} is {asked}, which this processor lacks; unset it")


def _capability() -> str:
    """The vector instructions that torch uses on this CPU; it can be set to use fewer than exist."""
    check_capability()
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():  # a failure can be recorded by a machine that only coordinated the run
            return "not on this machine"
        return str(torch.cuda.get_device_name(device))
    return "CPU"
