"""The attack in the documentation can be used like any other."""

from __future__ import annotations

from pathlib import Path

from thiefbench import registry
from thiefbench.attacks.base import AttackSpec
from thiefbench.attacks.payload_spans import payload_spans
from thiefbench.audit import audit
from thiefbench.tasks.gsm_micro import GsmMicro

SPEC = f"{Path(__file__).with_name('my_attack.py')}:Shouting"


def test_it_can_be_audited_and_varied_like_a_built_in_one() -> None:
    audited = audit(GsmMicro(size=32), registry.make("attack", SPEC))
    assert (audited.poisonable, audited.poisoned) == (32, 32)
    assert audited.example.startswith("<think> ")
    halved = audit(GsmMicro(size=32), registry.make("attack", AttackSpec(gibberish=0.5).around(SPEC)))
    assert halved.poisonable == 32, "a group of one has no room for half a decoy"


def test_the_other_says_where_its_payload_is() -> None:
    attack = registry.make("attack", f"{Path(__file__).with_name('my_marked_attack.py')}:Exclaiming")
    audited = audit(GsmMicro(size=32), attack)
    assert audited.poisoned == 32
    assert payload_spans(attack, "No! 2 + 2 = 4!") == [(2, 3), (13, 14)]
