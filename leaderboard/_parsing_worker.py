"""Parses Python files from a stranger in a process with little time and memory, before anything else parses them.

Python's own parser takes hours for some files of a megabyte, such as one long dotted name, and nothing can interrupt
it. Run as a script: ``_parsing_worker.py SECONDS BYTES FILE...``. It prints a line when it starts, and one for each
file that it is done with, valid or not. A file that is too much for the parser's memory or stack ends the process too.
It imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import ast
import resource
import sys
import warnings
from contextlib import suppress
from pathlib import Path


def main(seconds: int, most_bytes: int, files: list[str]) -> None:
    """Parse the files one by one; the process ends where one needs more than its limits let it."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    print(flush=True)  # it has started
    for file in files:
        with suppress(SyntaxError, ValueError, RecursionError):  # the caller finds the same when it parses the file
            ast.parse(Path(file).read_bytes())
        print(flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
