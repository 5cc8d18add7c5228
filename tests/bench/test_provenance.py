"""What a record says of the machine that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny
from thiefbench import provenance
from thiefbench.errors import UsageError


@pytest.fixture
def of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX2 and without AVX-512."""
    monkeypatch.setattr(provenance, "_first_processor", lambda: {"flags": "fpu sse2 avx avx2 fma"})


@pytest.mark.usefixtures("of_flags")
@pytest.mark.parametrize("asked", ["", "avx2", "default", "something else"])
def test_torch_may_be_told_to_use_what_the_processor_has(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(provenance.CAPABILITY, asked)
    provenance.check_capability()


@pytest.mark.usefixtures("of_flags")
def test_instructions_that_the_processor_lacks_are_refused_before_they_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = tiny.suite(rounds=1)
    monkeypatch.setenv(provenance.CAPABILITY, "avx512")
    with pytest.raises(UsageError, match=r"^ATEN_CPU_CAPABILITY is avx512, which this processor lacks; unset it$"):
        tiny.run(of, tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_a_system_does_not_describe_its_processor_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_first_processor", dict)
    monkeypatch.setenv(provenance.CAPABILITY, "avx512")
    provenance.check_capability()
