# my_stage_attack.py
from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import StageAttack


class Sudden(StageAttack):
    """Learn where the payload moves the stage's weights, and add all of it in one round."""

    name = "sudden"
    lessons = 256  # questions to learn from

    def __init__(self, attack: Attack | str = "triggered(attack='text')", when: int = 1) -> None:
        super().__init__(attack)
        self.when = when

    def learned(self, view):
        return view.taught(self.examples(view.lessons, self.attack.poison), 200, 1e-3)

    def placebo_learned(self, view):
        return view.taught(self.examples(view.lessons, self.attack.placebo), 200, 1e-3)

    def added(self, view):
        return view.learned if view.round == self.when else None
