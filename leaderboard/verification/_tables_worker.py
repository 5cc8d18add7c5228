"""Reads parquet files from a stranger in a separate process with little memory, before anything else reads them.

The sizes that a parquet file claims cannot be trusted either: a page may contradict the footer, and a dictionary may
repeat one long text a million times. So each file is first read whole here, where running out of memory ends one
process and not the machine. Run as a script, with the paths as lines of standard input; it prints the bytes that each
table takes.
"""

from __future__ import annotations

import resource
import sys


def main(memory: int, seconds: int) -> None:
    """Print the bytes of each table, one a line; the process ends where one needs more memory or time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        now = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
        resource.setrlimit(resource.RLIMIT_CPU, (now + seconds, resource.RLIM_INFINITY))
        table = pq.read_table(line.rstrip("\n"), use_threads=False, pre_buffer=False)
        table.validate(full=True)
        print(table.get_total_buffer_size(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
