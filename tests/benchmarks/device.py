"""What a GPU does with ThiefBench, in one command: its tests, agreement with the processor, speed, a larger model.

    python tests/benchmarks/device.py --all --out runs/device              # on a CUDA device, under 25 minutes
    python tests/benchmarks/device.py --part speed --out runs/device       # one part; repeat --part for several
    python tests/benchmarks/device.py --all --tiny --out runs/device-tiny  # the same code at tiny sizes, anywhere

tests       The tests that need a CUDA device.
speed       Decoding and training in bfloat16 at the shape of Qwen2.5-1.5B with random weights: tokens per second, the
            share of the roofline, MFU, peak memory; in the same run transformers' `generate` and its
            continuous batching, and one decoding step of ours, each with and without CUDA graphs.
agreement   The undefended swarm of `smoke` on the processor and on the device in float32, with stated tolerances, and
            how far bfloat16 moves its results.
medium      Trains `medium-math` (27 million parameters) by the recipe of the built-in models and plays TEXT, MATH and
            a swarm without an attack on it, 60 rounds each.

Results are written to device.json and index.html in the output folder after every part. A part that has not begun when
the time (--minutes) is over is left out, and said to be. The parts and the page are in the folder device/.

STATE: `tests` and most of `speed` have run on an H200; `agreement` and `medium` began there and did not end in time
(docs/log/2026-11-27-gpu.md). At tiny sizes all parts run on processors. The 25 minutes are an estimate.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.benchmarks.device.command import main

    sys.exit(main(sys.argv[1:], __doc__))
