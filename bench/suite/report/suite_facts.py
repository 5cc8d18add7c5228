"""What a suite holds, in words: its parts with their swarms and attacks, its baselines, its seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from thiefbench import registry
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Requirement
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.compatibility import provided
from thiefbench.suite.report.swarm_facts import facts
from thiefbench.suite.scenario import Part, Suite
from thiefbench.wording import ranges


@dataclass(frozen=True)
class PartFacts:
    """One part of a suite.

    Attributes:
        name: its name; empty if the suite has only one.
        swarm: what its swarms are like, by name.
        attacks: spec strings.
    """

    name: str
    swarm: Mapping[str, str]
    attacks: tuple[str, ...]


@dataclass(frozen=True)
class SuiteFacts:
    """What a suite holds.

    Attributes:
        title: its name and version.
        about: its purpose.
        superseded: which suite to use instead, and why; empty for a current one.
        general: what holds for all parts, by name.
        parts: see `PartFacts`.
    """

    title: str
    about: str
    superseded: str
    general: Mapping[str, str]
    parts: tuple[PartFacts, ...]

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def _for_defenses(part: Part) -> dict[str, str]:
    """What a defense may require in a part's swarms, by the engine's own rule; nothing where it inspects no
    completions."""
    if part.averaging or part.pipeline:
        return {}
    given = provided(part.swarm)
    met = [need for need in (*get_args(Requirement), ANSWER_KEYS, RULE_REWARDS) if need in given]
    return {"Requirements met": ", ".join(met)}


def suite_facts(suite: Suite) -> SuiteFacts:
    """Look up what a suite holds.

    Raises:
        registry.SpecStringError: one of its spec strings names nothing.
    """
    numerics = {"device": "cpu", "dtype": "float32", "threads": 1}
    parts = (
        PartFacts(
            part.name,
            dict(facts(next(part.cells(suite.seeds[0], [], False, False, numerics)).as_dict())) | _for_defenses(part),
            tuple(registry.canonical("attack", each) for each in part.attacks),
        )
        for part in suite.scenes
    )
    rules = suite.ranking
    baselines = ["no attack"]
    if suite.placebo:
        baselines.append("placebo (the attack without its payload)")
    baselines += [f"attacked, {registry.canonical('defense', each)}" for each in suite.defenses]
    general = {
        "Seeds": ranges(suite.seeds),
        "Baselines": "; ".join(baselines),
        "Replayed": f"{', '.join(suite.replayed)} (on the undefended pools)" if suite.replayed else "",
        "Utility": "every defense also runs without an attack" if suite.utility else "",
        "An attack counts": f"if its mean harm is at least {rules.least_harm:g}",
        "Modified": "; ".join(suite.modified),
    }
    shown = {name: value for name, value in general.items() if value}
    return SuiteFacts(suite.title, " ".join(suite.about.split()), suite.superseded, shown, tuple(parts))
