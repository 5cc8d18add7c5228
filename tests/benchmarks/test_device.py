"""The device benchmark at tiny sizes, on whatever is here; and what it decides from its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.device.command import main, run_parts, went_well
from tests.benchmarks.device.cuda_tests import counted
from tests.benchmarks.device.page import page
from tests.benchmarks.device.sizes import FULL, TINY, data_sheet
from tests.benchmarks.device.speed import least_seconds
from tests.benchmarks.device.swarms import agrees


@pytest.mark.slow
def test_all_parts_run_and_leave_one_file_and_one_page(tmp_path: Path) -> None:
    assert main(["--all", "--tiny", "--out", str(tmp_path)], None) == 0
    results: dict[str, Any] = json.loads((tmp_path / "device.json").read_text())
    assert list(results) == ["device", "tests", "speed", "agreement", "medium"]

    tests, skipped = results["tests"], not torch.cuda.is_available()
    assert tests["failed"] == 0
    assert (tests["skipped"] > 0) == skipped and (tests["passed"] > 0) != skipped

    speed = results["speed"]
    assert 0 < speed["decoding"]["share of the roofline"] < 1
    assert 0 < speed["training"]["MFU"] < 1
    assert speed["generate"]["tokens a second"] > 0
    if skipped:
        assert speed["continuous batching"] == {"not run": "needs a CUDA device"}

    agreement = results["agreement"]
    assert agreement["agrees"]
    bfloat16 = next(name for name in agreement if name.endswith("bfloat16, against the processor"))
    assert 0 <= agreement[bfloat16]["completions of round 1 that differ"] <= 1

    assert set(results["medium"]) >= {"TEXT", "MATH", "no attack"}
    assert results["medium"]["TEXT"]["asr by round"].keys() == {"0", "1"}

    shown = (tmp_path / "index.html").read_text()
    assert all(f"<h2>{part}</h2>" in shown for part in results)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_full_sizes_need_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--all", "--out", str(tmp_path / "out")], None)
    assert "there is no CUDA device here; --tiny" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_failed_part_and_a_late_one_are_said_and_end_nothing() -> None:
    def fails(report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        report({"measured": 1})
        raise RuntimeError("out of memory")

    def works(report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        return {}

    saved: list[dict[str, list[str]]] = []
    parts = {"one": fails, "two": works, "three": works}
    results: dict[str, Any] = {}

    def save(done: dict[str, Any]) -> None:
        saved.append({name: list(result) for name, result in done.items()})

    assert not run_parts(parts, ["one", "two"], 60, results, save)
    assert results["one"]["error"] == "RuntimeError: out of memory" and "error" not in results["two"]
    assert not went_well(results["one"]) and went_well(results["two"])
    one, two = {"one": ["error", "minutes"]}, {"two": ["minutes"]}
    assert saved == [{"one": ["measured"]}, one, one | two], "what was measured is kept if what follows is cut off"
    assert not run_parts(parts, ["three"], -1, results, lambda _: None)
    assert results["three"] == {"not run": "the time was over before this part began"}


@pytest.mark.parametrize(
    ("result", "well"),
    [({}, True), ({"failed": 0}, True), ({"failed": 1}, False), ({"agrees": False}, False), ({"error": ""}, False)],
)
def test_what_went_well(result: dict[str, Any], well: bool) -> None:
    assert went_well(result) == well


def test_swarms_agree_within_the_tolerances() -> None:
    moved = {"asr": 0.09, "clean_reward": -0.04, "completions of round 1 that differ": 0.01}
    assert agrees(moved)
    for name, value in (("asr", -0.11), ("clean_reward", 0.06), ("completions of round 1 that differ", 0.02)):
        assert not agrees(moved | {name: value}), name


def test_tests_are_counted_by_their_outcome() -> None:
    junit = (
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><skipped/></testcase>"
        "<testcase name='c'><failure message='no'/></testcase><testcase name='d'><error message='gone'/></testcase>"
        "</testsuite></testsuites>"
    )
    assert counted(junit) == {"passed": 1, "failed": 2, "skipped": 1, "c": "no", "d": "gone"}


@pytest.mark.parametrize(
    ("name", "bandwidth"), [("NVIDIA H200", 4.8e12), ("NVIDIA H100 80GB HBM3", 3.35e12), ("another", 3.35e12)]
)
def test_a_device_s_rates_are_those_of_its_data_sheet(name: str, bandwidth: float) -> None:
    assert data_sheet(name) == (bandwidth, 989e12)


def test_the_roofline_is_that_of_operations_for_many_completions() -> None:
    sizes = replace(TINY, prompts=1000, group=1000)
    parameters = 10**9  # 2 operations each a token
    assert least_seconds(TINY.config, parameters, sizes) == pytest.approx(TINY.new_tokens * 2e15 / FULL.flops)


def test_the_roofline_counts_weights_keys_and_values_once_a_step() -> None:
    # 2 bytes each: 10 weights; 2 layers x (key and value) x 2 heads x 16 = 128 numbers for each token seen.
    seen = TINY.prompts * TINY.prompt_tokens + TINY.prompts * TINY.group * TINY.new_tokens / 2
    bytes_a_step = 2 * (10 + 128 * seen)
    assert least_seconds(TINY.config, 10, TINY) == pytest.approx(TINY.new_tokens * bytes_a_step / FULL.bandwidth)


def test_the_page_shows_strange_text_as_text() -> None:
    shown = page({"part": {"error": "<script>", "asr": [0.5, 0.25, 0.75], "nested": {"many": 1234567}}})
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert "0.5 [0.25, 0.75]" in shown and "1,234,567" in shown
