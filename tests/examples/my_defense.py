# my_defense.py
from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class PlausibleOpening(Defense):
    """Reject completions that open in a way one's own model finds implausible."""

    name = "plausible_opening"
    requires = frozenset({"homogeneous"})

    def __init__(self, floor: float = -4.0) -> None:
        self.floor = floor

    def inspect(self, view):
        told = view.policy.token_logprobs(view.completions)
        openings = [logprobs[:8].mean() if len(logprobs) else 0.0 for logprobs in told]
        return [ACCEPT if mean > self.floor else Verdict("drop", score=float(mean)) for mean in openings]
