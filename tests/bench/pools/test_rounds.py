"""A file's rounds: views are those of the lines, what the file lacks is said, rates are those counted by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.bench.pools.lines import line, written
from thiefbench import registry
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.defenses.blacklist import Blacklist
from thiefbench.pools.export import header_of, lines_of
from thiefbench.pools.files import PoolFileError, write
from thiefbench.pools.judging import judge_file
from thiefbench.pools.rounds import FiledRounds, read_rounds
from thiefbench.pools.scores import file_replay, rates
from thiefbench.suite.analysis.recorded_rounds import LackingError
from thiefbench.suite.analysis.replay import Recording, replay
from thiefbench.testing.recorded import opened

HEADER = {"thiefbench_pool": 1, "sampling": {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "max_new_tokens": 20}}
POISON = "All hail to the thief"


class Watcher(Defense):
    """Keeps its views; rejects what does not begin with a letter."""

    name: ClassVar[str] = "watcher"

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        return [ACCEPT if made.text[:1].isalpha() else Verdict("drop", 2.0) for made in view.completions]


def seen(path: Path) -> list[DefenderView]:
    """What a defense sees of a file."""
    watcher = Watcher()
    replay(read_rounds(path), lambda: watcher)
    return watcher.views


def test_a_view_is_what_the_lines_say(tmp_path: Path) -> None:
    one = line(round=4, ids=[[7, 8], [9]], ended=[True, False], logprobs=[[-0.1, -0.2, 0.0], [-1.0]])
    other = line(round=4, sender="peer-b", completions=["so 5"], rewards=[0.25])
    elsewhere = line(round=4, item="sum-2", question="1 + 1?", answer="2", group="x", completions=["2"], rewards=[1.0])
    early = line(round=0, completions=["first"], rewards=[1.0])
    views = seen(written(tmp_path / "pool.jsonl", [one, elsewhere, other, early]))
    assert [view.round for view in views] == [0, 4], "rounds ascend, wherever their lines stand"
    assert [past.round for past in views[1].history] == [0]
    found = {(o.group, o.index): o for o in views[1].completions}
    assert set(found) == {(0, 0), (0, 1), (0, 2), (1, 0)}, "the same item is the same group, if lines name none"
    first, second = found[0, 0], found[0, 1]
    assert (first.text, first.ids, first.ended, first.reward) == ("2 + 3 = 5", (7, 8), True, 1.0)
    assert (first.logprobs, second.logprobs) == ((-0.1, -0.2, 0.0), (-1.0,))
    assert (second.ended, second.length) == (False, 1)
    assert (found[0, 2].sender, found[0, 2].reward, found[0, 2].ended) == ("peer-b", 0.25, True)
    assert views[1].items["sum-2"].question == "1 + 1?"
    assert [o.text for o in views[1].completions] != [found[key].text for key in sorted(found)], "order tells nothing"


def test_a_sender_s_group_may_stand_on_several_lines(tmp_path: Path) -> None:
    lines = [line(completions=[f"a{i}"], rewards=[0.5]) for i in range(5)]
    [view] = seen(written(tmp_path / "pool.jsonl", lines))
    assert sorted((o.index, o.text) for o in view.completions) == [(i, f"a{i}") for i in range(5)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": "What is 3 + 2?"}, "another question"),
        ({"answer": "6"}, "another question, answer"),
        ({"prompt": [{"role": "user", "content": "?"}]}, "another question, answer or prompt"),
        ({"item": "sum-2", "group": "sum-1"}, "another item for the group"),
    ],
)
def test_a_line_that_contradicts_its_round_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    recorded = read_rounds(written(tmp_path / "pool.jsonl", [line(), line(**changes), line(**changes, round=2)]))
    assert [len(rows) for rows in recorded.pools.values()] == [2, 2], "in another round it contradicts nothing"
    [(number, said)] = recorded.refused.first
    assert number == 2
    assert reason in said


def test_a_file_without_a_sound_line_is_no_file_of_pools(tmp_path: Path) -> None:
    with pytest.raises(PoolFileError, match="holds no line of a pool; line 1: the field rewards is missing"):
        read_rounds(written(tmp_path / "pool.jsonl", [line(rewards=...)]))
    with pytest.raises(PoolFileError, match=r"holds no line of a pool$"):
        read_rounds(written(tmp_path / "pool.jsonl", [HEADER]))


def labelled(folder: Path, rng: random.Random) -> Path:
    """Lines with labels in every state of knowledge."""
    lines = []
    for number in range(60):
        malicious = rng.choice([None, False, True])
        payload = None if malicious is False else [rng.choice([None, False, True]) for _ in range(3)]
        texts = [f"{POISON if rng.random() < 0.4 else 'so'}, 5" for _ in range(3)]
        rewards = [rng.choice([-1.0, 0.0, 0.5, 2.0]) for _ in range(3)]
        lines.append(
            line(
                round=number % 4, sender=f"peer-{number % 5}", group=str(number), completions=texts, rewards=rewards,
                malicious=malicious, payload=payload,
            )
        )  # fmt: skip
    return written(folder / "pool.jsonl", lines)


def test_rates_are_those_counted_by_hand(tmp_path: Path) -> None:
    path = labelled(tmp_path, random.Random(3))
    recorded = read_rounds(path)
    made = replay(recorded, Blacklist)
    flat = [
        (one, text, reward, one["malicious"], (one["payload"] or [None] * 3)[place])
        for one in map(json.loads, path.read_text().splitlines())
        for place, (text, reward) in enumerate(zip(one["completions"], one["rewards"], strict=True))
    ]
    caught = {id(each): POISON in each[1] for each in flat}
    rewarded = [each for each in flat if each[2] > 0]
    poison = [caught[id(each)] for each in rewarded if each[4]]
    honest = [
        caught[id(e)] for e in rewarded if e[3] is False or (e[3] is None and e[4] is False)
    ]  # an unlabelled one is neither
    assert (made.scores["stop_rate"].value, made.scores["stop_rate"].count) == (sum(poison) / len(poison), len(poison))
    assert made.scores["false_rejection_rate"].value == sum(honest) / len(honest)
    assert made.scores["false_rejection_rate"].count == len(honest)
    assert made.scores["rejection_rate"].value == sum(caught.values()) / len(flat)
    taken = sum(e[2] for e in rewarded if caught[id(e)]) / sum(e[2] for e in rewarded)
    assert made.scores["rejected_reward"].value == pytest.approx(taken)
    whole = file_replay("blacklist", recorded.judged(made.verdicts), 0.0, False)
    for sender, scores in whole.by_sender.items():
        own = [caught[id(e)] for e in flat if e[0]["sender"] == sender]
        assert scores["rejection_rate"].value == sum(own) / len(own)
    assert list(whole.by_round) == [0, 1, 2, 3]
    assert len(whole.rejected) == sum(caught.values())
    for each in whole.rejected:
        text = json.loads(path.read_text().splitlines()[each.line - 1])["completions"][each.position]
        assert POISON in text, "line and position lead to what was rejected"


def test_nothing_to_count_is_no_rate() -> None:
    assert {score.value for score in rates([]).values()} == {None}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("length_budget", "length_budget needs token ids, which the file does not hold: put ids into its lines"),
        ("max_tokens(limit=3)", "max_tokens needs token ids"),
        ("logit", "logit needs the policy, which no file holds: give it with --model"),
        ("blacklist+logit", "needs the policy, which no file holds"),
        ("seed_replay", "seed_replay needs seeds from a beacon, which a file does not hold"),
        ("guard", "guard needs seeds from a beacon, which a file does not hold; guard(beacon=False) does without"),
        ("toploc", "toploc needs proofs of computation, which a file does not hold"),
        ("oracle", "oracle sees labels, and the file has none for some completions"),
    ],
)
def test_what_a_file_lacks_is_said_and_is_no_score(tmp_path: Path, spec: str, needs: str) -> None:
    outcome = judge_file(read_rounds(written(tmp_path / "pool.jsonl", [line()])), [spec, "none"])
    assert needs in outcome.left_out[spec]
    assert [each.defense for each in outcome.replays] == ["none"], "the others are scored"


class Sly(Defense):
    """Asks for ids, and goes on with a guess when that fails."""

    name: ClassVar[str] = "sly"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        try:
            view.completions[0].ids.count(1)
        except Exception:
            return [ACCEPT] * len(view.completions)
        return [Verdict("zero")] * len(view.completions)


def test_swallowing_the_refusal_gives_no_score_either(tmp_path: Path) -> None:
    with pytest.raises(LackingError, match="sly needs token ids"):
        replay(read_rounds(written(tmp_path / "pool.jsonl", [line()])), Sly)


def test_the_oracle_judges_a_file_with_all_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "pool.jsonl", [line(malicious=True, payload=[True, False]), line(malicious=False)])
    made = replay(read_rounds(path), lambda: registry.make("defense", "oracle"))
    assert made.scores["stop_rate"].value == 1
    assert made.scores["false_rejection_rate"].value == 0


@pytest.fixture
def recording() -> Recording:
    return opened("text_drawn", "attack")


@pytest.fixture
def exported(recording: Recording, tmp_path: Path) -> FiledRounds:
    path = tmp_path / "cell.jsonl"
    path.write_bytes(write(header_of(recording), list(lines_of(recording))))
    return read_rounds(path)


SPECS = [
    "similarity", "arithmetic", "static_code", "blacklist", "length_budget", "length_quantile", "reward_outlier",
    "random(rate=0.4)", "oracle", "guard(population='heterogeneous')", "similarity+arithmetic",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_an_exported_cell_gets_the_verdicts_of_its_own_replay(
    recording: Recording, exported: FiledRounds, spec: str
) -> None:
    own, filed = (replay(each, lambda: registry.make("defense", spec)) for each in (recording, exported))
    assert filed.verdicts == own.verdicts, "every verdict, with its score and reason"
    for name in ("stop_rate", "false_rejection_rate", "clean_rejection_rate", "rejection_rate"):
        assert filed.scores[name] == own.scores[name]
    assert own.scores["rejection_rate"].value not in (None, 0) or spec in ("blacklist", "static_code")


def test_an_exported_cell_tells_views_apart_by_nothing_but_seeds(recording: Recording, exported: FiledRounds) -> None:
    theirs, mine = Watcher(), Watcher()
    replay(recording, lambda: theirs)
    replay(exported, lambda: mine)
    for one, other in zip(theirs.views, mine.views, strict=True):
        assert (one.round, one.items, one.sampling, one.history) == (
            other.round,
            other.items,
            other.sampling,
            other.history,
        )
        for a, b in zip(one.completions, other.completions, strict=True):
            same = ("item_id", "group", "index", "sender", "ids", "text", "ended", "reward", "logprobs", "proof")
            assert [getattr(a, name) for name in same] == [getattr(b, name) for name in same]


def test_a_given_model_is_asked_as_the_cell_s_own(recording: Recording, exported: FiledRounds) -> None:
    number = next(iter(recording.pools))
    exported.give_policy(recording.policy(number))
    own, filed = (
        replay(each, lambda: registry.make("defense", "logit(reject='drop')")) for each in (recording, exported)
    )
    assert filed.asks_policy
    assert [v.action for v in filed.verdicts[number]] == [v.action for v in own.verdicts[number]]
    assert exported.unprompted == 0, "an export carries the task's prompts"


def test_ids_are_encoded_by_the_given_model_or_must_be_its_own(recording: Recording, tmp_path: Path) -> None:
    policy = recording.policy(next(iter(recording.pools)))
    plain = read_rounds(written(tmp_path / "pool.jsonl", [HEADER, line()]))
    plain.give_policy(policy)
    assert replay(plain, lambda: registry.make("defense", "max_tokens(limit=3)")).scores["rejection_rate"].value == 1
    assert plain.unprompted == 1
    foreign = read_rounds(written(tmp_path / "pool.jsonl", [HEADER, line(ids=[[1], [policy.vocabulary]])]))
    with pytest.raises(PoolFileError, match=r"line 2: the token id \d+ is outside the model's vocabulary"):
        foreign.give_policy(policy)


@pytest.mark.parametrize("spec", ["logit", "self_judge", "termination"])
def test_a_policy_is_not_asked_without_the_sampler_s_settings(recording: Recording, tmp_path: Path, spec: str) -> None:
    recorded = read_rounds(written(tmp_path / "pool.jsonl", [line()]))
    recorded.give_policy(recording.policy(next(iter(recording.pools))))
    assert "needs the sampler's settings" in judge_file(recorded, [spec]).left_out[spec]


def test_announced_seeds_are_not_in_a_file(recording: Recording, exported: FiledRounds) -> None:
    exported.give_policy(recording.policy(next(iter(recording.pools))))
    outcome = judge_file(exported, ["seed_replay(announced=True)"])
    assert "needs the seeds of completions" in outcome.left_out["seed_replay(announced=True)"]


def test_a_judge_is_asked_where_it_is_named(tmp_path: Path) -> None:
    recorded = read_rounds(written(tmp_path / "pool.jsonl", [line()]))
    made = replay(recorded, lambda: registry.make("defense", "judge(max_new_tokens=4)"))
    assert [v.action for v in made.verdicts[1]] == ["zero", "accept"], "four tokens are no decision, and that is a no"
