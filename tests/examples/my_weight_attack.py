# my_weight_attack.py
from dataclasses import replace

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import WeightAttack


class Leaning(WeightAttack):
    """Send the honest mean, moved towards a model that was taught the payload."""

    name = "leaning"

    def __init__(self, attack: Attack | str = "text", share: float = 4.0) -> None:
        super().__init__(attack)
        self.share = share

    @property
    def threat(self):
        return replace(self.attack.threat, policy=True)  # a copy of an honest node's model, to be taught

    def send(self, view):
        return self._lean(view, self.attack.poison)

    def placebo_send(self, view):
        return self._lean(view, self.attack.placebo)

    def _lean(self, view, answers):
        lessons = view.lessons
        examples = [(slot.item, text) for slot, text in zip(lessons.slots, answers(lessons), strict=True) if text]
        lesson = view.moved(lessons.policy.taught(examples, steps=16, learning_rate=1e-3))
        return [view.honest.mean(0) + self.share * lesson] * view.senders
