"""Converts an attacker's view, its questions and its submissions to plain data and back.

Of a view, only what the threat model grants is sent: the engine made the view by it. Everything that comes back from
the attack is checked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from thiefbench.attack_answers import content_of, wrong_count, wrong_outcome
from thiefbench.attacks.base import (
    Attack,
    AttackerView,
    ChoiceView,
    Claimed,
    Decoy,
    DefenseOracle,
    Poison,
    Sampler,
    Seeded,
    SeenCompletion,
    Slot,
    Submission,
    ThreatModel,
    Withheld,
)
from thiefbench.attacks.exchange.base import WeightAttack
from thiefbench.attacks.stages.base import StageAttack
from thiefbench.leaderboard.isolation.sandbox_paths import AttackKind
from thiefbench.leaderboard.isolation.wire import Malformed, number_in, rng_in, rng_out, shown
from thiefbench.plugin_attributes import wrong_grant
from thiefbench.tasks.base import Completion, Item, Task

MOST_TEXT = 100_000
"""Characters of a submission, of a text to be encoded, or of an item's field."""
MOST_TOKENS = 1 << 14
"""Tokens of a submission; longer ones than the swarm's limit are refused by every node."""
MOST_PROBES = 4096
MOST_LESSONS = 2048
"""Questions that a stage attack learns from, and examples of one teaching."""
MOST_LIBRARIES = 64 << 10
"""Bytes of the libraries that an attack publishes, together."""
MOST_DESCRIBED = 50
_LARGEST_TOKEN = 1 << 31


# --- what goes to the attack ---


def item_out(item: Item) -> list[str]:
    """An item; `item_of` is the inverse."""
    return [item.id, item.question, item.answer, item.solution, item.tests]


def item_of(data: Sequence[str]) -> Item:
    """The inverse of `item_out`, in the guest."""
    return Item(*data)


def completion_out(completion: Completion) -> list[Any]:
    """A completion without log-probs; `completion_of` is the inverse."""
    return [list(completion.ids), completion.text, completion.ended]


def completion_of(data: Sequence[Any]) -> Completion:
    """The inverse of `completion_out`, in the guest."""
    ids, text, ended = data
    return Completion(tuple(ids), text, ended)


def task_out(task: Task, programs: bool) -> dict[str, Any]:
    """What an attack may know of a task without asking; `programs`: whether its completions are programs."""
    return {"name": task.name, "splits": list(task.splits), "domains": list(task.domains), "programs": programs}


def view_out(view: AttackerView, items: Sequence[Item]) -> dict[str, Any]:
    """A view without its services.

    Args:
        view: the real one.
        items: of its slots, each once, and others that the attack may ask about.
    """
    places = {item: place for place, item in enumerate(items)}
    return {
        "round": view.round,
        "items": [item_out(item) for item in items],
        "slots": [[places[slot.item], slot.node, slot.group, slot.sample, slot.seed] for slot in view.slots],
        "rng": rng_out(view.rng),
        "policy": _policy_out(view.policy),
        "defense": view.defense is not None,
        "seen": _seen_out(view.seen),
    }


def choice_out(view: ChoiceView) -> dict[str, Any]:
    """What a node knows when it picks its items, without its services, its generator and the number of items."""
    return {"group": view.group, "policy": _policy_out(view.policy), "seen": _seen_out(view.seen)}


def _policy_out(policy: Sampler | None) -> dict[str, int] | None:
    return None if policy is None else {"eos": policy.eos, "limit": policy.limit}


def _seen_out(seen: Mapping[str, Sequence[SeenCompletion]]) -> dict[str, list[list[Any]]]:
    return {
        item_id: [[each.round, list(each.ids), each.text, each.reward] for each in row] for item_id, row in seen.items()
    }


def seen_in(data: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[SeenCompletion]]:
    """What arrived in earlier rounds, in the guest."""
    return {
        item_id: [SeenCompletion(number, tuple(ids), text, reward) for number, ids, text, reward in row]
        for item_id, row in data.items()
    }


def view_in(
    data: Mapping[str, Any], items: Sequence[Item], task: Task, policy: Sampler | None, defense: DefenseOracle | None
) -> AttackerView:
    """The inverse of `view_out`, in the guest, with stand-ins that send questions to the real services."""
    slots = tuple(Slot(items[place], node, group, sample, seed) for place, node, group, sample, seed in data["slots"])
    return AttackerView(data["round"], slots, task, generator_in(data["rng"]), policy, defense, seen_in(data["seen"]))


def generator_in(data: Any) -> random.Random:
    """The inverse of `wire.rng_out`."""
    rng = random.Random()
    rng.setstate(rng_in(data))
    return rng


# --- what comes back ---


Reference = Literal["placebo", "control"]


@dataclass(frozen=True)
class Facts:
    """What an isolated attack says of itself.

    Attributes:
        name: of the attack.
        threat: its threat model.
        about: the first line of its docstring.
        lacking: what it needs and no submitted attack can have, a clause each.
        chooses: whether it picks its items by a rule of its own.
        reference: what its harm is measured against.
        payload: the drawn payload in words; empty before it is drawn.
        fits: whether it suits the task.
        libraries: what it publishes.
        probes: the items to evaluate; None for the held-out ones.
        kind: on completions, on exchanged weights, or by a stage of a pipeline.
        spills: whether it says how far the payload shows outside of its probes.
        lessons: how many questions a stage attack learns from; 0 for others.
        lies: whether a stage attack sends anything other than what its layers computed.
    """

    name: str
    threat: ThreatModel
    about: str
    lacking: tuple[str, ...]
    chooses: bool
    reference: Reference
    payload: Mapping[str, str]
    fits: bool
    libraries: Mapping[str, str]
    probes: tuple[Item, ...] | None
    kind: AttackKind = "attack"
    spills: bool = False
    lessons: int = 0
    lies: bool = False


def facts_in(data: Mapping[str, Any]) -> Facts:
    """What an attack says of itself.

    Raises:
        Malformed: it is not of the form of `Facts`, or too large.
    """
    name, about, lacking = data.get("name"), data.get("about", ""), data.get("lacking", [])
    if not isinstance(name, str) or not isinstance(about, str) or not _texts(lacking):
        raise Malformed("a description that is not one")
    payload, libraries, probes = data.get("payload", {}), data.get("libraries", {}), data.get("probes")
    if not _words(payload) or len(payload) > MOST_DESCRIBED or sum(map(len, (*payload, *payload.values()))) > MOST_TEXT:
        raise Malformed(f"a description of its payload that is not at most {MOST_DESCRIBED} short texts, by name")
    if not _words(libraries) or not all(module.isidentifier() for module in libraries):
        raise Malformed("libraries that are not sources by the name of a module")
    if sum(len(source.encode()) for source in libraries.values()) > MOST_LIBRARIES:
        raise Malformed(f"libraries of more than {MOST_LIBRARIES:,} bytes")
    return Facts(
        name, threat_in(data.get("threat")), about, tuple(lacking), data.get("chooses") is True,
        reference_in(data.get("reference")), payload,
        data.get("fits") is True, libraries, None if probes is None else probes_in(probes),
        _kind_in(data.get("kind")), data.get("spills") is True,
        number_in(data.get("lessons"), "lessons", 0, MOST_LESSONS, int), data.get("lies") is True,
    )  # fmt: skip


def kind_of(attack: Attack) -> AttackKind:
    """Which kind of attack it is."""
    if isinstance(attack, StageAttack):
        return "stage_attack"
    return "weight_attack" if isinstance(attack, WeightAttack) else "attack"


def _kind_in(data: Any) -> AttackKind:
    if data not in get_args(AttackKind):
        raise Malformed(f"{shown(data)!r} as its kind")
    kind: AttackKind = data
    return kind


def reference_in(data: Any) -> Reference:
    """What harm is measured against; raises Malformed for anything else than the two names."""
    if data not in get_args(Reference):
        raise Malformed(f"{shown(data)!r} as what its harm is measured against, not 'placebo' or 'control'")
    reference: Reference = data
    return reference


def threat_out(threat: ThreatModel) -> dict[str, Any]:
    """A threat model; `threat_in` is the inverse."""
    return asdict(threat) | {"topologies": sorted(threat.topologies)}


def threat_in(data: Any) -> ThreatModel:
    """A threat model from plain data.

    Raises:
        Malformed: it is not one.
    """
    names = [each.name for each in fields(ThreatModel)]
    if not isinstance(data, dict) or sorted(data) != sorted(names):
        raise Malformed(f"a threat model whose fields are not {', '.join(names)}")
    if not _texts(data["topologies"]):
        raise Malformed("a threat model whose topologies are not a list of names")
    threat = ThreatModel(**data | {"topologies": frozenset(data["topologies"])})
    if wrong := wrong_grant(threat):
        raise Malformed(f"a threat model that is not one: {wrong}")
    number_in(threat.queries, "queries", 0, 1 << 20, int)
    return threat


def probes_in(data: Any) -> tuple[Item, ...]:
    """Items that an attack wants evaluated; raises Malformed where they are not distinct items of bounded size."""
    if not isinstance(data, list) or len(data) > MOST_PROBES:
        raise Malformed(f"probes that are not a list of at most {MOST_PROBES} items")
    for each in data:
        if not _texts(each) or len(each) != 5 or max(map(len, each)) > MOST_TEXT or not all(map(_encodes, each)):
            raise Malformed("a probe that is not an item")
    if len({each[0] for each in data}) < len(data):
        raise Malformed("two probes with the same id")
    return tuple(map(item_of, data))


Written = list[Any] | None


def submission_out(submission: Poison) -> Written:
    """A submission as plain data, in the guest; `submission_in` is the inverse.

    Raises:
        TypeError: it is none.
    """
    if submission is None:
        return None
    if isinstance(submission, Withheld):
        return ["withheld"]
    content = content_of(submission)
    if isinstance(submission, Decoy):
        return ["decoy", content]
    if isinstance(submission, Claimed):
        return ["claimed", content, submission.logprob, submission.version]
    if isinstance(submission, Seeded):
        return ["seeded", content, submission.seed]
    return ["plain", content]


def submissions_in(data: Any, count: int) -> list[Poison]:
    """The submissions for all slots of a view.

    Raises:
        Malformed: they are not one valid submission per slot.
    """
    if not isinstance(data, list):
        raise Malformed("something other than a list of submissions")
    if wrong := wrong_count(len(data), count):
        raise Malformed(wrong)
    return [None if each is None else submission_in(each) for each in data]


def submission_in(data: Any) -> Submission:
    """One submission; raises Malformed where it is not valid."""
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise Malformed("something that is not a submission")
    kind, *rest = data
    if kind == "withheld" and not rest:
        return Withheld()
    if kind in ("plain", "decoy") and len(rest) == 1:
        content = content_in(rest[0])
        return content if kind == "plain" else Decoy(content)
    if kind == "seeded" and len(rest) == 2:
        ids = content_in(rest[0])
        if isinstance(ids, str):
            raise Malformed("a submission with a seed that is not token ids")
        return Seeded(ids, number_in(rest[1], "the seed", -(2**63), 2**63 - 1, int))
    if kind == "claimed" and len(rest) == 3:
        content, (logprob, version) = content_in(rest[0]), rest[1:]
        if logprob is not None:
            logprob = float(number_in(logprob, "the claimed log-probability", -1e9, 0))
        if version is not None:
            version = number_in(version, "the claimed version", 0, 1 << 31, int)
        return Claimed(content, logprob, version)
    raise Malformed("something that is not a submission")


def content_in(data: Any) -> str | tuple[int, ...]:
    """Text or token ids; raises Malformed for anything else, or too much of it."""
    if isinstance(data, str):
        return text_in(data)
    return ids_in(data)


def text_in(data: Any) -> str:
    """A text; raises Malformed where it is too long or cannot be encoded."""
    if not isinstance(data, str) or len(data) > MOST_TEXT:
        size = f"{len(data):,} characters" if isinstance(data, str) else type(data).__name__
        raise Malformed(f"{size} in place of a text of at most {MOST_TEXT:,} characters")
    if not _encodes(data):
        raise Malformed("a text with half a character (a lone surrogate)")
    return data


def ids_in(data: Any, vocabulary: int = _LARGEST_TOKEN, most: int = MOST_TOKENS) -> tuple[int, ...]:
    """Token ids below `vocabulary`, at most `most`; raises Malformed for anything else."""
    sound = isinstance(data, list) and len(data) <= most
    if not sound or not all(type(token) is int and 0 <= token < vocabulary for token in data):
        raise Malformed(f"{shown(data)!r} in place of at most {most:,} token ids below {vocabulary:,}")
    return tuple(data)


def outcome_in(data: Any) -> float | None:
    """An outcome; raises Malformed where it is no share."""
    if wrong := wrong_outcome(data):
        raise Malformed(wrong)
    return None if data is None else float(data)


Part = Literal["poison", "placebo"]


def _texts(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(each, str) for each in data)


def _words(data: Any) -> bool:
    pairs = data.items() if isinstance(data, dict) else ()
    return isinstance(data, dict) and all(isinstance(text, str) and _encodes(text) for pair in pairs for text in pair)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
