"""Checks of a defense or an entry that run none of its code.

For submitted files: their sizes, the names of their weights, their imports. For an entry: whether its cells are those
of its suite, and its files those with which its cells were run.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path

from thiefbench import __version__, registry
from thiefbench.errors import UserError
from thiefbench.leaderboard import _parsing_worker
from thiefbench.leaderboard.deliveries import check_seeds
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.imported_names import aliases_of, full_name
from thiefbench.leaderboard.isolation.limits import FILE_BYTES, WEIGHTS_BYTES, WEIGHTS_NAME
from thiefbench.leaderboard.isolation.sandbox_paths import Guests, files, may_import, weights
from thiefbench.leaderboard.published import label_of
from thiefbench.leaderboard.rows import wanted
from thiefbench.package_meaning import DATA
from thiefbench.sources import is_of_package, source_files
from thiefbench.suite.analysis.ranking import ANCHORS
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import file_sha256
from thiefbench.tasks.text import one_line
from thiefbench.user_imports import imported
from thiefbench.wording import counted

_PARSING_SECONDS, _PARSING_BYTES = 5, 2 << 30
"""Of processor time for all files of an entry together, and of address space."""
NOT_VERIFIABLE = (
    "what a class of your own is built around by its spec string cannot be verified; construct it in __init__ instead, "
    "without such an argument"
)
_IMPORTING = ("importlib.import_module", "importlib.util.find_spec", "builtins.__import__")
_FLOORS: dict[Guests, tuple[str, str]] = {
    "defense": ("thiefbench.defenses", "thiefbench.tasks"),
    "aggregation": ("thiefbench.defenses", "thiefbench.tasks"),
    "stage_check": ("thiefbench.defenses", "thiefbench.tasks"),
    "attack": ("thiefbench.attacks", "thiefbench.tasks"),
}


def cells_of(entry: Entry, suite: Suite) -> list[tuple[str, CellSpec]]:
    """The cells of the suite that an entry's row needs, each with its part of the suite.

    Raises:
        EntryError: its seeds are not the first ones of the suite, or it lacks cells at one of these, has more, or has
            them in another order; see also `check_defense`.
    """
    manifest = entry.manifest
    check_defense(entry, suite)
    check_seeds(manifest.seeds, suite)
    specs = [(suite.part_of(s), s) for s in wanted(suite, manifest.seeds, manifest.numerics, manifest.defense)]
    expected = [(part, s.role, s.attack, s.defense, s.seed) for part, s in specs]
    present = [(c.part, c.role, c.attack, c.defense, c.seed) for c in entry.cells]
    for difference, names in (
        ("lacks", set(expected) - set(present)),
        ("has, beside those of the suite,", set(present) - set(expected)),
    ):
        if names:
            raise EntryError(f"it {difference} {counted(len(names), 'cell')}, such as the {label_of(min(names))}")
    if expected != present:
        raise EntryError("its cells are in another order than the suite's")
    return specs


def check_defense(entry: Entry, suite: Suite) -> None:
    """Check that what an entry calls its defense can be made, and that it is no other form of the benchmark's own rows.

    Rows are shown by their spec string, in which a stranger could write anything. No code of the entry is loaded.

    Raises:
        EntryError: it is one of the benchmark's own rows with arguments of its own or together with others, or it names
            a declared defense with arguments that this does not have, or not in the canonical form.
    """
    defense = entry.manifest.defense
    own = {*ANCHORS, *(registry.canonical("defense", each) for each in suite.defenses)}
    try:
        named = {target for kind, target in registry.named_in("defense", entry.spec) if kind == "defense"}
        if anchors := sorted(named & {*ANCHORS}) if defense not in own else []:
            raise EntryError(
                f"{one_line(defense, 60)} is or holds {anchors[0]}, a row of the benchmark itself, in another form "
                f"than in {suite.title}, and it is not accepted"
            )
        registry.check_names("defense", entry.spec)
        plain = _plain(defense)
    except registry.SpecStringError as error:
        raise EntryError(f"the defense {one_line(defense, 60)} cannot be made: {error}") from error
    if plain != defense:
        raise EntryError(f"the defense {one_line(defense, 60)} is written {one_line(plain, 60)} in entries")


def _plain(defense: str) -> str:
    """A spec string as entries have it; parts without a file are constructed, to see that their values are allowed.

    Raises:
        SpecStringError: one cannot be.
    """
    of_parts = registry.parts("defense", defense)
    declared = [part for part in of_parts if not _names_a_file(part)]
    try:
        for each in [defense] if len(declared) == len(of_parts) else declared:
            registry.make("defense", each)
    except registry.SpecStringError:
        raise
    except Exception as error:
        raise registry.SpecStringError(str(error)) from error
    # Which arguments are the defaults of a class in a file only its code says.
    plain = (registry.canonical("defense", p) if p in declared else str(registry.parse("defense", p)) for p in of_parts)
    return "+".join(plain)


def _names_a_file(part: str) -> bool:
    return any(":" in target for _, target in registry.named_in("defense", part))


def check_source(entry: Entry, kind: Guests = "defense") -> None:
    """Check that the files may be submitted, and are those in the cells' identities.

    Args:
        entry: of a defense.
        kind: of what its suite takes.

    Raises:
        EntryError: they are not, or the entry was made with another version of the benchmark.
    """
    submitted = files(entry.spec)
    if wrong := wrong_file(entry.source, submitted):
        raise EntryError(wrong)
    for file in submitted:
        if wrong := wrong_size(file):
            raise EntryError(wrong)
    if wrong := unreadable([path for path in entry.source if path.suffix == ".py"]):
        raise EntryError(wrong)
    for file in submitted:
        if wrong := wrong_import(file, kind):
            raise EntryError(wrong)
    manifest = entry.manifest
    if registry.source_hash("defense", entry.spec, load=False) == manifest.source_sha256:
        return
    if not entry.source:  # the entry contains no source, so the difference is in this version's defense
        raise EntryError(other_version("it was", f"the source of {manifest.defense} changed"))
    if (made_with := manifest.versions.get("thiefbench", "unknown")) != __version__:
        raise EntryError(other_version("it was", f"thiefbench {made_with}; this is {__version__}"))
    raise EntryError(
        "the submitted source is not the one that its cells were run with (or it is a class of your own that takes a "
        "defense as an argument: its source cannot be checked without running it, and it is not accepted)"
    )


def built_around_others(spec: str) -> str:
    """Which argument makes a class of one's own one that is built around another plugin; empty if none does.

    Which arguments a class takes for plugins is told by their annotations, and read off the file without running it.
    What such a class is built around is then not part of its source's hash, so that no entry of it can be verified.
    """
    for part in registry.parts("defense", spec):
        parsed = registry.parse("defense", part)
        file, colon, name = parsed.target.rpartition(":")
        texts = {argument for argument, value in parsed.arguments.items() if isinstance(value, str)}
        if not colon or not texts or not file.endswith(".py"):
            continue
        tree = ast.parse(Path(file).expanduser().read_bytes())
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
        arguments = (each for cls in classes for each in ast.walk(cls) if isinstance(each, ast.arg))
        for each in arguments:
            try:
                annotation = "" if each.annotation is None else ast.unparse(each.annotation)
            except RecursionError:
                return f"the annotation of its argument {each.arg} is nested too deeply to be read"
            if each.arg in texts and re.search(r"\b(Defense|Attack)\b", annotation):
                return f"its argument {each.arg} is a plugin, and {NOT_VERIFIABLE}"
    return ""


def other_version(subject: str, difference: str) -> str:
    """Why an entry that was made with another version cannot be verified here, in one sentence.

    Args:
        subject: subject and verb of the sentence: "it was", "3 of its 6 cells were".
        difference: how the two versions differ.
    """
    return (
        f"{subject} made with another version of the benchmark ({difference}), so its results cannot be checked "
        "against this one; thiefbench leaderboard submit makes it again"
    )


def wrong_file(source: Sequence[Path], submitted: Sequence[Path]) -> str:
    """The first file of an entry that its source's hash does not cover; empty if there is none.

    A compiled module or a table of data beside the source would be part of what runs, but of no cell's identity.

    Args:
        source: all files of the entry but its manifest and scores.
        submitted: the files that its spec string names.
    """
    counted = {path.resolve() for file in submitted for path in source_files(file)}
    strange = next((path for path in source if path.resolve() not in counted), None)
    return "" if strange is None else f"{strange.name} is in the entry, and no part of the source that its cells name"


def wrong_size(file: Path) -> str:
    """What is wrong with the size of a submitted file, or with the weights beside it; empty if nothing is.

    A file that is a module of a package counts with all files of the package.
    """
    name = file.parent.name if is_of_package(file) else file.name
    if (size := sum(path.stat().st_size for path in source_files(file))) > FILE_BYTES:
        return f"{name} has {size:,} bytes, and at most {FILE_BYTES:,} are allowed; move data to a safetensors file"
    beside = weights(file)
    if (total := sum(path.stat().st_size for path in beside)) > WEIGHTS_BYTES:
        return (
            f"the safetensors files beside {file.name} have {total:,} bytes, and at most {WEIGHTS_BYTES:,} are allowed"
        )
    for path in beside:
        named, digest = WEIGHTS_NAME.fullmatch(path.name), file_sha256(path)
        if named is None or named.group(2) != digest:
            plain = re.sub(r"[^A-Za-z0-9_]", "_", path.stem.partition("-")[0])[:23]
            return f"{path.name} is not named after its content; rename it to {plain}-{digest}.safetensors"
    return ""


def left_out(file: Path) -> str:
    """The first data file of a package that its code names and no entry holds; empty if there is none."""
    if not is_of_package(file):
        return ""
    sources = source_files(file)
    taken = {path.resolve() for path in (*sources, *weights(file))}
    for named in imported((path for path in sources if path.suffix == ".py"), file.parent).data:
        if named.file not in taken:
            return (
                f"{named.namer} names {named.name}, which an entry does not hold; of a package's files, it holds those "
                f"that end in {', '.join(sorted({'.py', *DATA}))}, and weights as safetensors files"
            )
    return ""


def wrong_import(file: Path, kind: Guests = "defense") -> str:
    """The first forbidden import of a submitted file, and what to do about it; empty if there is none.

    A file that is a module of a package counts with all files of the package, which may import each other. Calls such
    as ``importlib.import_module("torch")`` count too, where the name stands there as text.
    """
    for path in source_files(file):
        if path.suffix == ".py":
            depth = len(path.relative_to(file.parent).parts) if is_of_package(file) else 0
            if wrong := _wrong_import(path, depth, kind, may_import(file, kind)):
                return wrong
    return ""


def unreadable(sources: Sequence[Path]) -> str:
    """The first Python file that is not in UTF-8 or is more than Python's parser can take; empty if there is none.

    Another encoding, named in a comment, makes other code of what readers of the file see.

    Raises:
        UserError: the process that parses did not even start.
    """
    for path in sources:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(path.read_bytes()).readline)
        except SyntaxError as error:
            return f"{path.name} is not valid Python: {error}"
        if encoding not in ("utf-8", "utf-8-sig", "ascii", "us-ascii"):
            return f"{path.name} names the encoding {encoding[:40]}; write it in UTF-8"
        try:
            path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            line = path.read_bytes()[: error.start].count(b"\n") + 1
            return f"line {line} of {path.name} is not in UTF-8; write all of it in UTF-8"
    if not sources:
        return ""
    limits = str(_PARSING_SECONDS), str(_PARSING_BYTES)
    command = [sys.executable, "-I", "-S", _parsing_worker.__file__, *limits, *map(str, sources)]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout.count(b"\n")
    if not said:
        raise UserError("the installed package changed while this command ran; run the command again")
    if (done := said - 1) == len(sources):
        return ""
    return (
        f"{sources[done].name} is more than Python can parse in {_PARSING_SECONDS} s and {_PARSING_BYTES >> 30} GiB; "
        "write shorter expressions and names"
    )


def _wrong_import(file: Path, depth: int, kind: Guests, packages: Sequence[str]) -> str:
    """As `wrong_import`, of one file.

    Args:
        file: the file.
        depth: how many dots its relative imports may have.
        kind: of the submission.
        packages: the distributions that it may import.
    """
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} is not valid Python: {error}"
    never_run, aliases = _for_type_checkers(tree), aliases_of(tree)
    importing = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom | ast.Call))
    for node in sorted(importing, key=_line):
        if node in never_run or (isinstance(node, ast.ImportFrom) and 0 < node.level <= depth):
            continue
        for name in _imported_by_call(node, aliases) if isinstance(node, ast.Call) else _imported(node):
            if not _allowed(name, kind, packages):
                shown = f"the standard library, {', '.join(packages)}, {' and '.join(_FLOORS[kind])}"
                return (
                    f"line {node.lineno} of {file.name} imports {name}; it may import only {shown}{_beside(name, file)}"
                )
    return ""


def _beside(name: str, file: Path) -> str:
    """What to do about the import of a module that lies beside a file: another clause, or nothing."""
    module = name.strip(".").partition(".")[0]
    if not (file.with_name(f"{module}.py").is_file() or (name == "." and not is_of_package(file))):
        return ""
    package = "" if file.with_name("__init__.py").is_file() else "put an empty __init__.py beside it and "
    what = f".{module} import ..." if module else ". import ..."
    return f". To import a module of its own folder, {package}write: from {what}"


def _for_type_checkers(tree: ast.Module) -> set[ast.stmt]:
    """The top statements under `if TYPE_CHECKING:`; none in a file that gives this name a value of its own."""
    if any(
        isinstance(n, ast.Name) and n.id == "TYPE_CHECKING" and not isinstance(n.ctx, ast.Load) for n in ast.walk(tree)
    ):
        return set()
    aliases, conditions = aliases_of(tree), [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    return {
        each
        for node in conditions
        if (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        or full_name(node.test, aliases) == "typing.TYPE_CHECKING"
        for each in node.body
    }


def _imported_by_call(call: ast.Call, aliases: Mapping[str, str]) -> list[str]:
    """The module that a call imports by its name."""
    plain = isinstance(call.func, ast.Name) and call.func.id == "__import__"
    if not plain and full_name(call.func, aliases) not in _IMPORTING:
        return []
    names = [each.value for each in call.args[:1] if isinstance(each, ast.Constant)]
    return [name for name in names if isinstance(name, str) and not name.startswith(".")]


def _line(node: ast.stmt | ast.expr) -> int:
    return node.lineno


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [f"thiefbench.{alias.name}" for alias in node.names] if module == "thiefbench" else [module]


def _allowed(name: str, kind: Guests, packages: Sequence[str]) -> bool:
    top = name.partition(".")[0]
    if top == "thiefbench":
        return any(f"{name}.".startswith(f"{floor}.") for floor in _FLOORS[kind])
    return top in sys.stdlib_module_names or top in packages
