"""Every defense on every attack: each defense judges the recorded pools of undefended swarms.

Only the undefended and the placebo cells are trained, so a defense costs minutes instead of hours. A matrix cannot say
what models would have learned with a defense; only a trained cell can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import fmean, median

from thiefbench import registry
from thiefbench.defenses.base import Defense, JudgeSpec
from thiefbench.engine.model.policy import Dtype
from thiefbench.engine.views.defender import Judge
from thiefbench.errors import UserError
from thiefbench.judges import ImpatientJudge, check_judge, judge_of
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.replay import Recording, Replay, ReplayError, replay
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import NOTHING, Record, Score, Store
from thiefbench.tasks.base import Task

TOLERATED = 0.05
"""A defense that rejects a larger share of rewarded honest completions stops poison at the cost of learning."""

MEASURES = ("stop_rate", "false_rejection_rate", "placebo_rejection_rate")


class MatrixError(UserError):
    """There is nothing to inspect. One sentence for the user."""


@dataclass(frozen=True)
class Pools:
    """One attack of one suite at one seed: the records of its undefended cell and of its placebo, if any.

    `suite` is its title, with the part's name if it has several parts.
    """

    suite: str
    attack: str
    seed: int
    attacked: Record | None
    placebo: Record | None


@dataclass(frozen=True)
class MatrixCell:
    """The result of one defense on one attack at one seed.

    Attributes:
        suite, attack, seed, defense: which result this is.
        scores: by name, see `MEASURES`: the share rejected of rewarded payload, of rewarded honest completions, and of
            the placebo's rewarded malicious completions; 95 % intervals clustered by sender and item.
        milliseconds: per completion, see `Replay`; None without a score.
        rounds: those it judged.
        problem: why a score is missing, or empty.
    """

    suite: str
    attack: str
    seed: int
    defense: str
    scores: Mapping[str, Score] = field(default_factory=dict)
    milliseconds: float | None = None
    rounds: tuple[int, ...] = ()
    problem: str = ""

    def score(self, measure: str) -> Score:
        """A score by name; without a value if it is missing."""
        return self.scores.get(measure, NOTHING)


@dataclass(frozen=True)
class Column:
    """One attack of one suite."""

    suite: str
    attack: str


@dataclass(frozen=True)
class DefenseRow:
    """One defense over all columns.

    Attributes:
        defense: its spec string.
        entries: at every column and seed.
    """

    defense: str
    entries: tuple[MatrixCell, ...]

    def scores(self, measure: str, column: Column | None = None) -> list[Score]:
        """The scores that have a value, in one column or in all."""
        wanted = [e for e in self.entries if column is None or (e.suite, e.attack) == (column.suite, column.attack)]
        return [score for e in wanted if (score := e.score(measure)).value is not None]

    @cached_property
    def stop_rates(self) -> dict[Column, float]:
        """Mean over seeds of the stop rate, by column that has one."""
        found: dict[Column, list[float]] = {}
        for entry in self.entries:
            if (rate := entry.score("stop_rate").value) is not None:
                found.setdefault(Column(entry.suite, entry.attack), []).append(rate)
        return {column: fmean(rates) for column, rates in found.items()}

    @property
    def worst(self) -> Column | None:
        """The column with the lowest stop rate; None without any."""
        return min(self.stop_rates, key=lambda column: self.stop_rates[column], default=None)

    @property
    def lowest(self) -> float:
        """The stop rate there; 0 without any."""
        return min(self.stop_rates.values(), default=0.0)

    @property
    def wrongly_rejected(self) -> tuple[float, ...]:
        """Mean of false and placebo rejection; 0 if there was nothing to reject."""
        found = [[s.value for s in self.scores(name) if s.value is not None] for name in MEASURES[1:]]
        return tuple(fmean(rates or [0.0]) for rates in found)

    @property
    def tolerable(self) -> bool:
        """Whether the mean false rejection rate is at most `TOLERATED`, so that honest nodes can bear the cost."""
        return self.wrongly_rejected[0] <= TOLERATED

    @property
    def anchor(self) -> bool:
        """Whether it is there to compare with, and not to be chosen."""
        return bool(anchor_of(self.defense))

    @property
    def milliseconds(self) -> float | None:
        """Per completion, the median over columns and seeds."""
        known = [entry.milliseconds for entry in self.entries if entry.milliseconds is not None]
        return median(known) if known else None

    @property
    def problems(self) -> list[str]:
        """Why scores are missing, each reason once."""
        return list(dict.fromkeys(entry.problem for entry in self.entries if entry.problem))


@dataclass(frozen=True)
class Matrix:
    """All entries, with the pools they were measured on."""

    pools: tuple[Pools, ...]
    entries: tuple[MatrixCell, ...]

    @property
    def columns(self) -> list[Column]:
        """Every attack, in the suites' order."""
        return list(dict.fromkeys(Column(entry.suite, entry.attack) for entry in self.entries))

    @property
    def rows(self) -> list[DefenseRow]:
        """Every defense in the order in which a user would choose, with anchors below them.

        Defenses that reject no more honest work than is tolerable come first, by their worst case, and equal ones by
        their wrong rejections. Within each group, those that lack a column that others have come last. Defenses without
        any column come last of all.
        """
        defenses = dict.fromkeys(entry.defense for entry in self.entries)
        rows = [DefenseRow(name, tuple(e for e in self.entries if e.defense == name)) for name in defenses]
        return sorted(
            rows,
            key=lambda row: (
                row.worst is None,
                row.anchor,
                not row.tolerable and not row.anchor,
                -len(row.stop_rates),
                -row.lowest,
                *row.wrongly_rejected,
            ),
        )

    @property
    def measured(self) -> list[Column]:
        """The columns in which at least one defense has a stop rate; elsewhere no payload earned a reward."""
        return [column for column in self.columns if any(column in row.stop_rates for row in self.rows)]


def undefended(suites: Sequence[Suite]) -> list[Suite]:
    """The part of each suite that a matrix needs: undefended and placebo cells with recorded rounds.

    The recorded rounds are the suite's own, or the first, the middle and the last of each part.

    Raises:
        MatrixError: a suite has no undefended cells or no pools that can be replayed, or two have the same name.
    """
    bare_suites: list[Suite] = []
    for suite in suites:
        if "none" not in {registry.canonical("defense", spec) for spec in suite.defenses}:
            raise MatrixError(f"the suite {suite.title} has no undefended cells; put none among its defenses")
        if any(part.averaging or part.pipeline or part.experts for part in suite.scenes):
            raise MatrixError(
                f"the suite {suite.title} exchanges weights, has stages or has experts; a matrix replays pools of "
                "completions, so run it with `thiefbench run`"
            )
        if suite.title in {other.title for other in bare_suites}:
            raise MatrixError(f"two suites are called {suite.title}; give one of them another name or version")
        recorded = suite.recorded or tuple(
            sorted({number for part in suite.scenes for number in (1, (part.rounds + 1) // 2, part.rounds)})
        )
        bare_suites.append(
            replace(suite, defenses=("none",), placebo=True, utility=False, replayed=(), recorded=recorded)
        )
    return bare_suites


def wanted(cells: Sequence[CellSpec]) -> list[CellSpec]:
    """Those of a suite's cells that a matrix inspects: no control."""
    return [cell for cell in cells if cell.role != "control"]


def pools_of(suite: Suite, cells: Sequence[CellSpec], records: Sequence[Record]) -> list[Pools]:
    """The records of a suite's undefended and placebo cells, by part, attack and seed."""
    by_place: dict[tuple[str, str, int], dict[str, Record]] = {}
    for cell, record in zip(cells, records, strict=True):
        by_place.setdefault((suite.part_of(cell), cell.attack, cell.seed), {})[cell.role] = record
    return [
        Pools(
            f"{suite.title}, {part}" if part else suite.title,
            attack,
            seed,
            records_of_place.get("attack"),
            records_of_place.get("placebo"),
        )
        for (part, attack, seed), records_of_place in by_place.items()
    ]


def every_defense(judged: bool = True) -> tuple[list[str], list[str]]:
    """The registered defenses that need no argument, and why others are left out.

    Args:
        judged: include those that ask a judge, which is a separate model.
    """
    replayable, left = [], []
    for name in registry.names("defense"):
        try:
            defense: Defense = registry.make("defense", name)
        except registry.SpecStringError as error:
            left.append(str(error))
        else:
            if judged or "judge" not in defense.requires:
                replayable.append(name)
            else:
                left.append(f"{name} asks a judge; name it to have it asked: --defense {name}")
    return replayable, left


def named_defenses(specs: Sequence[str]) -> list[str]:
    """Spec strings in canonical form, each once.

    Raises:
        registry.SpecStringError: one names nothing, or its arguments are wrong.
        SpecError, ModelError: one asks a judge that cannot be loaded.
    """
    for spec in specs:
        defense: Defense = registry.make("defense", spec)
        if "judge" in defense.requires:
            check_judge(defense)
    return list(dict.fromkeys(registry.canonical("defense", spec) for spec in specs))


def inspect_all(
    store: Store,
    pools: Sequence[Pools],
    defenses: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
    note: Callable[[str], None] = lambda message: None,
) -> Matrix:
    """Let every defense judge every recorded pool. A judge that does not answer is not asked again.

    Args:
        store: where the cells are.
        pools: what to judge.
        defenses: spec strings in canonical form.
        progress: called with (done, of how many) after every defense on every attack and seed.
        note: receives a message when a judge's server does not answer and is asked again.

    Raises:
        MatrixError: no undefended cell has a score.
        registry.SpecStringError: a task or a defense cannot be created.
        TaskError: a task's items cannot be loaded.
    """
    if not any(each.attacked is not None and each.attacked.status == "ok" for each in pools):
        raise MatrixError(f"no undefended cell in {store.root} has a score, so there is nothing to inspect")
    tasks: dict[str, Task] = {}
    entries: list[MatrixCell] = []

    @cache
    def judges(spec: JudgeSpec, device: str, dtype: Dtype) -> Judge:
        return ImpatientJudge(judge_of(spec, device, dtype, note))

    for each in pools:
        attacked, placebo = (_opened(store, record, tasks, judges) for record in (each.attacked, each.placebo))
        for defense in defenses:
            entries.append(_entry(each, defense, attacked, placebo))
            progress(len(entries), len(pools) * len(defenses))
    return Matrix(tuple(pools), tuple(entries))


def _opened(
    store: Store, record: Record | None, tasks: dict[str, Task], judges: Callable[[JudgeSpec, str, Dtype], Judge]
) -> Recording | str:
    """The recording of a cell, or why there is none."""
    if record is None:
        return "its cell was not run"
    spec = record.cell["task"]
    try:
        tasks[spec] = tasks.get(spec) or registry.make("task", spec)
        return Recording(store.cell(record.cell_id), record, tasks[spec], judges)
    except ReplayError as error:
        return str(error)


def _entry(pools: Pools, defense: str, attacked: Recording | str, placebo: Recording | str) -> MatrixCell:
    bare = MatrixCell(pools.suite, pools.attack, pools.seed, defense)
    done, beside = _replayed(attacked, defense), _replayed(placebo, defense)
    if isinstance(done, str):
        return replace(bare, problem=f"not replayed: {done}")
    scores = {name: done.scores[name] for name in ("stop_rate", "false_rejection_rate")}
    if isinstance(beside, Replay):
        scores["placebo_rejection_rate"] = beside.scores["clean_rejection_rate"]
    problem = "" if isinstance(beside, Replay) else f"not replayed on the placebo: {beside}"
    return replace(bare, scores=scores, milliseconds=done.milliseconds, rounds=done.rounds, problem=problem)


def _replayed(recording: Recording | str, defense: str) -> Replay | str:
    """A replay, or why there is none."""
    if isinstance(recording, str):
        return recording
    try:
        return replay(recording, lambda: registry.make("defense", defense))
    except ReplayError as error:
        return str(error)
