"""Score defenses on a file of recorded pools, one after another, or give the reason for a missing score."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from thiefbench import registry
from thiefbench.pools.output import Outcome
from thiefbench.pools.rounds import FiledRounds
from thiefbench.pools.scores import FileReplay, file_replay
from thiefbench.suite.analysis.recorded_rounds import LackingError, ReplayError
from thiefbench.suite.analysis.replay import replay


def judge_file(
    recorded: FiledRounds,
    defenses: Sequence[str],
    model: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Test every defense on a file.

    Args:
        recorded: the file's rounds.
        defenses: spec strings in canonical form.
        model: name of the policy's model; empty without a policy.
        progress: called with (defenses done, all defenses).

    Raises:
        SpecError, ModelError: a defense's judge cannot be created.
    """
    replays: list[FileReplay] = []
    left_out: dict[str, str] = {}
    failed: dict[str, str] = {}
    for done, spec in enumerate(defenses, 1):
        try:
            replayed = replay(recorded, lambda spec=spec: registry.make("defense", spec))  # type: ignore[misc]
        except LackingError as error:
            left_out[spec] = f"{error}{_does_without(recorded, spec)}"
        except ReplayError as error:
            failed[spec] = str(error)
        else:
            replays.append(
                file_replay(spec, recorded.judged(replayed.verdicts), replayed.milliseconds, replayed.asks_policy)
            )
        progress(done, len(defenses))
    return Outcome(recorded, model, tuple(replays), left_out, failed)


def _does_without(recorded: FiledRounds, spec: str) -> str:
    """A clause that names the same defense with one part switched off, where that requires nothing the file lacks."""
    if not recorded.lacks(registry.make("defense", spec)):
        return ""
    parsed = registry.parse("defense", spec)
    for name, parameter in inspect.signature(registry.find("defense", parsed.target)).parameters.items():
        if parameter.default is True and name not in parsed.arguments:
            without = replace(parsed, arguments={**parsed.arguments, name: False})
            if not recorded.lacks(registry.make("defense", str(without))):
                return f"; {without} does without"
    return ""
