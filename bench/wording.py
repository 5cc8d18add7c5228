"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things: "1 round", "3 rounds"; `things` is the plural if it is not `thing` with an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {things or thing + 's'}"


def one_of(names: Sequence[str]) -> str:
    """Alternatives: "a", "a or b", "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: 0-4, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def seeds_in_words(numbers: Collection[int]) -> str:
    """Seeds in short, in order: "seed 3", "seeds 0-2, 4"."""
    return f"seed{'s' * (len(numbers) > 1)} {ranges(sorted(numbers))}"


def by_reason(reasons: Mapping[int, str]) -> str:
    """What is wrong at which seeds, each reason once: "seeds 0-2, 4: it has no score; seed 3: it failed"."""
    seeds: dict[str, list[int]] = {}
    for seed, reason in sorted(reasons.items()):
        seeds.setdefault(reason, []).append(seed)
    return "; ".join(f"{seeds_in_words(at)}: {reason}" for reason, at in seeds.items())
