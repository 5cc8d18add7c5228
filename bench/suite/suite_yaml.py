"""Suites from YAML files and plain data; errors name the line and what is allowed there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from thiefbench import registry, strict_yaml
from thiefbench.error_messages import nearest, problem
from thiefbench.errors import UserError
from thiefbench.limits import MOST_SEEDS
from thiefbench.suite.scenario import STARTED_FROM, Suite
from thiefbench.tasks.text import one_line


class SuiteError(UserError, ValueError):
    """A suite cannot be read or used. One sentence for the user."""


_NAME = re.compile(r"[^\W_]([\w .+-]{0,78}[\w+])?")
"""Of a suite in a file."""


def load_suite(name: str) -> Suite:
    """Read a declared suite by name or title ("trial" or "trial-v1"), or a YAML file by path.

    Raises:
        SuiteError: the file is missing or malformed, or names an attack, defense or task, or one of its arguments, that
            does not exist; the message names file, line and what is allowed.
        registry.SpecStringError: no suite has this name.
    """
    path = Path(name).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise SuiteError(f"there is no suite file {name}")
        return _parsed(lambda: strict_yaml.read(path), name)
    file = registry.suite_file(registry.suite_titled(name))
    return _parsed(lambda: strict_yaml.read(file), file.name, declared=True)


def parse_suite(text: str, file: str) -> Suite:
    """Read a suite from YAML text; `file` names it in errors. See `load_suite`."""
    return _parsed(lambda: strict_yaml.loads(text), file)


def _parsed(read: Callable[[], strict_yaml.Document], file: str, declared: bool = False) -> Suite:
    """A suite from a file. The names in one that a package declares are not looked up, so that it is read at once."""
    try:
        document = read()
    except strict_yaml.YamlError as error:
        raise SuiteError(f"{file}, line {error.line}: {error.reason}") from error
    except OSError as error:
        raise SuiteError(f"{file} cannot be read: {error.strerror}") from error
    data, tree = document.data, document.tree
    specs = [] if declared else list(_specs(data, ()))
    if not isinstance(data, dict):
        raise SuiteError(f"{file}, line 1: a suite is a mapping with name, version, task, model and attacks")
    if isinstance(name := data.get("name"), str) and not _NAME.fullmatch(name):
        raise SuiteError(
            f"{file}, line {_line_of(tree, ('name',))}: name {name[:100]!r}: a suite's name is up to 80 letters and "
            "digits, with spaces, hyphens, dots, underscores or plus signs between them, as a folder is called after it"
        )
    for number, seed in enumerate(_listed(data.get("seeds"))):
        if type(seed) is int and not -(2**63) <= seed < 2**63:  # a store's tables could not hold it
            line = _line_of(tree, ("seeds", number))
            raise SuiteError(f"{file}, line {line}: seeds must lie between -2^63 and 2^63 - 1, got {seed}")
    parts = _filled_parts(data)
    for where, part in parts.items():
        lacking = next((name for name in ("task", "model", "attacks") if name not in part), None)
        if lacking and set(part) <= set(_fields_at(where)):  # else one is misspelt, which is said below
            raise SuiteError(
                f"{file}, line {_line_of(tree, where)}: the field {'.'.join((*map(str, where), lacking))} is missing"
            )
    if () not in parts:
        data["parts"] = list(parts.values())
    suite = _validated(data, lambda where: f"{file}, line {_line_of(tree, where)}")
    for where, kind, spec in specs:
        try:
            registry.check_names(kind, spec)
        except registry.SpecStringError as error:
            raise SuiteError(f"{file}, line {_line_of(tree, where)}: {error}") from error
    return suite


def _specs(data: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], registry.Kind, str]]:
    """The spec strings of a suite's own fields and of its parts': where each stands, its kind, and the text."""
    if not isinstance(data, dict):
        return
    if isinstance(data.get("task"), str):
        yield (*where, "task"), "task", data["task"]
    for field, kind in _LISTS.items():
        for number, spec in enumerate(_listed(data.get(field))):
            if isinstance(spec, str):
                yield (*where, field, number), kind, spec
    for number, part in enumerate(_listed(data.get("parts"))):
        yield from _specs(part, ("parts", number))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def make_suite(fields: Mapping[str, Any], named: str) -> Suite:
    """A suite from its fields as plain data; errors refer to it as `named`. See `load_suite`.

    Raises:
        SuiteError: a field is missing, unknown or invalid.
    """
    return _validated(fields, lambda where: named)


_MISSING = ("missing", "missing_argument")


def _validated(fields: Mapping[str, Any], place: Callable[[tuple[Any, ...]], str]) -> Suite:
    """A suite from plain data; `place` words the location of a field for errors, given its path."""
    try:
        return _ADAPTER.validate_python(fields)
    except ValidationError as error:
        # A misspelt field lacks one, too, and is what its author wants to hear of.
        first = min(error.errors(), key=lambda each: each["type"] in _MISSING)
        where = tuple(first["loc"])
        named = ".".join(str(part) for part in where) or "suite"
        if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
            allowed = ", ".join(_fields_at(where[:-1]))
            near = nearest(str(where[-1]), _fields_at(where[:-1])) if where else ""
            raise SuiteError(f"{place(where)}: {named} is not a field here; {near}allowed: {allowed}") from error
        if first["type"] in _MISSING:
            raise SuiteError(f"{place(where)}: the field {named} is missing") from error
        wrong = problem(first)
        if first["type"] == "tuple_type":  # there are no tuples in YAML
            wrong = f"must be a list, as in [{_as_items(named, first['input'])}]"
        # An error of a whole mapping, such as "rounds must be at least 1", begins with the field that it is about.
        raise SuiteError(f"{place((*where, wrong.partition(' ')[0]))}: {named}: {wrong}") from error


def _as_items(field: str, given: object) -> str:
    """What a list in place of one value may hold; a number of seeds means as many, as in ``--seeds 3``."""
    if field == "seeds" and isinstance(given, int) and 1 < given <= MOST_SEEDS:
        return ", ".join(map(str, range(given))) if given <= _FEW_WRITTEN else f"0, 1, ..., {given - 1}"
    return one_line(str(given), 40)


def _filled_parts(data: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Every part, with missing fields filled in from the suite (mappings field by field), by its path in the file.

    If the suite has no parts, or they are not a list of mappings, the result is the suite itself at the empty path.
    """
    parts = data.get("parts")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        return {(): data}
    common = {name: value for name, value in data.items() if name in STARTED_FROM}
    return {("parts", number): merged(common, part) for number, part in enumerate(parts)}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with some of them replaced; mappings are merged field by field."""
    fields = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            fields[name] = merged(below[name], above[name])
    return fields


def _line_of(tree: Any, where: tuple[Any, ...]) -> int:
    """The 1-based line of the deepest node on the path `where`."""
    node, line = tree, tree.start_mark.line + 1 if tree else 1
    for part in where:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _fields_at(where: tuple[Any, ...]) -> list[str]:
    """The field names allowed in the part of a suite that `where` leads to."""
    schema = _ADAPTER.json_schema()
    node = schema
    for part in where:
        node = node.get("properties", {}).get(str(part), {})
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].split("/")[-1]]
    return sorted(node.get("properties", {}))


_ADAPTER = TypeAdapter(Suite)
_FEW_WRITTEN = 5
"""So many seeds are written out in an error message."""
_LISTS: Mapping[str, registry.Kind] = {"attacks": "attack", "defenses": "defense", "replayed": "defense"}
"""The fields that list spec strings, with their kind."""
