"""A submitted defense in a separate, sandboxed process, where it can do no harm and sees no label.

To the swarm, `Isolated` is a defense like any other. The real class runs in the sandbox that also runs completions'
programs: it sees a read-only Python with few packages, its own files, and the messages of one stream: the view as plain
data. The model stays on this side; the defense sends its questions, and the real view answers them. Neither sandbox
back end has any writable place.

A cell's seed is never sent, but a small one can be guessed from what is: generator, pseudonyms and slot seeds are
hashes of it, and so is the payload. A verification's fresh trials are therefore played at seeds that are hashed with a
secret of 256 bits (`thiefbench.engine.keys.secret_seed`), which is published only afterwards.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import DefenderView, Defense, JudgeSpec, PastRound, Requirement, Verdict
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.leaderboard.isolation import wire
from thiefbench.leaderboard.isolation.guest import Guest, host_of
from thiefbench.leaderboard.isolation.limits import CAPS, JUDGE_BYTES, JUDGES, POOL, Caps
from thiefbench.leaderboard.isolation.view_services import Services
from thiefbench.leaderboard.isolation.wire import Malformed
from thiefbench.zoo.models import resolve, weights_fingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DefenseError(Exception):
    """An isolated defense failed, misbehaved or met a limit. One sentence for the user."""


class IsolatedRule(Guest):
    """What isolated defenses, aggregations and stage checks share: a plain state, and copies that are other processes.

    A subclass derives from the contract's class too, so that state and copies are its own.

    Args:
        spec: its spec string.
        caps: what it may use; None for the published limits.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.
    """

    fault = DefenseError
    published: ClassVar[Caps]
    """Its published limits."""
    name: str
    requires: Any

    def __init__(self, spec: str, caps: Caps | None = None, hash_seed: int = 0) -> None:
        self.spec, self.caps, self.name = spec, caps or self.published, spec
        self._host = host_of(self.kind, spec, hash_seed)
        self._begin()

    def state(self) -> dict[str, Any]:
        """As the isolated one; raises DefenseError."""
        state = self._call("state", {}).get("state")
        if not isinstance(state, dict):
            self._fail(f"gave a state that is {type(state).__name__}; a state is a dictionary")
        if not wire.is_plain(state):
            self._fail(
                f"gave a state with a number that is not finite, or deeper than {wire.MAX_DEPTH}; a state is JSON, and "
                "is stored as such"
            )
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """As the isolated one; raises DefenseError."""
        self._call("restore", {"state": state})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__ |= {name: self.__dict__[name] for name in ("spec", "caps", "name", "_host")}
        copied._begin()
        if state := self.state():
            copied.restore(state)
        return copied

    def _begin(self) -> None:
        """Start the process."""
        requires = self._open().get("requires")
        if not isinstance(requires, list) or not all(
            isinstance(need, str) and need.isidentifier() for need in requires
        ):
            self._fail("requires something that is not a name")
        self.requires = frozenset(requires)  # of plain ones a constant of the class, here reported by the process


class Isolated(IsolatedRule, Defense):
    """A defense whose class is loaded in the sandbox, never here.

    Args:
        spec: its spec string.
        caps: what it may use.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.

    Attributes:
        spec, caps: the arguments.
        seconds: of the defense's own time in the last call, without the answers of policy and judge.
        memory: peak memory of the process in bytes, as it reports it.

    A deep copy is another process with the same `state()`; whatever else the defense remembers is not copied. After an
    error the process is ended, and every further call raises the same error.

    Raises:
        DefenseError: it cannot be constructed, or it wants to see labels.
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """

    kind = "defense"
    asking = "inspect"
    published = CAPS
    _sent_history: list[PastRound]
    name: str  # type: ignore[misc]  # of plain defenses a constant of the class, here reported by the process

    def inspect(self, view: DefenderView) -> list[Verdict]:
        """The isolated defense's verdicts on a pool; its draws from `view.rng` advance the generator here too.

        Raises:
            DefenseError: it fails or misbehaves.
        """
        return self._inspected(view, copied=False)

    def inspect_copy(self, view: DefenderView) -> list[Verdict]:
        """As `inspect`, of a deep copy that its own process makes for this call, as swarms do for queries.

        Raises:
            DefenseError: it cannot be copied, or the copy fails or misbehaves.
        """
        return self._inspected(view, copied=True)

    def _inspected(self, view: DefenderView, copied: bool) -> list[Verdict]:
        anew = not all(map(_same, self._sent_history, view.history)) or len(self._sent_history) > len(view.history)
        past = list(view.history if anew else view.history[len(self._sent_history) :])
        request = {
            "anew": anew, "past": [wire.past_out(each) for each in past], "view": wire.view_out(view), "copied": copied,
        }  # fmt: skip
        services = Services(view, self.caps)
        factor = max(1.0, len(view.completions) / POOL)
        reply = self._call("inspect", request, seconds=self.caps.seconds * factor, services=services)
        self._sent_history = list(view.history)
        try:
            verdicts = wire.verdicts_in(reply.get("verdicts"), view, self.caps.reason)
            rng = wire.rng_in(reply.get("rng"))
        except Malformed as error:
            self._fail(f"gave {error}")
        view.rng.setstate(rng)
        return verdicts

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """As the isolated defense; raises DefenseError."""
        proof = self._call("prove", {}, [states]).get("proof")
        try:
            return bytes.fromhex(proof if isinstance(proof, str) else "-")
        except ValueError:
            self._fail("gave a proof that is not bytes")

    def renew(self) -> None:
        """Construct the defense again in the same process; raises DefenseError."""
        self._call("renew", {})
        self._sent_history = []

    def _begin(self) -> None:
        self._sent_history = []
        description = self._open()
        requires, judge = description.get("requires"), description.get("judge")
        requirements = (*get_args(Requirement), ANSWER_KEYS, RULE_REWARDS)
        if not isinstance(requires, list) or not all(need in requirements for need in requires):
            self._fail(f"requires something other than {', '.join(requirements)}")
        self.requires = frozenset(requires)  # type: ignore[misc]  # as name
        if description.get("sees_labels") is not False:
            self._fail("wants to see labels (sees_labels is True), which only rows of the benchmark itself may do")
        self.judge = self._judge(judge)

    def _judge(self, judge: Any) -> JudgeSpec | None:
        if judge is None:
            return None
        model, endpoint = judge if isinstance(judge, list) and len(judge) == 2 else (None, None)
        if why := forbidden_judge(model, endpoint):
            self._fail(why)
        return JudgeSpec(str(model))


def forbidden_judge(model: object, endpoint: object) -> str:
    """Why a submission may not ask a judge, to follow the submission's name; empty if it may. Nothing is loaded."""
    if endpoint is not None:
        return "names a judge behind a server; a submission names a model, without an endpoint"
    if not isinstance(model, str) or model not in JUDGES:
        return f"names a judge that no submission may ask; it may ask {', '.join(JUDGES)}"
    if not _is_listed(model):
        return f"asks {model}, whose files differ from the released ones; install thiefbench again"
    return ""


@cache
def _is_listed(judge: str) -> bool:
    """Whether the files of a judge's model are those that `JUDGES` lists; they are hashed, and not loaded."""
    files = [path for path in Path(resolve(judge)).iterdir() if path.is_file()]
    small = sum(path.stat().st_size for path in files) <= JUDGE_BYTES
    return small and weights_fingerprint(judge) == JUDGES[judge]


def _same(one: PastRound, other: PastRound) -> bool:
    return one is other
