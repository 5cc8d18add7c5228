from collections import Counter

from thiefbench.defenses.base import ACCEPT, Defense, Verdict


class Habits(Defense):
    """Reject completions with words that one sender repeats over and over and hardly anyone else uses."""

    name = "habits"

    def __init__(self, words: int = 3, often: float = 0.5, elsewhere: float = 0.02) -> None:
        self.words, self.often, self.elsewhere = words, often, elsewhere

    def inspect(self, view):
        senders = [completion.sender for completion in view.completions]
        held = [self.runs_of_words(completion.text) for completion in view.completions]
        sent, everywhere = Counter(senders), Counter(run for runs in held for run in runs)
        own = Counter((sender, run) for sender, runs in zip(senders, held, strict=True) for run in runs)

        def habit(sender: str, run: tuple[str, ...]) -> bool:
            others = len(senders) - sent[sender]
            rare = everywhere[run] - own[sender, run] <= self.elsewhere * others
            return rare and own[sender, run] >= self.often * sent[sender]

        return [
            Verdict("drop", reason="a habit of its sender") if any(habit(sender, run) for run in runs) else ACCEPT
            for sender, runs in zip(senders, held, strict=True)
        ]

    def runs_of_words(self, text: str) -> set[tuple[str, ...]]:
        words = text.lower().replace(".", " ").replace(",", " ").split()
        return {tuple(words[at : at + self.words]) for at in range(len(words) - self.words + 1)}
