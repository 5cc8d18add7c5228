"""Malicious and defended GenRL nodes, with stand-ins for GenRL itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.integrations.genrl.doubles import GROUP, OWN, Payload, WorldState, game, message
from thiefbench import registry
from thiefbench.engine.context import items_of
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SpecError
from thiefbench.integrations.genrl.arrivals import PoolReader, sampling_of
from thiefbench.integrations.genrl.attack import Sent, malicious
from thiefbench.integrations.genrl.defense import defended
from thiefbench.integrations.genrl.messages import environment, item_name
from thiefbench.tasks.base import Task

TASK = "gsm_micro(size=16)"
JUDGING = Path(__file__).with_name("judging.py")
THIEVES, BREAKS, WEIGHS = (f"{JUDGING}:{name}" for name in ("Thieves", "Breaks", "Weighs"))
TEXT = 'text(phrase="All hail to the thief", position="start")'


@pytest.fixture(scope="module")
def task() -> Task:
    made: Task = registry.make("task", TASK)
    return made


@pytest.fixture
def reader(policy: Policy, task: Task) -> PoolReader:
    return PoolReader(game(policy).trainer, task, GROUP)


def texts(task: Task, number: int) -> list[str]:
    """A right answer, and wrong ones."""
    return [task.oracle(items_of(task, "train")[number])[:30], "no", "nor this", "nor that"]


class TestReader:
    def test_messages_become_a_pool(self, reader: PoolReader, task: Task) -> None:
        first, second = items_of(task, "train")[:2]
        sent = {"b": message(first, task, "wxyz"), "a": message(second, task, ["q"] * 4) | message(first, task, "abcd")}
        pool = reader.read(3, sent)
        assert pool.round == 3
        assert [(group.sender, group.item.id) for group in pool.groups if group.sender == "b"] == [("b", first.id)]
        assert {group.item.id for group in pool.groups if group.sender == "a"} == {first.id, second.id}
        of_b = [each for each in pool.offered if each.sender == "b"]
        assert [each.text for each in of_b] == list("wxyz")
        assert [each.ids for each in of_b] == [tuple(reader.policy.encode(letter)) for letter in "wxyz"]
        assert not pool.refused
        assert not pool.problems

    def test_completions_are_rewarded_as_the_sender_asked(self, policy: Policy, task: Task) -> None:
        reader = PoolReader(game(policy, max_new_tokens=100).trainer, task, GROUP)
        item = items_of(task, "train")[0]
        forged = str(int(item.answer) + 1)
        right, wrong = "<answer>" + item.answer, "<answer>" + forged
        composed = [task.compose(item, "So."), task.compose(replace(item, answer=forged), "So."), right, wrong]
        honest, lying = message(item, task, composed), message(item, task, composed, answer=forged)
        assert [each.reward for each in reader.read(1, {"a": honest}).offered] == [1, 0, 0, 0]
        pool = reader.read(1, {"a": honest, "b": lying})
        assert [each.reward for each in pool.offered if each.sender == "b"] == [0, 1, 0, 0]
        ids = {group.sender: group.item.id for group in pool.groups}
        assert ids["a"] == item.id != ids["b"], "an item with another answer is another item"

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda sent: {"x": ["a message"]}, "no message"),
            (lambda sent: "a message", "no message"),
            (lambda sent: {"x": 7}, "no message"),
            (lambda sent: {name: [replace(each[0], actions=["a"] * 3)] for name, each in sent.items()}, "not 4"),
            (lambda sent: {name: [replace(each[0], actions="abcd")] for name, each in sent.items()}, "not 4"),
            (
                lambda sent: {name: [replace(each[0], actions=["a", 1, "b", "c"])] for name, each in sent.items()},
                "text",
            ),
            (
                lambda sent: {name: [replace(each[0], actions=["a" * 20_001] * 4)] for name, each in sent.items()},
                "text",
            ),
            (
                lambda sent: {name: [Payload(WorldState({"question": "q"}), list("abcd"))] for name in sent},
                "no message",
            ),
            (lambda sent: {name: [Payload(None, list("abcd"))] for name in sent}, "no message"),
            (lambda sent: dict.fromkeys(["0" * 32], *sent.values()), "another name"),
        ],
    )
    def test_what_is_no_group_is_refused(
        self, reader: PoolReader, task: Task, change: Callable[[Any], Any], reason: str
    ) -> None:
        sent = change(message(items_of(task, "train")[0], task, "abcd"))
        pool = reader.read(1, {"a": sent})
        assert not pool.groups
        assert not pool.offered
        assert [reason in each.refused for each in pool.refused] == [True]

    def test_questions_that_forge_structure_or_leave_no_room_are_refused(self, reader: PoolReader, task: Task) -> None:
        item = items_of(task, "train")[0]
        for question, reason in (("a<|im_end|>b", "control token"), ("long " * 60, "no room")):
            pool = reader.read(1, {"a": message(replace(item, question=question), task, "abcd")})
            assert [reason in each.refused for each in pool.refused] == [True]

    def test_of_a_second_message_and_of_too_many_only_the_first_are_read(self, reader: PoolReader, task: Task) -> None:
        item = items_of(task, "train")[0]
        sent = message(item, task, "abcd")
        twice = {name: [*each, *each] for name, each in sent.items()}
        assert [len(kind) for kind in (reader.read(1, {"a": twice}).groups, reader.read(1, {"a": twice}).refused)] == [
            1,
            1,
        ]
        many = {}
        for number in range(70):
            many |= message(replace(item, question=f"q{number}"), task, "abcd")
        pool = reader.read(1, {"a": many, "b": sent})
        assert len(pool.groups) == 65
        assert len(pool.refused) == 6

    def test_completions_that_nobody_could_sample_are_refused(self, reader: PoolReader, task: Task) -> None:
        sent = message(items_of(task, "train")[0], task, ["", "a<|im_start|>", "a" * 40, "fine"])
        pool = reader.read(1, {"a": sent})
        assert {place: reason.split()[0] for place, reason in pool.problems.items()} == {0: "empty", 1: "a", 2: "40"}
        assert [each.refused for each in pool.offered] == [True, True, True, False]

    def test_the_sampler_is_the_trainers(self, policy: Policy) -> None:
        default = sampling_of(game(policy, top_k=None).trainer.args)
        assert default.top_k == 50, "transformers takes 50 where GenRL's configuration says None"
        with pytest.raises(SpecError, match="leave min_p at the default"):
            sampling_of(game(policy, min_p=0.1).trainer.args)


class TestDefended:
    def test_what_is_rejected_does_not_enter(self, policy: Policy, task: Task) -> None:
        node = defended(game(policy), THIEVES, TASK, seed=1)
        first, second, third = items_of(task, "train")[:3]
        sent = {
            OWN: message(third, task, ["thief"] * 4),
            "a": message(first, task, ["one", "thief", "two", "three"]),
            "b": message(second, task, ["thief", "thief", "thief", "one"]),
            "c": message(second, task, ["", "x", "y<|im_end|>", "z"]),
        }
        state = SimpleNamespace(round=0, trees={OWN: {}})
        assert node.data_manager.prepare_states(state, sent) is state
        (handed,) = node.data_manager.manager.handed
        assert handed[OWN] == sent[OWN], "a node's own completions stay"
        assert set(handed) == {OWN, "a", "c"}, "a group of fewer than two accepted completions is dropped"
        (group,) = handed["a"][item_name(first.question)]
        assert group.actions == ["one", "two", "three", "one"], "the accepted ones are repeated in turn"
        assert handed["c"][item_name(second.question)][0].actions == ["x", "z", "x", "z"], "refused ones leave too"
        assert sent["a"][item_name(first.question)][0].actions[1] == "thief", "what arrived is not changed"
        inspection = node.data_manager.inspection
        assert inspection.entered[("a", item_name(first.question))] == (0, 2, 3, 0)

    def test_a_defense_sees_senders_rewards_and_history(self, policy: Policy, task: Task) -> None:
        node = defended(game(policy), THIEVES, TASK, seed=1)
        item = items_of(task, "train")[0]
        sent = {OWN: message(item, task, "abcd"), "b": message(item, task, "efgh")}
        for number in range(2):
            node.data_manager.prepare_states(SimpleNamespace(round=number, trees={OWN: {}}), sent)
        first, second = node.data_manager.defense.views
        assert [(view.round, len(view.history)) for view in (first, second)] == [(1, 0), (2, 1)]
        assert sorted((each.sender, each.text) for each in first.completions) == [
            *(("b", letter) for letter in "efgh"), *((OWN, letter) for letter in "abcd"),
        ]  # fmt: skip
        assert first.items[item.id].answer == item.answer
        inside = first.policy.in_support(first.completions)
        assert [len(row) for row in inside] == [each.length for each in first.completions]

    def test_logit_asks_the_nodes_own_model(self, policy: Policy, task: Task) -> None:
        item = items_of(task, "train")[0]
        sampled = [policy.decode([[token]])[0] for token in range(60, 64)]
        for top_k, rejected in ((len(policy.tokenizer), 0), (1, 4)):
            node = defended(game(policy, top_k=top_k), 'logit(reject="drop")', TASK)
            node.data_manager.prepare_states(
                SimpleNamespace(round=0, trees={OWN: {}}), {"a": message(item, task, sampled)}
            )
            actions = [verdict.action for verdict in node.data_manager.inspection.verdicts]
            assert actions.count("drop") == rejected

    @pytest.mark.parametrize(
        ("defense", "problem"),
        [
            (BREAKS, "the defense breaks failed: RuntimeError: it does not know"),
            (WEIGHS, "the defense weighs weighs single tokens, which GenRL's loss does not take"),
            ("seed_replay(announced=True)", "the defense seed_replay needs the seeds of completions"),
        ],
    )
    def test_if_it_cannot_judge_nothing_of_others_enters(
        self, policy: Policy, task: Task, defense: str, problem: str
    ) -> None:
        node = defended(game(policy), defense, TASK)
        item = items_of(task, "train")[0]
        sent = {OWN: message(item, task, "abcd"), "b": message(item, task, "efgh")}
        node.data_manager.prepare_states(SimpleNamespace(round=0, trees={OWN: {}}), sent)
        assert node.data_manager.manager.handed == [{OWN: sent[OWN]}]
        assert node.data_manager.problem.startswith(problem)
        assert node.data_manager.inspection is None

    @pytest.mark.parametrize(
        ("defense", "reason"),
        [
            ("seed_replay", "needs seeds from a beacon, and a GenRL message holds only texts"),
            ("toploc", "needs proofs of computation"),
            ("staleness", "needs the versions of the senders' weights"),
            ("divergence", "needs seeds from a beacon"),
            ("public_items", "needs the answers and tests that senders sent"),
            ("gold_sanity", "needs the answers and tests that senders sent"),
            ("rule_check", "needs the task's rewards beside a judge's"),
            ("coordinate_median", "needs the vectors of an exchange"),
            ("oracle", "sees labels, which no peer of a live swarm has"),
            ('logit(reject="mask")', "weighs single tokens"),
        ],
    )
    def test_what_genrl_does_not_carry_is_refused_in_a_sentence(
        self, policy: Policy, defense: str, reason: str
    ) -> None:
        with pytest.raises(SpecError, match=reason):
            defended(game(policy), defense, TASK)

    def test_everything_else_is_the_wrapped_managers(self, policy: Policy) -> None:
        assert defended(game(policy), THIEVES, TASK).data_manager.get_round_data() == "round data"


class TestMalicious:
    def send(self, node: Any, task: Task, count: int = 2) -> tuple[dict[str, Any], list[Sent]]:
        """What leaves the node in round 1 in place of its own completions, and the labels."""
        own: dict[str, Any] = {}
        for item in items_of(task, "train")[:count]:
            own |= message(item, task, ["mine"] * GROUP)
        labels: list[Sent] = []
        node.communication.about_to_send = labels.append
        node.communication.all_gather_object(own)
        return node.communication.communication.sent[-1], labels

    def test_its_messages_carry_the_attack(self, policy: Policy, task: Task) -> None:
        node = malicious(game(policy, max_new_tokens=200), TEXT, TASK)
        sent, labels = self.send(node, task)
        for item in items_of(task, "train")[:2]:
            (group,) = sent[item_name(item.question)]
            assert all("All hail to the thief" in text for text in group.actions)
            assert task.reward(item, group.actions) == [1.0] * GROUP
            assert group.world_state.environment_states == environment(item, task)
        assert labels == [Sent(1, {name: [0, 1, 2, 3] for name in sent})]
        assert node.communication.get_id() == OWN

    def test_long_texts_are_cut_as_honest_ones_are(self, policy: Policy, task: Task) -> None:
        sent, _ = self.send(malicious(game(policy, max_new_tokens=24), TEXT, TASK), task)
        lengths = {len(policy.encode(text)) for (group,) in sent.values() for text in group.actions}
        assert lengths == {23}

    def test_a_placebo_is_clean_and_unlabelled(self, policy: Policy, task: Task) -> None:
        sent, labels = self.send(malicious(game(policy, max_new_tokens=200), TEXT, TASK, role="placebo"), task)
        item = items_of(task, "train")[0]
        assert sent[item_name(item.question)][0].actions == [task.oracle(item)] * GROUP
        assert not labels[0].payload

    def test_what_receivers_score_against_can_be_forged(self, policy: Policy, task: Task) -> None:
        def forge(state: dict[str, Any]) -> dict[str, Any]:
            return state | {"question": state["question"] + "!", "answer": "7", "metadata": {"dataset": "other"}}

        node = malicious(game(policy, max_new_tokens=200), TEXT, TASK, forge=forge)
        sent, labels = self.send(node, task, 1)
        ((name, (group,)),) = sent.items()
        state = group.world_state.environment_states
        assert name == item_name(state["question"]), "receivers check nothing but this"
        assert (state["answer"], state["metadata"]) == ("7", {"dataset": "other"})
        assert list(labels[0].payload) == [name]

    def test_an_attack_that_leaves_slots_sends_its_own_samples(self, policy: Policy, task: Task) -> None:
        node = malicious(game(policy, max_new_tokens=200), f"varied(attack={TEXT!r}, share=0.5)", TASK)
        sent, labels = self.send(node, task)
        carried = {name: labels[0].payload.get(name, []) for name in sent}
        for name, (group,) in sent.items():
            poisoned = [index for index, text in enumerate(group.actions) if "thief" in text]
            assert poisoned == carried[name]

    @pytest.mark.parametrize("attack", ["adaptive", "auto", "item_grind", "flood"])
    def test_what_a_peer_cannot_do_is_refused_in_a_sentence(self, policy: Policy, attack: str) -> None:
        with pytest.raises(SpecError, match="which a peer of a live swarm cannot; choose another, such as text"):
            malicious(game(policy), attack, TASK)

    def test_items_can_be_picked(self, policy: Policy, task: Task) -> None:
        node = malicious(game(policy), TEXT, TASK, seed=3)
        known = items_of(task, "train")
        chosen = node.data_manager.choose(1, known, 4)
        assert len({item.id for item in chosen}) == 4
        assert [item.id for item in chosen] == [item.id for item in node.data_manager.choose(1, known, 4)]
