# my_defense.py
from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class PlausibleOpening(Defense):
    """Reject completions whose opening is implausible to the defender's model."""

    name = "plausible_opening"
    requires = frozenset({"homogeneous"})

    def __init__(self, floor: float = -3.0) -> None:
        self.floor = floor

    def inspect(self, view):
        logprobs = view.policy.token_logprobs(view.completions)
        openings = [row[:8].mean() if len(row) else 0.0 for row in logprobs]
        return [ACCEPT if mean > self.floor else Verdict("drop", score=float(mean)) for mean in openings]
