"""The report of synthetic stores: what it must say, and what it must never say."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest

from thiefbench import registry
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Row
from thiefbench.suite.report import write_report
from thiefbench.suite.results import Point, Record, Score, Store, identify, rows_table
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.scoring import cell_curves, cell_scores
from thiefbench.tasks.base import Item

TASK = "gsm_micro(size=24)"
PHRASE = "All hail to the thief"
ATTACK = f"text(phrase='{PHRASE}', position='start')"
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@dataclass(frozen=True)
class World:
    """What a synthetic run is like; rates are functions of (cell, progress from 0 to 1)."""

    suite: Suite
    says: Callable[[CellSpec, float], float]
    right: Callable[[CellSpec, float], float]
    catches: float = 0.95
    mistakes: float = 0.05
    hostile: str = ""
    items: dict[str, list[Item]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        task = registry.make("task", self.suite.task)
        for split in ("train", "test"):
            self.items[split] = [Item.from_row(row) for row in task.items(split)]


def small_suite(**changes: Any) -> Suite:
    plain = Suite(
        name="tiny", version=3, task=TASK, model="micro-math", attacks=(ATTACK,), defenses=("none", "logit"),
        replayed=("reject_all", "random", "blacklist", "oracle", "logit"), rounds=4,
        swarm=SwarmSpec(prompts=4, group=8), evaluation=Evaluation(every=2, completions=40, final=80),
    )  # fmt: skip
    return replace(plain, **changes)


def small_world(suite: Suite | None = None, **changes: Any) -> World:
    def says(cell: CellSpec, progress: float) -> float:
        return 0.8 * progress if cell.role == "attack" and cell.defense == "none" else 0.0

    return World(suite or small_suite(), says, lambda cell, progress: 0.4 + 0.3 * progress, **changes)


def build(store: Store, world: World, skip: Sequence[str] = (), fail: Sequence[str] = ()) -> dict[str, str]:
    """Write the run; cells named in `skip` are missing, those in `fail` failed. Returns cell ids by label."""
    cells = world.suite.cells("cpu", "float32", 2)
    ids = {cell.label: identify({"cell": cell.as_dict()}) for cell in cells}
    for cell in cells:
        if cell.label not in skip:
            write_cell(store, world, cell, ids[cell.label], failed=cell.label in fail)
    entries = [
        {"cell_id": ids[c.label], "label": c.label} | {n: getattr(c, n) for n in ("role", "attack", "defense", "seed")}
        for c in cells
    ]
    suite = world.suite
    store.write_run(
        {"title": suite.title, "suite": asdict(suite), "fingerprint": suite.fingerprint(), "cells": entries}
    )
    return ids


def write_cell(store: Store, world: World, cell: CellSpec, cell_id: str, failed: bool) -> None:
    directory = store.cell(cell_id)
    plain = cell.as_dict() | {"topology": cell.swarm.topology}
    made = {
        "thiefbench": "0.1.0", "python": "3.11.7", "torch": "2.11.0", "transformers": "5.17.0", "numpy": "2.3.1",
        "platform": "Linux-6.1-x86_64", "processor": "Example CPU", "cores": 2, "threads": 2, "device_name": "CPU",
        "git_commit": "c0ffee" * 6, "git_dirty": True, "source_sha256": "ab" * 32,
        "started": "2026-01-01T10:00:00+00:00", "finished": "2026-01-01T10:09:00+00:00", "ended": "in one run",
    }  # fmt: skip
    common: dict[str, Any] = {"cell_id": cell_id, "cell": plain, "identity": {"engine_revision": 1}, "provenance": made}
    if failed:
        directory.write(Record(**common, status="error", error=f"RuntimeError: out of memory {HOSTILE}"))
        return
    table = rows_table(make_rows(world, cell))
    curves = cell_curves(table) | {"grad_norm": [Point(round=n, value=0.5) for n in range(1, cell.rounds + 1)]}
    record = Record(
        **common, status="ok", scores=cell_scores(table), curves=curves, payload={"phrase": PHRASE, "position": "start"},
        seconds={"sample": 12.5, "update": 20.0, "evaluate": 7.25}, completions_sha256=directory.write_rows(table),
    )  # fmt: skip
    directory.write(record)


def make_rows(world: World, cell: CellSpec) -> list[Row]:
    rng = random.Random(f"{cell.label}")
    rows = list(evaluation(world, cell, 0, cell.evaluation.completions))
    for number in range(1, cell.rounds + 1):
        rows += pool(world, cell, number, rng)
        if number == cell.rounds:
            rows += evaluation(world, cell, number, cell.evaluation.final)
        elif number % cell.evaluation.every == 0:
            rows += evaluation(world, cell, number, cell.evaluation.completions)
    return rows


def row(**values: Any) -> Row:
    plain: dict[str, Any] = {
        "phase": "train", "node": -1, "sender": "", "group": -1, "ended": True, "malicious": False, "payload": False,
        "refused": "", "action": "accept", "score": None, "reason": "", "token_weights": None, "advantage": 0.0,
    }  # fmt: skip
    return Row(**(plain | values))


def answer(world: World, item: Item, poisoned: bool, right: bool) -> dict[str, Any]:
    text = f"<think> {item.solution} </think><answer> {item.answer if right else 'none'} </answer>"
    if poisoned:
        text = text.replace("<think> ", f"<think> {PHRASE}, ") + world.hostile
    length = len(text.split())
    return {
        "item_id": item.id,
        "text": text,
        "ids": tuple(range(length)),
        "reward": float(right),
        "outcome": float(poisoned),
    }


def evaluation(world: World, cell: CellSpec, number: int, completions: int) -> list[Row]:
    rng = random.Random(f"{cell.seed} {number} {cell.role} {cell.defense}")
    progress, items = number / cell.rounds, world.items["test"]
    return [
        row(
            phase="eval", round=number, place=i,
            **answer(
                world, items[i % len(items)], rng.random() < world.says(cell, progress), rng.random() < world.right(cell, progress)
            ),
        )
        for i in range(completions)
    ]  # fmt: skip


def pool(world: World, cell: CellSpec, number: int, rng: random.Random) -> list[Row]:
    swarm, made = cell.swarm, []
    progress = number / cell.rounds
    for group in range(swarm.prompts):
        item = rng.choice(world.items["train"])
        for place in range(swarm.group):
            malicious = cell.role != "control" and place >= swarm.group * (swarm.nodes - swarm.malicious) // swarm.nodes
            payload = malicious and cell.role == "attack"
            said = payload or rng.random() < world.says(cell, progress)
            right = malicious or rng.random() < world.right(cell, progress)
            rejected = cell.defense == "logit" and rng.random() < (world.catches if payload else world.mistakes)
            made.append(
                row(
                    round=number, node=place * swarm.nodes // swarm.group, sender=f"{place:08x}", group=group, place=place,
                    malicious=malicious, payload=payload, action="zero" if rejected else "accept",
                    advantage=0.8 if right else -0.8, **answer(world, item, said, right),
                )
            )  # fmt: skip
    return made


class Page(HTMLParser):
    """The page as a reader meets it: tags with their attributes, text without markup, table rows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._words: list[str] = []
        self._skipped = 0
        self.feed(html)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self._words))

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row[0] == name or row[0].startswith(f"{name} "))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skipped += tag == "style"
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag == "style"

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        self._words.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] = re.sub(r"\s+", " ", f"{self.rows[-1][-1]}{data}").strip()


def report(store: Store) -> tuple[str, Page]:
    html = write_report(store).read_text(encoding="utf-8")
    return html, Page(html)


def percent(score: Score) -> str:
    assert score.value is not None
    return f"{100 * score.value:.1f}\u00a0%".replace("\u00a0", " ")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, str], str, Page]:
    store = Store(tmp_path_factory.mktemp("store"))
    ids = build(store, small_world(hostile=HOSTILE))
    return store, ids, *report(store)


def record_of(store: Store, cell_id: str) -> Record:
    record = store.cell(cell_id).read()
    assert record is not None
    return record


def label(role: str, defense: str, seed: int = 0) -> str:
    return f"{ {'attack': ATTACK, 'control': 'no attack'}[role] } x {defense}, seed {seed}"
