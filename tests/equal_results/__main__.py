"""Decide what a change to the engine's code means for stored results: `python -m tests.equal_results --equal WHY`.

Exactly one of:

- `--equal WHY` declares that the present code computes the results of the base revision, so that cells keep their ids.
  It must be earned: the small cells of `cells.py` leave what they left at the base revision, to the last bit, and the
  tests of golden values, recordings and backends pass. If anything differs, the command names it and writes nothing.
- `--new-base` makes the present code the base revision: results change, and so does the id of every cell. Earlier
  declarations are dropped.
- `--this-machine` adds the hashes of the base revision on this machine, as last bits depend on versions and processor.
  It needs code that has the base revision: check such a commit out, run this, and bring `values.json` along.

It takes about ten minutes and writes `bench/engine_revisions.json` and `tests/equal_results/values.json`.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

from tests.equal_results.deciding import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
