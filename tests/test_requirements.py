"""The tested set holds every hash that a supported machine needs, and no requirement is left without one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "requirements"


@pytest.fixture(scope="module")
def hashes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirement_hashes", FOLDER / "hashes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wheel(name: str) -> dict[str, str]:
    return {"url": f"https://files.example/{name}", "hash": name}


@pytest.mark.parametrize(
    "name",
    [
        "a-1-py3-none-any.whl",
        "a-1-py2.py3-none-any.whl",
        "a-1-py315-none-any.whl",
        "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "a-1-cp315-cp315-manylinux_2_28_aarch64.whl",
        "a-1-cp37-abi3-manylinux_2_28_x86_64.whl",
        "a-1-py3-none-linux_x86_64.whl",
        "a-1-cp312-cp312-macosx_11_0_arm64.whl",
        "a-1-cp313-cp313-macosx_10_13_universal2.whl",
    ],
)
def test_a_wheel_that_linux_or_macos_installs_is_kept_with_the_source(hashes: ModuleType, name: str) -> None:
    assert list(hashes.needed({"wheels": [_wheel(name)], "sdist": _wheel("a-1.tar.gz")})) == [name, "a-1.tar.gz"]


@pytest.mark.parametrize(
    "name",
    [
        "a-1-cp311-cp311-win_amd64.whl",
        "a-1-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "a-1-cp310-cp310-manylinux_2_28_x86_64.whl",
        "a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl",
        "a-1-cp312-cp312-musllinux_1_2_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_28_s390x.whl",
        "a-1-cp312-cp312-macosx_10_9_x86_64.whl",
    ],
)
def test_of_other_wheels_only_the_source_is_kept(hashes: ModuleType, name: str) -> None:
    assert list(hashes.needed({"wheels": [_wheel(name)], "sdist": _wheel("a-1.tar.gz")})) == ["a-1.tar.gz"]


def test_only_the_named_hashes_stay_and_the_lines_still_continue(hashes: ModuleType) -> None:
    given = "# x\na==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nb==2 ; os == 'x' \\\n    --hash=sha256:cc\n"
    kept = hashes.pruned(given, {"sha256:aa", "sha256:cc"})
    assert kept == "# x\na==1 \\\n    --hash=sha256:aa\nb==2 ; os == 'x' \\\n    --hash=sha256:cc\n"
    with pytest.raises(ValueError, match="no file of b==2"):
        hashes.pruned(given, {"sha256:aa"})


def test_every_requirement_of_the_tested_set_has_a_hash() -> None:
    _, *entries = re.split(r"\n(?=\S)", (FOLDER / "tested.txt").read_text(encoding="utf-8"))
    assert len(entries) > 100
    assert [each for each in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", each)] == []
