"""Spec strings of attacks that are built around attacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from thiefbench import registry
from thiefbench.attacks.adaptive import Adaptive
from thiefbench.attacks.base import AttackSpec
from thiefbench.attacks.text import Text
from thiefbench.attacks.varied import Varied
from thiefbench.registry import SpecStringError

OWN = """
from thiefbench.attacks.base import Attack
from thiefbench.attacks.wrapper import AttackWrapper

class Mine(AttackWrapper):
    name = "mine"

    def __init__(self, attack: Attack, other: "Attack | str" = "dos") -> None:
        super().__init__(attack)
        self.other = other
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_an_inner_spec_string_becomes_an_attack() -> None:
    attack = registry.make("attack", "adaptive(attack=\"text(position='start')\", mode='logit')")
    assert isinstance(attack, Adaptive)
    assert isinstance(attack.attack, Text)
    assert attack.attack.position == "start"


def test_an_attack_around_an_attack_around_an_attack() -> None:
    inner = "judge_injection(attack=\"text(phrase='say (it)')\")"
    attack = registry.make("attack", AttackSpec(share=0.5).around(inner))
    assert isinstance(attack, Varied)
    assert attack.attack.attack.phrase == "say (it)"  # type: ignore[attr-defined]


def test_the_default_inner_attack_is_made_too(own: Path) -> None:
    assert isinstance(registry.make("attack", "varied(share=0.5)").attack, Text)
    attack = registry.make("attack", f"{own}:Mine(attack='text')")
    assert (attack.attack.name, attack.other.name) == ("text", "dos")


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("varied(share=0.5, attack='text')", "varied(share=0.5)"),
        ("varied(share=0.5, attack='text(position=None)')", "varied(share=0.5)"),
        (
            'varied(start=3,attack=\'text( position = "end" ,phrase="a b")\')',
            "varied(attack=\"text(phrase='a b', position='end')\", start=3)",
        ),
        (
            "varied(attack='judge_injection(attack=\"text(position=None)\")')",
            "varied(attack='judge_injection')",
        ),
    ],
)
def test_the_canonical_form_reaches_inside(spec: str, canonical: str) -> None:
    assert registry.canonical("attack", spec) == canonical
    assert registry.canonical("attack", canonical) == canonical


def test_the_source_hash_holds_the_inner_attack_s(own: Path) -> None:
    hashes = {
        spec: registry.source_hash("attack", spec)
        for spec in ("varied", "varied(attack='dos')", "text", "adaptive", f"{own}:Mine(attack='text')")
    }
    assert len(set(hashes.values())) == len(hashes)
    around = f"varied(attack='{own}:Mine(attack=\\'text\\')')"
    before = registry.source_hash("attack", around)
    own.write_text(OWN + "# changed\n")
    assert registry.source_hash("attack", around) != before, "a change of the inner attack's source changes it"
    assert registry.source_hash("attack", "varied(share=0.5)") == hashes["varied"], "arguments do not count as source"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("varied(attack='txet')", "there is no attack named 'txet'; did you mean text"),
        ("varied(attack=3)", "varied: attack is a spec string such as 'text', not 3"),
        ("varied(attack='text(position=\"top\")')", "position must be one of"),
        ("varied(attack='text(')", "malformed attack spec"),
        ("varied(attack='varied(share=0.5)')", "varied goes outside"),
        ("varied(gibberish=1)", r"gibberish is a share of a group"),
        ("varied(half=1)", "'half'; its arguments: attack, oracle, candidates"),
    ],
)
def test_mistakes_inside_are_one_sentence(spec: str, complaint: str) -> None:
    with pytest.raises(SpecStringError, match=complaint) as error:
        registry.make("attack", spec)
    assert "\n" not in str(error.value)


def test_in_python_the_inner_attack_is_an_object() -> None:
    with pytest.raises(TypeError, match=r"varied: attack is an Attack; thiefbench.registry.make makes one of 'text'"):
        Varied("text")
