"""The suites truth-v1 and rewards-v1: whom they fit, and that everyone whom they fit runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.spec import SpecError
from thiefbench.suite.analysis.ranking_inputs import lacking
from thiefbench.suite.scenario import Evaluation, Suite
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.sandbox import SandboxUnavailable, backend

SUITES = ("truth", "rewards")
GRANTED = {"truth": ANSWER_KEYS, "rewards": RULE_REWARDS}
"""What the swarms of a suite have and those of the other one lack."""
NOWHERE = {"logprobs", "versions"}
QUICK = {'untargeted(attack="master_key")': "untargeted(attack=\"master_key(keys='30 - 5 = 25')\")"}
ARGUMENTS = {"max_tokens": "max_tokens(limit=96)", "random": "random(rate=0.5)"}
DEFENSES = [ARGUMENTS.get(name, name) for name in registry.names("defense")]


def released(name: str) -> Suite:
    return load_suite(f"{name}-v1")


def small(suite: Suite) -> Suite:
    """The suite with one tiny round, one attack in every part, which tries nothing on the judge, and one seed."""
    parts = tuple(
        replace(
            part, attacks=(QUICK.get(part.attacks[0], part.attacks[0]),), rounds=1,
            evaluation=Evaluation(every=1, completions=4, final=4), swarm=replace(part.swarm, prompts=4, group=4),
        )
        for part in suite.scenes
    )  # fmt: skip
    return tiny.Attacked(
        suite.name, suite.version, parts=tuple(replace(part, name=part.name or "all") for part in parts), seeds=(0,)
    )


def fits(spec: str, name: str) -> bool:
    absent = NOWHERE | set(GRANTED.values()) - {GRANTED[name]}
    return not registry.make("defense", spec).requires & absent


@pytest.mark.parametrize("name", SUITES)
def test_it_has_what_a_ranking_needs(name: str) -> None:
    suite = released(name)
    assert not lacking({"placebo": suite.placebo, "utility": suite.utility})
    assert len(suite.seeds) == 5


def test_every_defense_fits_one_of_them_at_least() -> None:
    assert [spec for spec in DEFENSES if not any(fits(spec, name) for name in SUITES)] == ["staleness"]
    made_for = {
        name: {spec for spec in DEFENSES if GRANTED[name] in registry.make("defense", spec).requires} for name in SUITES
    }
    assert made_for == {"truth": {"public_items", "gold_sanity"}, "rewards": {"rule_check"}}


@pytest.mark.parametrize(
    ("name", "spec"), [(name, spec) for name in SUITES for spec in DEFENSES if not fits(spec, name)]
)
def test_who_does_not_fit_is_refused_before_round_1(tmp_path: Path, name: str, spec: str) -> None:
    suite = replace(small(released(name)), defenses=(spec,))
    with pytest.raises(SpecError) as told:
        tiny.run(suite, tmp_path)
    assert str(told.value).startswith(f"the defense {spec} ")
    assert "\n" not in str(told.value)
    assert not Store(tmp_path).records(), "nothing ran"


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_everyone_who_fits_runs(tmp_path: Path, name: str) -> None:
    try:
        backend()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    fitting = tuple(spec for spec in DEFENSES if fits(spec, name))
    records = tiny.run(replace(small(released(name)), defenses=fitting), tmp_path)
    assert {(record.cell["defense"], record.error) for record in records if record.error} == set()
    assert len(records) == len(fitting) * len(released(name).scenes)
