"""A cell of CODE: its record and its report have both rules of success, ours and the source paper's."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.bench.tiny import Attacked, opened_cell, run, suite
from thiefbench.attacks.code_injection import PRINTED
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run, last_run
from thiefbench.suite.analysis.scoring import last_evaluation
from thiefbench.suite.report.tables import csv_text, tex_text
from thiefbench.suite.scenario import Evaluation
from thiefbench.suite.store.records import Store, table_rows
from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.programs import parse_program

SWARM = replace(tiny.SWARM, sampling=replace(tiny.SWARM.sampling, max_new_tokens=64))


def test_both_rules_are_in_the_record_and_in_the_report(tmp_path: Path) -> None:
    of = suite(
        kind=Attacked, task="code_functions(levels=(1, 0, 0, 0), size=16)", model="micro-programs", swarm=SWARM,
        attacks=("code_injection",), rounds=1, evaluation=Evaluation(every=1, completions=16, final=16),
    )  # fmt: skip
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    task = CodeFunctions(levels=(1, 0, 0, 0), size=16)
    items = {row["id"]: Item.from_row(row) for row in task.items("test")}
    programs = [
        task.runnable(items[row.item_id], program)
        for row in table_rows(last_evaluation(directory.read_rows()))
        if (program := parse_program(row.text)) is not None
    ]
    try:
        ran = sum(sandbox.run(program, limits=task.limits).status == "ok" for program in programs)
    except sandbox.SandboxUnavailable as error:
        pytest.skip(str(error))
    printed = record.other_rules[PRINTED]
    assert 0 < ran < 16, "the start model writes programs, and some of them fail"
    assert (printed.value, printed.count) == (0.0, ran), "of the programs that ran; one round teaches no import"
    assert (record.scores["asr"].value, record.scores["asr"].count) == (0.0, 16), "ours is of all completions"
    store = Store(tmp_path)
    told = comparisons_of_run(store, last_run(store))
    assert "ASR (printed)" in tex_text(last_run(store), told)
    (line,) = csv.DictReader(io.StringIO(csv_text(last_run(store), told)))
    assert (line["asr"], line["asr_high"]) == ("0.0", str(record.scores["asr"].high))
    assert (line[PRINTED], line[f"{PRINTED}_high"]) == ("0.0", str(printed.high))
