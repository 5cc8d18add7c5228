"""The command line of `tests/benchmarks/device.py`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.device.cuda_tests import run_tests
from tests.benchmarks.device.page import write
from tests.benchmarks.device.sizes import FULL, TINY, Sizes, data_sheet, device
from tests.benchmarks.device.speed import measure_speed
from tests.benchmarks.device.swarms import measure_agreement, measure_medium
from thiefbench import provenance

Part = Callable[[Callable[[dict[str, Any]], None]], dict[str, Any]]
PARTS = ("tests", "speed", "agreement", "medium")


def main(arguments: Sequence[str], doc: str | None) -> int:
    """Run what the command line asks for; 1 if a part did not go well (`went_well`), else 0."""
    asked = _asked(arguments, doc)
    bandwidth, flops = data_sheet(torch.cuda.get_device_name() if device() == "cuda" else "")
    sizes = replace(TINY if asked.tiny else FULL, bandwidth=asked.bandwidth or bandwidth, flops=asked.flops or flops)
    asked.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "device": {"device": device(), "sizes": "tiny" if asked.tiny else "full", "bandwidth": sizes.bandwidth,
                   "flops": sizes.flops} | provenance.provenance(device(), torch.get_num_threads())
    }  # fmt: skip
    finished = run_parts(_parts(sizes, asked.out), asked.part, 60 * asked.minutes, results, partial(write, asked.out))
    print(f"{asked.out / 'device.json'} and {asked.out / 'index.html'}")
    return 0 if finished else 1


def run_parts(
    parts: Mapping[str, Part],
    wanted: Sequence[str],
    limit: float,
    results: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
) -> bool:
    """Run the wanted parts in order and save the results after each; whether all of them went well.

    Args:
        parts: what measures each part, by name. It may report what it has so far, which is saved.
        wanted: names of parts.
        limit: seconds after which no further part begins.
        results: where each part's results go, by name.
        save: writes the results.
    """
    began, whole = time.monotonic(), True
    for name in wanted:
        started = time.monotonic()
        if started - began > limit:
            results[name] = {"not run": "the time was over before this part began"}
        else:
            print(f"{name} ...", flush=True)
            try:
                results[name] = parts[name](lambda so_far, name=name: save(results | {name: so_far}))
            except Exception as error:  # the other parts do not depend on this one
                results[name] = {"error": f"{type(error).__name__}: {error}"}
            results[name]["minutes"] = (time.monotonic() - started) / 60
        whole &= went_well(results[name])
        save(results)
    return whole


def went_well(result: Mapping[str, Any]) -> bool:
    """Whether a part ran, no test of it failed, and the device agrees with the processor."""
    ran = not result.keys() & {"error", "not run"}
    return ran and result.get("failed", 0) == 0 and result.get("agrees", True)


def _parts(sizes: Sizes, out: Path) -> dict[str, Part]:
    return {
        "tests": lambda report: run_tests(out),
        "speed": partial(measure_speed, sizes),
        "agreement": lambda report: measure_agreement(sizes, out),
        "medium": lambda report: measure_medium(sizes, out),
    }


def _asked(arguments: Sequence[str], doc: str | None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="device.py", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_const", const=list(PARTS), dest="part", help="all parts")
    chosen.add_argument("--part", action="append", choices=PARTS, help="one part; repeat for several")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, also without a CUDA device")
    parser.add_argument("--minutes", type=float, default=25.0, help="after these, no further part begins")
    parser.add_argument("--bandwidth", type=float, help="of its memory, bytes per second; default: its data sheet's")
    parser.add_argument("--flops", type=float, help="peak rate in bfloat16; default: its data sheet's")
    asked = parser.parse_args(arguments)
    if not asked.tiny and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --tiny tries the same code at tiny sizes on the processor")
    return asked
