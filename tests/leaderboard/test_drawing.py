"""How many comparisons find a forgery: by formula, and by the draws of real verifications."""

from __future__ import annotations

import random
from collections import Counter
from math import comb

import pytest

from tests.leaderboard import made_entries
from thiefbench.engine.keys import SECRET_BYTES
from thiefbench.leaderboard.cell_scores import untrimmed
from thiefbench.leaderboard.entry_validation import cells_of
from thiefbench.leaderboard.rows import suite_of
from thiefbench.leaderboard.verification.drawing import (
    FOUND,
    SEVERAL,
    chance_of_finding,
    comparisons_needed,
    drawn,
)
from thiefbench.leaderboard.verification.reexecution import ByAttack, chosen, comparisons, kind_of
from thiefbench.leaderboard.verification.rescoring import SubmittedCell

DRAWS = 3000
ATTACKS, SEEDS = 6, 5
"""Of `standard-v1`."""


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> ByAttack:
    """The comparisons of an entry on standard-v1."""
    entry = made_entries.entry(tmp_path_factory.mktemp("entries"), suite="standard-v1")
    specs = cells_of(entry, suite_of(entry))
    return comparisons(
        [
            SubmittedCell(
                spec, part, cell, untrimmed(cell, spec.as_dict(), {}), own=spec.defense == entry.manifest.defense
            )
            for cell, (part, spec) in zip(entry.cells, specs, strict=True)
        ]
    )


def test_a_comparison_holds_all_that_its_scores_are_computed_from(standard: ByAttack) -> None:
    assert (len(standard), {len(row) for row in standard.values()}) == (ATTACKS, {SEEDS})
    parts = Counter(part for part, _ in standard)
    free: Counter[str] = Counter()
    for (part, _), row in standard.items():
        for cells in row.values():
            kinds = Counter((kind_of(cell), cell.spec.role) for cell in cells)
            free[part] += kinds.pop(("own", "control"), 0)
            assert kinds == {
                ("own", "attack"): 1, ("undefended", "attack"): 1, ("placebo", "placebo"): 1, ("control", "control"): 1,
                ("oracle", "attack"): 2,
            }  # fmt: skip
    assert free == dict.fromkeys(parts, SEEDS), "the cells without an attack stand beside one attack of each part"


def forged(standard: ByAttack, at: dict[int, int]) -> set[int]:
    """The undefended cells, by identity, of some attacks (by number) at so many seeds each."""
    rows = list(standard.values())
    return {
        id(cell)
        for number, seeds in at.items()
        for cells in list(rows[number].values())[:seeds]
        for cell in cells
        if kind_of(cell) == "undefended"
    }


@pytest.mark.parametrize("at", [{0: 5}, {3: 1}, {3: 2}, {5: 4}, {0: 1, 1: 1, 2: 1}, {0: 5, 4: 2}])
@pytest.mark.parametrize("count", [1, 4, 6, 9, 13, 30])
def test_the_formula_is_what_draws_come_to(standard: ByAttack, at: dict[int, int], count: int) -> None:
    lies = forged(standard, at)
    rng = random.Random(7)
    hits = sum(
        any(id(cell) in lies for cells in chosen(standard, count, rng.randbytes(SECRET_BYTES)) for cell in cells)
        for _ in range(DRAWS)
    )
    expected = chance_of_finding(ATTACKS, SEEDS, count, list(at.values()))
    assert hits / DRAWS == pytest.approx(expected, abs=4 * (expected * (1 - expected) / DRAWS) ** 0.5 + 1e-9)


def test_the_default_finds_a_forgery_of_one_attack_s_cells(standard: ByAttack) -> None:
    count = comparisons_needed(ATTACKS, SEEDS)
    assert count == ATTACKS, "every attack once"
    assert chance_of_finding(ATTACKS, SEEDS, count, [SEEDS]) >= FOUND
    assert chance_of_finding(ATTACKS, SEEDS, count - 1, [SEEDS]) < FOUND, "and no fewer do"
    lies = forged(standard, {2: SEEDS})
    for number in range(200):
        cells = [cell for row in chosen(standard, count, bytes([number]) * SECRET_BYTES) for cell in row]
        assert any(id(cell) in lies for cell in cells), "each draw holds one of them"
    unstratified = 1 - comb(195 - 5, 5) / comb(195, 5)
    assert unstratified < 0.15, "five single cells out of all would rarely do"


@pytest.mark.parametrize(("attacks", "seeds"), [(1, 1), (1, 5), (6, 5), (25, 3), (40, 5)])
def test_any_suite_s_default_is_the_least_that_does(attacks: int, seeds: int) -> None:
    count = comparisons_needed(attacks, seeds)
    assert chance_of_finding(attacks, seeds, count, [seeds]) >= FOUND
    assert count == 1 or chance_of_finding(attacks, seeds, count - 1, [seeds]) < FOUND
    assert comparisons_needed(attacks, seeds, bits=False) == attacks * min(seeds, SEVERAL)


def test_the_formula_by_hand() -> None:
    assert chance_of_finding(2, 5, 1, [5]) == pytest.approx(1 / 2)
    assert chance_of_finding(6, 5, 6, [2]) == pytest.approx(2 / 5)
    assert chance_of_finding(6, 5, 12, [2]) == pytest.approx(1 - comb(3, 2) / comb(5, 2))
    assert chance_of_finding(6, 5, 6, [1] * 6) == pytest.approx(1 - (4 / 5) ** 6)
    assert chance_of_finding(6, 5, 30, [1]) == chance_of_finding(6, 5, 99, [1]) == 1


def test_no_attack_is_drawn_twice_before_all_were() -> None:
    seeds = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0]}
    every = drawn(seeds, 99, random.Random(1))
    assert sorted(every) == sorted((attack, seed) for attack, row in seeds.items() for seed in row)
    assert {attack for attack, _ in every[:3]} == {"a", "b", "c"}
    assert {attack for attack, _ in every[3:5]} == {"a", "b"}
    assert drawn({}, 3, random.Random(1)) == []
