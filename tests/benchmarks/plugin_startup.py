"""What the installed plugin costs a pytest session that does not use it: paired runs with and without it.

    python tests/benchmarks/plugin_startup.py [--pairs 20]

Prints the median of each and of the differences within pairs, with the middle half of them, in milliseconds. On a busy
machine only processor time says something.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

WITHOUT = ("-p", "no:thiefbench")


def milliseconds(folder: Path, *words: str) -> tuple[float, float]:
    """Wall and processor time of a session of one empty test, in a process of its own."""
    began, used = time.perf_counter(), _processor()
    subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=folder, check=True, capture_output=True)
    return 1000 * (time.perf_counter() - began), 1000 * (_processor() - used)


def _processor() -> float:
    """Seconds of processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_one.py").write_text("def test_one(): pass\n")
        for words in ((), WITHOUT):  # compiles, and reads files into the cache
            milliseconds(folder, *words)
        measured = []
        for number in range(pairs):
            order = [(), WITHOUT] if number % 2 else [WITHOUT, ()]
            taken = {words: milliseconds(folder, *words) for words in order}
            measured.append((taken[()], taken[WITHOUT]))
    for which, what in enumerate(("wall time", "processor time")):
        columns = [(own[which], plain[which]) for own, plain in measured]
        low, middle, high = quantiles([own - plain for own, plain in columns], n=4)
        with_it, without = (median(column) for column in zip(*columns, strict=True))
        print(
            f"{what}: with {with_it:.0f} ms, without {without:.0f} ms; difference in {pairs} pairs: median "
            f"{middle:.1f} ms, middle half {low:.1f} to {high:.1f} ms"
        )


if __name__ == "__main__":
    main()
