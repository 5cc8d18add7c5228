"""The registry of attacks, defenses, tasks and suites: names are entry points; your own classes can be in files.

Aggregations are defenses, and weight attacks are attacks, of swarms that exchange weights; stage checks and stage
attacks are those of pipelines. They are declared and listed as kinds of their own, and a spec string names them
wherever it may name a defense or an attack.

A *spec string* has the same form everywhere: ``name``, ``name(key=value, ...)``, ``path/to/file.py:Class(key=value)``
or ``package.module:Class(key=value)``. If a constructor's parameter is annotated `Attack` or `Defense`, its value is a
spec string too: ``varied(attack="text", ...)``. Defenses compose: ``a+b`` accepts what both accept. Listing names loads
no plugins. Whether a class after a colon is loaded depends on where its name comes from: `thiefbench.trust` has the
rule.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from thiefbench import trust
from thiefbench.argument_types import wrong_type
from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import WeightAttack
from thiefbench.attacks.stages.base import StageAttack
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.defenses.base import Defense
from thiefbench.defenses.composed import Composed
from thiefbench.defenses.stages.base import StageCheck
from thiefbench.error_messages import nearest
from thiefbench.errors import UserError
from thiefbench.limits import MOST_ITEMS
from thiefbench.loading import SpecStringError as SpecStringError
from thiefbench.loading import class_at, file_of, imports_contracts, names_module, unnamed_class
from thiefbench.package_meaning import package_digest, room_digest
from thiefbench.plugin_attributes import wrong_attribute
from thiefbench.regular_files import parts_of
from thiefbench.sources import import_root, is_of_user, package_files, source_files
from thiefbench.tasks.base import Task
from thiefbench.user_frames import described, where
from thiefbench.user_imports import imported, name_within

Kind = Literal["attack", "defense", "task", "suite", "aggregation", "weight_attack", "stage_check", "stage_attack"]
_NARROWER: dict[Kind, tuple[Kind, ...]] = {
    "defense": ("aggregation", "stage_check"), "attack": ("weight_attack", "stage_attack")
}  # fmt: skip
"""Kinds whose names also count as names of a wider kind."""
# Classes whose parameters are spec strings themselves, with an example of one.
_NESTED: dict[type, tuple[Kind, str]] = {Attack: ("attack", "text"), Defense: ("defense", "logit")}
# The required base classes, because a spec string may name any class of any module.
_BASES: dict[Kind, type] = {
    "attack": Attack, "defense": Defense, "task": Task, "aggregation": Aggregation, "weight_attack": WeightAttack,
    "stage_check": StageCheck, "stage_attack": StageAttack,
}  # fmt: skip
CALLED: dict[Kind, str] = {
    "attack": "an attack", "defense": "a defense", "task": "a task", "suite": "a suite",
    "aggregation": "an aggregation", "weight_attack": "an attack on exchanged weights",
    "stage_check": "a stage check", "stage_attack": "an attack on a pipeline",
}  # fmt: skip
"""What a message calls one of a kind."""
_CLASS_IN_FILE = re.compile(r":\s*[^\W\d]\w*\s*")
_LONGEST = 100_000
"""Most characters of a spec string, which may be a stranger's."""
_R = TypeVar("_R")


@cache  # Python takes long to read one, and objects of the same few classes are made thousands of times
def _signature(plugin: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(plugin)


@dataclass(frozen=True)
class ParsedSpec:
    """A spec string as its target (an entry point's name, or a class after a colon) and its arguments."""

    target: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"{self.target}({arguments})" if arguments else self.target


def names(kind: Kind) -> list[str]:
    """All declared names of a kind, sorted."""
    return sorted(_entries(kind))


def entry(kind: Kind, name: str) -> EntryPoint:
    """The entry point of a name; it is not loaded.

    Raises:
        SpecStringError: there is no such name; the message says what else has this name, or suggests the nearest.
    """
    entries = _entries(kind)
    named = _wider_entries(kind)
    if name not in named:
        if other := next((each for each in get_args(Kind) if name in _entries(each)), None):
            raise SpecStringError(f"there is no {kind} named {name!r}; {name} is {CALLED[other]}")
        if kind != "suite" and (unnamed := unnamed_class(kind, name)):
            raise SpecStringError(unnamed)
        known = ", ".join(sorted(entries))
        raise SpecStringError(f"there is no {kind} named {name!r}; {nearest(name, named)}known: {known}")
    return named[name]


def parts(kind: Kind, spec: str) -> list[str]:
    """The spec strings joined by +; without a +, the spec string itself.

    A + separates after a declared name, a closing bracket or a ``file.py:Class``, and nowhere inside brackets or
    quotes; any other + belongs to a path. A path whose beginning is a declared name is written with ./ before it.

    Raises:
        SpecStringError: there are several, and this kind does not compose, one of them is empty, or it is too long.
    """
    if not isinstance(spec, str):  # from an untyped program
        raise SpecStringError(
            f"a {kind} is named here by a spec string, such as a name or path/to/file.py:Class(key=value), not by "
            f"{type(spec).__name__}"
        )
    if len(spec) > _LONGEST:
        raise SpecStringError(
            f"malformed {kind} spec: it has {len(spec):,} characters, and at most {_LONGEST:,} are allowed"
        )
    pieces = _between_pluses(spec)
    last = max((place for place, piece in enumerate(pieces) if ":" in piece.partition("(")[0]), default=-1)
    specs: list[str] = []
    place = 0
    while place < len(pieces):
        joined, whole = [pieces[place]], pieces[place].strip() in _wider_entries(kind)
        while not whole and not _ends(joined[-1]) and place < last:
            place += 1
            joined.append(pieces[place])
        specs.append("+".join(joined).strip())
        place += 1
    if len(specs) > 1 and kind != "defense":
        raise SpecStringError(
            f"malformed {kind} spec: only defenses compose with +; write each {kind} as a spec of its own, not {spec!r}"
        )
    if len(specs) > 1 and not all(specs):
        raise SpecStringError(f"malformed {kind} spec: write a defense on both sides of a +, as in a+b, not {spec!r}")
    return specs


def parse(kind: Kind, spec: str) -> ParsedSpec:
    """Split a spec string of one part into its target and arguments; see `parts` for several.

    Raises:
        SpecStringError: it is malformed or has several parts.
    """
    if len(parts(kind, spec)) > 1:
        raise SpecStringError(f"malformed {kind} spec: only one {kind} can be named here, not several, in {spec!r}")
    text = spec.strip()
    head, bracket, rest = text.partition("(")
    expected = f"write a name, name(key=value, ...) or path/to/file.py:Class(key=value), not {spec!r}"
    if not head.strip() or not head.isprintable() or (bracket and not rest.rstrip().endswith(")")):
        raise SpecStringError(f"malformed {kind} spec: {expected}")
    if not bracket:
        return ParsedSpec(head.strip(), {})
    source = f"_({rest}".rstrip()
    try:
        call = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecStringError(f"malformed {kind} spec: {expected}") from error
    whole = ast.get_source_segment(source, call) == source  # nothing follows, such as a comment that hides another part
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not whole:
        raise SpecStringError(f"malformed {kind} spec: {expected}")
    keys = [str(keyword.arg) for keyword in call.keywords if keyword.arg is not None]
    if call.args or len(keys) < len(call.keywords) or len(set(keys)) < len(keys):
        raise SpecStringError(f"malformed {kind} spec: arguments are written key=value, each once, in {spec!r}")
    try:
        values = [ast.literal_eval(keyword.value) for keyword in call.keywords]
        for value in values:
            ast.literal_eval(repr(value))  # as cells have it, which 1e999 and numbers of 5,000 digits do not survive
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise SpecStringError(f"malformed {kind} spec: values are literals (text in quotes), in {spec!r}") from error
    if any(isinstance(node, ast.Set | ast.Call) for keyword in call.keywords for node in ast.walk(keyword.value)):
        # Spec strings are compared as texts, and that of a set is another one in every process.
        raise SpecStringError(f"malformed {kind} spec: values are literals and no sets; write a list, in {spec!r}")
    return ParsedSpec(head.strip(), dict(zip(keys, values, strict=True)))


def find(kind: Kind, target: str) -> Any:
    """The class (or suite reference) that a parsed target names.

    Raises:
        SpecStringError: there is no such name, file, module or class (the message has the nearest names), it is no
            class of this kind, or only a file that was read names it (see `thiefbench.trust`).
    """
    if ":" in target:
        trust.check(kind, target)
        found = class_at(kind, target)
    else:
        found = entry(kind, target).load()
    base = _BASES.get(kind)
    if base is not None and not (inspect.isclass(found) and issubclass(found, base)):
        name = getattr(found, "__name__", found)
        wrong = f"{name} is not a subclass of {base.__module__}.{base.__name__}"
        raise SpecStringError(f"{kind} {target}: {wrong}{_other_kind(found, base)}")
    return found


def _other_kind(found: Any, wanted: type) -> str:
    """What a class is instead of a subclass of another one, in a clause behind a semicolon; else nothing."""
    for kind, base in _BASES.items():
        if inspect.isclass(found) and issubclass(found, base) and not issubclass(wanted, base):
            return f"; it is {CALLED[kind]}"
    return ""


def make(kind: Kind, spec: str) -> Any:
    """The object that a spec string describes.

    Raises:
        SpecStringError: see `parse` and `find`, or the arguments are not the constructor's, or it refuses their values,
            or the class lacks a constant of its base class or gives it another type.
    """
    if len(several := parts(kind, spec)) > 1:
        each = [make(kind, part) for part in several]
        try:
            return Composed(each)
        except ValueError as error:
            raise SpecStringError(f"{kind} {spec}: {error}") from error
    parsed = parse(kind, spec)
    plugin = find(kind, parsed.target)
    _check_arguments(kind, parsed, plugin)
    if kind == "task":
        _check_size(parsed, plugin)
    if inspect.isabstract(plugin):
        raise SpecStringError(f"{kind} {spec}: {_lacking(plugin)}")
    inner = _of_inner(make, kind, parsed, plugin)
    try:
        made = plugin(**parsed.arguments | inner)
    except (AttributeError, TypeError, ValueError) as error:  # of values of another type than is meant, too
        raise SpecStringError(f"{kind} {spec}: {error}{where(error)}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) or not where(error):
            raise
        raise SpecStringError(f"{kind} {spec}: {described(error)}") from error
    if wrong := wrong_attribute(made):
        raise SpecStringError(f"{kind} {spec}: {wrong}")
    return made


def check_names(kind: Kind, spec: str) -> None:
    """Raise the errors of `make` about names, as far as they can be found without running the plugin's code.

    These are undeclared names, missing files and, for declared classes, unknown arguments and values of another type.
    A declared class is loaded only to look up its arguments, and a user's own class not at all, so that typing errors
    are reported at once.

    Raises:
        SpecStringError: a name is wrong or the spec string is malformed, at any level of nesting.
    """
    parsed_parts = [parse(kind, part) for part in parts(kind, spec)]
    for parsed in parsed_parts:
        if ":" not in parsed.target:
            entry(kind, parsed.target)
        elif not names_module(parsed.target):
            file_of(kind, parsed.target)
    for parsed in parsed_parts:
        if parsed.arguments and ":" not in parsed.target:
            plugin = find(kind, parsed.target)
            _check_arguments(kind, parsed, plugin)
            for name, within in _inner(kind, parsed, plugin).items():
                if name in parsed.arguments:
                    check_names(*within)


def _check_arguments(kind: Kind, parsed: ParsedSpec, plugin: Any) -> None:
    """Raise an error for arguments that a constructor does not accept.

    Raises:
        SpecStringError: there are such arguments, and the message lists the accepted ones; or one has another type than
            the parameter's annotation, and the message says what to write.
    """
    signature = _signature(plugin)
    known = signature.parameters
    unknown = [name for name in parsed.arguments if name not in known]
    try:
        signature.bind(**parsed.arguments)
    except TypeError as error:
        wrong, near = str(error), ""
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            wrong = f"got an unexpected keyword argument {unknown[0]!r}"  # rather than that another one is missing
            near = nearest(unknown[0], known)
        elif missing := [name for name, each in known.items() if _is_needed(each) and name not in parsed.arguments]:
            near = f"write {parsed.target}({missing[0]}=...); "
        raise SpecStringError(
            f"{kind} {parsed.target}: {wrong}; {near}its arguments: {', '.join(known) or 'none'}"
        ) from error
    is_class = inspect.isclass(plugin)
    hints = _hints(plugin) if is_class else {}
    for name, value in parsed.arguments.items():
        default = known[name].default if name in known else None
        if name not in hints or (type(default) is type(value) and default == value):  # whatever the annotation says
            continue
        if wanted := wrong_type(hints[name], value):
            raise SpecStringError(f"{kind} {parsed.target}: {name} must be {wanted}, got {value!r:.100}")


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Whether a call must name a parameter."""
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return named and parameter.default is parameter.empty


def _lacking(plugin: type) -> str:
    """What methods a class must still define, with its own that may be meant."""
    missing = sorted(getattr(plugin, "__abstractmethods__", ()))
    own = [name for name, value in vars(plugin).items() if inspect.isfunction(value)]
    methods = f"the method{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
    near = [name for method in missing for name in difflib.get_close_matches(method, own, n=1)]
    return f"{plugin.__name__} lacks {methods}" + (f"; is {near[0]} misspelt?" if near else "")


def _check_size(parsed: ParsedSpec, task: type) -> None:
    """Refuse so many items of a generated task that making them would not end.

    Raises:
        SpecStringError: it says what to write.
    """
    size = parsed.arguments.get("size")
    if type(size) is int and _hints(task).get("size") is int and size > MOST_ITEMS:
        raise SpecStringError(f"task {parsed.target}: size must be at most {MOST_ITEMS:,}, got {size:,}")


def argument(kind: Kind, parsed: ParsedSpec, name: str) -> Any:
    """The value of a parameter, from the spec or by default; None without such a parameter or plugin."""
    if name in parsed.arguments:
        return parsed.arguments[name]
    try:
        parameter = _signature(find(kind, parsed.target)).parameters.get(name)
    except SpecStringError:
        return None
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def canonical(kind: Kind, spec: str) -> str:
    """The spec string with sorted arguments and without those that equal the constructor's defaults.

    The order of composed parts is kept.
    """
    if len(several := parts(kind, spec)) > 1:
        return "+".join(canonical(kind, part) for part in several)
    parsed = parse(kind, spec)
    plugin = find(kind, parsed.target)
    defaults = {name: p.default for name, p in _signature(plugin).parameters.items()}
    inner = _of_inner(canonical, kind, parsed, plugin)
    arguments = {name: inner.get(name, value) for name, value in parsed.arguments.items()}
    changed = {name: value for name, value in arguments.items() if name not in defaults or defaults[name] != value}
    return str(ParsedSpec(parsed.target, changed))


def source_hash(kind: Kind, spec: str, load: bool = True) -> str:
    """SHA-256 over what defines the named class.

    A user's file counts whole and as it stands, with its path in its package, and so does the folder of the package of
    a class named as ``package.module:Class``, and every other module of the user's own that these import and every data
    file that they name (`thiefbench.user_imports`).
    What they import of this package's attacks, defenses and tasks counts as a plugin's class does.

    A plugin's class counts with what the modules of its own package that it imports mean (`package_digest`: no comment,
    docstring or layout), and with the data files beside them, so that a change in an unrelated plugin leaves its
    results valid. What defines the attacks or defenses it is built around or composed of counts too.

    Without `load` users' files are read, and nothing that stands before a colon is imported, at any level of nesting;
    what users' own classes are built around is then not known and does not count.

    Raises:
        SpecStringError: see `parse` and `find`; without `load`, a class is named by its module, or a file cannot be
            read or is not a regular file.
    """
    digest = hashlib.sha256()
    if len(several := parts(kind, spec)) > 1:
        _digest_sources(digest, Composed)
        for part in several:
            digest.update(f"\0+{source_hash(kind, part, load)}".encode())
        return digest.hexdigest()
    parsed = parse(kind, spec)
    file, colon, _ = parsed.target.rpartition(":")
    if colon and not load:
        if names_module(parsed.target):
            raise SpecStringError(f"{kind} {parsed.target}: {file} is a module, and it is not imported here")
        try:
            _digest_file(digest, file)
        except (OSError, RuntimeError, ValueError) as error:
            raise SpecStringError(f"{kind} {parsed.target}: {file} cannot be read: {error}") from error
        return digest.hexdigest()
    defined = find(kind, parsed.target)
    if not colon:
        _digest_sources(digest, defined)
    elif names_module(parsed.target):
        module = sys.modules[defined.__module__]
        _digest_user_files(digest, package_files(module), import_root(module))
    else:
        _digest_file(digest, file)
    inner = _of_inner(partial(source_hash, load=load), kind, parsed, defined)
    for name, hash_of_inner in sorted(inner.items()):
        digest.update(f"\0{name}={hash_of_inner}".encode())
    return digest.hexdigest()


def named_in(kind: Kind, spec: str) -> Iterator[tuple[Kind, str]]:
    """Kind and target of everything that a spec string names, at every level of nesting.

    No class after a colon is loaded, so which of its arguments are spec strings is not known: whatever reads like one
    counts. Declared classes are loaded, to look up which of their parameters are attacks and defenses.

    Raises:
        SpecStringError: it is malformed at some level, or names what is not declared.
    """
    for part in parts(kind, spec):
        parsed = parse(kind, part)
        yield kind, parsed.target
        if ":" in parsed.target:
            for value in parsed.arguments.values():
                yield from (("defense", target) for target in classes_in(value) if reads_like_class(target))
        else:
            for within in _inner(kind, parsed, find(kind, parsed.target)).values():
                yield from named_in(*within)


def classes_in(spec: object) -> Iterator[str]:
    """The targets with a colon that stand in a spec string, at every level of nesting; nothing is loaded.

    Any text among the arguments is taken for a spec string. What is malformed names nothing.
    """
    return (parsed.target for parsed in _nested(spec) if ":" in parsed.target)


def _endpoints_in(spec: object) -> Iterator[str]:
    """The addresses of judges' servers that stand in a spec string, at every level of nesting."""
    values = (parsed.arguments.get("endpoint") for parsed in _nested(spec))
    return (value for value in values if isinstance(value, str))


def _nested(spec: object) -> Iterator[ParsedSpec]:
    """Everything in a spec string that reads like one."""
    if not isinstance(spec, str):
        return
    try:
        parsed_parts = [parse("defense", part) for part in parts("defense", spec)]  # the kind that composes
    except SpecStringError:
        return
    for parsed in parsed_parts:
        yield parsed
        for value in parsed.arguments.values():
            yield from _nested(value)


def allow(spec: str) -> None:
    """Trust a spec string that the user typed: its classes may be loaded, and its judge's server may see the key.

    See `thiefbench.trust`.
    """
    for target in classes_in(spec):
        trust.allow_place(target)
    for endpoint in _endpoints_in(spec):
        trust.allow_server(endpoint)


def reads_like_class(target: str) -> bool:
    """Whether a text is a class after a colon, and not a sentence or an address with a colon in it."""
    file, _, name = target.rpartition(":")
    return name.isidentifier() and (names_module(target) or file.endswith(".py"))


def reads_like(kind: Kind, other: Kind, spec: str) -> bool:
    """Whether a spec string seems to name one of a kind and none of another; nothing is loaded.

    It does if a part is declared as such, or is a class in a file that imports only the contracts of that kind.

    Raises:
        SpecStringError: it is malformed.
    """
    for target in (parse(other, part).target for part in parts(other, spec)):
        if target in _wider_entries(kind):
            return target not in _wider_entries(other)
        if reads_like_class(target) and not names_module(target):
            named = {each for each in (kind, other) if imports_contracts(target, f"thiefbench.{each}s")}
            if named == {kind}:
                return True
    return False


def suite_file(name: str) -> Path:
    """The YAML file that a suite is declared by, which lies in the package it names; that is not imported.

    Raises:
        SpecStringError: there is no such name, or its package is not installed.
    """
    declared = entry("suite", name)
    located = importlib.util.find_spec(declared.module)
    if located is None or located.origin is None:
        raise SpecStringError(f"the suite {name} is declared in {declared.module}, which is missing; install it again")
    return Path(located.origin).with_name(declared.attr)


def suite_titled(title: str) -> str:
    """The name of the suite with a title: "trial" of "trial-v1". A title that no suite has is returned as it is."""
    name, _, version = title.rpartition("-v")
    known = names("suite")
    if title in known or name not in known:
        return title
    from thiefbench import strict_yaml  # needed only here and when suites are listed

    return name if version == str(strict_yaml.read(suite_file(name)).data["version"]) else title


def summary(kind: Kind, name: str) -> str:
    """The first line of the docstring, read from the source without importing it; for a suite, of its field `about`.

    A suite that another one supersedes is marked as such.
    """
    declared = entry(kind, name)
    located = importlib.util.find_spec(declared.module)
    if located is None or located.origin is None:
        return ""
    if kind == "suite":
        from thiefbench import strict_yaml  # needed only when suites are listed

        suite_fields = strict_yaml.read(suite_file(name)).data
        mark = "Superseded. " if suite_fields.get("superseded") else ""
        return mark + re.split(r"(?<=[.])\s", str(suite_fields.get("about", "")).strip())[0]
    for node in ast.parse(Path(located.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == declared.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
    return ""


def _between_pluses(spec: str) -> list[str]:
    """A spec string cut at every + outside of brackets; quotes count inside brackets only."""
    pieces, start, depth, quote, escaped = [], 0, 0, "", False
    for place, letter in enumerate(spec):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif depth and letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "+" and not depth:
            pieces.append(spec[start:place])
            start = place + 1
    return [*pieces, spec[start:]]


def _ends(piece: str) -> bool:
    """Whether a spec string that does not begin with a declared name could end behind this piece.

    Otherwise it goes on with a + in a path.
    """
    head, bracket, _ = piece.partition("(")
    return bool(bracket) or bool(_CLASS_IN_FILE.search(head))


def _of_inner(function: Callable[[Kind, str], _R], kind: Kind, parsed: ParsedSpec, plugin: Any) -> dict[str, _R]:
    """What a function makes of each of `_inner`. Those by default stand in the class, and are as trusted as it is."""
    results: dict[str, _R] = {}
    for name, within in _inner(kind, parsed, plugin).items():
        with nullcontext() if name in parsed.arguments else trust.plugins():
            results[name] = function(*within)
    return results


def _inner(kind: Kind, parsed: ParsedSpec, plugin: Any) -> dict[str, tuple[Kind, str]]:
    """Kind and spec string, given or by default, of the parameters that are attacks or defenses themselves.

    Raises:
        SpecStringError: such an argument is not text.
    """
    is_class = inspect.isclass(plugin)
    if not is_class:
        return {}
    parameters = _signature(plugin).parameters
    inner = {}
    for name, hint in _hints(plugin).items():
        nested = next((nested for base_class, nested in _NESTED.items() if base_class in (hint, *get_args(hint))), None)
        if name not in parameters or nested is None:
            continue
        spec = parsed.arguments.get(name, parameters[name].default)
        within, example = nested
        if isinstance(spec, str):
            inner[name] = (within, spec)
        elif name in parsed.arguments:
            raise SpecStringError(f"{kind} {parsed.target}: {name} is a spec string such as {example!r}, not {spec!r}")
    return inner


@lru_cache(maxsize=256)  # a report makes an attack for every cell
def _hints(plugin: type) -> Mapping[str, Any]:
    """The types of a constructor's arguments; nothing where only a type checker can resolve them."""
    try:
        return get_type_hints(plugin.__init__)  # type: ignore[misc]
    except (AttributeError, NameError, TypeError):
        return {}


def _digest_sources(digest: hashlib._Hash, defined: Any) -> None:
    module = sys.modules[defined.__module__]
    if is_of_user(module):
        _digest_file(digest, str(sys.modules[module.__name__.partition(".")[0]].__file__))
    else:
        digest.update(package_digest(defined))


def _digest_file(digest: hashlib._Hash, file: str) -> None:
    """A user's file: read, and not imported, so that it counts the same whether it was loaded or not."""
    path = Path(file).expanduser().resolve()
    _digest_user_files(digest, source_files(path), path.parent)


def _digest_user_files(digest: hashlib._Hash, files: Iterable[Path], folder: Path) -> None:
    """All that defines a user's class, so that different files never give the same bytes to hash.

    Each piece stands behind its length, and each file behind what it is and its path in the plugin's folder, or its
    module's name. So neither can a byte move from one file to the next, nor two files change places.
    """
    digest_of_all = hashlib.sha256()

    def add(*pieces: str) -> None:
        for piece in pieces:
            content = piece.encode("utf-8", "surrogateescape")
            digest_of_all.update(f"{len(content)}:".encode() + content)

    named = {name_within(folder, path): path for path in files}
    for name, path in sorted(named.items()):
        add("file", name, _content_sha256(path))
    others = imported((path for path in named.values() if path.suffix == ".py"), folder)
    for module in sorted(others.modules, key=lambda each: (each.name, each.place, each.file)):
        add("module", module.name, module.file.name, _content_sha256(module.file))
    counted = {path.resolve() for path in named.values()}
    for data in sorted(others.data, key=lambda each: (each.namer, each.name)):
        if data.file not in counted:
            add("data", data.namer, data.name, _content_sha256(data.file))
    for name in sorted(others.names):
        if (meant := room_digest(name)) is not None:
            add("import", name, meant.hex())
    digest.update(digest_of_all.digest())


def _content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for part in parts_of(path):
        digest.update(part)
    return digest.hexdigest()


@cache
def _entries(kind: Kind) -> dict[str, EntryPoint]:
    # The built-in classes come last: no other distribution can take the place of one by declaring its name.
    declared = sorted(entry_points(group=f"thiefbench.{kind}s"), key=lambda each: _distribution(each) == "thiefbench")
    return {each.name: each for each in declared}


def _wider_entries(kind: Kind) -> dict[str, EntryPoint]:
    """The entries of a kind, and of the narrower ones whose names count as its names too."""
    kinds = (kind, *_NARROWER.get(kind, ()))
    return {name: declared for each in kinds for name, declared in _entries(each).items()}


def _distribution(declared: EntryPoint) -> str:
    return "" if declared.dist is None else declared.dist.name
