# my_defense.py
from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class PlausibleOpening(Defense):
    """Reject completions that open in a way one's own model finds implausible."""

    name = "plausible_opening"
    requires = frozenset({"homogeneous"})

    def __init__(self, floor: float = -4.0) -> None:
        self.floor = floor

    def inspect(self, view):
        openings = [logprobs[:8].mean() for logprobs in view.policy.token_logprobs(view.completions)]
        return [ACCEPT if mean > self.floor else Verdict("zero", score=float(mean)) for mean in openings]
