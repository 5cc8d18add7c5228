"""A defense over recorded pools, round by round, without training.

What a defense rejects can be read off a pool that another cell left; what its models would have learned cannot, as
they would have sampled other completions from the second round on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.defenses.base import DefenderView, Defense, Facts, LabelledView, Offered, Past, PolicyView, Verdict
from thiefbench.engine.noise import generator
from thiefbench.suite.results import CellDir, Record, Score
from thiefbench.suite.scoring import rejection_rates
from thiefbench.tasks.base import Sampling, Task

_SEEN = [
    "phase",
    "round",
    "group",
    "place",
    "item_id",
    "sender",
    "ids",
    "text",
    "ended",
    "malicious",
    "payload",
    "reward",
]


class ReplayError(Exception):
    """A defense cannot be replayed on a recorded pool. One sentence for the user."""


class _NoPolicy:
    """Stands where the cohort's model stood, of which a record keeps nothing.

    It remembers being touched, so that a defense that swallows the error and goes on gets no score either.
    """

    def __init__(self, defense: Defense) -> None:
        self.refusal = f"{defense.name} needs the policy: run it as a trained cell"
        self.touched = False

    def __getattr__(self, name: str) -> NoReturn:
        self.touched = True
        raise ReplayError(self.refusal)


def replay(cell_dir: CellDir, record: Record, defense: Defense, task: Task) -> dict[str, Score]:
    """Run a defense over the training pools of a finished cell and score its rejections.

    Every view is the one that the cell's own defense saw (order, pseudonyms, random generator, items), except that
    `history` holds the verdicts of `defense` and there is no policy.

    Args:
        cell_dir: where the cell left its completions.
        record: the cell's record.
        defense: a fresh one; its state runs through all rounds.
        task: the cell's task, which knows the items.

    Returns:
        stop_rate, false_rejection_rate and rejection_rate; see `scoring.rejection_rates`.

    Raises:
        ReplayError: the cell has no score, the defense needs the policy or a judge or fails, or the task lacks an item.
    """
    if record.status != "ok":
        raise ReplayError(f"the cell {record.cell_id} failed and has no pool to replay")
    if "judge" in defense.requires:
        raise ReplayError(f"{defense.name} asks a judge: run it as a trained cell")
    rows = cell_dir.read_rows(_SEEN)
    train = rows.filter(pc.equal(rows["phase"], "train")).sort_by(
        [(name, "ascending") for name in ("round", "group", "place")]
    )
    pools: dict[int, list[dict[str, Any]]] = {}
    for line in train.to_pylist():
        pools.setdefault(line["round"], []).append(line)
    actions: list[str] = []
    history: list[Past] = []
    for number, pool in pools.items():
        actions += [verdict.action for verdict in _inspect(number, pool, record, defense, _facts(task), history)]
    return rejection_rates(train.append_column("action", pa.array(actions, pa.string())))


def _inspect(
    number: int,
    pool: Sequence[Mapping[str, Any]],
    record: Record,
    defense: Defense,
    facts: Mapping[str, Facts],
    history: list[Past],
) -> list[Verdict]:
    """One round's verdicts, in pool order: the counterpart of `Swarm._inspect`."""
    seed = record.cell["seed"]
    order = generator(seed, "shuffle", number).sample(range(len(pool)), len(pool))
    offered = tuple(_offered(pool[i]) for i in order)
    unknown = next((one.item_id for one in offered if one.item_id not in facts), None)
    if unknown is not None:
        raise ReplayError(f"the task has no item {unknown}: replay with the task and data the cell was recorded with")
    policy = _NoPolicy(defense)
    known: dict[str, Any] = {
        "round": number,
        "completions": offered,
        "items": {line["item_id"]: facts[line["item_id"]] for line in pool},
        "sampling": Sampling(**record.cell["swarm"]["sampling"]),
        "history": tuple(history),
        "rng": generator(seed, "defense", number),
        "policy": cast(PolicyView, policy),
    }
    view = DefenderView(**known)
    if defense.sees_labels:
        view = LabelledView(**known, payload=tuple(pool[i]["payload"] for i in order))
    verdicts = _verdicts(defense, view)
    if policy.touched:
        raise ReplayError(policy.refusal)
    history.append(Past(number, offered, tuple(verdicts)))
    by_place = dict(zip(order, verdicts, strict=True))
    return [by_place[i] for i in range(len(pool))]


def _verdicts(defense: Defense, view: DefenderView) -> list[Verdict]:
    """What the defense says. Its code may be anybody's: whatever it raises is its failure, never a score."""
    try:
        verdicts = list(defense.inspect(view))
    except ReplayError:
        raise
    except Exception as error:
        raise ReplayError(f"{defense.name} failed in round {view.round}: {type(error).__name__}: {error}") from error
    if len(verdicts) != len(view.completions):
        raise ReplayError(f"{defense.name} gave {len(verdicts)} verdicts for {len(view.completions)} completions")
    return verdicts


def _offered(line: Mapping[str, Any]) -> Offered:
    same = {name: line[name] for name in ("item_id", "group", "sender", "text", "ended", "reward")}
    return Offered(**same, index=line["place"], ids=tuple(line["ids"]))


@cache
def _facts(task: Task) -> dict[str, Facts]:
    return {row["id"]: Facts(row["question"], row["answer"]) for row in task.items("train")}
