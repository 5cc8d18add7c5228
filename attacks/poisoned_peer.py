"""`poisoned_peer`: give poisoned weights to a node that recovers from a crash and asks a peer for weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Claimed, Poison, Sampler, ThreatModel
from thiefbench.attacks.wrapper import AttackWrapper


class PoisonedPeer(AttackWrapper):
    """Teach a copy of the current model the payload, and give its weights to the node that recovers from the attacker.

    In the pool it behaves like the inner attack. Nodes ask for weights only in a swarm with crashes
    (`SwarmSpec.churn`).

    Args:
        attack: the attack that poisons the examples to teach, and the pool.
        steps: how many steps of Adam, each on 16 poisoned solutions.
        learning_rate: Adam's.
        quiet: answer honestly in the pool, so that recovery is the attack's only way in.
    """

    name = "poisoned_peer"

    def __init__(
        self, attack: Attack | str = "text", steps: int = 60, learning_rate: float = 1e-3, quiet: bool = False
    ) -> None:
        super().__init__(attack)
        if steps < 1 or learning_rate <= 0:
            raise ValueError("poisoned_peer: steps must be at least 1 and learning_rate above 0")
        if self.attack.threat.queries:
            name = self.attack.name
            raise ValueError(
                f"poisoned_peer: nobody asks the defense about what is taught, which {name} does; put {name} outside, "
                f"as in {name}(attack='poisoned_peer')"
            )
        self.steps, self.learning_rate, self.quiet = steps, learning_rate, quiet

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """As the inner attack, or honest samples."""
        return [None] * len(view.slots) if self.quiet else self.attack.poison(view)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """As the inner attack, or honest samples."""
        return [None] * len(view.slots) if self.quiet else self.attack.placebo(view)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """A copy of the current model, fine-tuned on the inner attack's poison for the slots' items."""
        assert view.policy is not None, "the threat model grants a policy"
        pairs = zip(view.slots, self.attack.poison(view), strict=True)
        texts = [(slot.item, poison.content if isinstance(poison, Claimed) else poison) for slot, poison in pairs]
        lessons = [(item, text) for item, text in texts if isinstance(text, str)]
        return view.policy.taught(lessons, self.steps, self.learning_rate) if lessons else None
