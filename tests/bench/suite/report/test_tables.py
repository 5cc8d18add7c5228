"""What columns of tables are called."""

from __future__ import annotations

from thiefbench.suite.report.tables import short_names


def test_headings_say_how_attacks_of_one_name_differ() -> None:
    forged = 'varied(attack="forged_answers", share=0.5)'
    many = 'varied(attack="forged_answers", share=0.5, identities=1000000)'
    same = 'varied(attack="forged_answers", share=0.25, identities=1000000)'
    phrases = ['text(phrase="one")', 'text(phrase="another")', 'text(phrase="one", position="start")']
    assert short_names([forged, many, same]) == [
        "varied forged_answers equations",
        "varied forged_answers equations identities=1000000",
        "varied forged_answers equations share=0.25",
    ]
    assert short_names(phrases) == ["text", "text 2", "text 3"], "phrases are no headings"
    assert short_names([many, forged]) == [
        "varied forged_answers equations",
        "varied forged_answers equations 2",
    ], "the second has no argument that the first lacks"


def test_no_heading_is_taken_twice() -> None:
    shares = [f'varied(attack="forged_answers", share={share})' for share in (0.5, 0.25, 0.5)]
    assert short_names(shares)[1:] == [
        "varied forged_answers equations share=0.25",
        "varied forged_answers equations 3",
    ]
    long = 'varied(attack="forged_answers", share=0.12345, identities=1000000)'
    assert short_names([shares[0], long])[1] == "varied forged_answers equations 2"
