"""The site builds, strictly, and asks nobody on the network for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.docs.pages import ROOT
from thiefbench import registry

pytest.importorskip("sphinx", reason="the site needs the extra docs")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command of `make docs` once for all processes that run these tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the session that started this process
    built = folder / "site"
    with FileLock(folder / "site.lock"):
        if not built.exists():
            build(folder / "build")
            (folder / "build").rename(built)
    return built / "pages"


def build(folder: Path) -> None:
    """Build the site into `folder`."""
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"\$\(BIN\)/python (-m sphinx .*) docs build/docs", makefile)
    done = subprocess.run(
        [sys.executable, *command.split(), "-d", str(folder / ".doctrees"), "docs", str(folder / "pages")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"the site builds without a warning:\n{done.stderr}"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)", text)
        loaded += re.findall(r"<link\b[^>]*\bhref=\"([^\"]+)", text)
        for address in loaded:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            if not address.startswith(("#", "data:")):
                assert (page.parent / address.partition("?")[0]).exists(), f"{page.name} lacks {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text(encoding="utf-8")), f"{style.name} loads"


ELSEWHERE = {
    "aggregation": "averaging", "weight_attack": "averaging", "stage_check": "pipelines", "stage_attack": "pipelines"
}  # fmt: skip
"""Kinds whose classes are not on a page of their kind's name."""


@pytest.mark.parametrize("kind", ["attack", "defense", "task", *ELSEWHERE])
def test_the_reference_has_every_plugin(site: Path, kind: str) -> None:
    page = ELSEWHERE.get(kind, f"{kind}s")
    text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
    for name in registry.names(kind):
        entry = registry.entry(kind, name)
        assert f'id="{entry.value.replace(":", ".")}"' in text, f"the reference describes the {kind} {name}"


def test_what_lies_elsewhere_is_on_the_site(site: Path) -> None:
    for page, words in (("results", "Limitations"), ("changelog", "Unreleased"), ("models/micro-math", "1.12 million")):
        assert words in (site / f"{page}.html").read_text(encoding="utf-8"), f"{page} holds its file's text"
    assert 'href="results.html#limitations"' in (site / "suites.html").read_text(encoding="utf-8")
