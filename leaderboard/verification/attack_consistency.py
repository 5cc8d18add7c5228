"""What holds between the cells of an attack's entry, whoever ran them: the same question has the same answer.

Both rules are read off the recorded completions. An attack that works out which cell it is in, by whatever a sandbox
lets through, and acts accordingly breaks one of them:

- its outcome is a function of the item and the completion, so completions with equal tokens and text have equal
  outcomes in all cells of a seed, attacked or not;
- its submissions are a function of its view, so views that are equal get equal submissions. Until the first update, an
  attack that does not ask the defense sees the same with and without one. If it is not granted the policy either, it
  does so in every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.leaderboard.attacking.manifest import Granted
from thiefbench.leaderboard.verification.rerunning import SURROUNDINGS
from thiefbench.suite.store.records import Record

_JUDGED = ["phase", "item_id", "ids", "ended", "text", "outcome"]
_SUBMITTED = ["round", "group", "place", "payload", "item_id", "ids", "ended"]


def outcomes_apart(tables: Iterable[pa.Table]) -> str:
    """How the outcomes of equal completions differ, in a sentence; empty if they do not.

    Args:
        tables: the completions of cells of one part and seed. Where the attack has probes, evaluations of other items
            measure something else (`Attack.spill`), and are compared among themselves.
    """
    judged: dict[tuple[object, ...], float | None] = {}
    for table in tables:
        probed = "probe" in pc.unique(table["phase"]).to_pylist()
        for row in table.select(_JUDGED).to_pylist():
            measured = probed and row["phase"] == "eval"
            asked = (measured, row["item_id"], tuple(row["ids"]), row["ended"], row["text"])
            if judged.setdefault(asked, row["outcome"]) != row["outcome"]:
                return (
                    f"the outcome of a completion is {judged[asked]} in one cell and {row['outcome']} in another: "
                    f"{row['text'][:80]!r}"
                )
    return ""


def submissions_apart(undefended: pa.Table, defended: pa.Table, rounds: int) -> str:
    """Where the attack's submissions in two cells of a seed first differ, in a clause; empty if they do not.

    Args:
        undefended, defended: their completions.
        rounds: how many of the first rounds are compared.
    """
    there = _submissions(undefended, rounds)
    for place, submitted in _submissions(defended, rounds).items():
        if there.get(place, submitted) != submitted:
            return f"in round {place[0]} it submits something else beside the defense, although it sees the same"
    return ""


def rounds_alike(threat: Granted, one: Record, other: Record) -> int:
    """In how many of the first rounds an attack on completions sees the same in two cells that differ in their defense
    alone.

    Weights that were computed on another machine differ in their last bits, and so do the answers of a policy.
    """
    if threat.queries or threat.kind != "attack":
        return 0
    if threat.policy or one.cell["swarm"].get("reward", "rule") != "rule":
        return int(all(one.provenance.get(name) == other.provenance.get(name) for name in SURROUNDINGS))
    return int(one.cell["rounds"])


def _submissions(table: pa.Table, rounds: int) -> Mapping[tuple[int, int, int], tuple[object, ...]]:
    """What malicious nodes submitted, by round, group and place in it.

    Of a slot without the payload it is only said that it has none: its attack may have left it to an honest sample,
    which depends on the weights.
    """
    own = table.filter(
        pc.and_(
            pc.and_(pc.equal(table["phase"], "train"), table["malicious"]),
            pc.less_equal(table["round"], rounds),
        )
    )
    return {
        (row["round"], row["group"], row["place"]): (
            (row["item_id"], tuple(row["ids"]), row["ended"]) if row["payload"] else ()
        )
        for row in own.select(_SUBMITTED).to_pylist()
    }
