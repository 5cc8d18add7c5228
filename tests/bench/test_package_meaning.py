"""What may change in a package's files without changing the identity of its cells, and what may not."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import thiefbench
from tests.bench.other_pythons import OTHERS, python
from thiefbench import package_meaning, registry
from thiefbench.engine_revision import DECLARATIONS, declarations, engine_revision, sources_digest
from thiefbench.package_meaning import needed_by, package_digest

Files = dict[str, str]
PACKAGE = Path(thiefbench.__file__).parent
ROOMS = ("tasks", "attacks", "defenses")
KINDS: tuple[registry.Kind, ...] = ("task", "attack", "defense")
NATIVE = f"native{EXTENSION_SUFFIXES[0]}"

PARLOUR: Files = {
    "__init__.py": "",
    "mine.py": """'''A filter.'''

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from thiefbench.defenses.base import ACCEPT, Defense
from thiefbench.tasks.base import Completion, Item

from . import tools
from .helper import NOTE

if TYPE_CHECKING:
    from .types import Kind


class Mine(Defense):
    '''Looks twice.'''

    def inspect(self, view):
        '''Does it.'''
        return [ACCEPT, NOTE, tools.LEVEL, re, string, Item, Completion]


class Other(Defense):
    def inspect(self, view):
        return []
""",
    "helper.py": "from parlour.tools import LEVEL\nNOTE = LEVEL + 1  # one more\n",
    "tools.py": "'''Tools.'''\nLEVEL = 2\n",
    "types.py": "Kind = int\n",
    "unrelated.py": "NOTE = 3\n",
    "table.json": "{}\n",
}


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bytes]]:
    """The digest of a class in a package of given files, each time in another folder."""
    made: list[str] = []

    def of(files: Files, where: str = "parlour.mine", name: str = "Mine") -> bytes:
        top = where.partition(".")[0]
        folder = tmp_path / f"place{len(made)}"
        for path, content in files.items():
            (file := folder / top / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, newline="")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            made.append(top)
            forget(top)
            return package_digest(getattr(importlib.import_module(where), name))

    yield of
    for top in made:
        forget(top)


def forget(top: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        del sys.modules[name]
    importlib.invalidate_caches()


def mine(old: str, new: str, files: Files = PARLOUR, file: str = "mine.py") -> Files:
    """The package with something else in one file."""
    assert old in files[file], f"{old!r} stands in {file}"
    return {**files, file: files[file].replace(old, new)}


def renamed(old: str, new: str, files: Files = PARLOUR) -> Files:
    """The package with a file in another place; imports are left as they are."""
    return {new if path == old else path: content for path, content in files.items()}


def told(added: str, files: Files = PARLOUR) -> Files:
    """The package with a line at the end of its helper."""
    return {**files, "helper.py": f"{files['helper.py']}{added}\n"}


# --- what may change ---

MOVED = {**renamed("helper.py", "deep/aid.py", mine(".helper", ".deep.aid")), "deep/__init__.py": "'''Deep.'''\n"}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(mine("'''Looks twice.'''", '"""Looks\n    three times."""'), id="docstring"),
        pytest.param(mine("  # one more", "", file="helper.py"), id="comment"),
        pytest.param(mine("LEVEL + 1", "(\n    LEVEL\n    + 1\n)", file="helper.py"), id="layout"),
        pytest.param(mine("\n", "\r\n", file="helper.py"), id="line ends"),
        pytest.param(mine("from .helper", "from parlour.helper"), id="absolute import"),
        pytest.param(mine("import ACCEPT, Defense", "import (\n    ACCEPT,\n    Defense,\n)"), id="brackets"),
        pytest.param(renamed("helper.py", "aid.py", mine(".helper", ".aid")), id="renamed module"),
        pytest.param(MOVED, id="moved module"),
        pytest.param({**PARLOUR, "unrelated.py": "NOTE = 4\n", "new.py": "NOTE = 5\n"}, id="unrelated modules"),
        pytest.param({**PARLOUR, "types.py": "Kind = str\n"}, id="module for types alone"),
        pytest.param(mine("from .types import Kind", "from .helper import NOTE as Kind"), id="import for types alone"),
        pytest.param({**PARLOUR, "__init__.py": "'''What it is.'''\n"}, id="docstring of the package"),
        pytest.param(
            mine(
                "from thiefbench.defenses.base import ACCEPT, Defense\n"
                "from thiefbench.tasks.base import Completion, Item",
                "from thiefbench.tasks.base import Item, Completion\nfrom thiefbench.defenses.base import Defense\n"
                "from thiefbench.defenses.base import ACCEPT",
            ),
            id="order of this package's imports",
        ),
    ],
)  # fmt: skip
def test_it_stays(digest: Callable[..., bytes], files: Files) -> None:
    assert files != PARLOUR
    assert digest(files) == digest(PARLOUR)


def test_the_name_of_package_and_module_are_nothing(digest: Callable[..., bytes]) -> None:
    salon = renamed("mine.py", "deep/filters.py", mine("from .", "from ..", mine("from . ", "from .. ")))
    salon = {**mine("from parlour.", "from salon.", salon, "helper.py"), "deep/__init__.py": ""}
    salon = mine("from ...", "from ..", salon, "deep/filters.py")
    assert digest(salon, "salon.deep.filters") == digest(PARLOUR)


def test_a_module_without_a_package_has_a_digest(digest: Callable[..., bytes], tmp_path: Path) -> None:
    def of(text: str) -> bytes:
        folder = tmp_path / f"alone{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "parlour_alone.py").write_text(text)
        (folder / "beside.json").write_text(str(folder))
        sys.path.insert(0, str(folder))
        try:
            forget("parlour_alone")
            return package_digest(importlib.import_module("parlour_alone").Mine)
        finally:
            sys.path.remove(str(folder))
            forget("parlour_alone")

    one, reworded, other = map(of, ("class Mine: a = 1", "class Mine:\n    a = 1  # one", "class Mine: a = 2"))
    assert one == reworded, "what lies beside it in no package is none of its data"
    assert one != other


# --- what may not ---

LATER = "try:\n    from . import later\nexcept SyntaxError:\n    pass"
TWO = {**PARLOUR, "tools.py": "from .more import LEVEL as MORE\nLEVEL = 2\n", "more.py": "LEVEL = 3\n"}
DATA = {**PARLOUR, "other.json": "[]\n"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(PARLOUR, mine("[]", "[1]"), id="constant"),
        pytest.param(PARLOUR, mine("+ 1", "- 1", file="helper.py"), id="operator of a helper"),
        pytest.param(PARLOUR, mine("= 2", "= 2.0", file="tools.py"), id="constant of a helper's helper"),
        pytest.param(PARLOUR, mine("view):\n        return []", "view: int):\n        return []"), id="annotation"),
        pytest.param(TWO, mine("parlour.tools", "parlour.more", TWO, "helper.py"), id="another module's name"),
        pytest.param(
            TWO,
            mine("LEVEL = 3", "LEVEL = 2", mine("LEVEL = 2", "LEVEL = 3", TWO, "tools.py"), "more.py"),
            id="two modules' values",
        ),
        pytest.param(
            PARLOUR,
            mine("from . import tools\nfrom .helper import NOTE", "from .helper import NOTE\nfrom . import tools"),
            id="order of the own imports",
        ),
        pytest.param(PARLOUR, mine("import re\nimport string", "import string\nimport re"), id="order of imports"),
        pytest.param(PARLOUR, {**PARLOUR, "__init__.py": "import random\nrandom.seed(1)\n"}, id="code around it"),
        pytest.param(MOVED, {**MOVED, "deep/__init__.py": "LEVEL = 1\n"}, id="code around a helper"),
        pytest.param(PARLOUR, {**PARLOUR, "table.json": "{ }\n"}, id="data"),
        pytest.param(PARLOUR, renamed("table.json", "chart.json"), id="name of data"),
        pytest.param(DATA, {**DATA, "table.json": "[]\n", "other.json": "{}\n"}, id="data change places"),
        pytest.param(MOVED, {**MOVED, "deep/table.json": "{}\n"}, id="data beside a helper"),
        pytest.param(
            mine("from .helper import NOTE", "from thiefbench.tasks.gsm8k import SYSTEM_PROMPT as NOTE"),
            mine("from .helper import NOTE", "from thiefbench.tasks.openmath import SYSTEM_PROMPT as NOTE"),
            id="this package's module where two have the name",
        ),
        pytest.param(
            told("try:\n    from thiefbench.tasks.base import Item\nexcept ImportError:\n    Item = None"),
            told("try:\n    from thiefbench.tasks.rewards import Item\nexcept ImportError:\n    Item = None"),
            id="this package's module that lacks the name",
        ),
        pytest.param(
            told("try:\n    from thiefbench.tasks.base import Item\n    from thiefbench.attacks.base import New\n"
                 "except ImportError:\n    pass"),
            told("try:\n    from thiefbench.attacks.base import New\n    from thiefbench.tasks.base import Item\n"
                 "except ImportError:\n    pass"),
            id="order of this package's imports where one may fail",
        ),
        pytest.param(
            told("from thiefbench.tasks.base import Item\nfrom thiefbench.attacks.base import Attack as Item"),
            told("from thiefbench.attacks.base import Attack as Item\nfrom thiefbench.tasks.base import Item"),
            id="order of this package's imports of one name",
        ),
        pytest.param(told("import xml.dom"), told("import xml.dom as xml"), id="what a dotted import binds"),
        pytest.param(
            told("import importlib\nLATE = importlib.import_module('parlour.unrelated')"),
            told("import importlib\nLATE = importlib.import_module('parlour.unrelated')",
                 {**PARLOUR, "unrelated.py": "NOTE = 4\n"}),
            id="module imported by its name",
        ),
        pytest.param(
            told("from importlib import import_module as late\nLATE = late('.unrelated', __package__)"),
            told("from importlib import import_module as late\nLATE = late('.unrelated', __package__)",
                 {**PARLOUR, "unrelated.py": "NOTE = 4\n"}),
            id="module imported by its relative name",
        ),
        pytest.param(
            told("import importlib\nLATE = importlib.import_module(f'{__package__}.unrelated')"),
            told("import importlib\nLATE = importlib.import_module(f'{__package__}.unrelated')",
                 {**PARLOUR, "unrelated.py": "NOTE = 4\n"}),
            id="module imported by a name put together",
        ),
        pytest.param(
            told("try:\n    from . import native\nexcept ImportError:\n    native = None", {**PARLOUR, NATIVE: "1"}),
            told("try:\n    from . import native\nexcept ImportError:\n    native = None", {**PARLOUR, NATIVE: "2"}),
            id="compiled module",
        ),
        pytest.param(
            told(LATER, {**PARLOUR, "later.py": "def (  # one"}),
            told(LATER, {**PARLOUR, "later.py": "def (  # two"}),
            id="module that cannot be parsed",
        ),
    ],
)  # fmt: skip
def test_it_changes(digest: Callable[..., bytes], one: Files, other: Files) -> None:
    assert digest(one) != digest(other)


def test_two_classes_of_a_module_are_two(digest: Callable[..., bytes]) -> None:
    assert digest(PARLOUR, name="Mine") != digest(PARLOUR, name="Other")


REWORDED = mine("Looks twice", "Looks again", file="mine.py")


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ("NOTE = str.__doc__", True),
        ("NOTE = getattr(str, '__doc__')", True),
        ("from inspect import getdoc", True),
        ("try:\n    import prompts_from_docstrings\nexcept ImportError:\n    pass", True),
        ("import pydantic", True),
        ("import numpy", False),
        ("from . import tools as again", False),
    ],
)
def test_docstrings_count_where_they_may_be_read(digest: Callable[..., bytes], said: str, counts: bool) -> None:
    assert (digest(told(said)) != digest(told(said, REWORDED))) == counts
    commented = mine("Does it.'''", "Does it.'''  # all", PARLOUR)
    assert digest(told(said)) == digest(told(said, commented)), "a comment does not"


@pytest.mark.parametrize(
    "said",
    ["from inspect import getsource", "CODE = 0 and len.__code__", "import linecache", "LINE = 0 and len.f_lineno"],
)  # fmt: skip
def test_all_of_the_text_counts_where_it_may_be_read(digest: Callable[..., bytes], said: str) -> None:
    commented = mine("Does it.'''", "Does it.'''  # all", PARLOUR)
    assert digest(told(said)) != digest(told(said, commented))


@pytest.mark.parametrize(
    ("said", "of_name", "of_place"),
    [
        ("WHERE = __file__", True, True),
        ("WHERE = __name__", True, True),
        ("WHERE = __package__", False, True),
        ("from . import tools\nWHERE = tools.__file__", True, True),
        ("WHERE = int.__name__", False, False),
    ],
)
def test_a_module_s_place_counts_where_it_may_be_read(
    digest: Callable[..., bytes], said: str, of_name: bool, of_place: bool
) -> None:
    before = digest(told(said))
    elsewhere = {**told(said.replace("from . import", "from parlour import")), "deep/__init__.py": ""}
    there = renamed("helper.py", "deep/helper.py", mine(".helper", ".deep.helper", elsewhere))
    plain = told(said.replace("from . import", "from parlour import"))
    assert digest(plain) == before
    assert (digest(renamed("helper.py", "aid.py", mine(".helper", ".aid", plain))) != before) == of_name
    assert (digest(there) != before) == of_place


# --- this package ---


def modules_of(room: str) -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted((PACKAGE / room).rglob("*.py")):
        yield file, ast.parse(file.read_bytes())


@pytest.mark.parametrize("kind", KINDS)
def test_every_docstring_here_may_be_reworded(kind: registry.Kind) -> None:
    for name in registry.names(kind):
        needed = needed_by(sys.modules[registry.find(kind, name).__module__])
        assert not needed.reads_docstrings, f"{kind} {name} reads docstrings, or imports a library that may"
        assert not needed.reads_text, f"{kind} {name} reads its own text"


@pytest.mark.parametrize("room", ROOMS)
def test_what_one_room_takes_from_another_has_one_home(room: str) -> None:
    for file, tree in modules_of(room):
        for node in ast.walk(tree):
            path = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and path.startswith("thiefbench.") and path.split(".")[1] != room:
                for alias in node.names:
                    assert package_meaning._is_only_one(path, alias.name), (
                        f"{file.name} takes {alias.name} from {path}, and another module there has the same name: "
                        "moving that module would change the identity of cells"
                    )


ALONE = {"atexit.register(_close)", "os.register_at_fork(after_in_child=_forget)"}
"""What a module here does beside defining: to nothing that another one sees while it is imported."""


@pytest.mark.parametrize("room", ROOMS)
def test_modules_do_nothing_to_each_other_when_they_are_imported(room: str) -> None:
    """Their imports count in no order."""
    defining = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    for file, tree in modules_of(room):
        for node in tree.body:
            text = ast.unparse(node)
            constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            named = isinstance(node, ast.Assign) and all(isinstance(t, ast.Name | ast.Tuple) for t in node.targets)
            guarded = text.startswith(("if TYPE_CHECKING:", "if __name__ == '__main__':"))
            looped = text.startswith("for _name, _class in vars(builtins).items():")  # fills a table of its own
            assert constant or named or guarded or looped or isinstance(node, defining) or text in ALONE, (
                f"{file.name} does something when it is imported: {text}"
            )


HASHES = """
import json, sys
from pathlib import Path
import thiefbench
assert thiefbench.__file__.startswith(sys.argv[1]), thiefbench.__file__
from thiefbench import registry
named = [(kind, name) for kind in ("task", "attack", "defense") for name in registry.names(kind)]
from thiefbench.engine_revision import engine_revision
hashes = {f"{kind} {name}": registry.source_hash(kind, name) for kind, name in named}
print(json.dumps(hashes | {"engine": engine_revision()}))
"""


def hashes(folder: Path) -> dict[str, str]:
    """Of every plugin and of the engine, from a copy of this package."""
    command = [sys.executable, "-c", HASHES, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with this package in it, without weights and recordings."""
    left_out = shutil.ignore_patterns("__pycache__", "*.safetensors", "recordings")
    shutil.copytree(PACKAGE, tmp_path / "copy/thiefbench", ignore=left_out)
    return tmp_path / "copy"


@cache
def here() -> dict[str, str]:
    """Of every plugin and of the engine, from the installed package."""
    named = [(kind, name) for kind in KINDS for name in registry.names(kind)]
    return {f"{kind} {name}": registry.source_hash(kind, name) for kind, name in named} | {"engine": engine_revision()}


@pytest.mark.slow
def test_every_source_reworded_keeps_every_hash(copied: Path) -> None:
    for file in copied.rglob("*.py"):
        tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
                node.body[0] = ast.Expr(ast.Constant("Other words."))
        file.write_text(f"# Another comment.\n{ast.unparse(tree)}\n")
    assert hashes(copied) == here()


MOVES = {
    "defenses.base": "defenses.contract", "defenses.rejection": "defenses.verdicts.objections",
    "attacks.base": "attacks.deep.base", "attacks.completions": "attacks.wires",
    "tasks.base": "tasks.items.base", "tasks.rewards": "tasks.maths.rewards",
    "engine.keys": "engine.noise.keys", "suite.run_plan": "suite.plans.run_plan",
}  # fmt: skip
"""Modules that get another place, each with its new one."""


@pytest.mark.slow
def test_modules_moved_about_keep_every_hash_but_of_those_that_read_their_place(copied: Path) -> None:
    package = copied / "thiefbench"
    for old, new in MOVES.items():
        (there := package.joinpath(*new.split(".")).with_suffix(".py")).parent.mkdir(exist_ok=True)
        package.joinpath(*old.split(".")).with_suffix(".py").rename(there)
        (there.parent / "__init__.py").touch()
    moved = {f"thiefbench.{old}": f"thiefbench.{new}" for old, new in MOVES.items()}
    path = re.compile(rf"\b({'|'.join(map(re.escape, moved))})\b")
    for file in package.rglob("*.py"):
        file.write_text(path.sub(lambda found: moved[found[0]], file.read_text()))
    sort = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "I", "--fix", "--quiet", str(package)]
    subprocess.run(sort, check=True)
    found = hashes(copied)
    changed = {name for name, before in here().items() if found[name] != before}
    assert changed == {"task code_functions", "task code_micro", "task humaneval", "task openmath", "engine"}, (
        "their sandbox reads where its file lies, and the engine's modules count in the order of their names"
    )


@pytest.mark.parametrize(
    "file",
    ["engine/swarm.py", "engine/backends/rank.py", "engine/model/noise.py", "engine/learning/grpo.py", "judges.py",
     "tasks/base.py", "attacks/spec.py", "defenses/base.py", "limits.py"],
)  # fmt: skip
def test_every_module_that_computes_results_decides_the_engine_revision(copied: Path, file: str) -> None:
    changed = copied / "thiefbench" / file
    changed.write_text(changed.read_text() + "\nANOTHER = 1\n")
    assert revision(copied) != engine_revision()


@pytest.mark.parametrize("file", ["trust.py", "suite/report/page.py", "defenses/logit.py", "attacks/words.txt"])
def test_other_modules_leave_the_engine_revision(copied: Path, file: str) -> None:
    changed = copied / "thiefbench" / file
    changed.write_text(changed.read_text() + "\nANOTHER = 1\n")
    (copied / "thiefbench/__init__.py").write_text('__version__ = "99"\n')
    assert revision(copied) == engine_revision()


REVISION = """
import sys
sys.path.insert(0, sys.argv[1])
import thiefbench
assert thiefbench.__file__.startswith(sys.argv[1]), thiefbench.__file__
from thiefbench.engine_revision import engine_revision
print(engine_revision())
assert "torch" not in sys.modules, "it is read, and not imported"
"""


def revision(folder: Path, python: str = sys.executable) -> str:
    """Of the engine in a copy of this package; any Python with nothing installed can say it."""
    command = [python, "-W", "ignore", "-c", REVISION, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.strip()


def test_sources_that_are_declared_equal_keep_the_base_revision(copied: Path) -> None:
    changed, declared = copied / "thiefbench/engine/swarm.py", copied / "thiefbench" / DECLARATIONS
    changed.write_text(changed.read_text() + "\nANOTHER = 1\n")
    other = revision(copied)
    declared.write_text(json.dumps({"base": "0123456789abcdef", "equal": {other: "one more constant"}}))
    assert revision(copied) == "0123456789abcdef"
    changed.write_text(changed.read_text() + "\nYET_ANOTHER = 1\n")
    assert revision(copied) not in ("0123456789abcdef", other), "a further change is not declared"


def test_the_engine_s_sources_are_decided_about() -> None:
    digest, base = sources_digest(), declarations().base
    assert digest == base or digest in declarations().equal, (
        f"the engine's code was changed (its digest is {digest}): where its results are equal to the last bit, declare "
        f"it with `python -m tests.equal_results --equal WHY`; where they are meant to differ from those of revision "
        f"{base}, with `python -m tests.equal_results --new-base`"
    )


@pytest.mark.slow
@pytest.mark.parametrize("minor", OTHERS)
def test_every_python_has_the_same_engine_revision(minor: int) -> None:
    assert revision(PACKAGE.parent, python(minor)) == engine_revision()


# Runs in any Python, with nothing installed: a digest needs the class's name and place alone.
DIGESTS = """
import sys, types
sys.path.append(sys.argv[1])
from thiefbench.package_meaning import package_digest
for named in sys.argv[2:]:
    module, _, name = named.partition(":")
    made = sys.modules[module] = types.ModuleType(module)
    made.__package__ = module.rpartition(".")[0]
    made.__file__ = f"{sys.argv[1]}/{module.replace('.', '/')}.py"
    print(package_digest(type(name, (), {"__module__": module})).hex())
    del sys.modules[module]
"""


@pytest.mark.slow
@pytest.mark.parametrize("minor", OTHERS)
def test_every_python_has_the_same_digests(minor: int) -> None:
    named = [registry.entry(kind, name).value for kind in KINDS for name in registry.names(kind)]
    command = [python(minor), "-W", "ignore", "-c", DIGESTS, str(PACKAGE.parent), *named]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE)
    found = [registry.find(kind, name) for kind in KINDS for name in registry.names(kind)]
    assert done.stdout.split() == [package_digest(each).hex() for each in found]
