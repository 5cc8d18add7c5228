"""Part `tests`: the tests that need a CUDA device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

CHECKOUT = Path(__file__).parents[3]
TESTS = ("tests/bench/engine/test_cuda.py",)


def run_tests(out: Path) -> dict[str, Any]:
    """Run them in a process of their own and count; without a device all are skipped.

    Raises:
        RuntimeError: pytest ended without a result.
    """
    log = out / "cuda-tests.xml"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(log.resolve()), *TESTS]
    done = subprocess.run(command, cwd=CHECKOUT, env=os.environ, capture_output=True, text=True)
    if not log.exists():
        raise RuntimeError(f"pytest left no result: {(done.stderr or done.stdout).strip()[-500:]}")
    return counted(log.read_text())


def counted(junit: str) -> dict[str, Any]:
    """How many tests a JUnit file says passed, failed and were skipped, and the message of every failure."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    failures = {
        str(case.get("name")): str(problem.get("message"))
        for case in cases
        for problem in (*case.iter("failure"), *case.iter("error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failures) - skipped
    return {"passed": passed, "failed": len(failures), "skipped": skipped} | failures
