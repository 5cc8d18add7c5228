"""The first notice of a page: models that changed although the attack's outcome does not show it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.unseen_drift import UnseenDrift, unseen_drift
from thiefbench.suite.report.tables import show

_WITHOUT_PAYLOAD = {"control": "another honest swarm", "placebo": "the placebo"}


def shown_unseen(
    comparison: Comparison, attack: str = "", defenses: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The numbers of each line with a low ASR and a high drift, as `unseen.html.jinja` shows them.

    Args:
        comparison: of one attack.
        attack: what the page calls the attack; its title if empty.
        defenses: the lines that the page is about; None for all.
    """
    return [
        {
            "attack": attack or comparison.title,
            "name": each.line.name,
            "asr": show(each.line.scores("asr"), "rate"),
            "drift": show(each.line.scores("drift"), "rate"),
            "most": each.drift,
            "without": _without(each),
        }
        for each in unseen_drift(comparison)
        if defenses is None or each.line.defense in defenses
    ]


def unseen_note(comparisons: Sequence[Comparison], defense: str, names: Mapping[str, str]) -> str:
    """The same for a row of a table of attacks: of a defense's lines the one that drifts most, and under what others.

    Args:
        comparisons: of every attack.
        defense: of the row.
        names: of the attacks, by the comparison's title; one attack alone is not named.

    Returns:
        A clause; empty without such a line.
    """
    found = [each for c in comparisons for each in shown_unseen(c, names[c.title], (defense,))]
    if not found:
        return ""
    most = max(found, key=lambda each: each["most"])
    under = f"under {most['attack']} " if len(names) > 1 else ""
    others = [each["attack"] for each in found if each is not most]
    return (
        f"harm that the ASR does not see: {under}the ASR is {most['asr'].value}, and yet {most['drift'].value} of the "
        "answers hold a word that the control never writes "
        f"({'; '.join(f'{who}: {shown.value}' for who, shown in most['without'])})"
        + (f"; likewise under {', '.join(others)}" if others else "")
    )


def unseen_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """The same for a terminal: a sentence for each line."""
    return [
        f"Harm that the ASR does not see: {each['attack']}, "
        f"{'no defense' if each['name'] == 'none' else each['name']}: ASR {each['asr'].value}, drift "
        f"{each['drift'].value} of answers ({', '.join(f'{who}: {shown.value}' for who, shown in each['without'])})"
        for comparison in comparisons
        for each in shown_unseen(comparison)
    ]


def _without(unseen: UnseenDrift) -> list[tuple[str, Any]]:
    return [(_WITHOUT_PAYLOAD[line.role], show(line.scores("drift"), "rate")) for line in unseen.without_payload]
