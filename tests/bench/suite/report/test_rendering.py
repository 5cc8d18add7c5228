"""What templates do with names."""

from __future__ import annotations

import pytest

from thiefbench.suite.report.rendering import breakable


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("length_budget", "length_<wbr>budget"),
        ("none", "none"),
        ("guard(beacon=False)", "guard(<wbr>beacon=<wbr>False)"),
        ("toploc+seed_replay", "toploc+<wbr>seed_<wbr>replay"),
        ("__", "__"),
        ("", ""),
        ("a_<b>&", "a_<wbr>&lt;b&gt;&amp;"),
    ],
)
def test_a_long_name_is_broken_after_signs_and_escaped(name: str, written: str) -> None:
    assert breakable(name) == written
