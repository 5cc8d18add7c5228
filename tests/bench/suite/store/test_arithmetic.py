"""Which arithmetic computed cells, said where cells of several kinds stand side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench import tiny
from thiefbench.suite.analysis.differences import settings_of
from thiefbench.suite.report.compare import compared, settings
from thiefbench.suite.report.page import write_report
from thiefbench.suite.store.arithmetic import arithmetic_of, computed_here, maker_of, mixture, reuse_note
from thiefbench.suite.store.records import Record, Store


def made(device: str = "cpu", **provenance: str) -> Record:
    return Record(cell_id="", cell={"seed": 0, "device": device}, identity={}, status="ok", provenance=provenance)


def remade(store: Path, role: str, **provenance: Any) -> None:
    """As if another machine had made the cells of a role."""
    for record in Store(store).records():
        if record.cell["role"] == role:
            Store(store).cell(record.cell_id).write(
                record.model_copy(update={"provenance": record.provenance | provenance})
            )


def test_a_mixture_names_what_differs() -> None:
    old, new = made(torch="2.11.0", capability="AVX2"), made(torch="2.12.0", capability="AVX2")
    assert mixture([old, new, old]) == "Its cells were computed with different torch 2.11.0 and 2.12.0."
    assert mixture([old, made(torch="2.11.0", capability="AVX512")]).endswith("vector capability AVX2 and AVX512.")
    assert not mixture([old, old])
    assert not mixture([old, made(torch="2.11.0")]), "an older record does not say it"
    cuda = [made("cuda", torch="2.11.0", capability=each) for each in ("AVX2", "AVX512")]
    assert not mixture(cuda), "a GPU computes without them"
    assert settings_of(old, new) == ["torch 2.11.0 and 2.12.0"]


def test_a_processor_of_another_maker_is_said() -> None:
    one, other = (made(capability="AVX512", processor_model=f"{maker} family 6") for maker in ("Amber", "Basalt"))
    assert mixture([one, other]) == "Its cells were computed with different processor maker Amber and Basalt."
    assert not mixture([one, made(capability="AVX512", processor_model="Amber family 7 model 1")]), "a newer one"
    assert not mixture([one, made(capability="AVX512")]), "an older record does not say it"
    cuda = [made("cuda", processor_model=f"{maker} family 6") for maker in ("Amber", "Basalt")]
    assert not mixture(cuda), "a GPU computes"
    assert arithmetic_of(one) == arithmetic_of(other), "they may be measured against each other"
    assert reuse_note([one, other], {"cpu": {"processor maker": "Amber"}}) == (
        "1 cell of the store, made with processor maker Basalt (here: Amber), is reused; a new run may differ"
    )
    assert maker_of({"processor_model": "Basalt family 1 / Amber family 2 / Amber family 1"}) == "Amber / Basalt"
    named = (maker_of({"processor_model": f"{name} family 6"}) for name in ("GenuineIntel", "AuthenticAMD"))
    assert list(named) == ["Intel", "AMD"], "as people call them"
    assert "processor maker" in computed_here("cpu")


def test_the_reuse_of_cells_from_other_arithmetic_is_one_sentence() -> None:
    here = {"cpu": {"torch": "2.12.0", "vector capability": "AVX2", "processor maker": "Amber"}}
    same, old = made(torch="2.12.0", capability="AVX2"), made(torch="2.11.0", capability="AVX2")
    assert not reuse_note([same, made(torch="2.12.0")], here)
    assert reuse_note([same, old], here) == (
        "1 cell of the store, made with torch 2.11.0 (here: 2.12.0), is reused; a new run may differ"
    )
    assert reuse_note([old, made(torch="2.12.0", capability="DEFAULT")], here) == (
        "2 cells of the store, made with torch 2.11.0 (here: 2.12.0), vector capability DEFAULT (here: AVX2), "
        "are reused; a new run may differ"
    )


def test_a_run_reuses_them_and_says_so_and_so_do_report_and_compare(tmp_path: Path) -> None:
    of, store, other = tiny.suite("none", rounds=1), tmp_path / "store", tmp_path / "other"
    records = tiny.run(of, store)
    tiny.run(of, other)
    fresh = tiny.Watcher()
    tiny.run(of, store, fresh)
    assert fresh.notes == []
    assert "computed with different" not in write_report(Store(store)).read_text()
    remade(store, "attack", torch="1.0")
    again = tiny.Watcher()
    tiny.run(of, store, again)
    assert (len(again.missing), again.cached) == (0, 2), "they are reused"
    (note,) = again.notes
    assert note.startswith(f"1 cell of the store, made with torch 1.0 (here: {records[0].provenance['torch']})")
    assert "computed with different torch" in write_report(Store(store)).read_text()
    comparison = compared([store, other], [])
    assert f"torch 1.0 and {records[0].provenance['torch']}" in settings(comparison, comparison.titles[0])
