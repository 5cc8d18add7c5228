"""The cells of an attack's entry: its own control, placebo and undefended cells, and one for each defense it meets.

An attack has its own outcome, so what it is measured against is its own, too; the swarms, rounds and seeds are the
suite's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.spec import SpecError
from thiefbench.leaderboard.attacking.manifest import Target
from thiefbench.leaderboard.isolation.attack_wire import kind_of
from thiefbench.leaderboard.isolation.sandbox_paths import CALLED_ATTACKS, AttackKind
from thiefbench.leaderboard.manifest import Numerics
from thiefbench.suite.scenario import CellSpec, Part, Suite


@dataclass(frozen=True)
class Wanted:
    """A cell of an attack's entry.

    Attributes:
        spec: the cell.
        part: the name of the suite's part whose swarm it is.
        target: the defense in it; None where there is none.
    """

    spec: CellSpec
    part: str
    target: Target | None = None

    @property
    def name(self) -> str:
        """For readers."""
        who = {"attack": "under attack", "placebo": "its placebo", "control": "without an attack"}[self.spec.role]
        against = f", {self.target.slug}" if self.target else ""
        return f"{self.part + ': ' if self.part else ''}{who}{against}, seed {self.spec.seed}"


def wanted(
    suite: Suite, parts: Sequence[str], attack: str, targets: Sequence[Target], numerics: Numerics
) -> list[Wanted]:
    """The cells of an entry, by seed, part and role.

    Args:
        suite: the released one.
        parts: the names of its parts that the attack is run in.
        attack: as cells name it; nothing is loaded.
        targets: the defenses.
        numerics: of every cell.
    """
    return [
        each
        for seed in suite.seeds
        for part in suite.scenes
        if part.name in parts
        for each in _of_part(part, attack, targets, numerics, seed)
    ]


def _of_part(part: Part, attack: str, targets: Sequence[Target], numerics: Numerics, seed: int) -> Iterator[Wanted]:
    cell = partial(
        CellSpec, task=registry.canonical("task", part.task), attack=attack, seed=seed, **part.shared,
        **numerics.model_dump(),
    )  # fmt: skip
    yield Wanted(cell(role="control", defense="none"), part.name)
    yield Wanted(cell(role="placebo", defense="none"), part.name)
    yield Wanted(cell(role="attack", defense="none"), part.name)
    for target in targets:
        yield Wanted(cell(role="attack", defense=target.defense), part.name, target)


def strange_part(parts: Sequence[str], suite: Suite, kind: AttackKind) -> str:
    """Which of an entry's parts its suite does not have for attacks of a kind, in a clause; empty if it has all."""
    known = {part.name: part for part in suite.scenes}
    for name in parts:
        if name not in known:
            return f"{suite.title} has no part {name!r}"
        if (taken := _taken(known[name])) != kind:
            return f"it says that it is {CALLED_ATTACKS[kind]}, and {suite.title} takes {CALLED_ATTACKS[taken]}"
    return ""


def _taken(part: Part) -> AttackKind:
    """The kind of attacks that fit a part."""
    return "weight_attack" if part.averaging else "stage_attack" if part.pipeline else "attack"


def _check_kind(part: Part, attack: Attack) -> None:
    """See that an attack is of the kind that a part takes; raises SpecError."""
    own, taken = kind_of(attack), _taken(part)
    if own != taken:
        exchanged, contract, example = _EXCHANGED[taken]
        around = f", or put it into one, as in {example}(attack='text')" if own == "attack" else ""
        raise SpecError(f"it is {CALLED_ATTACKS[own]}, and {exchanged}; write {contract}{around}")


_EXCHANGED: dict[AttackKind, tuple[str, str, str]] = {
    "attack": ("nodes exchange completions there", "an Attack", ""),
    "weight_attack": ("nodes exchange weights there", "a WeightAttack", "boosted"),
    "stage_attack": ("the node is a pipeline there", "a StageAttack", "stage_backdoor"),
}
"""What is exchanged where attacks of a kind are taken, their contract, and a built-in one around another attack."""


def fitting_parts(suite: Suite, attack: Attack) -> tuple[list[str], str]:
    """The names of the suite's parts that an attack fits at every seed, and why it does not fit the last other one.

    Raises:
        AttackError: an isolated attack fails while its payload is drawn.
    """
    fitting, why = [], ""
    for part in suite.scenes:
        try:
            if part.swarm.mixed:
                raise SpecError("its swarm is heterogeneous, delayed or unsteady, which is not possible yet")
            _check_kind(part, attack)
            task = registry.make("task", part.task)
            for seed in suite.seeds:
                drawn(attack, seed, part.swarm, task)
        except SpecError as error:
            why = str(error)
        else:
            fitting.append(part.name)
    return fitting, why
