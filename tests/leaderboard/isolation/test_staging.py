"""A submission lies in one place wherever it runs: all it needs is there, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from tests.leaderboard import made_entries
from thiefbench import registry
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.entry_validation import wrong_import, wrong_size
from thiefbench.leaderboard.isolation.isolated import Isolated
from thiefbench.leaderboard.isolation.staging import restage, stage
from thiefbench.leaderboard.manifest import Packed
from thiefbench.tasks import sandbox
from thiefbench.tasks.sandbox import SandboxUnavailable

PLAIN = """from thiefbench.defenses.base import ACCEPT, Defense


class Mine(Defense):
    name = "mine"

    def __init__(self, told="nothing"):
        self.told = told

    def inspect(self, view):
        return [ACCEPT] * len(view.completions)

    def state(self):
        return {"told": self.told}
"""
READS = PLAIN.replace(
    "self.told = told", "from pathlib import Path\n        self.told = Path(__file__).with_name(told).read_text()"
)
PACKAGE = {
    "__init__.py": "",
    "core.py": PLAIN.replace("self.told = told", "from .deep import helper\n        self.told = helper.told()"),
    "deep/__init__.py": "",
    "deep/helper.py": "from .. import words\n\n\ndef told():\n    return words.READ()\n",
    "words.py": "from pathlib import Path\n\nREAD = Path(__file__).with_name('words.txt').read_text\n",
    "words.txt": "hail",
    "notes.md": "private",
    "__pycache__/core.pyc": "",
}


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def weights(folder: Path, content: bytes = b"numbers") -> Path:
    path = folder / f"net-{hashlib.sha256(content).hexdigest()}.safetensors"
    path.write_bytes(content)
    return path


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=sandbox.BACKENDS)
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Isolated]:
    """Start a defense in a back end that works here."""
    monkeypatch.setenv(sandbox.VARIABLE, request.param)
    try:
        sandbox.backend()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return Isolated


Jail = Callable[[str], Isolated]


def test_a_file_is_copied_and_nothing_beside_it(tmp_path: Path) -> None:
    put(tmp_path, {"mine.py": PLAIN, "secret.txt": "secret", "other.py": "x = 1"})
    staged = stage(f"{tmp_path}/mine.py:Mine(told='all')", tmp_path / "copies")
    assert staged.spec == "defense/mine.py:Mine(told='all')"
    assert files_in(staged.folder) == set(staged.source) == {"defense/mine.py"}
    with chdir(staged.folder):
        assert registry.make("defense", staged.spec).told == "all"


def test_equal_content_has_one_place(tmp_path: Path) -> None:
    one, other = (put(tmp_path / name, {"mine.py": PLAIN}) for name in ("one", "other"))
    staged = [stage(f"{folder}/mine.py:Mine", tmp_path / "copies").folder for folder in (one, other, one)]
    assert len(set(staged)) == 1, "so that a run goes on where it stopped, from wherever it is started"
    put(one, {"mine.py": PLAIN + "\n"})
    assert stage(f"{one}/mine.py:Mine", tmp_path / "copies").folder not in staged


def test_a_package_is_copied_whole_and_runs_isolated(tmp_path: Path, isolated: Jail) -> None:
    put(tmp_path / "pack", PACKAGE)
    staged = stage(f"{tmp_path}/pack/core.py:Mine", tmp_path / "copies")
    assert staged.spec == "defense/pack/core.py:Mine"
    expected = {f"defense/pack/{name}" for name in PACKAGE if name not in ("notes.md", "__pycache__/core.pyc")}
    assert files_in(staged.folder) == set(staged.source) == expected, "Python files and data, no more"
    with chdir(staged.folder):
        assert registry.make("defense", staged.spec).told == "hail"
    assert isolated(f"{staged.folder}/{staged.spec}").state() == {"told": "hail"}
    file = tmp_path / "pack/core.py"
    assert (wrong_import(file), wrong_size(file)) == ("", ""), "its modules may import each other"


def test_a_package_is_checked_whole(tmp_path: Path) -> None:
    put(tmp_path / "pack", PACKAGE | {"deep/other.py": "import torch\n"})
    assert wrong_import(tmp_path / "pack/core.py").startswith("line 1 of other.py imports torch; it may import only")
    put(tmp_path / "pack", {"deep/other.py": "from ... import above\n"})
    assert wrong_import(tmp_path / "pack/core.py").startswith("line 1 of other.py imports ...; it may import only")
    put(tmp_path / "pack", {"deep/other.py": "", "words.txt": "x" * (1 << 20)})
    assert wrong_size(tmp_path / "pack/core.py").startswith("pack has 1,0")


def test_composed_and_nested_files_find_their_places(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        put(tmp_path / folder, {"mine.py": PLAIN + f"# {folder}\n"})
    one, other = (f"{tmp_path}/{folder}/mine.py:Mine" for folder in ("one", "other"))
    staged = stage(f"{one}(told='a')+logit+reputation(defense={other!r})+{one}", tmp_path / "copies")
    assert staged.spec == (
        "defense/mine.py:Mine(told='a')+logit+reputation(defense='defense/mine-2.py:Mine')+defense/mine.py:Mine"
    )
    assert staged.source["defense/mine-2.py"].endswith(b"# other\n"), "two files of one name get two"
    with chdir(staged.folder):
        assert registry.make("defense", staged.spec).name.count("mine") >= 2


def test_a_built_in_defense_has_nothing_to_copy(tmp_path: Path) -> None:
    staged = stage("logit+similarity", tmp_path)
    assert (staged.spec, staged.source, staged.weights) == ("logit+similarity", {}, ())
    assert staged.folder.is_dir(), "there is a folder to work in all the same"


def test_a_name_that_cannot_stand_in_an_entry_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"my file.py": PLAIN})
    with pytest.raises(EntryError, match=r"^my file\.py is not allowed in an entry; use only letters, digits"):
        stage(f"{tmp_path}/my file.py:Mine", tmp_path / "copies")


def test_weights_that_are_named_come_along(tmp_path: Path, isolated: Jail) -> None:
    put(tmp_path, {"mine.py": READS})
    net, other = weights(tmp_path), weights(tmp_path, b"other")
    staged = stage(f"{tmp_path}/mine.py:Mine(told={net.name!r})", tmp_path / "copies")
    assert staged.weights == (net,)
    assert staged.left_out == (other.name,), "a cell's identity would not tell of their change"
    assert files_in(staged.folder) == {"defense/mine.py", f"defense/{net.name}"}
    assert isolated(f"{staged.folder}/{staged.spec}").state() == {"told": "numbers"}


def entry_of(tmp_path: Path, net: Path) -> Entry:
    made = made_entries.entry(tmp_path / "entries", defense="defense/mine.py:Mine")
    source = READS.replace('told="nothing"', f'told="{net.name}"').encode()
    (made.folder / "defense/mine.py").write_bytes(source)
    files = dict(made.manifest.files) | {"defense/mine.py": hashlib.sha256(source).hexdigest()}
    known = registry.source_hash("defense", f"{made.folder}/defense/mine.py:Mine", load=False)
    packed = Packed(name=net.name, sha256=net.stem.partition("-")[2], bytes=net.stat().st_size)
    return Entry(
        made.folder,
        made.manifest.model_copy(update={"weights": (packed,), "files": files, "source_sha256": known}),
        made.cells,
    )


def test_an_entry_with_weights_runs_again(tmp_path: Path, isolated: Jail) -> None:
    brought = tmp_path / "brought"
    brought.mkdir()
    net = weights(brought)
    entry = entry_of(tmp_path, net)
    spec = restage(entry, brought, tmp_path / "again")
    assert spec == f"{tmp_path}/again/defense/mine.py:Mine"
    assert isolated(spec).state() == {"told": "numbers"}
    own = entry.folder / "defense/mine.py"
    as_read = own.read_text()
    own.write_text(as_read + "# other code, put there while the entry is verified")
    with pytest.raises(EntryError, match=r"mine\.py was changed after the entry was read; begin again"):
        restage(entry, brought, tmp_path / "swapped")
    other = entry.manifest.model_copy(update={"source_sha256": "0" * 64})
    with pytest.raises(EntryError, match="is not the one that its manifest names; begin again"):
        own.write_text(as_read)
        restage(Entry(entry.folder, other, entry.cells), brought, tmp_path / "swapped back")
    net.unlink()
    with pytest.raises(EntryError, match=r"\.safetensors is missing; unpack the entry's archive first"):
        restage(entry, brought, tmp_path / "once more")


def test_the_place_is_the_one_it_was_run_from(tmp_path: Path) -> None:
    """The same spec string and the same source hash, so that a cell has the same identity on every machine."""
    put(tmp_path / "pack", PACKAGE)
    staged = stage(f"{tmp_path}/pack/core.py:Mine", tmp_path / "copies")
    made = made_entries.entry(tmp_path / "entries", defense="logit")
    with chdir(staged.folder):
        source_sha256 = registry.source_hash("defense", staged.spec)
    manifest = made.manifest.model_copy(
        update={
            "defense": staged.spec,
            "source_sha256": source_sha256,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in staged.source.items()},
        }
    )
    for name, data in staged.source.items():
        (made.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (made.folder / name).write_bytes(data)
    spec = restage(Entry(made.folder, manifest, made.cells), tmp_path, tmp_path / "again")
    with chdir(staged.folder):
        here = registry.source_hash("defense", staged.spec)
    assert registry.source_hash("defense", spec) == here


def test_a_mistake_is_reported_with_the_path_of_the_submitter_s_own_file(tmp_path: Path) -> None:
    """And not with the copy's, in which a correction would be in vain."""
    own = put(tmp_path / "own", {"mine.py": PLAIN.replace("class Mine(Defense):", "class Mine(Defense)")})
    staged = stage(f"{own / 'mine.py'}:Mine", tmp_path / "copies")
    with pytest.raises(registry.SpecStringError) as found, chdir(staged.folder), staged.named_as_original():
        registry.allow(staged.spec)
        registry.make("defense", staged.spec)
    assert str(found.value).startswith(f"{own / 'mine.py'}: SyntaxError while loading it")
    assert "copies" not in str(found.value)


def test_data_beside_a_single_file_is_told(tmp_path: Path) -> None:
    """The copy lacks it, and the submitter sees it lie there."""
    reads = "from pathlib import Path\nWORDS = Path(__file__).with_name('words.txt').read_text()\n"
    own = put(tmp_path / "own", {"mine.py": reads + PLAIN, "words.txt": "a b"})
    staged = stage(f"{own / 'mine.py'}:Mine", tmp_path / "copies")
    with pytest.raises(registry.SpecStringError) as found, chdir(staged.folder), staged.named_as_original():
        registry.allow(staged.spec)
        registry.make("defense", staged.spec)
    assert "; words.txt exists, but a single file is submitted alone: put an empty __init__.py" in str(found.value)
