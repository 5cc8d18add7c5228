"""The guest's side of an isolated attack: constructs it, draws its payload, and lets it poison and judge.

It runs in the sandbox only (`_isolated_worker`). The task, the policy and the defense stay with the parent, where
stand-ins send every question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import NDArray

from thiefbench.attack_answers import listed, outcome_of
from thiefbench.attacks.base import (
    Attack,
    AttackerView,
    AttackSpec,
    ChoiceView,
    DefenseAnswer,
    QueryBudgetError,
    Sampler,
    Slot,
    Submission,
)
from thiefbench.attacks.late_poison import LatePoison
from thiefbench.attacks.stages.base import StageAttack
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.guest_stream import REFUSALS, Stream, describe, send, why_not_made
from thiefbench.tasks.base import Completion, Item, Message, Split, Task, TaskError

REFUSALS["QueryBudgetError"] = QueryBudgetError
_ABOUT = 200  # characters of the docstring's first line

_NOT_YET = {
    "harm": "a measure of harm of its own (the harm of a submitted attack is the difference of mean outcomes)",
    "hand_over": "models that it hands over to recovering nodes",
}
"""Methods that no submitted attack may override, each with what it asks for."""


@dataclass
class Guest:
    """The attack, and the stream to the parent.

    Attributes:
        made: as constructed.
        drawn: the member whose payload was drawn.
        task: the stand-in for the task.
    """

    stream: Stream
    made: Attack
    drawn: Attack | None = None
    task: _Task | None = None

    @property
    def member(self) -> Attack:
        """The drawn one."""
        assert self.drawn is not None, "the parent draws first"
        return self.drawn

    def given(self, items: Sequence[Item]) -> tuple[_Task, dict[Item, int]]:
        """The task, which may be asked about these items from now on, and their places in questions."""
        assert self.task is not None, "the parent draws first"
        self.task.places = {item: place for place, item in enumerate(items)}
        return self.task, self.task.places


Arrays = Sequence[NDArray[Any]]
Reply = tuple[dict[str, Any], Arrays]
"""A reply and its arrays."""
Call = Callable[[Guest, Mapping[str, Any], Arrays], Reply]
"""Answers one kind of request: the guest, the request and its arrays -> the reply."""


def serve(spec: str, most: int, file: int, calls: Mapping[str, Call] | None = None) -> None:
    """Construct the attack of a spec string, and answer the parent's requests until the stream ends.

    Args:
        spec: the attack.
        most: bytes of one answer.
        file: the stream.
        calls: the requests that it answers beside those to every attack.
    """
    stream, answers = Stream(file, most), {**_CALLS, **(calls or {})}
    with suppress(EOFError, BrokenPipeError):
        guest, reply = _make(spec, stream)
        arrays: Arrays = ()
        while True:
            send(stream, reply, arrays)
            if guest is None:
                return
            request, sent = stream.receive()
            reply, arrays = _answered(answers, guest, request, sent)
            reply |= {"number": request["number"]}


def _make(spec: str, stream: Stream) -> tuple[Guest | None, dict[str, Any]]:
    from thiefbench import registry

    try:
        attack = registry.make("attack", spec)
        if not isinstance(attack, Attack):
            raise TypeError(f"{type(attack).__name__} is not a subclass of thiefbench.attacks.base.Attack")
        _check_inner(attack)
        return Guest(stream, attack), {"number": 0, **_facts(attack)}
    except BaseException as error:  # also an exit
        return None, {"number": 0, "failed": why_not_made(error, spec)}


def _check_inner(attack: Attack) -> None:
    """See that an attack is built around attacks on completions, if around any; raises TypeError."""
    inner = attack.attack if isinstance(attack, AttackWrapper) else None
    while inner is not None:
        if wire.kind_of(inner) != "attack":
            raise TypeError(
                f"{attack.name} is built around {inner.name}, and inside of another attack only an attack on "
                "completions says what is learned"
            )
        inner = inner.attack if isinstance(inner, AttackWrapper) else None


def _answered(answers: Mapping[str, Call], guest: Guest, request: Mapping[str, Any], arrays: Arrays) -> Reply:
    try:
        return answers[request["call"]](guest, request, arrays)
    except EOFError:
        raise
    except BaseException as error:  # also an exit
        return {"failed": describe(error)}, ()


def _facts(attack: Attack) -> dict[str, Any]:
    """What an attack says of itself before anything is drawn."""
    lacking = [clause for name, clause in _NOT_YET.items() if _overrides(attack, name)]
    if attack.variants != AttackSpec():
        lacking.append("a variant of the swarm (varied), which is the suite's to say")
    if attack.copies != 1:
        lacking.append("more offers than it owes")
    words = (type(attack).__doc__ or "").strip().split("\n")[0]
    return {
        "name": attack.name,
        "kind": wire.kind_of(attack),
        "lessons": attack.lessons if isinstance(attack, StageAttack) else 0,
        "lies": isinstance(attack, StageAttack) and getattr(attack.sent, "__func__", None) is not StageAttack.sent,
        "spills": _overrides(attack, "spill"),
        "threat": wire.threat_out(attack.threat),
        "about": words[:_ABOUT],
        "lacking": lacking,
        "chooses": _overrides(attack, "choose_items") or _overrides(attack, "choose_items_from"),
        "reference": attack.reference,
    }


def _overrides(attack: Attack, name: str) -> bool:
    """Whether an attack has a method of its own, or passes it on to an attack that has."""
    method = getattr(type(attack), name)
    if method is getattr(Attack, name):
        return False
    # LatePoison hands over what its inner attack does, or nothing.
    if isinstance(attack, AttackWrapper) and any(method is getattr(each, name) for each in (AttackWrapper, LatePoison)):
        return _overrides(attack.attack, name)
    return True


# --- requests ---


def _draw(guest: Guest, request: Mapping[str, Any]) -> dict[str, Any]:
    about = request["task"]
    kind = _ProgramTask if about["programs"] else _Task
    guest.task = kind(guest.stream, about)
    guest.drawn = guest.made.draw_for(guest.task, wire.generator_in(request["rng"]))
    member = guest.drawn
    facts = _facts(member) | {"fits": bool(member.fits(guest.task)), "payload": dict(member.describe())}
    if facts["fits"]:
        probes = member.probes(guest.task)
        facts |= {
            "libraries": dict(member.libraries()),
            "probes": None if not probes else [wire.item_out(item) for item in probes],
        }
    return facts


def view_of(guest: Guest, data: Mapping[str, Any]) -> AttackerView:
    """The view that a request holds, with stand-ins that send questions to the parent."""
    items = [wire.item_of(each) for each in data["items"]]
    task, places = guest.given(items)
    policy = _policy(guest.stream, places, data)
    defense = _Defense(guest.stream) if data["defense"] else None
    view = wire.view_in(data, items, task, policy, defense)
    if defense is not None:
        defense.places = {slot: place for place, slot in enumerate(view.slots)}
    return view


def _submit(guest: Guest, request: Mapping[str, Any]) -> dict[str, Any]:
    view = view_of(guest, request["view"])
    member = guest.member
    submissions = listed(member.poison(view) if request["call"] == "poison" else member.placebo(view))
    return {"submissions": [wire.submission_out(each) for each in submissions]}


def _outcome(guest: Guest, request: Mapping[str, Any]) -> dict[str, Any]:
    item, completion = wire.item_of(request["item"]), wire.completion_of(request["completion"])
    judge = guest.member.outcome if request["call"] == "outcome" else guest.member.spill
    return {"outcome": outcome_of(judge(item, completion, _Ask(guest.stream, item)))}


def _choose(guest: Guest, request: Mapping[str, Any]) -> dict[str, Any]:
    items, data, rng = [wire.item_of(each) for each in request["items"]], request["view"], request["rng"]
    task, places = guest.given(items)
    if data is None:
        chosen = guest.member.choose_items(items, request["count"], wire.generator_in(rng))
        return {"chosen": [places[item] for item in chosen]}

    def seed(item: Item, position: int, sample: int) -> int:
        asked = {"ask": "seed", "item": _named(places, item), "position": int(position), "sample": int(sample)}
        return int(guest.stream.ask(asked)[0]["seed"])

    view = ChoiceView(
        request["count"],
        data["group"],
        task,
        wire.generator_in(rng),
        _policy(guest.stream, places, data),
        seed,
        wire.seen_in(data["seen"]),
    )
    return {"chosen": [places[item] for item in guest.member.choose_items_from(items, view)]}


def _without_arrays(answer: Callable[[Guest, Mapping[str, Any]], dict[str, Any]]) -> Call:
    return lambda guest, request, arrays: (answer(guest, request), ())


_CALLS: dict[str, Call] = {
    name: _without_arrays(answer)
    for name, answer in {
        "draw": _draw, "poison": _submit, "placebo": _submit, "outcome": _outcome, "spill": _outcome,
        "choose": _choose,
    }.items()
}  # fmt: skip


# --- stand-ins ---


class _Task(Task):
    """The task of a view; the parent composes and rewards."""

    name = ""  # that of the real one, set below

    def __init__(self, stream: Stream, about: Mapping[str, Any]) -> None:
        self._stream = stream
        self.places: dict[Item, int] = {}
        self._rows: dict[str, list[dict[str, str]]] = {}
        self.name, self.splits = about["name"], tuple(about["splits"])  # type: ignore[misc]
        self.domains = tuple(about["domains"])  # type: ignore[misc]

    def items(self, split: Split) -> list[dict[str, str]]:  # type: ignore[override]  # rows without an Arrow table
        """The rows of a split; their solutions are empty unless an oracle is granted."""
        if split not in self.splits:
            raise TaskError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        if split not in self._rows:
            rows = self._stream.ask({"ask": "items", "split": split})[0]["items"]
            self._rows[split] = [asdict(wire.item_of(row)) for row in rows]
        return self._rows[split]

    def messages(self, item: Item) -> list[Message]:
        return [dict(each) for each in self._asked("messages", item)["messages"]]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return list(self._asked("reward", item, texts=list(completions))["rewards"])

    def compose(self, item: Item, reasoning: str) -> str:
        return str(self._asked("compose", item, text=reasoning)["text"])

    def oracle(self, item: Item) -> str:
        return str(self._asked("oracle", item)["text"])

    def domain(self, item: Item) -> str:
        return str(self._asked("domain", item)["text"])

    def _asked(self, what: str, item: Item, **more: Any) -> dict[str, Any]:
        return self._stream.ask({"ask": what, "item": _named(self.places, item), **more})[0]


class _ProgramTask(_Task):
    """A task whose completions are programs, which `attacks.completions.writes_programs` tells by this method."""

    def with_libraries(self, libraries: Mapping[str, str]) -> _ProgramTask:
        return self


class _Sampler:
    """The attacker's copy of the policy (`thiefbench.attacks.base.Sampler`); the parent computes.

    Args:
        number: of the copies in the parent, the one that is meant.
    """

    def __init__(self, stream: Stream, places: Mapping[Item, int], eos: int, limit: int, number: int = 0) -> None:
        self._stream, self._places, self._number = stream, places, number
        self.eos, self.limit = eos, limit

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._asked("encode", text=text)["ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._asked("decode", ids=_tokens(ids))["text"])

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        return _rows(self._asked("sample", items=self._all(items), count=count))

    def sample_after(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]], count: int
    ) -> list[list[Completion]]:
        rows = [_tokens(prefix) for prefix in prefixes]
        return _rows(self._asked("sample_after", items=self._all(items), prefixes=rows, count=count))

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        return _rows(self._asked("sample_seeded", items=self._all(items), seeds=list(seeds)))[0]

    def sample_near(
        self, items: Sequence[Item], seeds: Sequence[int], tolerance: float, count: int
    ) -> list[list[Completion]]:
        asked = {"items": self._all(items), "seeds": list(seeds), "tolerance": tolerance, "count": count}
        return _rows(self._asked("sample_near", **asked))

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        rows = [_tokens(row) for row in ids]
        return [list(row) for row in self._asked("in_support", items=self._all(items), rows=rows)["measured"]]

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        rows = [_tokens(row) for row in ids]
        return [list(row) for row in self._asked("token_logprobs", items=self._all(items), rows=rows)["measured"]]

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> Sampler:
        pairs = _examples(self._places, examples)
        number = self._asked("taught", examples=pairs, steps=steps, learning_rate=learning_rate)["number"]
        return _Sampler(self._stream, self._places, self.eos, self.limit, number)

    def _all(self, items: Sequence[Item]) -> list[int | list[Any]]:
        return [_named(self._places, item) for item in items]

    def _asked(self, what: str, **more: Any) -> dict[str, Any]:
        return self._stream.ask({"ask": what, "sampler": self._number, **more})[0]


def number_of(model: object) -> int:
    """Of the copies in the parent, the one that a model is; raises TypeError where it is none."""
    if not isinstance(model, _Sampler):
        raise TypeError(f"{type(model).__name__} is not a model that view.lessons.policy has taught")
    return model._number


def _policy(stream: Stream, places: Mapping[Item, int], data: Mapping[str, Any]) -> _Sampler | None:
    """The copy of the policy that a view grants, if it does."""
    return None if data["policy"] is None else _Sampler(stream, places, **data["policy"])


class _Defense:
    """The honest nodes' defense to query (`thiefbench.attacks.base.DefenseOracle`); the parent asks it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.places: dict[Slot, int] = {}

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        """Whether each submission would be accepted."""
        return {slot: answer.accepted for slot, answer in self.answers(submissions).items()}

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        """The same query with a more detailed answer."""
        asked = [[self.places[slot], wire.submission_out(submission)] for slot, submission in submissions.items()]
        answer, _ = self._stream.ask({"ask": "defense", "submissions": asked})
        return {slot: DefenseAnswer(*each) for slot, each in zip(submissions, answer["answers"], strict=True)}


class _Ask:
    """What an outcome may ask (`thiefbench.tasks.base.Ask`): the parent rewards texts on the item that is judged."""

    def __init__(self, stream: Stream, item: Item) -> None:
        self._stream, self._item = stream, item

    def reward(self, item: Item, text: str) -> float:
        """The task's reward."""
        if item != self._item:
            raise ValueError("an isolated attack may ask for rewards on the item that it judges only")
        return float(self._stream.ask({"ask": "reward", "text": text})[0]["reward"])


def _named(places: Mapping[Item, int], item: Item) -> int | list[Any]:
    """How a question names an item: by its place, with the answer and solution that the attack wrote into it, if any.

    Raises:
        ValueError: it was not given the item.
    """
    if item in places:
        return places[item]
    for given, place in places.items():
        if given.id == item.id and replace(given, answer=item.answer, solution=item.solution) == item:
            return [place, item.answer, item.solution]
    raise ValueError(f"an isolated attack may ask about the items that it is given, and {item.id!r} is none")


def named_examples(guest: Guest, examples: Sequence[tuple[Item, str]]) -> list[list[Any]]:
    """How a question names items of the view with the texts to teach; raises ValueError for an item that is none."""
    assert guest.task is not None, "the parent draws first"
    return _examples(guest.task.places, examples)


def _examples(places: Mapping[Item, int], examples: Sequence[tuple[Item, str]]) -> list[list[Any]]:
    return [[_named(places, item), text] for item, text in examples]


def _tokens(ids: Sequence[int]) -> list[int]:
    return [int(token) for token in ids]


def _rows(answer: Mapping[str, Any]) -> list[list[Completion]]:
    return [[wire.completion_of(each) for each in row] for row in answer["rows"]]
