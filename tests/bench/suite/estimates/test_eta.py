"""Work, pace and the time left: arithmetic that is checked by hand and by runs that are only played through."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from thiefbench.engine.spec import SwarmSpec
from thiefbench.progress import Tally
from thiefbench.suite.estimates.eta import (
    EVALUATED,
    MeasuredCell,
    Rates,
    RunOutline,
    Stage,
    completions,
    longest,
    seconds_left,
    work,
    write_seconds,
)
from thiefbench.suite.scenario import CellSpec, Evaluation

CELL = CellSpec(
    task="t", model="m", attack="text", defense="none", role="attack", seed=0, rounds=10,
    swarm=SwarmSpec(nodes=2, malicious=1, prompts=5, group=4),
    evaluation=Evaluation(every=4, completions=50, final=100),
)  # fmt: skip


def cells(seeds: int, defenses: Sequence[str] = ("none",)) -> list[CellSpec]:
    """Per seed a control and an attacked cell for every defense, in a suite's order."""
    made = []
    for seed in range(seeds):
        made.append(replace(CELL, role="control", seed=seed))
        made += [replace(CELL, defense=defense, seed=seed) for defense in defenses]
    return made


def test_completions_counted_by_hand() -> None:
    assert completions(CELL, 0) == (0, 50), "the start is evaluated"
    assert completions(CELL, 3) == (60, 50)
    assert completions(CELL, 4) == (80, 100), "and every fourth round"
    assert completions(CELL, 8) == (160, 150)
    assert completions(CELL, 10) == (200, 250), "and the last, with more completions"
    assert completions(replace(CELL, rounds=8), 8) == (160, 200), "a last round has one evaluation"
    assert work(CELL, 10) == 200 + EVALUATED * 250


def test_a_resumed_cell_has_less_work_left() -> None:
    assert Stage(CELL, 10).work_left == work(CELL, 10), "the evaluation of the start as well"
    assert Stage(CELL, 10, done=4).work_left == pytest.approx(work(CELL, 10) - work(CELL, 4))
    assert Stage(CELL, 10, done=0, begun=0).work_left == pytest.approx(work(CELL, 10) - EVALUATED * 50)
    assert Stage(CELL, 10, done=9, begun=0).work_left > 0, "while a round is left, so is work"
    assert Stage(CELL, 10, done=10, begun=0).work_left == 0


@pytest.mark.parametrize(
    ("busy", "waiting", "workers", "seconds"),
    [
        ([5.0], [3.0, 2.0], 1, 10.0),
        ([5.0, 1.0], [3.0, 2.0], 2, 6.0),
        ([], [4.0, 4.0, 4.0], 2, 8.0),
        ([7.0], [], 4, 7.0),
        ([], [], 3, 0.0),
    ],
)
def test_the_longest_path(busy: list[float], waiting: list[float], workers: int, seconds: float) -> None:
    assert longest(busy, waiting, workers) == seconds, "whoever is free takes the next cell"


def test_a_rate_is_the_mean_of_cells_alike() -> None:
    control, judge, dos = replace(CELL, role="control"), replace(CELL, defense="judge"), replace(CELL, attack="dos")
    rates = Rates([MeasuredCell(control, 1000, 10.0)])
    assert rates.of(judge) == pytest.approx(0.01), "what nothing is known of takes as long as the others"
    rates = Rates([MeasuredCell(judge, 1000, 50.0), MeasuredCell(replace(judge, seed=1), 3000, 30.0)])
    assert rates.of(replace(judge, seed=3)) == pytest.approx(80 / 4000), "seconds over work, whatever the seed"
    rates = Rates([MeasuredCell(control, 1000, 10.0), MeasuredCell(judge, 1000, 50.0), MeasuredCell(dos, 1000, 30.0)])
    assert rates.of(control) == pytest.approx(0.01)
    assert rates.of(replace(control, attack="dos")) == pytest.approx(0.01), "without an attack all attacks are one"
    assert rates.of(replace(control, defense="judge")) == pytest.approx(0.05), "a slow defense is always slow"
    assert rates.of(replace(dos, defense="judge")) == pytest.approx(0.05), "of attack and defense the slower counts"
    assert rates.of(replace(dos, defense="logit")) == pytest.approx(0.03)
    assert rates.of(replace(CELL, role="placebo", defense="logit")) == pytest.approx(0.03), "else the setting's mean"
    other = replace(CELL, model="large")
    rates = Rates([MeasuredCell(other, 1000, 90.0), MeasuredCell(control, 1000, 10.0)])
    assert rates.of(CELL) == pytest.approx(0.01), "cells of another model say nothing"
    assert rates.of(replace(CELL, model="huge")) == pytest.approx(0.05), "where no other is known, all do"
    assert not Rates([MeasuredCell(CELL, 0.0, 0.0)])


def test_what_questions_cost_is_not_taken_for_the_defense() -> None:
    """An attacker who asks a defense forty times makes a slow cell; what the defense takes elsewhere is small."""
    asking = replace(CELL, attack="adaptive")
    known = [
        MeasuredCell(spec, work(spec, 10), work(spec, 10) * 0.01)
        for spec in (CELL, asking, replace(CELL, attack="dos"))
    ]
    slow = replace(asking, defense="judge")
    rates = Rates([*known, MeasuredCell(slow, work(slow, 10), work(slow, 10) * 0.1)])
    assert rates.of(slow) == pytest.approx(0.1, rel=0.05)
    assert rates.of(replace(asking, defense="judge", seed=1)) > 0.08, "another seed's attacker asks as much"
    for spec in (CELL, replace(CELL, attack="dos"), replace(CELL, role="control")):
        assert rates.of(replace(spec, defense="judge")) < 1.3 * rates.of(spec) < 0.02, (
            "and the defense little elsewhere"
        )


def test_the_tail_is_as_long_as_its_longest_cell() -> None:
    first, last = cells(1)
    stages = [Stage(first, 10, done=10, begun=0, seconds=10.0), Stage(last, 10, done=5, begun=0, seconds=5.0)]
    rates = Rates([MeasuredCell(first, work(first, 10), 10.0)])
    assert seconds_left(stages, 8, rates) == seconds_left(stages, 1, rates), "a cell is worked on by one process"


def played(
    specs: Sequence[CellSpec],
    workers: int,
    pace: Callable[[CellSpec], float],
    before: Sequence[MeasuredCell] = (),
    rehearsal: Callable[[CellSpec], float] = lambda spec: 0.0,
) -> list[tuple[float, float]]:
    """A run that is only played through: (seconds since its start, seconds left as told then) at every round.

    `rehearsal` takes its seconds before a cell's first round.

    An evaluated completion takes 0.6 of the seconds of a training one here, so that the share which the estimate works
    with is not simply right.
    """
    now, told = 0.0, []
    tally = Tally(workers, clock=lambda: now)
    tally.plan(RunOutline("t", specs, measured=before))
    queue, events = list(specs), [(0.0, worker, None, 0) for worker in range(workers)]
    while events:
        now, worker, spec, done = heapq.heappop(events)
        if spec is not None:
            tally.cell(spec, done, spec.rounds)
            if (left := tally.seconds_left()) is not None:
                assert left > 0 or tally.share == pytest.approx(1.0), "nothing is claimed to be done before it is"
                told.append((now, left))
            if done == spec.rounds:
                tally.finished(spec)
                spec = None
        if spec is None:
            if not queue:
                continue
            spec, done = queue.pop(0), -1
        trained, evaluated = (completions(spec, done + 1)[i] - completions(spec, done)[i] * (done >= 0) for i in (0, 1))
        seconds = (trained + 0.6 * evaluated) * pace(spec) + (rehearsal(spec) if done == 0 else 0.0)
        heapq.heappush(events, (now + seconds, worker, spec, done + 1))  # type: ignore[misc]
    assert tally.share == pytest.approx(1.0), "in the end all work is done"
    return told


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "pace",
    [
        lambda spec: 0.01,
        lambda spec: 0.01 if spec.role == "control" else 0.012,
        lambda spec: 0.01 * (1 + 0.3 * (spec.defense == "logit")),
    ],
    ids=["equal", "attacks take longer", "a defense takes longer"],
)
def test_the_time_left_is_right_after_the_first_tenth(workers: int, pace: Callable[[CellSpec], float]) -> None:
    specs = [replace(spec, rounds=40) for spec in cells(3, ("none", "logit"))]
    told = played(specs, workers, pace)
    end = told[-1][0]
    for now, left in told:
        if 0.1 * end <= now < end:
            off = abs(left - (end - now))
            # The last percent is a round or two.
            assert off <= max(0.25 * (end - now), 0.02 * end), f"{left:.1f} s told {end - now:.1f} s before the end"


def test_a_slow_defense_is_known_once_it_was_seen() -> None:
    specs = [replace(spec, rounds=40) for spec in cells(4, ("none", "judge"))]
    told = played(specs, 1, lambda spec: 0.05 if spec.defense == "judge" else 0.01)
    end = told[-1][0]
    later = [(now, left) for now, left in told if 0.25 * end < now < 0.95 * end]
    assert later
    assert all(abs(left - (end - now)) <= 0.25 * (end - now) for now, left in later), "from its first cell on"


def test_what_the_store_has_measured_is_known_from_the_first_round() -> None:
    """A defense that joins a finished suite: its slow second attack is told by that of the undefended swarm."""
    shared = [replace(spec, rounds=40) for attack in ("text", "dos") for spec in (CELL, replace(CELL, attack=attack))]
    slow = replace(CELL, attack="dos", rounds=40)
    before = [MeasuredCell(spec, work(spec, 40), work(spec, 40) * pace(spec)) for spec in shared]
    own = [replace(spec, defense="logit") for spec in (replace(CELL, rounds=40), slow)]
    told = played(own, 1, pace, before)
    end = told[-1][0]
    assert all(abs(left - (end - now)) <= 0.25 * (end - now) for now, left in told if now < 0.95 * end)
    blind = played(own, 1, pace)
    assert blind[1][1] < 0.5 * end, "without a store nobody could have known"


def pace(spec: CellSpec) -> float:
    return 0.05 if spec.attack == "dos" else 0.01


def test_a_cell_s_first_rounds_are_not_taken_for_all() -> None:
    """Programs get short as they are learned: here the first six of sixty rounds take three times as long."""
    specs = [replace(CELL, seed=seed, rounds=60) for seed in range(6)]
    whole = 6 * 3.0 + 54 * 1.0
    now = 0.0
    tally = Tally(1, clock=lambda: now)
    tally.plan(RunOutline("t", specs))
    for spec, last in zip(specs, (60, 6), strict=False):
        for done in range(last + 1):
            now += 0.0 if done == 0 else 3.0 if done <= 6 else 1.0
            tally.cell(spec, done, 60)
        if last == 60:
            tally.finished(spec)
    assert tally.seconds_left() == pytest.approx(6 * whole - now, rel=0.1), "a finished cell has shown how they go"


def test_a_rehearsal_is_not_taken_for_the_pace_of_rounds() -> None:
    """Of four attacks two rehearse, for ten times as long as a cell's rounds take; the first cell is one of them."""
    attacks = ("auto", "text", "auto(attack='dos')", "dos")
    specs = [replace(CELL, attack=attack, rounds=40) for attack in attacks]
    rounds = 0.01 * (200 * 4 + 0.6 * (10 * 50 + 100))

    def rehearsal(spec: CellSpec) -> float:
        return 10 * rounds if spec.rehearses else 0.0

    assert [spec.rehearses for spec in specs] == [True, False, True, False]
    assert not replace(specs[0], role="control").rehearses
    told = played(specs, 1, lambda spec: 0.01, rehearsal=rehearsal)
    end = told[-1][0]
    after = [(now, left) for now, left in told if 10 * rounds < now < 0.95 * end]
    assert after[0][0] < 0.5 * end
    for now, left in after[1:]:
        assert abs(left - (end - now)) <= 0.25 * (end - now), f"{left:.1f} s told {end - now:.1f} s before the end"


def test_a_rehearsal_under_way_counts_down_and_is_no_round() -> None:
    spec = replace(CELL, attack="auto", rounds=10)
    plain = replace(CELL, rounds=10)
    before = [MeasuredCell(plain, work(plain, 10), work(plain, 10) * 0.01)]
    now = 0.0
    tally = Tally(1, clock=lambda: now)
    tally.plan(RunOutline("t", [spec], measured=before))
    tally.cell(spec, 0, 10)
    whole = tally.seconds_left()
    assert whole == pytest.approx(0.01 * (104 * 20 + EVALUATED * 13 * 256 + 200 + EVALUATED * 200))
    now = 20.0
    assert tally.seconds_left() == tally.seconds_left_of(spec) == pytest.approx(whole - 20)
    now = 500.0
    assert tally.seconds_left() == pytest.approx(0.01 * (200 + EVALUATED * 200)), "it took longer; rounds are left"
    tally.cell(spec, 1, 10)
    assert tally.seconds_a_round() is None
    now = 503.0
    tally.cell(spec, 2, 10)
    assert tally.seconds_a_round() == pytest.approx(3.0)
    assert tally.seconds_left() == pytest.approx(3.0 / 20 * (160 + EVALUATED * 200))


def test_the_closest_rehearsal_is_expected() -> None:
    spec = replace(CELL, attack="auto", defense="logit")
    other = replace(CELL, attack="auto(attack='dos')", defense="logit")
    judge, undefended = replace(spec, defense="judge"), replace(other, defense="none")
    measured = [MeasuredCell(other, 100, 1.0, 30.0), MeasuredCell(undefended, 100, 1.0, 10.0)]
    rates = Rates(measured)
    assert rates.rehearsal(spec) == 30.0, "that of another attack against the same defense"
    assert rates.rehearsal(judge) == 20.0, "else of any defense"
    assert Rates([*measured, MeasuredCell(spec, 100, 1.0, 50.0)]).rehearsal(spec) == 50.0
    assert rates.rehearsal(replace(spec, role="placebo")) == 0.0, "it plays what the attacked cell chose"
    assert rates.left(Stage(spec, 10)) == pytest.approx(30.0 + work(spec, 10) * 0.01)
    assert rates.left(Stage(spec, 10, done=3)) < 30.0, "a checkpoint lies behind the rehearsal"
    slower = measured[0].times(2)
    assert (slower.seconds, slower.rehearsed) == (2.0, 60.0)
    assert MeasuredCell(spec, 1, 1.0).times(2).rehearsed is None


def test_a_cell_that_goes_back_to_its_checkpoint_has_more_left() -> None:
    now = 0.0
    tally = Tally(1, clock=lambda: now)
    tally.plan(RunOutline("t", [CELL]))
    lefts = []
    for done in (0, 1, 2, 3, 1, 2):
        tally.cell(CELL, done, 10)
        lefts.append(tally.seconds_left())
        now += 1.0
    assert lefts[0] is None, "before anything was measured nothing is said"
    assert lefts[-1] == pytest.approx(lefts[2], rel=0.01), "two rounds are done, once more"


def three_rounds(of: Sequence[CellSpec], begun: dict[CellSpec, int]) -> Tally:
    """A run that has played three rounds of its first cell, each in a second."""
    seconds = iter(range(10))
    tally = Tally(1, clock=lambda: float(next(seconds)))
    tally.plan(RunOutline("t", of, begun=begun))
    for done in range(4):
        tally.cell(of[0], done, 10)
    return tally


def test_what_the_store_holds_of_waiting_cells_counts() -> None:
    one, other = cells(1)
    fresh, begun = three_rounds([one, other], {}).seconds_left(), three_rounds([one, other], {other: 9}).seconds_left()
    assert fresh is not None
    assert begun is not None
    assert begun < 0.75 * fresh, "of a cell that was stopped only the rest is left"


def test_a_failed_cell_has_nothing_left() -> None:
    one, other = cells(1)
    tally = three_rounds([one, other], {})
    before = tally.seconds_left()
    tally.finished(one)
    assert tally.rounds == (3, 13), "its other rounds will not be played"
    assert before is not None
    assert 0 < (tally.seconds_left() or 0) < before
    tally.finished(other)
    assert tally.seconds_left() == 0


def test_durations_in_words() -> None:
    said = [write_seconds(seconds) for seconds in (0.4, 89, 91, 5000, 6000, 86400)]
    assert said == ["0 s", "89 s", "2 min", "83 min", "1 h 40 min", "24 h 0 min"]
