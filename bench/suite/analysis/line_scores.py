"""The content of lines in a results table: scores compared with references, and notes for the reader."""

from __future__ import annotations

from statistics import fmean

from thiefbench import registry
from thiefbench.engine.spec import Role
from thiefbench.suite.analysis import comparison as formulas
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.measures import OF_COMPLETIONS
from thiefbench.suite.store.records import CLUSTERED_FROM, NOTHING, Record, Score


def comparative_scores(comparison: Comparison, role: Role, seed: int, record: Record) -> dict[str, Score]:
    """A record's scores and comparative ones, except those for which a needed cell has no score."""
    scores = (
        _with_honest_limits(record)
        | record.other_rules
        | {"headline_asr": without_interval(formulas.headline_asr(record))}
    )
    scores["gain"] = without_interval(formulas.gain(record))
    control, reference = comparison.record("control", "none", seed), comparison.reference(seed)
    if control is not None:
        scores["utility"] = without_interval(formulas.utility(record, control))
    undefended = comparison.undefended_harms
    if role == "attack" and reference is not None and seed in undefended:
        done, mean = formulas.harm(record, reference), fmean(undefended.values())
        share = None if done is None else formulas.harm_prevented(done, mean, comparison.rules.least_harm)
        scores["harm_prevented"] = without_interval(share)
        scores["undefended_share"] = without_interval(None if share is None else undefended[seed] / mean)
    return scores


def _with_honest_limits(record: Record) -> dict[str, Score]:
    """A record's scores; older records lose intervals of rejection rates that assumed independent completions."""
    scores = inspected_scores(record)
    if record.schema_version >= CLUSTERED_FROM:
        return scores
    return scores | {name: without_interval(scores[name].value) for name in OF_COMPLETIONS if name in scores}


def inspected_scores(record: Record) -> dict[str, Score]:
    """A record's scores, without rejection rates of completions where the defense judges vectors or stages instead."""
    judged = judges_completions(record)
    return {name: score for name, score in record.scores.items() if judged or name not in OF_COMPLETIONS}


def judges_completions(record: Record) -> bool:
    """Whether a cell's defense judges completions, and not vectors or stages."""
    return not (record.cell.get("averaging") or record.cell.get("pipeline"))


def label_notes(defense: str) -> tuple[str, ...]:
    """A warning for defenses that see labels, which only anchors may."""
    try:
        sees_labels = registry.make("defense", defense).sees_labels
    except registry.SpecStringError:  # a plugin that was installed when the cell ran, but is not any more
        sees_labels = False
    return ("sees labels, benchmark only",) if sees_labels else ()


def without_interval(value: float | None) -> Score:
    """A score without an interval; NaN is no value."""
    return NOTHING if value is None or value != value else Score(value=value, low=None, high=None, count=0)
