"""Which spec string an object stands for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from thiefbench import registry
from thiefbench.defenses.base import Defense
from thiefbench.defenses.logit import Logit
from thiefbench.defenses.reputation import Reputation
from thiefbench.defenses.similarity import Similarity
from thiefbench.testing.bounds import MisuseError
from thiefbench.testing.specs import spec_of

SOURCE = """
from thiefbench.defenses.base import ACCEPT, Defense

class Base(Defense):
    name = "base"
    def inspect(self, view):
        return [ACCEPT] * len(view.completions)

class Mine(Base):
    def __init__(self, level=0.5, words=()):
        self.level, self.words = level, words

class Counts(Base):
    def __init__(self, level=0.5):
        self.level, self.words, self.seen, self.lock = level, ["thief"], 0, object()

class Salted(Base):
    def __init__(self):
        self.salt = __import__("random").getrandbits(60)

class Forgets(Base):
    def __init__(self, level=0.5):
        self.limit = level

class Scales(Base):
    def __init__(self, level=0.5):
        self.level = level / 100

class Open(Base):
    def __init__(self, **level):
        self.level = level

def local():
    class Inner(Base):
        pass
    return Inner()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where one stands, with a file and a package that holds the same."""
    package = tmp_path / "spec_filters"
    package.mkdir()
    for name, content in (("__init__.py", "from .inner import Mine"), ("inner.py", SOURCE)):
        (package / name).write_text(content)
    (tmp_path / "alone.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("spec_filters", "alone_loaded")]:
        del sys.modules[name]


@pytest.fixture
def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module("spec_filters")


@pytest.fixture
def alone(folder: Path) -> ModuleType:
    """The file, loaded as pytest loads a test file: under a name that nobody else can import."""
    located = importlib.util.spec_from_file_location("alone_loaded", folder / "alone.py")
    assert located is not None
    assert located.loader is not None
    module = importlib.util.module_from_spec(located)
    sys.modules["alone_loaded"] = module
    located.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("defense", "spec"),
    [
        ("logit(reject='zero')", "logit"),
        (Logit, "logit"),
        (Logit(reject="drop"), "logit(reject='drop')"),
        (Reputation(defense=Similarity(words=3), rounds=4), "reputation(defense='similarity(words=3)', rounds=4)"),
        (registry.make("defense", "logit+similarity(words=3)"), "logit+similarity(words=3)"),
    ],
)
def test_a_built_in_defense_goes_by_its_name(defense: str | Defense, spec: str) -> None:
    assert spec_of(defense) == spec


def test_a_packaged_class_goes_by_its_module(package: ModuleType) -> None:
    assert spec_of(package.Mine(level=0.25)) == "spec_filters.inner:Mine(level=0.25)"
    assert spec_of(package.Mine) == "spec_filters.inner:Mine"


def test_another_class_goes_by_its_file(alone: ModuleType) -> None:
    spec = spec_of(alone.Mine(words=("a", "b")))
    assert spec == "alone.py:Mine(words=('a', 'b'))", "seen from where one stands"
    assert registry.make("defense", spec).words == ("a", "b")


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (
            "Forgets()",
            "Forgets does not keep its argument level; write self.level = level in its constructor, or pass a",
        ),
        ("Scales(50)", "does not keep its argument level unchanged"),
        ("Open(level=1)", "the constructor of Open takes **level, which cannot be read back"),
        (
            "Mine(level=Base())",
            "Mine does not keep its argument level unchanged (made again with 'alone.py:Base'",
        ),
        ("Mine(level=float('inf'))", "the argument level of Mine is inf, which a spec string cannot hold"),
        ("Mine(words=Path('a'))", "the argument words of Mine is PosixPath('a'), which a spec string cannot hold"),
        ("local()", "local.<locals>.Inner cannot be found by another process"),
        ("3", "3 is not a defense; pass an instance or a subclass of"),
    ],
)
def test_what_has_no_spec_string_says_what_to_write(alone: ModuleType, made: str, complaint: str) -> None:
    with pytest.raises(MisuseError) as error:
        spec_of(eval(made, vars(alone) | {"Path": Path}))
    assert complaint in str(error.value)
    assert "or pass a spec string, as in defense='path/to/file.py:Class(key=value)'" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_was_changed_after_the_constructor_is_lost_in_trained_swarms(alone: ModuleType) -> None:
    fresh = alone.Counts(level=0.25)
    assert spec_of(fresh) == "alone.py:Counts(level=0.25)"
    fresh.words = ["tiger"]
    assert spec_of(alone.Salted()) == "alone.py:Salted", "nobody changed what differs by itself"
    with pytest.raises(MisuseError, match=r"^words of this Counts is \['tiger'\], and made again it is \['thief'\]: "):
        spec_of(fresh)
