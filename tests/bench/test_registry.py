"""One registry: spec strings, names, files, canonical forms and what a source hash covers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from thiefbench import package_meaning, registry, user_imports
from thiefbench.plugin_attributes import _CALLED, _wrong_method
from thiefbench.registry import ParsedSpec, SpecStringError

OWN = """
from thiefbench.defenses.base import ACCEPT, Defense

NOTHING = 0

class Mine(Defense):
    name = "mine"

    def __init__(self, level: float = 0.5, words: tuple[str, ...] = ()) -> None:
        if level > 1:
            raise ValueError(f"mine: level must be at most 1, got {level}")
        self.level, self.words = level, words

    def inspect(self, view):
        return [ACCEPT] * len(view.completions)


def helper():
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def sentence(error: pytest.ExceptionInfo[SpecStringError]) -> str:
    text = str(error.value)
    assert "\n" not in text, f"a user's error is one sentence: {text!r}"
    return text


@pytest.mark.parametrize(
    ("spec", "target", "arguments"),
    [
        ("text", "text", {}),
        ("  text ", "text", {}),
        ("text()", "text", {}),
        ("text( )", "text", {}),
        ("logit(reject='drop', tolerance=0.5)", "logit", {"reject": "drop", "tolerance": 0.5}),
        ("random(rate=-1)", "random", {"rate": -1}),
        ("x(a=None, b=True, c=(1, 2))", "x", {"a": None, "b": True, "c": (1, 2)}),
        ("x(d=[1], e={'k': 'v'})", "x", {"d": [1], "e": {"k": "v"}}),
        ("text(phrase='a, b = (c)')", "text", {"phrase": "a, b = (c)"}),
        ("my/own.py:Mine(level=1)", "my/own.py:Mine", {"level": 1}),
    ],
)
def test_a_spec_string_is_taken_apart(spec: str, target: str, arguments: dict[str, object]) -> None:
    parsed = registry.parse("attack", spec)
    assert parsed == ParsedSpec(target, arguments)
    assert registry.parse("attack", str(parsed)) == parsed, "a parsed spec prints as a spec string that says the same"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "   ",
        "()",
        "(a=1)",
        "text(",
        "text)(",
        "text(phrase='x y'",
        "text(phrase='x y') and more",
        "text('All hail')",
        "text(*[1])",
        "text(**{'phrase': 'x y'})",
        "text(phrase=)",
        "text(phrase=x)",
        "text(phrase=open('file'))",
        "text(phrase='x y')(position='end')",
        "text(phrase='x y').draw(rng=1)",
        "text(phrase='x y', phrase='z w')",
        "text(phrase={[]: 1})",
        "text(phrase={'x', 'y'})",
        "text(phrase=1e999)",
        "text(phrase=...)",
        "text(phrase=0x" + "f" * 5000 + ")",
        "text(phrase=[set()])",
        "text(phrase='\0')x",
        "text(phrase=" + "[" * 300 + "]" * 300 + ")",
    ],
)
def test_a_malformed_spec_is_one_sentence(spec: str) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.parse("attack", spec)
    assert sentence(error).startswith("malformed attack spec"), "it says what is wrong"
    assert "key=value" in str(error.value) or "literals" in str(error.value), "and what to write instead"


@pytest.mark.parametrize(
    ("kind", "wrong", "near"), [("attack", "txet", "text"), ("defense", "logits", "logit"), ("task", "gsm8", "gsm8k")]
)
def test_an_unknown_name_gets_the_nearest_and_the_whole_list(kind: registry.Kind, wrong: str, near: str) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make(kind, wrong)
    text = sentence(error)
    assert f"there is no {kind} named '{wrong}'" in text
    assert f"did you mean {near}" in text, "the nearest names are offered"
    assert text.endswith(f"known: {', '.join(registry.names(kind))}"), "all names are listed"


@pytest.mark.parametrize(
    ("kind", "wrong", "what"),
    [
        ("defense", "text(phrase='All hail')", "'text'; text is an attack"),
        ("attack", "logit", "'logit'; logit is a defense"),
        ("attack", "varied(attack='krum')", "'krum'; krum is an aggregation"),
        ("task", "smoke", "'smoke'; smoke is a suite"),
        ("aggregation", "blacklist", "'blacklist'; blacklist is a defense"),
    ],
)
def test_a_name_of_another_kind_is_told(kind: registry.Kind, wrong: str, what: str) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make(kind, wrong)
    assert sentence(error).startswith("there is no ")
    assert sentence(error).endswith(f" named {what}")


@pytest.mark.parametrize("written", ["mine.py", "mine", "mine.py(level=1)"])
def test_a_file_without_a_class_is_told_its_classes(own: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.chdir(own.parent)
    own.with_name("mine.py").write_text(f"raise SystemExit('it is not loaded')\n{OWN}\nclass Other(Mine): pass\n")
    with pytest.raises(SpecStringError) as error:
        registry.check_names("defense", written)
    named = written.partition("(")[0]
    assert sentence(error) == f"defense {named}: a file is named with its class; write mine.py:Mine or mine.py:Other"


def test_a_file_without_a_class_or_that_is_none(own: Path) -> None:
    own.write_text("NOTHING = 0\n")
    empty = own.with_name("empty.py")
    empty.touch()
    for written, said in (
        (own, f"write {own}:Class"),
        ("nowhere.py", "there is no file nowhere.py"),
        (empty, "the file defines no class, or cannot be read"),
        (own.parent, "this is a folder; write the file in it and its class: FILE.py:Class"),
    ):
        with pytest.raises(SpecStringError) as error:
            registry.make("attack", str(written))
        assert sentence(error).endswith(said)


def test_a_class_of_another_kind_is_told(own: Path) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make("attack", f"{own}:Mine")
    assert sentence(error).endswith("Mine is not a subclass of thiefbench.attacks.base.Attack; it is a defense")


def test_a_name_near_nothing_gets_the_list_alone() -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", "qqqqqqqqqq")
    assert "did you mean" not in sentence(error)
    assert "known: arithmetic, " in str(error.value)


def test_a_class_in_a_file(own: Path) -> None:
    made = registry.make("defense", f"{own}:Mine(level=0.25)")
    assert (made.name, made.level) == ("mine", 0.25)


def test_a_class_in_a_file_given_relatively(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    assert registry.make("defense", "own.py:Mine").level == 0.5
    assert registry.make("defense", "./own.py:Mine").level == 0.5


def test_two_files_of_one_name_are_two_modules(own: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "own.py"
    other.parent.mkdir()
    other.write_text(OWN.replace("0.5", "0.75"))
    specs = [f"{path}:Mine" for path in (own, other)]
    assert [registry.make("defense", spec).level for spec in specs] == [0.5, 0.75], "each file gives its own class"
    hashes = [registry.source_hash("defense", spec) for spec in specs]
    assert hashes[0] != hashes[1], "two files with other contents and one name have two source hashes"


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{folder}/none.py:Mine", "there is no file"),
        ("{folder}:Mine", "there is no file"),
        ("{own}:Yours", "has no class Yours; it has Mine"),
        ("{own}:Mien", "own.py has no class Mien; did you mean Mine? it has Mine"),
        ("{own}:helper", "helper in {own} is a function, not a class; it has Mine"),
        ("{own}:", "is named without a class; it has Mine"),
        ("{own}:NOTHING", "NOTHING"),
    ],
)
def test_a_file_or_class_that_is_not_there(own: Path, written: str, complaint: str) -> None:
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", written.format(own=own, folder=own.parent))
    assert complaint.format(own=own) in sentence(error)
    assert sentence(error).count("own.py") <= 1, "a path is said once"


@pytest.mark.parametrize("content", ["def (", "import not_there_at_all", "1 / 0", "raise SystemExit(3)", "\0"])
def test_a_file_that_does_not_load(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(content)
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", f"{path}:Mine")
    assert "while loading it" in sentence(error)
    assert str(path) in str(error.value)


MISTAKEN = """
from thiefbench.defenses.base import Defense
class Base(Defense):
    name = "mine"
    def inspect(self, view): return []
class Misspelt(Defense):
    name = "misspelt"
    def inspekt(self, view): return []
class Empty(Defense):
    name = "empty"
class Failing(Base):
    def __init__(self, floor: float = 1):
        self.floor = flor
class Refusing(Base):
    def __init__(self, floor: float):
        raise ValueError("floor is too low")
"""


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("Misspelt", "Misspelt lacks the method inspect; is inspekt misspelt?"),
        ("Empty", "Empty lacks the method inspect"),
        ("Failing", "NameError: name 'flor' is not defined (own.py, line 13)"),
        ("Refusing(floor=2)", "floor is too low (own.py, line 16)"),
        ("Refusing(flor=2)", "got an unexpected keyword argument 'flor'; did you mean floor? its arguments: floor"),
        ("Refusing", "Refusing(floor=...); its arguments: floor"),
    ],
)
def test_a_mistake_in_ones_own_class_is_a_sentence_with_its_line(tmp_path: Path, written: str, complaint: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(MISTAKEN)
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", f"{path}:{written}")
    assert sentence(error).endswith(complaint)


def test_an_error_while_loading_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("first = 1\n\nsecond = frist\n")
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", f"{path}:Mine")
    assert sentence(error).endswith("NameError while loading it: name 'frist' is not defined (broken.py, line 3)")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("random(ratio=0.1)", r"'ratio'; did you mean rate\? its arguments: rate$"),
        ("none(rate=0.1)", r"its arguments: none$"),
        ("logit(reject='drop', strict=1)", r"its arguments: reject, tolerance, reach$"),
        ("random(rate=2)", r"rate must lie in \[0, 1\], got 2"),
        ("random(rate='much')", r"random: rate must be a number, got 'much'$"),
    ],
)
def test_bad_arguments_name_the_allowed_ones(spec: str, complaint: str) -> None:
    with pytest.raises(SpecStringError, match=complaint) as error:
        registry.make("defense", spec)
    sentence(error)


THREAT = "from thiefbench.attacks.base import ThreatModel; threat = ThreatModel"


@pytest.mark.parametrize(
    ("kind", "base", "body", "complaint"),
    [
        ("defense", "Defense", "requires = frozenset()", r"Mine has no name; set name in the class to a string$"),
        ("defense", "Defense", "name = 3", r"name of Mine must be a string, not 3$"),
        ("defense", "Defense", "name = 'm'; requires = 'beacon'", r"requires of Mine must be a set of .*'beacon'$"),
        ("defense", "Defense", "name = 'm'; judge = 'micro-judge'", r"judge of Mine must be a JudgeSpec or None, not"),
        (
            "defense", "Defense", "name = 'm'\n    def judge(self, row): pass",
            r"the method judge of Mine takes the place of a JudgeSpec or None; give the method another name$",
        ),
        (
            "defense", "Defense", "name = 'm'; requires = frozenset({'beacon', 'homogenous'})",
            r"requires of Mine has 'homogenous'; did you mean homogeneous\? known: homogeneous, .*, rule_rewards$",
        ),
        ("attack", "Attack", "name = 'm'", r"Mine has no threat; set threat in the class to a ThreatModel$"),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in context')",
            r"in the threat of Mine, context must be 'in-context' or 'out-of-context', not 'in context'$",
        ),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context', 'vertical')",
            r"topologies must be a set of one or both of 'vertical' and 'horizontal', not 'vertical'$",
        ),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context', frozenset({{'sideways'}}))",
            r"topologies must be a set of one or both of 'vertical' and 'horizontal', not frozenset\({'sideways'}\)$",
        ),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context', oracle='no')",
            r"oracle must be True or False, not 'no'$",
        ),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context', queries=True)",
            r"queries must be a whole number of at least 0, not True$",
        ),
        ("task", "Task", "name = 'm'; splits = 3", r"splits of Mine must be a tuple, not 3$"),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context')\n    def draw(self, task, seed): return self",
            r"the method draw of Mine is called with \(rng\), as in Attack, and takes \(task, seed\)$",
        ),
        (
            "attack", "Attack", f"name = 'm'; {THREAT}('in-context')\n    @staticmethod\n    def poison(): return []",
            r"the method poison of Mine is called with \(view\), as in Attack, and takes \(\)$",
        ),
        (
            "defense", "Defense", "name = 'm'\n    def inspect(self, view, rng): return []",
            r"the method inspect of Mine is called with \(view\), as in Defense, and takes \(view, rng\)$",
        ),
        ("defense", "Defense", "name = 'm'; state = {}", r"state of Mine must be a method, as in Defense, not \{\}$"),
        (
            "task", "Task", "name = 'm'; splits = ()\n    def reward(self, item, *, completions): return []",
            r"the method reward of Mine is called with .*, as in Task, and takes \(item, \*, completions\)$",
        ),
    ],
)  # fmt: skip
def test_a_constant_of_another_kind_is_told_before_a_run(
    kind: registry.Kind, base: str, body: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        f"from thiefbench.{kind}s.base import {base}\n\nclass Mine({base}):\n    {body}\n"
        f"Mine.__abstractmethods__ = frozenset()\n"
    )
    with pytest.raises(SpecStringError, match=complaint) as error:
        registry.make(kind, f"{path}:Mine")
    sentence(error)


def test_methods_may_take_more_than_they_are_called_with(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from thiefbench.defenses.base import ACCEPT, Defense\n\nclass Mine(Defense):\n    name = 'm'\n"
        "    def inspect(self, pool, strictly=True, *rest, **options): return [ACCEPT for _ in pool.completions]\n"
        "    @classmethod\n    def prove(cls, *states): return b''\n    state = lambda self: {}\n"
    )
    assert registry.make("defense", f"{path}:Mine").name == "m"


@pytest.mark.parametrize("kind", get_args(registry.Kind))
def test_methods_of_the_built_in_classes_are_called_as_their_base_class_says(kind: registry.Kind) -> None:
    found = [] if kind == "suite" else [registry.find(kind, name) for name in registry.names(kind)]
    assert found or kind == "suite"
    assert [
        wrong
        for plugin in found
        for base in _CALLED
        if issubclass(plugin, base) and (wrong := _wrong_method(plugin, base))
    ] == []


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("gsm_micro(size=1000000000)", r"gsm_micro: size must be at most 100,000, got 1,000,000,000$"),
        ("gsm_micro(size=1e300)", r"gsm_micro: size must be a whole number, got 1e\+300$"),
        ("code_micro(size=True)", r"code_micro: size must be a whole number, got True$"),
        ("code_micro(seed=None)", r"code_micro: seed must be a whole number, got None$"),
        ("gsm_micro(seed=[])", r"gsm_micro: seed must be a whole number, got \[\]$"),
        ("gsm_micro(size=0)", r"size must be at least 1, got 0$"),
    ],
)
def test_no_task_makes_items_without_an_end(spec: str, complaint: str) -> None:
    with pytest.raises(SpecStringError, match=complaint) as error:
        registry.make("task", spec)
    sentence(error)


@pytest.mark.parametrize(
    ("kind", "spec", "complaint"),
    [
        ("attack", "text(phrase=3)", "attack text: phrase must be text in quotes or None, got 3"),
        ("attack", "tone(address=True)", "attack tone: address must be text in quotes or None, got True"),
        ("attack", "text(position=1)", "position must be one of 'start', 'middle', 'end', 'every' or None, got 1"),
        (
            "attack",
            "code_injection(library='x', functions=['add'])",
            "functions must be a dictionary from texts in quotes to texts in quotes or None, got ['add']",
        ),
        ("attack", "varied(attack='text(phrase=3)')", "attack text: phrase must be text in quotes or None, got 3"),
        ("defense", "likelihood(tail=1.5)", "defense likelihood: tail must be a whole number, got 1.5"),
        ("defense", "likelihood(tail=True)", "defense likelihood: tail must be a whole number, got True"),
        ("defense", "likelihood(false_rejection='x')", "likelihood: false_rejection must be a number, got 'x'"),
        ("defense", "none+likelihood(window=None)", "defense likelihood: window must be a whole number, got None"),
        ("defense", "guard(beacon=1)", "defense guard: beacon must be True or False, got 1"),
        ("defense", "static_code(allow='numpy')", "allow must be a list of texts in quotes, got 'numpy'"),
        ("defense", "static_code(allow={'numpy': 1})", "allow must be a list of texts in quotes, got {'numpy': 1}"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_a_sentence(kind: registry.Kind, spec: str, complaint: str) -> None:
    for refuse in (registry.make, registry.check_names):
        with pytest.raises(SpecStringError) as error:
            refuse(kind, spec)
        assert sentence(error).endswith(complaint)


TYPED = """
from thiefbench.defenses.base import Defense
class Mine(Defense):
    name = "mine"
    def __init__(self, floor: float = 1.0, words: "tuple[str, ...]" = (), most: int = None, other: object = 0):
        self.floor = floor
    def inspect(self, view): return []
"""


def test_only_what_an_annotation_rules_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(TYPED)
    for arguments in ("floor=2", "words=['a']", "words=()", "most=None", "most=3", "other='x'"):
        registry.make("defense", f"{path}:Mine({arguments})")
    with pytest.raises(SpecStringError, match=r"own.py:Mine: words must be a list of texts in quotes, got \[1\]$"):
        registry.make("defense", f"{path}:Mine(words=[1])")


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("logit", "logit"),
        ("logit()", "logit"),
        ("logit(reject='zero', tolerance=None)", "logit"),
        ("logit(tolerance=0.5,reject='zero')", "logit(tolerance=0.5)"),
        ('logit(tolerance=0.5,  reject="drop")', "logit(reject='drop', tolerance=0.5)"),
        ("logit(reject='drop', tolerance=0.5)", "logit(reject='drop', tolerance=0.5)"),
    ],
)
def test_the_canonical_form_sorts_and_drops_defaults(spec: str, canonical: str) -> None:
    assert registry.canonical("defense", spec) == canonical
    assert registry.canonical("defense", canonical) == canonical


def test_the_canonical_form_of_a_file_keeps_its_path(own: Path) -> None:
    assert registry.canonical("defense", f"{own}:Mine(words=(), level=1)") == f"{own}:Mine(level=1)"


def test_a_file_s_source_hash_follows_its_content(own: Path) -> None:
    spec = f"{own}:Mine"
    before = registry.source_hash("defense", spec)
    (own.parent / "other.py").write_text("NOTE = 1\n")
    assert registry.source_hash("defense", spec) == before, "a user's file counts alone"
    own.write_text(OWN + "\n# changed\n")
    assert registry.source_hash("defense", spec) != before, "a user's file counts whole"


IMPORTING = OWN.replace("NOTHING = 0", "from helper import NOTHING")


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's file with a module beside it, which imports another one, and one elsewhere on Python's path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    folder, library = tmp_path / "mine", tmp_path / "library"
    for path, text in {
        folder / "mine.py": IMPORTING,
        folder / "helper.py": "from parts.words import NOTHING\nimport far\n",
        folder / "parts/words.py": "import importlib\nNOTHING = 0\nLATE = 'parts.late'\n"
        "late = importlib.import_module\n",
        folder / "parts/late.py": "",
        folder / "unrelated.py": "",
        library / "far/__init__.py": "from .inner import *\n",
        library / "far/inner/__init__.py": "__all__ = ['deep']\n",
        library / "far/inner/deep.py": "",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.path.append(str(library))
    monkeypatch.setattr(user_imports, "_search_path", tuple(sys.path))
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


IMPORTED = ["helper.py", "parts/words.py", "parts/late.py", "../library/far/__init__.py"]
IMPORTED += ["../library/far/inner/__init__.py", "../library/far/inner/deep.py"]


@pytest.mark.parametrize("load", [True, False])
@pytest.mark.parametrize("changed", IMPORTED)
def test_a_file_counts_with_the_user_s_modules_that_it_imports(importing: Path, changed: str, load: bool) -> None:
    spec = f"{importing}/mine.py:Mine"
    before = registry.source_hash("defense", spec, load=load)
    (importing / "unrelated.py").write_text("NOTE = 1\n")
    assert registry.source_hash("defense", spec, load=load) == before, "no file imports it"
    (importing / changed).write_text((importing / changed).read_text() + "MORE = 1\n")
    assert registry.source_hash("defense", spec, load=load) != before


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("import runpy\nrunpy.run_path(str(Path(__file__).with_name('stage.py')))\n", "deep.py"),
        ("import hp.b\n", "hp/up.py"),
        ("from importlib import import_module as load\nload('.up', 'hp')\n", "hp/up.py"),
        ("import importlib\nimportlib.import_module(package='hp.b', name='..up')\n", "hp/up.py"),
    ],
)
def test_code_that_is_reached_in_another_way_counts_too(tmp_path: Path, source: str, changed: str) -> None:
    """By the name of its file, by two dots, or from a package that the call names."""
    for path, text in {
        "mine.py": f"from pathlib import Path\n{source}{OWN}",
        "stage.py": "import deep\n",
        "deep.py": "",
        "hp/__init__.py": "",
        "hp/up.py": "",
        "hp/b/__init__.py": "import importlib\nimportlib.import_module('..up', __package__)\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    before = registry.source_hash("defense", f"{tmp_path}/mine.py:Mine", load=False)
    (tmp_path / changed).write_text("MORE = 1\n")
    assert registry.source_hash("defense", f"{tmp_path}/mine.py:Mine", load=False) != before


def test_sources_among_compiled_files_count(tmp_path: Path) -> None:
    hashes = []
    for path in ("__init__.py", "__pycache__/one.pyc", "__pycache__/one.py"):
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / path).write_text(OWN)
        hashes.append(registry.source_hash("defense", f"{tmp_path}/mine/__init__.py:Mine", load=False))
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_home_of_nobody_holds_no_file() -> None:
    with pytest.raises(SpecStringError, match=r"there is no file ~no-such-user/mine\.py"):
        registry.make("defense", "~no-such-user/mine.py:Mine")


def test_hidden_files_and_folders_without_entry_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hp").mkdir()
    for path in ("mine.py", "hp/__init__.py", "hp/one.py"):
        (tmp_path / path).write_text("from hp import *\n")
    found = user_imports.imported([tmp_path / "mine.py"], tmp_path)
    assert [each.name for each in found.modules] == ["hp", "hp.one"]
    (tmp_path / "hp/.hidden").write_text("")
    closed = tmp_path / "closed"
    monkeypatch.setattr(user_imports, "_search_path", (str(closed), *sys.path))

    def scandir(folder: Path) -> Any:
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    listing = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert user_imports.imported([tmp_path / "mine.py"], tmp_path) == found


READING = (
    OWN
    + """
from pathlib import Path

HERE = Path(__file__).parent
FILES = [HERE / "words.txt", HERE / "tables/rates.csv", HERE / "../outside.txt", HERE / "absent.txt"]
"""
)


@pytest.mark.parametrize("load", [True, False])
@pytest.mark.parametrize(
    ("changed", "counts"),
    [("words.txt", True), ("tables/rates.csv", True), ("words.csv", False), ("../outside.txt", False)],
)
def test_a_file_counts_with_the_data_files_that_it_names(
    tmp_path: Path, changed: str, counts: bool, load: bool
) -> None:
    folder = tmp_path / "mine"
    (folder / "tables").mkdir(parents=True)
    (folder / "mine.py").write_text(READING)
    for name in ("words.txt", "tables/rates.csv", "words.csv", "../outside.txt"):
        (folder / name).write_text("one\n")
    spec = f"{folder}/mine.py:Mine"
    before = registry.source_hash("defense", spec, load=load)
    (folder / changed).write_text("two\n")
    assert (registry.source_hash("defense", spec, load=load) != before) is counts


def test_data_counts_that_only_an_imported_module_names(importing: Path) -> None:
    """Relative to that module's own folder; not a word of the code, nor a submission's weights, named by content."""
    spec, weights = f"{importing}/mine.py:Mine", f"net-{'0' * 64}.safetensors"
    words = importing / "parts/words.py"
    words.write_text(f"{words.read_text()}FILES = 'words.txt', 'log', {weights!r}, {'x' * 400!r}, 'a\\0b', '\\udc80'\n")
    hashes = [registry.source_hash("defense", spec, load=False)]
    for name in (weights, "log", "words.txt", "../words.txt"):
        (words.parent / name).write_text("one\n")
        hashes.append(registry.source_hash("defense", spec, load=False))
    plain, with_weights, with_log, with_words, with_another = hashes
    assert plain == with_weights == with_log
    assert with_log != with_words == with_another


def test_a_file_counts_the_same_whether_it_was_loaded_or_not(importing: Path) -> None:
    spec = f"{importing}/mine.py:Mine"
    before = registry.source_hash("defense", spec, load=False)
    assert "helper" not in sys.modules
    assert registry.source_hash("defense", spec) == before
    assert "helper" in sys.modules
    assert registry.source_hash("defense", spec, load=False) == before
    other = importing.parent / "elsewhere"
    importing.rename(other)
    assert registry.source_hash("defense", f"{other}/mine.py:Mine", load=False) == before, "no path counts"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a/words.txt": "x", "b/words.txt": "y"}, {"a/words.txt": "x", "c/words.txt": "y"}),
        ({"a/words.txt": "x", "b/words.txt": "y"}, {"a/words.txt": "x", "words.txt": "y"}),
        ({"strict/rule.py": "LIMIT = 1\n"}, {"loose/rule.py": "LIMIT = 1\n"}),
        ({"a.txt": "x", "b.txt": "y"}, {"a.txt": "xb.txt\0y"}),
        ({"a.txt": "", "b.txt": "y"}, {"a.txt": "b.txt\0y"}),
        ({"a.txt": "module helper\0y"}, {"a.txt": "", "helper.py": "y"}),
    ],
)
@pytest.mark.parametrize("load", [True, False])
def test_different_packages_have_different_hashes(
    tmp_path: Path, one: dict[str, str], other: dict[str, str], load: bool
) -> None:
    """Before, folders did not count, nor where one file ends and the next one begins: most of these hashed alike."""
    hashes = []
    for number, files in enumerate((one, other)):
        package = tmp_path / str(number) / "mine"
        for name, text in ({"__init__.py": "", "mine.py": OWN} | files).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text)
        hashes.append(registry.source_hash("defense", f"{package}/mine.py:Mine", load=load))
    assert hashes[0] != hashes[1]


def test_what_a_run_writes_into_the_package_does_not_count(tmp_path: Path) -> None:
    """Otherwise the cells of a run that was started in the folder of the package had other ids at its next start."""
    package = tmp_path / "mine"
    package.mkdir()
    for name, text in {"__init__.py": "", "mine.py": OWN, "words.json": "[]"}.items():
        (package / name).write_text(text)
    spec = f"{package}/mine.py:Mine"
    before = registry.source_hash("defense", spec, load=False)
    for written, text in {
        "runs/smoke/run.json": '{"fingerprint": ""}', "runs/smoke/cells/0123/record.json": "{}",
        "entries/filter/entry.json": '{"source_sha256": ""}', "entries/filter/scores.json.gz": "",
        "entries/filter/more.json": "{}",
    }.items():  # fmt: skip
        (package / written).parent.mkdir(parents=True, exist_ok=True)
        (package / written).write_text(text)
    assert registry.source_hash("defense", spec, load=False) == before
    (package / "runs/smoke/code.py").write_text("")
    assert registry.source_hash("defense", spec, load=False) != before, "code counts wherever it lies"
    (package / "runs/smoke/code.py").unlink()
    (package / "runs/smoke/run.json").write_text("{}")
    assert registry.source_hash("defense", spec, load=False) != before, "this is somebody's data"
    (package / "runs/smoke/run.json").write_text('{"fingerprint": ""}')
    (package / "runs/words.json").write_text("[]")
    assert registry.source_hash("defense", spec, load=False) != before, "a folder's name does not hide data"


def test_data_of_one_name_in_two_folders_cannot_change_places(importing: Path) -> None:
    """Which of two files is named by which module counts, whatever the order of their paths is."""
    spec, hashes = f"{importing}/mine.py:Mine", []
    for name in ("helper.py", "parts/words.py"):
        (importing / name).write_text(f"{(importing / name).read_text()}FILE = 'words.txt'\n")
    for folder, content in (("parts", "one"), (".", "two"), ("parts", "two"), (".", "one")):
        (importing / folder / "words.txt").write_text(content)
        hashes.append(registry.source_hash("defense", spec, load=False))
    assert len(set(hashes)) == len(hashes)


def test_a_module_beside_and_one_elsewhere_of_one_name_cannot_change_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one beside the file is what Python imports, whichever of their paths comes first in the alphabet."""
    hashes = []
    for beside, elsewhere in (("a", "b"), ("d", "c")):
        for folder, text in ((beside, IMPORTING), (elsewhere, "")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "mine.py").write_text(text)
        (tmp_path / min(beside, elsewhere) / "helper.py").write_text("NOTHING = 0\n")
        (tmp_path / max(beside, elsewhere) / "helper.py").write_text("NOTHING = 1\n")
        monkeypatch.setattr(user_imports, "_search_path", (*sys.path, str(tmp_path / elsewhere)))
        hashes.append(registry.source_hash("defense", f"{tmp_path / beside}/mine.py:Mine", load=False))
    assert hashes[0] != hashes[1]


def test_a_file_counts_with_what_it_takes_of_this_package(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write_text(OWN.replace("NOTHING = 0", "from thiefbench.defenses.logit import Logit"))
    before = registry.source_hash("defense", f"{own}:Mine")
    digests = {name: package_meaning.room_digest(name) for name in ("thiefbench.defenses.logit", "thiefbench.trust")}
    assert digests["thiefbench.trust"] is None
    monkeypatch.setattr(registry, "room_digest", lambda name: b"other" if digests.get(name) else None)
    assert registry.source_hash("defense", f"{own}:Mine") != before


def test_a_module_of_the_same_name_from_elsewhere_is_refused(importing: Path) -> None:
    """Otherwise the file that counts would not be the one that runs."""
    registry.find("defense", f"{importing}/mine.py:Mine")
    other = importing.parent / "other"
    other.mkdir()
    (other / "mine.py").write_text(IMPORTING)
    (other / "helper.py").write_text("NOTHING = 1\n")
    with pytest.raises(SpecStringError, match=r"it imports helper, which may be .*other/helper.py, but .*mine/helper"):
        registry.find("defense", f"{other}/mine.py:Mine")


MINE = """{imports}
from thiefbench.defenses.base import Defense

class Mine(Defense):
    '''Looks twice.'''

    name = "parlour"

    def inspect(self, view):
        return []
"""
MODULES = {
    "__init__.py": "",
    "mine.py": MINE,
    "helper.py": "from parlour.deeper import NOTE as DEEPER\nNOTE = 1\n",
    "deeper.py": "NOTE = 2\n",
    "unrelated.py": "NOTE = 3\n",
    "words.txt": "ash oak elm\n",
    "table.json": "{}\n",
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Installs a package with the defense `parlour`, whose module holds the given import statement."""

    def install(imports: str) -> Path:
        package = tmp_path / "parlour"
        package.mkdir()
        for name, content in MODULES.items():
            (package / name).write_text(content.replace("{imports}", imports))
        info = tmp_path / "parlour-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parlour\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[thiefbench.defenses]\nparlour = parlour.mine:Mine\n")
        monkeypatch.syspath_prepend(tmp_path)
        registry._entries.cache_clear()
        return package

    yield install
    registry._entries.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "parlour"]:
        del sys.modules[name]
    importlib.invalidate_caches()


IMPORTS = (
    "from parlour.helper import NOTE",
    "from .helper import NOTE",
    "from parlour import helper",
    "from . import helper",
    "import parlour.helper",
    "import parlour.helper as aid",
)


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("changed", ["mine.py", "helper.py", "deeper.py", "words.txt", "table.json"])
def test_a_packaged_source_hash_follows_what_the_class_uses(
    plugin: Callable[[str], Path], imports: str, changed: str
) -> None:
    package = plugin(imports)
    before = registry.source_hash("defense", "parlour")
    assert registry.source_hash("defense", "parlour") == before, "an unchanged package keeps its hash"
    with (package / changed).open("a") as file:
        file.write("MORE = 1\n")
    assert registry.source_hash("defense", "parlour") != before, f"{changed} defines what the class does"


@pytest.mark.parametrize("imports", IMPORTS)
def test_a_packaged_source_hash_ignores_unrelated_modules(plugin: Callable[[str], Path], imports: str) -> None:
    package = plugin(imports)
    before = registry.source_hash("defense", "parlour")
    (package / "unrelated.py").write_text("NOTE = 4\n")
    (package / "new.py").write_text("NOTE = 5\n")
    assert registry.source_hash("defense", "parlour") == before, "an unrelated plugin leaves results valid"


def test_a_packaged_source_hash_ignores_what_python_compiles(plugin: Callable[[str], Path]) -> None:
    package = plugin(IMPORTS[0])
    before = registry.source_hash("defense", "parlour")
    (package / "__pycache__" / "more.txt").parent.mkdir(exist_ok=True)
    (package / "__pycache__" / "more.txt").write_text("compiled")
    assert registry.source_hash("defense", "parlour") == before, "what Python compiles does not count"


IN_PACKAGE = "parlour.mine:Mine"


def test_a_class_in_an_importable_module_has_a_spec_string(plugin: Callable[[str], Path]) -> None:
    plugin(IMPORTS[0])
    assert registry.make("defense", IN_PACKAGE).__class__.__module__ == "parlour.mine"
    assert registry.canonical("defense", f"{IN_PACKAGE}()") == IN_PACKAGE
    assert registry.parts("defense", f"{IN_PACKAGE}+similarity") == [IN_PACKAGE, "similarity"]


@pytest.mark.parametrize("changed", ["mine.py", "unrelated.py", "deep/table.bin"])
def test_the_source_hash_of_a_class_in_a_module_covers_its_whole_folder(
    plugin: Callable[[str], Path], changed: str
) -> None:
    package = plugin(IMPORTS[0])
    (package / "deep").mkdir()
    (package / changed).touch()
    before = registry.source_hash("defense", IN_PACKAGE)
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "mine.pyc").write_bytes(b"compiled")
    (package / ".hidden").write_text("notes")
    assert registry.source_hash("defense", IN_PACKAGE) == before, "what Python compiles and what is hidden do not count"
    with (package / changed).open("a") as file:
        file.write("\n")
    assert registry.source_hash("defense", IN_PACKAGE) != before, f"{changed} may change what the class does"


def test_a_module_where_one_stands_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parlour_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert registry.make("defense", "parlour_here:Mine(level=0.25)").level == 0.25
        assert sys.path[-1] == str(tmp_path), "it hides nothing that is installed"
    finally:
        del sys.modules["parlour_here"]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (
            "parlor.mine:Mine",
            "there is no module parlor to import; install its package, run the command in the directory that holds",
        ),
        ("parlour.none:Mine", "there is no module parlour.none to import"),
        ("parlour.mine:Yours", "parlour.mine has no class Yours; it has Mine"),
        ("parlour.broken:Mine", "ZeroDivisionError while importing parlour.broken"),
        ("parlour.needy:Mine", "ModuleNotFoundError while importing parlour.needy: No module named 'nowhere_at_all'"),
    ],
)
def test_a_mistake_in_a_module_s_name_is_one_sentence(
    plugin: Callable[[str], Path], target: str, complaint: str
) -> None:
    package = plugin(IMPORTS[0])
    (package / "broken.py").write_text("1 / 0")
    (package / "needy.py").write_text("import nowhere_at_all")
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", target)
    assert complaint in sentence(error)


def test_a_third_party_s_plugin_is_listed_like_a_built_in_one(plugin: Callable[[str], Path]) -> None:
    plugin(IMPORTS[0])
    assert "parlour" in registry.names("defense")
    assert registry.summary("defense", "parlour") == "Looks twice."
    assert registry.make("defense", "parlour").__class__.__module__ == "parlour.mine"


def test_an_entry_says_where_a_name_is_declared(plugin: Callable[[str], Path]) -> None:
    plugin("import nothing_that_exists")
    assert registry.entry("defense", "parlour").value == "parlour.mine:Mine", "an entry is read without loading it"
    assert registry.entry("suite", "smoke").value == "thiefbench.suite:smoke.yaml"
    with pytest.raises(registry.SpecStringError, match="no suite named 'smoky'; did you mean smoke"):
        registry.entry("suite", "smoky")


def test_names_are_sorted_and_known() -> None:
    assert registry.names("defense") == sorted(registry.names("defense"))
    assert {"none", "reject_all", "random", "oracle", "blacklist", "logit"} <= set(registry.names("defense"))
    assert "text" in registry.names("attack")
    assert {"gsm8k", "gsm_micro"} <= set(registry.names("task"))
    assert "smoke" in registry.names("suite")


@pytest.mark.parametrize("kind", ["attack", "defense", "task", "stage_check", "stage_attack"])
def test_every_plugin_says_in_a_line_what_it_is(kind: registry.Kind) -> None:
    for name in registry.names(kind):
        assert registry.summary(kind, name), f"the class docstring of {kind} {name} has a first line for the list"


LISTING = """
import json, sys
from thiefbench import registry
for kind in ("attack", "defense", "task", "suite"):
    for name in registry.names(kind):
        registry.summary(kind, name)
plugins = {e.module for k in ("attack", "defense", "task") for e in (registry.entry(k, n) for n in registry.names(k))}
heavy = {"torch", "transformers", "datasets", "numpy", "pyarrow"}
print(json.dumps(sorted((plugins | heavy) & set(sys.modules))))
"""


def test_listing_imports_neither_torch_nor_the_plugins() -> None:
    done = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [], "names and summaries are read without importing anything heavy"


# --- a user's package ---


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A class in a module that imports another of its folder, and is imported by its ``__init__``."""
    folder = tmp_path / "mine.v2"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .own import Mine\n")
    (folder / "own.py").write_text(OWN.replace("NOTHING = 0", "from .deep.helper import NOTHING"))
    (folder / "deep/__init__.py").touch()
    (folder / "deep/helper.py").write_text("NOTHING = 0\n")
    (folder / "words.txt").write_text("hail")
    return folder


def test_a_file_beside_an_init_is_a_module_of_that_package(package: Path) -> None:
    made = registry.make("defense", f"{package}/own.py:Mine(level=0.25)")
    assert made.level == 0.25
    there = registry.find("defense", f"{package}/__init__.py:Mine")
    assert there is type(made), "imported by its package or named itself, it is one class"


def test_a_user_s_package_counts_whole(package: Path) -> None:
    def hashed() -> str:
        return registry.source_hash("defense", f"{package}/own.py:Mine")

    before = hashed()
    (package / "notes.md").write_text("nothing that runs")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__/own.pyc").touch()
    assert hashed() == before
    for name in ("__init__.py", "deep/helper.py", "words.txt"):
        text = (package / name).read_text()
        (package / name).write_text(text + "\n")
        assert hashed() != before, f"{name} is part of its source"
        (package / name).write_text(text)
    assert hashed() == before


def test_a_package_that_does_not_load_is_named(package: Path) -> None:
    (package / "deep/helper.py").write_text("NOTHING = 1 / 0\n")
    with pytest.raises(SpecStringError) as error:
        registry.make("defense", f"{package}/own.py:Mine")
    assert "__init__.py: ZeroDivisionError while loading it: division by zero" in sentence(error)


def test_taking_a_spec_string_apart_reads_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a stranger's, and a suite's file has room for a hundred thousand names."""
    real, read = registry._CLASS_IN_FILE, []

    class Counting:
        def search(self, text: str) -> object:
            read.append(len(text))
            return real.search(text)

    monkeypatch.setattr(registry, "_CLASS_IN_FILE", Counting())
    spec = "x+" * 2000 + "y:Z"
    assert registry.parts("defense", spec) == [spec]
    assert sum(read) <= len(spec)
    with pytest.raises(registry.SpecStringError, match="100,001 characters, and at most 100,000 are allowed"):
        registry.parse("defense", "x" * 100_001)
