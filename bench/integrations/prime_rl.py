"""A defense inside prime-rl's orchestrator (as of commit 559b447, with verifiers 0.4.0).

`Algorithm.score_group` gets the finished episodes of one group and writes advantages into their traces. `DefendedGroup`
asks a defense about the traces that are trained on, and lets the algorithm see only what the verdicts leave. prime-rl
is not on the package index; this module imports neither it nor verifiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from thiefbench.defenses.base import Action, Verdict
from thiefbench.defenses.skipping import SKIP
from thiefbench.integrations.inspector import Handed, Inspector
from thiefbench.rollouts.source import Reading
from thiefbench.rollouts.verifiers import PRIME_RL

SYSTEM: Final = "prime-rl's orchestrator"
_ACTIONS: Final[frozenset[Action]] = frozenset({"drop", SKIP})
_NO_POLICY: Final = "the policy, and prime-rl's orchestrator holds no model"


class DefendedGroup:
    """Put it before an algorithm, so that a defense inspects every group before advantages are computed.

    ``class Defended(DefendedGroup, GRPOAlgorithm): defense = "gibberish"``, and
    ``ALGORITHM_CLASSES["grpo"] = Defended`` before the orchestrator starts.

    - "drop": the algorithm does not see the trace, so the others' advantages are relative to the rest; its own are 0.
    - "skip": the algorithm sees it, so its reward stays in the baseline; its own advantages are then set to 0. This is
      what prime-rl's filters did until commit 61f2448.
    - "zero" is refused: a trace's reward is computed from its scores, and changing those would falsify the records.

    A trace with several branches is rejected if one of them is, by the first that is. With
    ``train.filter_zero_advantages``, tokens with advantage 0 are not among those over which the loss is a mean.

    Attributes:
        defense: a spec string.
        defense_sender: the field of a trace's `info` that names its sender; empty if none does.
        defense_seed: keys the order of pools and the defense's random generator.

    Raises:
        SpecError: when the class is made, if the defense needs what prime-rl does not carry; when a group is scored, if
            it asks for that or rejects with "zero".
    """

    defense: ClassVar[str]
    defense_sender: ClassVar[str] = ""
    defense_seed: ClassVar[int] = 0

    def __init_subclass__(cls, **changes: Any) -> None:
        super().__init_subclass__(**changes)
        _inspector(cls.defense, cls.defense_seed)

    async def score_group(self, episodes: list[Any]) -> None:
        """Advantages for a group; see `Algorithm.score_group`."""
        own = self.__dict__
        if "_inspector" not in own:
            own["_inspector"] = _inspector(self.defense, self.defense_seed)
        traces = [(episode, trace) for episode in episodes for trace in episode.traces if _is_trained(trace)]
        actions = self._actions(own["_inspector"], traces)
        left = []
        for episode in episodes:
            kept = [trace for trace in episode.traces if actions.get(trace.id) != "drop"]
            left.append(episode if len(kept) == len(episode.traces) else episode.model_copy(update={"traces": kept}))
        if any(actions.get(trace.id) != "drop" for _, trace in traces):
            await super().score_group(left)  # type: ignore[misc]  # the algorithm's
        for _, trace in traces:
            if trace.id in actions:
                _silence(trace)

    def _actions(self, inspector: Inspector, traces: Sequence[tuple[Any, Any]]) -> dict[str, Action]:
        """How each rejected trace is rejected, by its id."""
        handed: list[Handed] = []
        owners: list[str] = []
        for episode, trace in traces:
            for rollout in PRIME_RL.rollouts(_fields(episode, trace), Reading(sender=self.defense_sender)):
                handed.append(Handed(rollout.item, rollout.completion, rollout.group))
                owners.append(trace.id)
        verdicts: Sequence[Verdict] = inspector.verdicts(handed)
        actions: dict[str, Action] = {}
        for owner, verdict in zip(owners, verdicts, strict=True):
            if verdict.action != "accept":
                actions.setdefault(owner, verdict.action)
        return actions


def _is_trained(trace: Any) -> bool:
    """As `iter_trainable_traces` chooses them."""
    return not trace.has_error and trace.agent.trainable and any(any(node.mask) for node in trace.nodes)


def _fields(episode: Any, trace: Any) -> Mapping[str, Any]:
    """An episode with one trace, as verifiers writes it to disk, with all digits."""
    fields: dict[str, Any] = episode.model_copy(update={"traces": [trace]}).to_record(float_decimals=None)
    return fields


def _silence(trace: Any) -> None:
    """Advantage 0 for every sampled token, as `assign_advantages` lays them out."""
    for node in trace.nodes:
        if any(node.mask):
            node.advantages = [0.0] * sum(node.mask)


def _inspector(defense: str, seed: int) -> Inspector:
    return Inspector(defense, SYSTEM, _ACTIONS, _NO_POLICY, seed=seed)
