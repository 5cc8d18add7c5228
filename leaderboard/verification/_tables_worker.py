"""Reads parquet files from a stranger in a separate process with little memory, before anything else reads them.

The sizes that a parquet file claims cannot be trusted: a page may contradict the footer, and a dictionary may repeat
one long text a million times. So each file is first read whole here, where running out of memory ends one process and
not the machine. Run as a script; a line of standard input is a JSON list of the rows, tokens of a row and bytes that a
table may have, and the file's path. For each it prints a line, a JSON list: what is wrong with the table, or nothing,
and whether the process can read another one as well as a fresh one could.
"""

from __future__ import annotations

import json
import resource
import sys
from math import ceil
from pathlib import Path

_BESIDE = 256 << 20
"""Address space of what reading takes whatever the table's size: the file, one page, the columns of one batch."""
_IN_PARTS = 3
"""A table is held folded, then unfolded, and checked a column at a time."""
_LEFT = 3 << 29
"""Address space that tables may leave behind, by which the next one has more room; beyond it, the process is ended. Of
this, Arrow's allocators reserve up to a gigabyte at once, which says nothing about memory in use."""


def memory_of(most_bytes: int) -> int:
    """Address space beyond the interpreter's own in which a table of so many bytes can be read."""
    return _BESIDE + _IN_PARTS * most_bytes


def main(seconds: int) -> None:
    """Check the tables one by one; the process ends where one needs more memory or time than its limit lets it."""
    import pyarrow as pa

    from thiefbench.suite.store.tables import TableError, TableLimit, read_limited

    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = _address_space()
    for line in sys.stdin:
        rows, tokens, size, path = json.loads(line)
        memory = _address_space() + memory_of(size)
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.RLIM_INFINITY))
        used = resource.getrusage(resource.RUSAGE_SELF)
        now = ceil(used.ru_utime + used.ru_stime)  # both count
        resource.setrlimit(resource.RLIMIT_CPU, (now + seconds, resource.RLIM_INFINITY))
        problem = ""
        try:
            read_limited(Path(path), TableLimit(rows, tokens, size))
        except TableError as error:
            problem = error.problem
        print(json.dumps([problem, _address_space() - base <= _LEFT]), flush=True)


def _address_space() -> int:
    """Bytes that this process has mapped; where the system does not tell, a generous guess."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 2 << 30
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]))
