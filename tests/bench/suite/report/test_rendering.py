"""What templates do with names."""

from __future__ import annotations

import pytest

from thiefbench.suite.report.rendering import breakable, environment


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


def test_in_an_attribute_a_name_is_broken_without_a_tag() -> None:
    page = environment().from_string('<td data-label="{{ name | breakable("\\u200b") }}">').render(name='code_"x"')
    assert page == '<td data-label="code_\u200b&#34;x&#34;">', "the sign is not shown by its number"
