"""What is fuzzed: for each command that reads what strangers wrote, a valid example, its mutation and the reading.

`run --plan` would play a round of a suite that no store knows, and `verify` starts processes that read tables and parse
source first; all stand in this process here, so that cases are many: the round is left out, and tables and source are
read directly. What begins as Parquet does among rollouts counts as Parquet that cannot be read.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from tests.bench import handmade
from tests.bench.pools import lines
from tests.bench.rollouts.parts import FILES
from tests.fuzz.mutations import Mutator
from tests.leaderboard import made_attacks, made_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256
from thiefbench import provenance, registry, trust
from thiefbench.engine.spec import SwarmSpec
from thiefbench.errors import UserError
from thiefbench.leaderboard import archive, entry_validation, rows, submit
from thiefbench.leaderboard.cell_scores import Scores, trimmed
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.entry import Entry, read_entry
from thiefbench.leaderboard.entry_differences import difference
from thiefbench.leaderboard.manifest import Numerics
from thiefbench.leaderboard.site.board import board
from thiefbench.leaderboard.verification import attack_verification, by_delivery, table_reader, verify
from thiefbench.leaderboard.verification.verdict import DeliveryVerdict
from thiefbench.pools.export import header_of, lines_of, of_cohort
from thiefbench.pools.files import write as write_lines
from thiefbench.pools.judging import judge_file
from thiefbench.pools.rounds import read_rounds
from thiefbench.rollouts import reading
from thiefbench.rollouts.reading import SOURCES, format_of, read_rollouts
from thiefbench.rollouts.source import Reading
from thiefbench.suite import run_plan
from thiefbench.suite.analysis.replay import Recording
from thiefbench.suite.analysis.run_comparisons import last_run
from thiefbench.suite.estimates.eta import MeasuredCell
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.report.compare import compared, comparison_as_data, write_comparison
from thiefbench.suite.report.page import write_report
from thiefbench.suite.scenario import Evaluation, Suite
from thiefbench.suite.store.merging import merge
from thiefbench.suite.store.record_content import named_alike, wrong_in
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Store, file_sha256, identify, write_sealed
from thiefbench.suite.store.tables import TableError, read_limited
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Sampling

SHIPPED = Path(__file__).parents[2] / "leaderboard" / "entries"
_NAMES = "smoke trial standard_v1 every_attack heterogeneous_v1 averaging_v1 pipeline_v1 truth_v1 rewards_v1"
SUITES = [Path(__file__).parents[2] / "bench" / "suite" / f"{name}.yaml" for name in _NAMES.split()]
"""Those whose data comes with the package."""
NUMERICS = Numerics(device="cpu", dtype="float32", threads=1)
JUDGES_OF_TEXT = (
    "arithmetic",
    "blacklist",
    "length_quantile",
    "max_tokens(limit=96)",
    "reputation",
    "reward_outlier",
    "similarity",
)
"""Defenses that need no policy, so that `replay` runs them on a file alone."""


ODD: list[Any] = [
    None, True, -1, 0, 10**9, 10**30, 0.5, -0.5, 1e300, "", "x", "\x1b", "[" * 200, "x" * 3000, "gsm_micro", "logit",
    "/dev/zero", "http://localhost:1/v1", [], ["x"], [1] * 1000, {}, {"x": 1}, (1, 2),
]  # fmt: skip
"""Arguments in spec strings."""


@dataclass
class Bases:
    """Valid examples, made once; every case works on a copy.

    Attributes:
        folder: of all of them.
        released: suites that count as released, with the one of `played` among them.
    """

    folder: Path
    released: dict[str, Suite] = field(default_factory=dict)
    played_entry: Entry | None = None
    lines: bytes = b""

    @cached_property
    def run(self) -> dict[str, Any]:
        """What the store `seeds` says of its last run."""
        return Store(self.seeds).read_run() or {}

    @property
    def numbers(self) -> Path:
        """A store whose records are made of numbers."""
        return self.folder / "numbers"

    @property
    def seeds(self) -> Path:
        """As `numbers`, with two seeds of each cell."""
        return self.folder / "seeds"

    @property
    def attacked(self) -> Path:
        """A folder with the entries of a defense and of an attack on it, made of numbers."""
        return self.folder / "attacked"

    @property
    def grown(self) -> Path:
        """A folder with an entry of two deliveries, made of numbers."""
        return self.folder / "grown"

    @property
    def verified(self) -> Path:
        """A folder with a verification of that entry."""
        return self.folder / "verified"

    @property
    def played(self) -> Path:
        """A store whose cells were run."""
        return self.folder / "played"


def bases(folder: Path, played: bool = True) -> Bases:
    """Make the examples, or take those in the folder; `played` is whether cells are run, which takes half a minute."""
    examples = Bases(folder, dict(rows.released()))
    if not examples.attacked.exists():
        listed = made_entries.entry(examples.attacked)
        source = registry.source_hash("attack", made_attacks.attack(examples.attacked, [listed]).spec, load=False)
        made_attacks.attack(examples.attacked, [listed], source_sha256=source)
    if not examples.grown.exists():
        listed = made_entries.grown(examples.grown)
        made_entries.verified(examples.verified, listed, deliveries=_deliveries(listed))
    for store, seeds in ((examples.numbers, (0,)), (examples.seeds, (0, 1))):
        if not store.exists():
            handmade.store(store, handmade.suite(attacks=(handmade.TEXT,), defenses=("none", "logit"), seeds=seeds))
    examples.lines = b"".join(json.dumps(lines.line(round=n, sender=s)).encode() + b"\n" for n in (1, 2) for s in "abc")
    if played:
        suite = Suite(
            name="fuzzed", version=1, task="gsm_micro(size=12)", model="micro-math", attacks=("text",),
            defenses=("none", "oracle(reject='drop')"), placebo=True, utility=True, rounds=2,
            swarm=SwarmSpec(nodes=2, malicious=1, prompts=2, group=4, sampling=Sampling(max_new_tokens=24)),
            evaluation=Evaluation(every=1, completions=8, final=8),
        )  # fmt: skip
        examples.released[suite.title] = suite
        with mock.patch.object(rows, "released", lambda: examples.released):
            own = submit.prepare(
                "similarity",
                submit.credits_of("Fuzzed", "A. Author", ""),
                suite,
                NUMERICS,
                examples.played,
                folder / "entries",
            )
            if not (folder / "archive.tar").exists():
                submit.write(own, submit.run(own, _Quiet()))
                run_suite(suite, suite.cells("cpu", "float32", 1), Store(examples.played), _Quiet())
                shutil.copy(own.archive, folder / "archive.tar")
            (of_entry,) = (folder / "entries").iterdir()
            examples.played_entry = read_entry(of_entry)
        store = Store(examples.played)
        record = next(r for r in store.records() if r.cell["role"] == "attack" and r.cell["defense"] == "none")
        recording = of_cohort(
            Recording(store.cell(record.cell_id), record, registry.make("task", record.cell["task"])), None
        )
        examples.lines += write_lines(header_of(recording), list(lines_of(recording))[:12]).partition(b"\n")[2]
    return examples


def _deliveries(of: Entry) -> tuple[DeliveryVerdict, ...]:
    today = date(2026, 11, 21)
    return by_delivery.verdicts(of, of.manifest.deliveries, "rescored", None, (), (), set(), today)


class _Quiet:
    """A listener that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


Case = Callable[[Bases, Mutator, Path], Callable[[], object]]
"""Examples, changes and a folder -> what reads the changed example; whatever it raises is judged."""


# --- entries ---


def entry(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`leaderboard verify ENTRY`: shipped entries with other manifests and scores, whose hashes fit."""
    sources = sorted(path.parent for path in SHIPPED.glob("*/entry.json"))
    source = mutator.rng.choice(sources)
    target = Path(shutil.copytree(source, folder / source.name))
    _mutate_entry(target, mutator)
    return lambda: verify.verify(target, verify.VerifyOptions(), _tell, _Quiet(), lambda suite: ())


def _mutate_entry(target: Path, mutator: Mutator, cells: bool = True) -> None:
    rng = mutator.rng
    manifest = json.loads((target / "entry.json").read_bytes())
    if cells and rng.random() < 0.5:
        scores = scores_of(target)
        put_scores(target, mutator.text(mutator.tree(scores)))
    else:
        manifest = mutator.tree(manifest)
    if rng.random() < 0.2:
        (target / "defense").mkdir(exist_ok=True)
        content = rng.choice(
            [b"import os\nos.system('touch marker')\n", b"\x00\x01", b"(" * 5000, b"x = " + b"-" * 9000 + b"1"]
        )
        (target / "defense" / "mine.py").write_bytes(content)
        if isinstance(manifest, dict):
            manifest["defense"] = rng.choice(["defense/mine.py:Mine", "reputation(defense='defense/mine.py:Mine')"])
            if isinstance(manifest.get("files"), dict):
                manifest["files"]["defense/mine.py"] = hashlib.sha256(content).hexdigest()
    if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) and rng.random() < 0.95:
        manifest["files"]["scores.json"] = scores_sha256(target)
    (target / "entry.json").write_bytes(mutator.text(manifest))


def attack_entry(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`leaderboard verify` of an attack's entry beside the defense's, and `leaderboard build` with both."""
    rng, entries = mutator.rng, Path(shutil.copytree(examples.attacked, folder / "entries"))
    target = entries / "breaker"
    manifest, scores = json.loads((target / "attack.json").read_bytes()), scores_of(target)
    if rng.random() < 0.5:
        put_scores(target, mutator.text(mutator.tree(scores)))
    else:
        manifest = mutator.tree(manifest)
    if rng.random() < 0.2:
        _mutate_entry(entries / "mine", mutator)
    if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) and rng.random() < 0.95:
        manifest["files"]["scores.json"] = scores_sha256(target)
    (target / "attack.json").write_bytes(mutator.text(manifest))
    if rng.random() < 0.1:
        return lambda: board(entries, folder / "verified")
    return lambda: attack_verification.verify_attack(target, verify.VerifyOptions(), _tell, _Quiet())


def grown(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`leaderboard verify` and `leaderboard build` of an entry with two deliveries, and of its earlier verification."""
    rng, entries = mutator.rng, Path(shutil.copytree(examples.grown, folder / "entries"))
    seen = Path(shutil.copytree(examples.verified, folder / "verified"))
    if rng.random() < 0.8:
        _mutate_entry(entries / "mine", mutator)
    if rng.random() < 0.3:
        path = seen / "mine.json"
        path.write_bytes(mutator.text(mutator.tree(json.loads(path.read_bytes()))))
    if rng.random() < 0.2:
        return lambda: board(entries, seen)
    archives = [entries / "mine" / "scores.json.gz"] if rng.random() < 0.2 else []
    options = verify.VerifyOptions(archives[0] if archives else None, earlier=seen)
    return lambda: verify.verify(entries / "mine", options, _tell, _Quiet(), lambda suite: ())


def entry_diff(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`leaderboard diff ENTRY ENTRY --out DIR`, of which one is changed."""
    rng = mutator.rng
    sources = [examples.grown / "mine"]
    if rng.random() < 0.5:
        sources = sorted(path.parent for path in SHIPPED.glob("*/entry.json"))
    names = [rng.choice(sources) for _ in range(2)]
    changed = Path(shutil.copytree(names[0], folder / names[0].name))
    _mutate_entry(changed, mutator)
    sides = [changed, names[1]] if rng.random() < 0.5 else [names[1], changed]

    def read() -> object:
        found = difference(*map(read_entry, sides))
        comparison_as_data(found.comparison)
        return write_comparison(found.comparison, folder / "out", found.reasons)

    return read


def rescored(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`leaderboard verify ENTRY --archive`: records and tables changed, and everything signed again."""
    rng, original = mutator.rng, examples.played_entry
    assert original is not None
    target = Path(shutil.copytree(original.folder, folder / original.folder.name))
    tar = folder / "archive.tar"
    if rng.random() < 0.1:
        tar.write_bytes(mutator.data((examples.folder / "archive.tar").read_bytes()))
        _name_archive(target, tar)
    else:
        store = Store(folder / "store")
        cells, changed = list(original.cells), rng.randrange(len(original.cells))
        for number, cell in enumerate(cells):
            shutil.copytree(examples.played / "cells" / cell.cell_id, store.cell(cell.cell_id).path)
            if number == changed:
                cells[number] = _changed_cell(store, cell, mutator)
        archive.pack(tar, store, cells)
        scores = json.loads(Scores(cells=tuple(cells)).model_dump_json())
        put_scores(target, json.dumps(scores))
        _name_archive(target, tar)
    return lambda: verify.verify(
        target, verify.VerifyOptions(archive=tar, reruns=0, fresh=0), _tell, _Quiet(), lambda suite: ()
    )


def _changed_cell(store: Store, cell: Any, mutator: Mutator) -> Any:
    """A cell whose record or table was changed, as the entry then names it."""
    directory = store.cell(cell.cell_id)
    _mutate_cell(directory.path, mutator)
    update = {
        "record_sha256": file_sha256(directory.record_path),
        "completions_sha256": file_sha256(directory.completions_path),
    }
    if mutator.rng.random() < 0.8:
        try:
            record = directory.read()
            if record is not None:
                fitting = trimmed(record, cell.part, cell.defense not in ("none",), update["record_sha256"])
                return fitting.model_copy(update=update | {"cell_id": cell.cell_id})
        except (BrokenRecordError, ValueError, KeyError):
            pass
    return cell.model_copy(update=update)


def _name_archive(target: Path, tar: Path) -> None:
    manifest = json.loads((target / "entry.json").read_bytes())
    manifest["archive"] |= {"sha256": file_sha256(tar), "bytes": tar.stat().st_size}
    manifest["files"]["scores.json"] = scores_sha256(target)
    (target / "entry.json").write_text(json.dumps(manifest))


# --- stores ---


def _mutate_cell(folder: Path, mutator: Mutator) -> None:
    """Change a cell's record or its completions, with checksums that fit."""
    rng, record = mutator.rng, folder / "record.json"
    content = json.loads(record.read_bytes())["content"]
    table = folder / "completions.parquet"
    if table.exists() and rng.random() < 0.5:
        table.write_bytes(mutator.parquet(table.read_bytes()))
        content["completions_sha256"] = file_sha256(table)
    else:
        # Half of the changes where a reader of the store looks first: what the cell is.
        within = rng.choice(["cell", "cell", "identity", "scores", "curves", ""])
        content = mutator.tree(content, lambda path: not within or path[0] == within)
        if isinstance(content, dict) and rng.random() < 0.3 and isinstance(content.get("identity"), dict):
            content["cell_id"] = identify({"cell": content.get("cell"), **content["identity"]})
    if isinstance(content, dict) and rng.random() < 0.95:
        with mock.patch("os.fsync"):
            write_sealed(record, content)
    else:
        record.write_bytes(mutator.data(record.read_bytes()))


def _mutate_store(store: Path, mutator: Mutator) -> None:
    rng, how = mutator.rng, mutator.rng.random()
    if how < 0.4:
        run = json.loads((store / "run.json").read_bytes())
        (store / "run.json").write_bytes(mutator.text(mutator.tree(run)))
        return
    for folder in rng.sample(sorted((store / "cells").iterdir()), rng.choice([1, 1, 2, 4])):
        _mutate_cell(folder, mutator)


def _store(examples: Bases, mutator: Mutator, folder: Path, name: str) -> Path:
    """A changed copy of a store."""
    played = examples.played if examples.played.exists() else examples.numbers
    source = mutator.rng.choices([examples.numbers, examples.seeds, played], [6, 2, 2])[0]
    copied = Path(shutil.copytree(source, folder / name))
    _mutate_store(copied, mutator)
    return copied


def report(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`report STORE`, plots included."""
    store = _store(examples, mutator, folder, "store")
    return lambda: write_report(Store(store))


def compare(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`compare STORE STORE --out DIR`."""
    one = _store(examples, mutator, folder, "one")
    other = examples.numbers if mutator.rng.random() < 0.8 else one
    return lambda: write_comparison(compared([one, other], []), folder / "out")


def merging(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`merge STORE STORE --into DIR`."""
    one, prefer = _store(examples, mutator, folder, "one"), mutator.rng.choice([None, "first", "second"])
    return lambda: merge([one, examples.numbers], folder / "into", prefer)  # type: ignore[arg-type]


def record(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """What every command does first with a cell's record."""
    rng, source = mutator.rng, examples.seeds
    cell = rng.choice(sorted((source / "cells").iterdir()))
    content = json.loads((cell / "record.json").read_bytes())["content"]
    within = rng.choice(["cell", "scores", "curves", ""])
    content = mutator.tree(content, lambda path: not within or path[0] == within)
    copied = CellDir(folder / cell.name)
    copied.path.mkdir()
    if (cell / "completions.parquet").exists():
        shutil.copy(cell / "completions.parquet", copied.completions_path)
    if isinstance(content, dict) and rng.random() < 0.95:
        write_sealed(copied.record_path, content)
    else:
        copied.record_path.write_bytes(mutator.text(content))
    entry = next(each for each in examples.run["cells"] if each["cell_id"] == cell.name)

    def read() -> object:
        try:
            found = copied.read()
        except BrokenRecordError as error:  # for which every command has a sentence
            raise UserError(str(error)) from error
        return found and (wrong_in(found), named_alike(found, entry))

    return read


def run(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """What every command does first with what a store says of its last run."""
    (folder / "run.json").write_bytes(mutator.text(mutator.tree(json.loads(json.dumps(examples.run)))))
    return lambda: last_run(Store(folder))


def export(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`export STORE CELL FILE`."""
    source = examples.played if examples.played.exists() else examples.numbers
    store = Path(shutil.copytree(source, folder / "store"))
    cell = mutator.rng.choice(sorted((store / "cells").iterdir()))
    _mutate_cell(cell, mutator)
    from thiefbench.cli import pools

    return lambda: pools.export(store, cell.name, folder / "pools.jsonl")


def replay(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`replay FILE` with defenses that judge texts."""
    rng, file = mutator.rng, folder / "pools.jsonl"
    content = examples.lines.splitlines()
    if rng.random() < 0.3:
        content.insert(0, b'{"thiefbench_pool": 1, "task": "gsm_micro", "sampling": {"max_new_tokens": 24}}')
    for number in rng.sample(range(len(content)), rng.choice([1, 1, 2, 5])):
        content[number] = mutator.text(mutator.tree(json.loads(content[number])))
    data = b"\n".join(content)
    file.write_bytes(mutator.data(data) if rng.random() < 0.1 else data)
    defense = rng.choice(JUDGES_OF_TEXT)

    def read() -> object:
        outcome = judge_file(read_rounds(file), [defense])
        return json.dumps(outcome.as_dict(), allow_nan=False), outcome.csv(), outcome.failed

    return read


def rollouts(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`replay FILE` on the lines of another project. Its Parquet is read in a process of its own, not here."""
    rng, file = mutator.rng, folder / "rollouts.jsonl"
    source = rng.choice([each for each in SOURCES.values() if not each.parquet])
    content = FILES[source.name].read_bytes().splitlines()
    for number in rng.sample(range(len(content)), rng.choice([1, 2])):
        content[number] = mutator.text(mutator.tree(json.loads(content[number])))
    data = b"\n".join(content)
    file.write_bytes(mutator.data(data) if rng.random() < 0.1 else data)
    defense = rng.choice(JUDGES_OF_TEXT)

    def read() -> object:
        format_of(file)
        outcome = judge_file(read_rollouts([file], source, Reading()), [defense])
        return json.dumps(outcome.as_dict(), allow_nan=False), outcome.csv(), outcome.failed

    return read


def suite(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """What every command does first with a suite's file."""
    file = _suite_file(mutator, folder)
    return lambda: load_suite(str(file))


def plan(examples: Bases, mutator: Mutator, folder: Path) -> Callable[[], object]:
    """`run SUITE.yaml --plan` on a store that knows nothing."""
    file = _suite_file(mutator, folder)

    def read() -> object:
        suite = load_suite(str(file))
        return run_plan.look_ahead(suite, suite.cells("cpu", "float32", 1), Store(folder / "nothing"))

    return read


def _suite_file(mutator: Mutator, folder: Path) -> Path:
    rng, file = mutator.rng, folder / "suite.yaml"
    shipped = rng.choice(SUITES)
    text = shipped.read_bytes()
    if rng.random() < 0.8:
        data = copy.deepcopy(_loaded(shipped))
        if rng.random() < 0.97:
            _shorten(data, rng)
        data = mutator.tree(data)
        try:
            text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")
        except RecursionError:  # nested too deeply to be dumped; JSON is YAML too
            text = json.dumps(data).encode()
    if rng.random() < 0.25:
        text = mutator.data(text)
    if rng.random() < 0.08:
        attack = rng.choice([
            b"\nx: !!python/object/apply:os.system ['touch marker']\n", b"\na: &a [*a]\n", b"\nname: *x\n",
            b"\nname: twice\n", b"\n" + b"x: {" * 60, b"\n? [a]\n: b\n", b"\n--- \nname: other\n", b"\nd: 2001-99-99\n",
        ])  # fmt: skip
        text += attack
    file.write_bytes(text)
    return file


@cache
def _loaded(suite: Path) -> Any:
    return yaml.safe_load(suite.read_bytes())


def _shorten(suite: Any, rng: random.Random) -> None:
    """Leave two of every list of a suite, as the plan of a whole one takes seconds."""
    for holder in (suite, *suite.get("parts", ())):
        for name in ("attacks", "defenses", "replayed", "seeds", "parts"):
            if len(several := holder.get(name, ())) > 2:
                holder[name] = [several[0], rng.choice(several[1:])]


def odd_specs() -> list[str]:
    """Spec strings of declared names, each with one argument that nobody gives."""
    kinds: tuple[registry.Kind, ...] = ("attack", "defense", "task")
    parameters = [
        f"{name}({parameter}="
        for kind in kinds
        for name in registry.names(kind)
        for parameter in inspect.signature(registry.find(kind, name)).parameters
    ]
    return [f"{beginning}{value!r})" for beginning in parameters for value in ODD]


class _Dumper(yaml.SafeDumper):
    """Writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _tell(finding: Finding) -> None:
    str(finding)


TARGETS: dict[str, tuple[Case, float]] = {
    "record": (record, 60), "run": (run, 40), "suite": (suite, 20), "entry": (entry, 40), "replay": (replay, 40),
    "rollouts": (rollouts, 40), "attack_entry": (attack_entry, 20),
    "grown": (grown, 10), "entry_diff": (entry_diff, 10),
    "rescored": (rescored, 6), "report": (report, 0.3), "compare": (compare, 7), "merge": (merging, 7),
    "export": (export, 6), "plan": (plan, 1),
}  # fmt: skip
"""By name what is done, and its share of the cases."""

PLAYED = {"rescored", "export"}
"""Targets that need cells which were run."""


def chosen(rng: random.Random, names: list[str]) -> str:
    """One of the targets."""
    return rng.choices(names, [TARGETS[name][1] for name in names])[0]


@contextmanager
def surroundings(examples: Bases) -> Iterator[None]:
    """What all cases share: the tiny suite counts as released, and nothing is measured, told apart or written twice."""
    here = provenance.provenance("cpu", 1)
    with ExitStack() as stack:
        stack.enter_context(trust.declared_only())
        stack.enter_context(mock.patch.object(rows, "released", lambda: examples.released))
        stack.enter_context(mock.patch.object(provenance, "provenance", lambda *options: dict(here)))
        stack.enter_context(mock.patch.object(table_reader, "problems_of", _problems))
        for module in (entry_validation, attack_verification):
            stack.enter_context(mock.patch.object(module, "unreadable", lambda sources: ""))
        stack.enter_context(mock.patch.object(reading, "parquet_columns", lambda path: []))
        stack.enter_context(mock.patch.object(run_plan, "measure", lambda spec: MeasuredCell(spec, 1, 1.0)))
        stack.enter_context(mock.patch("os.fsync"))
        yield


def _problems(limits: Any) -> list[str]:
    """As the process that reads tables first, but in this one."""
    problems = []
    for file, limit in limits.items():
        try:
            read_limited(file, limit)
            problems.append("")
        except TableError as error:
            problems.append(error.problem)
    return problems
