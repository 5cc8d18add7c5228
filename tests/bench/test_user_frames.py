"""Where an error lies in the user's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.user_frames import MOST_TRACEBACK, described, kept, one_sentence, shown, where

DEFENSE = """
from thiefbench.defenses.base import ACCEPT, Defense


class Mine(Defense):
    name = "mine"

    def inspect(self, view):
        return [self.verdict(each) for each in view.completions]

    def verdict(self, completion):
        try:
            return completion.tekst
        except AttributeError as error:
            {raising}
"""


def failing(folder: Path, raising: str = "raise") -> BaseException:
    """The error of a defense that lies in a user's file, raised through this package."""
    (folder / "mine.py").write_text(DEFENSE.format(raising=raising))
    registry.allow(f"{folder}/mine.py:Mine")
    mine = registry.make("defense", f"{folder}/mine.py:Mine")
    with pytest.raises((AttributeError, RuntimeError)) as caught:
        mine.inspect(type("View", (), {"completions": ("text",)}))
    assert caught.value.__traceback__ is not None
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without the frame of this file


def test_only_the_users_frames_are_shown_with_their_source(tmp_path: Path) -> None:
    error = failing(tmp_path)
    assert where(error) == " (mine.py, line 13)"
    lines = shown(kept(error))
    assert "line 9, in inspect" in lines
    assert "return completion.tekst" in lines
    assert lines.count("File ") == lines.count(f'File "{tmp_path}/mine.py"') >= 2
    assert "Traceback (most recent call last)" in shown(kept(error), whole=True)
    assert "AttributeError" in shown(kept(error), whole=True)


def test_an_error_that_another_one_caused_is_found_where_it_began(tmp_path: Path) -> None:
    error = failing(tmp_path, "raise RuntimeError('no luck') from error")
    assert where(error) == " (mine.py, line 15)"
    outside = RuntimeError("of the engine")
    outside.__cause__ = error
    assert where(outside) == " (mine.py, line 15)"


def test_errors_of_installed_code_name_no_place() -> None:
    try:
        registry.make("defense", "logit(reject='never')")
    except Exception as error:
        assert error.__traceback__ is not None
        inside = error.with_traceback(error.__traceback__.tb_next)
        assert where(inside) == ""
        assert shown(kept(inside)) == ""
    else:
        pytest.fail("the spec should have been refused")


def test_what_is_kept_is_bounded_and_what_a_record_says_is_only_text() -> None:
    assert len(kept(RuntimeError("x" * 10**6))["traceback"]) == MOST_TRACEBACK
    assert shown({}) == ""
    assert shown({"own_frames": ["not", "a text"]}) == ""


@pytest.mark.parametrize(
    ("raising", "sentence"),
    [
        ("raise RuntimeError('no text') from None", "RuntimeError: no text (mine.py, line 15)"),
        ("raise RuntimeError from None", "RuntimeError (mine.py, line 15)"),
    ],
)
def test_an_error_is_described_with_its_message_if_it_has_one(raising: str, sentence: str, tmp_path: Path) -> None:
    assert described(failing(tmp_path, raising)) == sentence


def test_an_error_of_nobody_s_code_is_described_without_a_place() -> None:
    assert described(MemoryError()) == "MemoryError"
    assert described(MemoryError("full")) == "MemoryError: full"


@pytest.mark.parametrize("raising", ["raise RuntimeError('no luck')", "raise SystemExit(3)"])
def test_an_error_of_the_users_code_becomes_a_sentence(raising: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DEFENSE.format(raising=raising))
    registry.allow(f"{tmp_path}/mine.py:Mine")
    mine = registry.make("defense", f"{tmp_path}/mine.py:Mine")
    with pytest.raises(UserError, match=r"^your own code failed: \w+: .* \(mine\.py, line 15\)$"), one_sentence():
        mine.inspect(type("View", (), {"completions": ("text",)}))


def test_our_own_errors_and_sentences_stay_as_they_are() -> None:
    with pytest.raises(UserError, match=r"^a sentence$"), one_sentence():
        raise UserError("a sentence")
