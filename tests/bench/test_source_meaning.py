"""What a Python file means: what leaves its meaning alone, and what does not."""

from __future__ import annotations

import ast
import copy
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import thiefbench
from tests.bench.other_pythons import OTHERS, python
from thiefbench import source_meaning
from thiefbench.source_meaning import Meaning, meaning

EVERY_SYNTAX = Path(__file__).parent / "written/every_syntax.txt"
GOLDEN = "b26f283fd1298d5d42bdcad5136ea6c847b5a8033dde590161be04d9f82ed5ba"
"""Of the file above, on every Python. It changes with the rules, and with them every cell's identity."""
PACKAGE = Path(thiefbench.__file__).parent
ROOMS = [file for room in ("tasks", "attacks", "defenses") for file in sorted((PACKAGE / room).glob("*.py"))]
MUTANTS = int(os.environ.get("THIEFBENCH_MUTANTS", "5"))
"""How many changes of meaning are tried in each file, drawn at random."""

GUARD = "from typing import TYPE_CHECKING\n"

# Runs in any Python, with nothing installed.
TOLD = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from source_meaning import meaning
for file in sys.argv[2:]:
    content = open(file, "rb").read()
    found, whole = meaning(content), meaning(content, docstrings=True)
    told = found.parts, sorted(found.names), sorted(found.attributes), sorted(found.strings), whole.parts
    print(hashlib.sha256(ascii(told).encode()).hexdigest())
"""


def of(text: str, docstrings: bool = False) -> Meaning:
    found = meaning(text.encode(), docstrings)
    assert found is not None, f"{text!r} is Python"
    return found


def told(python: str, files: Sequence[Path]) -> list[str]:
    """What another Python makes of files."""
    here = Path(source_meaning.__file__)
    command = [python, "-W", "ignore", "-c", TOLD, str(here.parent), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=here.parent).stdout.split()


@cache
def told_here(files: tuple[Path, ...]) -> list[str]:
    """What the Python of the tests makes of them."""
    return told(sys.executable, files)


def test_every_piece_of_syntax_means_what_it_meant_when_the_rules_were_fixed() -> None:
    compile(EVERY_SYNTAX.read_bytes(), "every_syntax", "exec")
    assert told(sys.executable, [EVERY_SYNTAX]) == [GOLDEN], "the rules changed, and with them every cell's identity"


def test_the_file_with_every_piece_of_syntax_has_every_piece() -> None:
    kinds = {type(node) for node in ast.walk(ast.parse(EVERY_SYNTAX.read_bytes()))}
    known = {
        kind
        for kind in vars(ast).values()
        if isinstance(kind, type) and issubclass(kind, ast.AST) and kind.__module__ in ("ast", "_ast")
        if not kind.__subclasses__() and kind not in (ast.Interactive, ast.Expression, ast.FunctionType, ast.TypeIgnore)
    }
    later = {"TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple", "TemplateStr", "Interpolation"}
    old = {"AugLoad", "AugStore", "Bytes", "Ellipsis", "ExtSlice", "Index", "NameConstant", "Num", "Param", "Str"}
    assert {kind.__name__ for kind in known - kinds} <= later | old | {"Suite"}


@pytest.mark.slow
@pytest.mark.parametrize("minor", OTHERS)
def test_a_file_means_the_same_to_every_python(minor: int) -> None:
    files = (EVERY_SYNTAX, *sorted(PACKAGE.rglob("*.py")))
    assert told(python(minor), files) == told_here(files)


# --- what leaves the meaning alone ---


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "# why\nx = 1  # because\n\n\n"),
        ("x = 1\r\ny = '''a\r\nb'''", "x = 1\ny = '''a\nb'''"),
        ("x = 'it'", 'x = "it"'),
        ("x = 'a' 'b' f'{c}' 'd'", 'x = f"ab{c}d"'),
        ("x = ('a'\n     'b')", "x = 'ab'"),
        ("x = f'{c:{d}}'", "x = f'{c:{d}}' ''"),
        ("x = r'\\d', u'a', b'\\x41'", "x = '\\\\d', 'a', b'A'"),
        ("x = 0xFF, 1_000, 1e3, 1.50, 0o17, 2J", "x = 255, 1000, 1000.0, 1.5, 15, 2.0j"),
        ("x = [\n    1,\n    2,\n]", "x = [1, 2]"),
        ("x = ((a + b))", "x = a + b"),
        ("x = 1; y = 2", "x = 1\ny = 2"),
        ("del (a, b)", "del a, b"),
        ("class A(): pass", "class A:\n    '''What it is.'''\n    ..."),
        ("def f():\n    return 1", "def f():\n    '''What it does.'''\n    return 1"),
        ("LIMIT = 3\n'''What it limits.'''", "'''What this is.'''\nLIMIT = 3"),
        ("if a: b\nelse: pass", "if a: b"),
        ("if a: b\nelif c: d", "if a: b\nelse:\n    if c: d"),
        ("from a import b, c", "from a import (\n    b,\n    c,\n)"),
        ("from a import b, c", "from a import b\nfrom a import c"),
        ("import a, b as c", "import a\nimport b as c"),
        ("import a", "import a as a"),
        ("from a import b as b", "from a import b"),
        (f"{GUARD}if TYPE_CHECKING:\n    import a\nb()", f"{GUARD}b()"),
        (f"{GUARD}if TYPE_CHECKING:\n    import a\nelse:\n    b = 1", f"{GUARD}b = 1"),
        ("x = 'ä'", "x = '\\xe4'"),
        ("ﬁx = 1", "fix = 1"),
    ],
)  # fmt: skip
def test_another_spelling_means_the_same(one: str, other: str) -> None:
    assert of(one).parts == of(other).parts


def test_a_declared_encoding_is_read() -> None:
    text = "x = 'ä'\n"
    assert meaning(b"# coding: latin-1\n" + text.encode("latin-1")) == meaning(b"\xef\xbb\xbf" + text.encode())


@pytest.mark.parametrize(
    "content", [b"def (", b"x = '\xff'", b"# coding: klingon\n", b"x = '\0'", b"\x7fELF\x02", b"if x:\n\ty\n        z"]
)
def test_what_cannot_be_parsed_has_no_meaning(content: bytes) -> None:
    assert meaning(content) is None


@pytest.mark.filterwarnings("error")
def test_a_warning_is_no_matter() -> None:
    assert meaning(b"x = '\\d'\ny = 1 is 1") is not None, "whatever the filters of warnings say"


def test_a_sum_of_a_thousand_terms_is_written() -> None:
    assert "i3e7" in str(of(f"x = {' + '.join(map(str, range(1000)))}").parts)


@pytest.mark.parametrize("file", [EVERY_SYNTAX, *ROOMS], ids=lambda file: file.stem)
def test_a_file_written_anew_means_the_same(file: Path) -> None:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node, clean=False)
            if said is not None:
                node.body[0] = ast.Expr(ast.Constant("Other words.")) if len(said) % 2 else ast.Pass()
    anew = ast.unparse(tree)
    assert of(anew).parts == meaning(file.read_bytes()).parts  # type: ignore[union-attr]
    if ast.get_docstring(ast.parse(file.read_bytes())):
        assert of(anew, docstrings=True) != meaning(file.read_bytes(), docstrings=True)


# --- what does not ---


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = True"),
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = '1'"),
        ("x = 1", "x = 1j"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'None'", "x = None"),
        ("x = 'Ellipsis'", "x = ..."),
        ("x = 0.1", "x = 0.10000000000000002"),
        ("x = ''", "x = None"),
        ("x = ()", "x = []"),
        ("x = (1)", "x = (1,)"),
        ("x = 'a', 'b'", "x = 'a' 'b'"),
        ("x = 'a', 'b'", "x = ['a', 'b']"),
        ("x = 'ab', 'c'", "x = 'a', 'bc'"),
        ("x = '1:a', 'b'", "x = '1:a,s1:b',"),
        ("x = f'{a}'", "x = f'{a!s}'"),
        ("x = f'{a}'", "x = f'{a:}'"),
        ("x = f'{a}'", "x = f'a'"),
        ("x = f'{a = }'", "x = f'{a=}'"),
        ("x = f'{a:>4}'", "x = f'{a:<4}'"),
        ("x = f'{a}b{c}'", "x = f'{a}{c}b'"),
        ("x = a + b", "x = a - b"),
        ("x = a - (b - c)", "x = a - b - c"),
        ("x = a < b < c", "x = (a < b) < c"),
        ("x = not a in b", "x = not a not in b"),
        ("x = a", "x: int = a"),
        ("x: int = a", "x: str = a"),
        ("x: int = a", "(x): int = a"),
        ("x: 'int'", "x: int"),
        ("x = a", "x += a"),
        ("x = yield_", "x = yield_()"),
        ("def f(): return", "def f(): yield"),
        ("def f(): return x", "async def f(): return x"),
        ("def f(a): b", "def f(*a): b"),
        ("def f(a, b): c", "def f(a, /, b): c"),
        ("def f(a, b): c", "def f(a, *, b): c"),
        ("def f(a, b=1): c", "def f(a, b=2): c"),
        ("def f(a, b=1): c", "def f(a=1, b=1): c"),
        ("def f(*, a=1, b): c", "def f(*, a, b=1): c"),
        ("def f(a) -> int: b", "def f(a): b"),
        ("@a\n@b\ndef f(): c", "@b\n@a\ndef f(): c"),
        ("@a\ndef f(): c", "def f(): c"),
        ("class A(B): c = 1", "class A: c = 1"),
        ("class A(b=B): c = 1", "class A(B): c = 1"),
        ("f(a, b)", "f(b, a)"),
        ("f(a=1)", "f(b=1)"),
        ("f(*a)", "f(**a)"),
        ("{**a}", "{None: a}"),
        ("a[1:]", "a[:1]"),
        ("a[1:2]", "a[1, 2]"),
        ("a\nb", "b\na"),
        ("if a:\n    b\nc", "if a:\n    b\n    c"),
        ("while a: b\nelse: c", "while a: b\nc"),
        ("try: a\nexcept B: c", "try: a\nexcept* B: c"),
        ("try: a\nexcept B: c\nelse: d", "try: a\nexcept B: c\nfinally: d"),
        ("raise a", "raise a from b"),
        ("raise a", "raise a from None"),
        ("with a as b: c", "with a: c"),
        ("[a for b in c if d if e]", "[a for b in c if d and e]"),
        ("[a for b in c for d in e]", "[a for d in e for b in c]"),
        ("def f():\n    global a\n    a = 1", "def f():\n    a = 1"),
        ("match a:\n    case None: b", "match a:\n    case True: b"),
        ("match a:\n    case b: c", "match a:\n    case _: c"),
        ("match a:\n    case {'b': 1, **c}: d", "match a:\n    case {'b': 1}: d"),
        ("match a:\n    case B(c=1): d", "match a:\n    case B(1): d"),
        ("match a:\n    case [*b]: d", "match a:\n    case [b]: d"),
        ("lambda: a", "lambda a: a"),
        ("import a.b", "import a.b as a"),
        ("import a.b", "import a"),
        ("import a as b", "import b"),
        ("from a import b", "from a import c as b"),
        ("from a import b", "from .a import b"),
        ("from . import a", "from .. import a"),
        ("from a import b", "from a import b as c"),
        ("from a import b", "from c import b"),
        ("from a import b", "import a as b"),
        ("from a import b", "from a import *"),
        ("import a\nimport b", "import b\nimport a"),
        ("import a\nb()\nimport c", "import a\nimport c\nb()"),
        ("from __future__ import annotations\nx: a = 1", "x: a = 1"),
        ("x = 'doc'", "'doc'"),
        ("f'{a}'", "'a'"),
        ("a", "None"),
    ],
)
def test_another_program_means_something_else(one: str, other: str) -> None:
    assert of(one).parts != of(other).parts


@pytest.mark.parametrize(
    "text",
    [
        "TYPE_CHECKING = 1\nif TYPE_CHECKING:\n    import a",
        "from other import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
        "from typing import final as TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
        "from typing import *\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}from other import *\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}import other as TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}TYPE_CHECKING = True\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}globals()['TYPE_CHECKING'] = True\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}for TYPE_CHECKING in 1, 2: pass\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}def f():\n    global TYPE_CHECKING\n    import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
        f"{GUARD}if not TYPE_CHECKING:\n    import a",
        f"{GUARD}if TYPE_CHECKING:\n    a = 1",
        f"{GUARD}if TYPE_CHECKING:\n    a: int",
        f"{GUARD}def f():\n    if TYPE_CHECKING:\n        import a\n    return a",
        f"{GUARD}class A:\n    if TYPE_CHECKING:\n        import a\n    b = a",
    ],
)
def test_what_may_run_or_change_what_runs_stays(text: str) -> None:
    assert any("TYPE_CHECKING" in part for part in of(text).parts if isinstance(part, str))


# Changes of one token. Each takes a node, and says whether it has what is changed.


def renames(node: ast.AST) -> bool:
    for field in ("id", "attr", "arg", "name", "rest", "asname", "module"):
        if isinstance(value := getattr(node, field, None), str):
            setattr(node, field, f"{value}_")
            return True
    return False


def changes_a_constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant):
        return False
    if isinstance(node.value, str):
        node.value += "."
    elif isinstance(node.value, bytes):
        node.value += b"."
    elif node.value is None or isinstance(node.value, bool):
        node.value = {None: False, False: True, True: None}[node.value]
    elif node.value is ...:
        node.value = None
    else:
        node.value += 1
    return True


def turns_a_constant_into_another_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value = float(node.value) if node.value not in (0, 1) or isinstance(node.value, bool) else bool(node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isascii():
        node.value = node.value.encode()
    else:
        return False
    return True


def changes_an_operator(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = ast.Mult() if isinstance(node.op, ast.Add) else ast.Add()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.Invert() if isinstance(node.op, ast.Not) else ast.Not()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Compare):
        node.ops[-1] = ast.LtE() if isinstance(node.ops[-1], ast.Lt) else ast.Lt()
    else:
        return False
    return True


def _lists(node: ast.AST) -> list[list[ast.AST]]:
    found = [value for _, value in ast.iter_fields(node) if isinstance(value, list)]
    return [value for value in found if value and all(isinstance(each, ast.AST) for each in value)]


def swaps_neighbours(node: ast.AST) -> bool:
    for values in _lists(node):
        for i, pair in enumerate(pairwise(values)):
            if not any(map(says_nothing, pair)) and not any(map(is_of_house, pair)):
                values[i : i + 2] = pair[::-1]
                return True
    return False


def drops_the_last(node: ast.AST) -> bool:
    for values in _lists(node):
        if not says_nothing(values[-1]):
            del values[-1]
            return True
    return False


def drops_a_default(node: ast.AST) -> bool:
    return isinstance(node, ast.arguments) and bool(node.defaults) and bool(node.defaults.pop())


def decorates(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    node.decorator_list.insert(0, ast.Name("decorator", ast.Load()))
    return True


def replaces_a_part(node: ast.AST) -> bool:
    for field in ("annotation", "returns", "value", "exc", "cause", "guard", "msg", "lower", "upper", "step", "test"):
        if isinstance(getattr(node, field, None), ast.expr):
            setattr(node, field, ast.Name("another", ast.Load()))
            return True
    return False


CHANGES = (
    renames, changes_a_constant, turns_a_constant_into_another_kind, changes_an_operator, swaps_neighbours,
    drops_the_last, drops_a_default, decorates, replaces_a_part,
)  # fmt: skip


def says_nothing(node: ast.AST) -> bool:
    """Docstrings and other bare constants, `pass`, and imports for types alone."""
    types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return types or isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def is_of_house(node: ast.AST) -> bool:
    """An import whose place says nothing (`thiefbench.package_meaning`)."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thiefbench.")


def mutants(content: bytes, most: int, seed: str) -> Iterator[str]:
    """Programs that one change makes of a program; as many as are asked for, drawn at random."""
    nodes = list(ast.walk(ast.parse(content)))
    skipped = {id(inner) for node in nodes if says_nothing(node) for inner in ast.walk(node)}
    places = [(i, change) for i, node in enumerate(nodes) if id(node) not in skipped for change in CHANGES]
    random.Random(seed).shuffle(places)
    plain, found = ast.dump(ast.parse(content)), 0
    for place, change in places:
        if found == most:
            return
        if not change(copy.deepcopy(nodes[place])):
            continue
        tree = ast.parse(content)
        change(list(ast.walk(tree))[place])
        try:
            text = ast.unparse(ast.fix_missing_locations(tree))
            if ast.dump(ast.parse(text)) == plain:
                continue
        except (SyntaxError, ValueError, AttributeError, IndexError):  # no program any more
            continue
        found += 1
        yield text


@pytest.mark.parametrize("file", [EVERY_SYNTAX, *ROOMS], ids=lambda file: file.stem)
def test_a_changed_token_changes_the_meaning(file: Path) -> None:
    content = file.read_bytes()
    before = meaning(content)
    assert before is not None
    tried = 0
    for text in mutants(content, MUTANTS, file.name):
        tried += 1
        assert of(text).parts != before.parts, f"{file.name}: this is another program\n{text}"
    print(f"{tried} mutants of {file.name}")
    assert tried or file.name == "__init__.py", "a file that does something has something to change"
