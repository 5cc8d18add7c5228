"""The contract classes in a user's test module: examples keep every rule, broken plugins are told the broken rule.

Each test writes such a module into a folder of its own and runs pytest there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from thiefbench.attacks.text import Text
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.testing import contracts
from thiefbench.testing.contracts import attack_fixtures, pools

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent
KINDS = ("attack", "defense", "task", "aggregation", "stage_check")


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import heavy libraries once: a run in this process forgets its imports, and they cannot be imported twice."""
    assert pools.views(AcceptAll)
    assert attack_fixtures.train_items(attack_fixtures.task_for(Text()), 1)


def contract_name(kind: str) -> str:
    """The contract class of a kind."""
    return f"{kind.title().replace('_', '')}Contract"


def contract(kind: str, given: str) -> str:
    """A test module with a subclass of the contract of a kind."""
    name = contract_name(kind)
    return f"from thiefbench.testing.contracts import {name}\n\n\nclass TestMine({name}):\n    {given}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_documented_example_keeps_every_rule(pytester: pytest.Pytester, kind: str) -> None:
    shutil.copy(HERE / f"my_{kind}.py", pytester.path)
    shutil.copy(HERE / f"contract_of_my_{kind}.py", pytester.path / f"test_my_{kind}.py")
    rules = [name for name in vars(getattr(contracts, contract_name(kind))) if name.startswith("test_")]
    outcomes = pytester.runpytest_inprocess("-p", "no:cacheprovider").parseoutcomes()
    assert outcomes == {"passed": len(rules)}, f"the example {kind} keeps every rule, and each is a test"


SHOUTING = (HERE / "my_attack.py").read_text()
OPENING = (HERE / "my_defense.py").read_text()
DOUBLING = (HERE / "my_task.py").read_text()
ACCEPTING = "    def inspect(self, view):\n        return [ACCEPT for each in view.completions]"
JUDGING = OPENING[OPENING.index("    def inspect") :].rstrip()
BROKEN = {
    "attack poisons too little": (
        "attack", SHOUTING.replace("for slot in view.slots]", "for slot in view.slots[1:]]"),
        "test_poison_fills_every_slot", "poison gives one submission per slot, in order",
    ),
    "attack calls everything a success": (
        "attack", SHOUTING.replace('(body(completion.text) or "").isupper()', "True"),
        "test_clean_text_is_no_success", "the outcome of the oracle's clean solution is 0",
    ),
    "attack's poison is wrong": (
        "attack", SHOUTING.replace("view.task.compose(slot.item, slot.item.solution.upper())", '"LOUD"'),
        "test_text_poison_earns_the_full_reward", "poison is rewarded in full, or it teaches nothing: 'LOUD'",
    ),
    "attack without a threat model": (
        "attack", SHOUTING.replace('    threat = ThreatModel(context="in-context")\n', ""),
        "test_it_has_a_name_and_a_threat_model", "Shouting has no threat; set threat in the class to a ThreatModel",
    ),
    "defense skips completions": (
        "defense", OPENING.replace(JUDGING, ACCEPTING.replace("view.completions]", "view.completions if each.ended]")),
        "test_hostile_completions_do_not_raise", "inspect gives one verdict per completion, in the view's order",
    ),
    "defense goes by place": (
        "defense", OPENING.replace(
            JUDGING, '    def inspect(self, view):\n        return [Verdict("drop" if i % 2 else "accept")'
            " for i, _ in enumerate(view.completions)]",
        ), "test_order_changes_no_verdict", "a completion's verdict does not depend on its place in the pool",
    ),
    "defense forgets": (
        "defense", f"{OPENING.replace(JUDGING, ACCEPTING)}\n    def state(self):\n"
        '        return {"made": id(self)}\n\n    def restore(self, state):\n        pass\n',
        "test_state_survives_a_restart", "restore takes back what state gave, by way of JSON",
    ),
    "defense's state is no JSON": (
        "defense", f"{OPENING.replace(JUDGING, ACCEPTING)}\n    def state(self):\n"
        '        return {"senders": {1, 2}}\n', "test_state_survives_a_restart",
        "state gives JSON: text, finite numbers, lists and dictionaries",
    ),
    "defense chokes on an empty text": (
        "defense", OPENING.replace(
            JUDGING, '    def inspect(self, view):\n        return [Verdict("drop" if each.text.split()[0] == "x" else '
            '"accept") for each in view.completions]',
        ), "test_hostile_completions_do_not_raise", "empty, huge and malformed completions are judged like all others",
    ),
    "task rewards everything": (
        "task", DOUBLING.replace("float(text.rpartition", "float(bool(text.strip()) or text.rpartition"),
        "test_empty_and_gibberish_earn_nothing", "an empty string, gibberish and the bare question earn 0 on train-1",
    ),
    "task asks the same in both splits": (
        "task", DOUBLING.replace("else 51", "else 50"),
        "test_splits_share_no_question", "no question stands in both splits",
    ),
    "task changes its items": (
        "task", DOUBLING.replace("import datasets", "import datasets\nimport itertools\nCOUNT = itertools.count()")
        .replace('f"{split}-{number}"', 'f"{split}-{number}-{next(COUNT)}"'),
        "test_items_are_deterministic", "the train items depend on arguments and data alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_plugin_hears_which_rule_it_breaks(pytester: pytest.Pytester, what: str) -> None:
    kind, source, rule, sentence = BROKEN[what]
    assert source not in (SHOUTING, OPENING, DOUBLING), "the example was broken"
    mine = next(line.split()[1].partition("(")[0] for line in source.splitlines() if line.startswith("class "))
    pytester.makepyfile(**{f"my_{kind}": source, "test_mine": contract(kind, f'{kind} = "my_{kind}.py:{mine}"')})
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", rule)
    done.assert_outcomes(failed=1, deselected=done.parseoutcomes()["deselected"])
    done.stdout.fnmatch_lines([f"*: {sentence.replace('[', '[[]')}*"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("pass", 'TestMine does not say what to test: write {kind} = "my_{kind}.py:Mine"'),
        ('{kind} = "nowhere.py:Mine"', "TestMine: {kind} nowhere.py:Mine: there is no file nowhere.py"),
        ("{kind} = 7", 'TestMine does not say what to test: write {kind} = "my_{kind}.py:Mine"'),
    ],
)
def test_what_cannot_be_made_is_one_sentence(pytester: pytest.Pytester, kind: str, given: str, said: str) -> None:
    pytester.makepyfile(contract(kind, given.format(kind=kind)))
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "name")
    done.assert_outcomes(failed=1, deselected=done.parseoutcomes()["deselected"])
    done.stdout.fnmatch_lines([f"*{said.format(kind=kind)}*"])
    done.stdout.no_fnmatch_line("*Traceback*")


def test_a_class_and_a_made_object_are_as_good_as_a_spec_string(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from thiefbench.defenses.max_tokens import MaxTokens
        from thiefbench.defenses.arithmetic import Arithmetic
        from thiefbench.testing.contracts import DefenseContract


        class TestOfAClass(DefenseContract):
            defense = Arithmetic


        class TestMade(DefenseContract):
            def make(self):
                return MaxTokens(limit=20)


        class TestNeedsAnArgument(DefenseContract):
            defense = MaxTokens
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "one_verdict")
    assert (done.parseoutcomes()["passed"], done.parseoutcomes()["failed"]) == (2, 1)
    done.stdout.fnmatch_lines(["*TestNeedsAnArgument*'limit'; give a spec string with arguments, or a method make*"])
