"""`own`: another attack's payload in right answers that the policy itself gives, instead of in an oracle's solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.carriers import Rewriting, whole_rewritings
from thiefbench.attacks.completions import distinct
from thiefbench.attacks.wrapper import AttackWrapper


class Own(AttackWrapper):
    """Write like an honest node: draw right answers from the policy and change only what the payload needs.

    An oracle solution is worded differently from the policy's answers, which a defense that has the policy can notice.
    Here all tokens except the payload's are the policy's own.

    Args:
        attack: the attack whose payload is put in.
        samples: completions drawn per item and round.
        support: submit only completions whose every token, payload included, the sampler's settings could have drawn. A
            defense that checks only this accepts them. Slots without such a completion are left to honest samples.

    An item's slots get its completions in turn, in descending order of the probability of their least probable token.
    """

    name = "own"

    def __init__(self, attack: Attack | str = "equations", samples: int = 16, support: bool = True) -> None:
        super().__init__(attack)
        if samples < 1:
            raise ValueError(f"own: samples must be at least 1, got {samples}")
        refuse_samplers(self.name, self.attack)
        self.samples, self.support = samples, support

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Token ids of rewritten completions, or None."""
        return self._submit(view, lambda rewriting: rewriting.ids)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The same completions as the policy drew them."""
        return self._submit(view, lambda rewriting: rewriting.clean)

    def _submit(self, view: AttackerView, of: Callable[[Rewriting], tuple[int, ...]]) -> list[Poison]:
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(view.slots)
        found = whole_rewritings(view, [self.attack], items, view.policy.sample(items, self.samples))
        if self.support:
            rows = [(*each.ids, view.policy.eos) for each in found]
            inside = view.policy.in_support([each.item for each in found], rows)
            found = [rewriting for rewriting, tokens in zip(found, inside, strict=True) if all(tokens)]
        logprobs = view.policy.token_logprobs([each.item for each in found], [each.ids for each in found])
        least = [min(row) for row in logprobs]
        of_item: dict[str, dict[tuple[int, ...], None]] = {item.id: {} for item in items}
        for number in sorted(range(len(found)), key=lambda number: -least[number]):
            of_item[found[number].item.id][*of(found[number]), view.policy.eos] = None
        turns = {item_id: cycle(ids) for item_id, ids in of_item.items()}
        return [next(turns[slot.item.id], None) for slot in view.slots]


def refuse_samplers(name: str, attack: Attack) -> None:
    """Refuse an attack whose poison consists of the policy's draws, because it has no payload to put into a draw.

    Raises:
        ValueError: it is such an attack.
    """
    if attack.threat.policy:
        raise ValueError(
            f"{name}: {attack.name} samples from the policy itself; give an attack that puts a payload into a solution"
        )
