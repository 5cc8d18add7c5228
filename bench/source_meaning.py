"""The code of a Python file: its syntax tree as text, without everything that has no effect when it runs.

Left out are comments, blank lines, layout, quotes, the notation of numbers, docstrings and other statements that
consist of a constant, `pass`, and imports under ``if TYPE_CHECKING``. Everything else is kept: names, values with their
kind, operators, order, defaults, decorators, annotations. Two files with the same meaning compile to the same code,
except for line numbers and docstrings; `Meaning`'s names show whether code may read those. Import statements are kept
separately, because the caller decides what their paths stand for.

A file has the same meaning in every Python from 3.11 on, although their trees differ: fields are written in the order
of their names and left out if empty (``type_params`` came with 3.12, and 3.13 leaves empty ones out), and the constant
pieces of an f-string are joined (3.12 adds empty ones). This module needs only the standard library, so that tests can
run it with any Python.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

_TYPE_CHECKING = "TYPE_CHECKING"
# What of a node says nothing: `ctx` follows from its place, `kind` is the u before a string, the others are comments.
_SAYS_NOTHING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True)
class Import:
    """One name that an import statement binds.

    Attributes:
        level: the number of dots before the module's path.
        module: the path after the dots, or after `import`.
        name: what is taken from the module, "*" for all; empty in ``import module``.
        bound: the name it has here.
        top: whether the first package of the path is bound and not the last module, as in ``import a.b``.
    """

    level: int
    module: str
    name: str
    bound: str
    top: bool = False


@dataclass(frozen=True)
class Imports:
    """Import statements that follow one another.

    Attributes:
        names: the names they bind, in order.
        at_top: whether they are at the top level of the file, where none of them may fail.
    """

    names: tuple[Import, ...]
    at_top: bool


@dataclass(frozen=True)
class Meaning:
    """What a file means.

    Attributes:
        parts: its text, cut at import statements.
        names: every variable in it.
        attributes: every name after a dot.
        strings: every string in it, and every constant piece of an f-string.
    """

    parts: tuple[str | Imports, ...]
    names: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]

    @property
    def empty(self) -> bool:
        """Whether running the file does nothing."""
        return self.parts == ("(Module)",)


@cache
def meaning(content: bytes, docstrings: bool = False) -> Meaning | None:
    """The meaning of a file, in any declared encoding; None if this Python cannot parse it.

    Args:
        content: of the file.
        docstrings: whether to include docstrings and other statements that consist of a constant.
    """
    try:
        with warnings.catch_warnings():  # about an escape sequence, which a filter could make an error
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return None
    writer = _Writer(docstrings, _TYPE_CHECKING.encode() in content and _is_of_typing(tree))
    parts = writer.parts(tree)
    return Meaning(parts, frozenset(writer.names), frozenset(writer.attributes), frozenset(writer.strings))


def quoted(value: object) -> str:
    """A constant as text; different kinds or values have different texts, and no text can be read as two constants."""
    if isinstance(value, str):
        return f"s{len(value)}:{value}"
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    if isinstance(value, bool) or value is None or value is ...:
        return str(value)
    if isinstance(value, int):
        return f"i{value:x}"
    if isinstance(value, float):
        return f"f{value.hex()}"
    if isinstance(value, complex):
        return f"c{value.real.hex()}{value.imag.hex()}"
    raise TypeError(f"no source text holds a constant of type {type(value).__name__}")


class _Writer:
    """Writes a tree as text, without recursion, because sums of a thousand terms are a thousand nodes deep."""

    def __init__(self, docstrings: bool, types_apart: bool) -> None:
        self._docstrings, self._types_apart = docstrings, types_apart
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.strings: set[str] = set()

    def parts(self, tree: ast.Module) -> tuple[str | Imports, ...]:
        waiting: list[ast.AST | str | Imports] = [tree]
        written: list[str | Imports] = []
        while waiting:
            piece = waiting.pop()
            if isinstance(piece, ast.AST):
                self._notice(piece)
                waiting += reversed(self._node(piece))
            else:
                written.append(piece)
        runs = groupby(written, lambda piece: isinstance(piece, str))
        return tuple(part for text, run in runs for part in (["".join(map(str, run))] if text else run))

    def _notice(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.names.add(node.id)
        elif isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.strings.add(node.value)

    def _node(self, node: ast.AST) -> list[ast.AST | str | Imports]:
        pieces: list[ast.AST | str | Imports] = [f"({type(node).__name__}"]
        for field in _telling(node._fields):
            value = getattr(node, field, None)
            if value is None:
                continue
            if not isinstance(value, list):
                pieces += [f" {field}=", value if isinstance(value, ast.AST) else quoted(value)]
            elif items := list(self._items(node, value)):
                pieces += [f" {field}=[", *(part for item in items for part in (item, ",")), "]"]
        return [*pieces, ")"]

    def _items(self, node: ast.AST, values: Sequence[object]) -> Iterator[ast.AST | str | Imports]:
        if values and isinstance(values[0], ast.stmt):
            yield from self._statements(values, isinstance(node, ast.Module))
        elif isinstance(node, ast.JoinedStr):
            yield from self._joined(node.values)
        elif isinstance(node, ast.Delete):
            yield from _untupled(node.targets)
        else:
            for value in values:
                yield value if isinstance(value, ast.AST) else quoted(value)

    def _joined(self, values: Sequence[ast.expr]) -> Iterator[ast.AST | str]:
        """The pieces of an f-string: neighbouring constants as one, empty ones not at all."""
        for constant, run in groupby(values, lambda value: isinstance(value, ast.Constant)):
            if not constant:
                yield from run
            elif text := "".join(str(value.value) for value in run if isinstance(value, ast.Constant)):
                self.strings.add(text)
                yield quoted(text)

    def _statements(self, statements: Iterable[object], at_top: bool) -> Iterator[ast.AST | Imports]:
        """Statements that do something; consecutive imports as one item."""
        for imports, run in groupby(self._doing(statements, at_top), _is_import):
            if imports:
                yield Imports(tuple(one for statement in run for one in _bindings(statement)), at_top)
            else:
                yield from run

    def _doing(self, statements: Iterable[object], at_top: bool) -> Iterator[ast.AST]:
        for statement in statements:
            assert isinstance(statement, ast.stmt)
            if isinstance(statement, ast.Pass):
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and not self._docstrings:
                continue
            if self._types_apart and at_top and isinstance(statement, ast.If) and _imports_for_types(statement):
                yield from self._doing(statement.orelse, at_top)
            else:
                yield statement


@cache
def _telling(fields: tuple[str, ...]) -> list[str]:
    return sorted(set(fields) - _SAYS_NOTHING)


def _bindings(statement: ast.AST) -> Iterator[Import]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.asname is None and "." in alias.name
            yield Import(0, alias.name, "", alias.asname or alias.name.partition(".")[0], top)
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield Import(statement.level or 0, statement.module or "", alias.name, alias.asname or alias.name)


def _untupled(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """The targets of `del`, in which brackets have no meaning."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _untupled(target.elts)
        else:
            yield target


def _is_import(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _imports_for_types(statement: ast.If) -> bool:
    """Whether there are only imports under ``if TYPE_CHECKING``.

    Below a file's top level, or for other statements, their presence alone has an effect: a name that a function
    assigns anywhere is local to it everywhere.
    """
    test = statement.test
    return isinstance(test, ast.Name) and test.id == _TYPE_CHECKING and all(map(_is_import, statement.body))


def _is_of_typing(tree: ast.Module) -> bool:
    """Whether `TYPE_CHECKING` is everywhere in a file what typing calls so, which is false when the file runs."""
    imports = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "typing" and not s.level]
    known = {id(alias) for s in imports for alias in s.names if alias.name == _TYPE_CHECKING and alias.asname is None}
    for node in ast.walk(tree):
        if id(node) in known or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            continue
        if isinstance(node, ast.alias) and node.name == "*":
            return False
        values = [getattr(node, field, None) for field in node._fields]
        if any(v == _TYPE_CHECKING or (isinstance(v, list) and _TYPE_CHECKING in v) for v in values):
            return False  # bound to something else, perhaps
    return bool(known)
