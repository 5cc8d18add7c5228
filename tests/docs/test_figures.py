"""The demo's picture and table come from a store, and from nothing else."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.docs.pages import DOCS, README
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.store.records import Store

SCRIPT = DOCS / "figures.py"
FIGURES = sorted((DOCS / "figures").glob("*.svg"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a control, an undefended and a defended swarm."""
    folder = tmp_path_factory.mktemp("demo")
    suite = tiny.suite("none", "logit(reject='drop')")
    run_suite(suite, tiny.cells(suite), Store(folder), tiny.Watcher())
    return folder


def drawn(*words: object) -> None:
    """The command, in this process: importing torch again for each would take most of the time."""
    main = runpy.run_path(str(SCRIPT))["main"]
    main([str(word) for word in words])


def test_the_table_holds_the_records_numbers(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README.read_text())
    drawn(store, "--out", tmp_path / "demo.svg", "--readme", readme)
    printed = capsys.readouterr().out
    rows = {line.split(" | ")[0].strip("| "): line for line in printed.splitlines() if line.startswith("| ")}
    records = {record.cell["role"] + record.cell["defense"]: record for record in Store(store).records()}
    names = {
        "controlnone": "no attack", "attacknone": "attacked, no defense",
        "attacklogit(reject='drop')": 'attacked, `logit(reject="drop")`',
    }  # fmt: skip
    assert set(rows) - {"swarm"} == set(names.values()), "one line for each swarm"
    for key, name in names.items():
        for measure in ("asr", "stop_rate", "clean_reward"):
            value = records[key].scores[measure].value
            assert (f"{value:.3f} [" in rows[name]) if value is not None else ("| -" in rows[name]), (
                f"{measure}: {name}"
            )
    assert f"engine revision {records['attacknone'].identity['engine_revision']}" in printed
    text = readme.read_text()
    assert printed.strip() in text, "the table stands between the README's marks"
    before, after = README.read_text().split("<!-- demo: begin")[0], README.read_text().split("<!-- demo: end -->")[1]
    assert text.startswith(before), "and nothing before it is changed"
    assert text.endswith(after), "nor behind it"


def test_the_picture_is_one_that_everybody_can_read(store: Path, tmp_path: Path) -> None:
    drawn(store, "--out", tmp_path / "demo.svg")
    text = (tmp_path / "demo.svg").read_text()
    root = ET.fromstring(text)
    said = root.findtext("{http://www.w3.org/2000/svg}title")
    assert said is not None and 'attacked, logit(reject="drop")' in said, "it says in words what it shows"
    for words in ("no attack", "attacked, no defense", 'attacked, logit(reject="drop")'):
        assert any(words == (each.text or "").strip() for each in root.iter("{http://www.w3.org/2000/svg}text")), words
    drawn(store, "--out", tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text, "the same store, the same picture"


def test_a_store_without_the_demo_is_one_sentence(store: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no run; write `make demo` first"):
        drawn(tmp_path / "nothing", "--out", tmp_path / "demo.svg")
    bare = tmp_path / "README.md"
    bare.write_text("no marks")
    with pytest.raises(SystemExit, match="the README has no lines"):
        drawn(store, "--out", tmp_path / "demo.svg", "--readme", bare)
    assert bare.read_text() == "no marks", "and nothing is written"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: path.name)
def test_pictures_suit_light_and_dark_pages(figure: Path) -> None:
    text = figure.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text, "colours follow the reader's scheme"
    assert float(root.attrib["width"]) <= 480, "no text is too small at 360 pixels"
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?(?:\d+ )?([\d.]+)px", text)]
    assert sizes and min(sizes) >= 10, "and none is small to begin with"
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", part)) for part in text.split("prefers-color-scheme: dark"))
    assert light.keys() == dark.keys(), "every colour has both"
    for scheme in (light, dark):
        for name in ("ink", "muted"):
            assert contrast(scheme[name], scheme["paper"]) >= 4.5, f"{name} can be read on the background"


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def light(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
