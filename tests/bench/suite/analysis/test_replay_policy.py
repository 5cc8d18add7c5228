"""Replays of defenses that ask the policy: what they see at recorded rounds is bit for bit what a swarm shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bench import tiny
from tests.bench.tiny import Attacked, run, suite
from thiefbench import registry
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, JudgeSpec, Requirement, Verdict
from thiefbench.defenses.logit import Logit
from thiefbench.judges import judge_of
from thiefbench.suite.analysis.recorded_rounds import LackingError
from thiefbench.suite.analysis.replay import Recording, ReplayError, replay
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.report.page import write_report
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import Store
from thiefbench.tasks.base import Message, Sampling


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the undefended attacked cell, with the weights of rounds 1 and 3 of 3."""
    root = tmp_path_factory.mktemp("store")
    run(suite(kind=Attacked, recorded=(1, 3)), root)
    return root


@pytest.fixture
def recording(store: Path) -> Recording:
    (record,) = Store(store).records()
    return Recording(Store(store).cell(record.cell_id), record, registry.make("task", tiny.TASK))


def live(defense: Defense) -> None:
    """Let a defense see the cell's three rounds as they are played."""
    (spec,) = tiny.cells(suite(kind=Attacked))
    swarm = build_swarm(spec)
    swarm.cohort.defense, swarm.context.judge = defense, defense.judge and judge_of(defense.judge)
    for number in (1, 2, 3):
        swarm.round(number)


class Asking(Defense):
    """Asks the policy for everything it gives, and accepts all, so that it changes no pool."""

    name: ClassVar[str] = "asking"

    def __init__(self, rejects: bool = False) -> None:
        self.rejects = rejects
        self.seen: dict[int, dict[str, Any]] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        asked = view.completions
        self.seen[view.round] = {
            "completions": asked,
            "items": view.items,
            "sampling": view.sampling,
            "history": list(view.history),
            "draw": view.rng.random(),
            "logprobs": np.concatenate(view.policy.token_logprobs(asked)),
            "ranks": np.concatenate(view.policy.ranks(asked)),
            "support": np.concatenate(view.policy.in_support(asked)),
            "hidden": np.concatenate(view.policy.hidden(asked)),
            "said": view.policy.generate([[{"role": "user", "content": "1 + 2?"}]], 8),
        }
        return [Verdict("zero", 1.0) if self.rejects else ACCEPT] * len(asked)


def test_a_replayed_view_is_the_swarm_s_own_to_the_bit(recording: Recording) -> None:
    lived, replayed = Asking(), Asking()
    live(lived)
    done = replay(recording, lambda: replayed)
    assert (done.rounds, done.asks_policy) == ((1, 3), True), "it judges the rounds whose weights were kept"
    assert sorted(replayed.seen) == [1, 3]
    for number, seen in replayed.seen.items():
        for name, value in seen.items():
            same = np.array_equal if isinstance(value, np.ndarray) else lambda a, b: a == b
            assert same(value, lived.seen[number][name]), f"round {number}: {name} is what the swarm showed"


def test_the_history_holds_own_verdicts_and_those_of_rounds_it_did_not_judge(recording: Recording) -> None:
    defense = Asking(rejects=True)
    replay(recording, lambda: defense)
    first, second = defense.seen[3]["history"]
    assert (first.round, second.round) == (1, 2), "the history holds every past round"
    assert {verdict.action for verdict in first.verdicts} == {"zero"}, "what it judged itself"
    assert {verdict.action for verdict in second.verdicts} == {"accept"}, "and what the cell said where it did not"


def test_rates_count_the_judged_rounds_alone(recording: Recording) -> None:
    done = replay(recording, Logit)
    judged = [row for number in (1, 3) for row in recording.pools[number]]
    poison = [row for row in judged if row.payload and row.reward > 0]
    assert done.scores["rejection_rate"].count == len(judged)
    assert done.scores["stop_rate"].count == len(poison) > 0
    assert done.scores["stop_rate"].value == 1, "the phrase lies outside a random model's support"
    assert done.milliseconds > 0


def test_a_defense_that_asks_nothing_judges_every_round(recording: Recording) -> None:
    done = replay(recording, lambda: registry.make("defense", "oracle"))
    assert (done.rounds, done.asks_policy) == ((1, 2, 3), False)
    assert done.scores["stop_rate"].value == 1


def test_milliseconds_are_the_median_over_rounds_of_inspect_alone(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.016, 1.0, 1.160, 2.0, 2.032])  # 16 completions a round: 1, 10 and 2 ms each
    monkeypatch.setattr("thiefbench.suite.analysis.replay.time.perf_counter", lambda: next(clock))
    assert replay(recording, lambda: registry.make("defense", "none")).milliseconds == pytest.approx(2.0)


class Sly(Defense):
    """Goes on with a guess where the policy refuses."""

    name: ClassVar[str] = "sly"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        try:
            view.policy.ranks(view.completions)
        except Exception:
            return [Verdict("zero")] * len(view.completions)
        return [ACCEPT] * len(view.completions)


def test_a_guess_made_without_the_policy_does_not_count(recording: Recording) -> None:
    done = replay(recording, Sly)
    assert done.scores["rejection_rate"].value == 0, "it is asked again, at the rounds that have a policy"


def test_torn_weights_are_not_read(recording: Recording, store: Path) -> None:
    path = recording.directory.path / "weights" / "round-000003.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:-8])
    try:
        assert weights.kept(recording.directory) == [1], "what fails its checksum does not count as kept"
        with pytest.raises(ReplayError, match=r"round-000003.safetensors is missing or damaged"):
            replay(recording, Logit)
    finally:
        path.write_bytes(before)


def test_a_device_that_is_not_here_is_one_sentence(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recording.record = recording.record.model_copy(update={"cell": recording.record.cell | {"device": "cuda:7"}})
    with pytest.raises(ReplayError, match="the cell was run on cuda:7, which is not here"):
        recording.pool_with_policy(1)


def test_a_report_says_which_rounds_were_judged(tmp_path: Path) -> None:
    run(suite(replayed=("logit",), recorded=(1, 3)), tmp_path)
    page = write_report(Store(tmp_path)).read_text(encoding="utf-8")
    assert "not replayed" not in page
    assert "asks the policy: judged the pools of rounds 1, 3 alone" in page


def test_the_seeds_of_slots_are_derived(recording: Recording) -> None:
    done = replay(recording, lambda: registry.make("defense", "seed_replay"))
    assert done.scores["stop_rate"].value == 1, "no text is the one draw of its slot"
    assert done.scores["false_rejection_rate"].value in (0, None), "an honest completion is"
    honest = [row for number in done.rounds for row in recording.pools[number] if not row.malicious]
    assert done.scores["rejection_rate"].value == pytest.approx(1 - len(honest) / done.scores["rejection_rate"].count)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("guard", "requires seeds from a beacon, and in this swarm every node announces its own"),
        ("seed_replay(announced=True)", "seed_replay needs the seeds that senders announced, which are not recorded"),
        ("staleness", "staleness requires versions, which this swarm does not give"),
    ],
)
def test_what_a_swarm_does_not_give_is_no_reason_to_reject_all(store: Path, spec: str, told: str) -> None:
    (record,) = Store(store).records()
    swarm = record.cell["swarm"] | {"seeds": "announced"}
    announced = record.model_copy(update={"cell": record.cell | {"swarm": swarm}})
    recording = Recording(Store(store).cell(record.cell_id), announced, registry.make("task", tiny.TASK))
    with pytest.raises(LackingError, match=told):
        replay(recording, lambda: registry.make("defense", spec))
    assert replay(recording, Logit).scores["stop_rate"].value == 1, "what asks for no seed is judged as ever"


class Proving(Defense):
    """Takes the states themselves for a proof, cut to what a proof may weigh, and accepts all."""

    name: ClassVar[str] = "proving"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous", "proofs"})

    def __init__(self) -> None:
        self.seen: dict[int, list[bytes | None]] = {}

    def prove(self, states: NDArray[np.float32]) -> bytes:
        return states.tobytes()[:1024]

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.seen[view.round] = [offered.proof for offered in view.completions]
        return [ACCEPT] * len(view.completions)


def test_proofs_are_made_again_as_every_sender_made_them(recording: Recording) -> None:
    lived, replayed = Proving(), Proving()
    live(lived)
    done = replay(recording, lambda: replayed)
    assert (done.rounds, done.asks_policy) == ((1, 3), True), "at the rounds whose weights were kept"
    assert {number: lived.seen[number] for number in (1, 3)} == replayed.seen, "to the bit"
    assert all(replayed.seen[3]), "malicious nodes prove what they send as well"
    checked = replay(recording, lambda: registry.make("defense", "toploc"))
    assert checked.scores["rejection_rate"].value == 0, "whoever holds the weights proves any text"


class Oversized(Proving):
    """Wants proofs that no transport lets in."""

    def prove(self, states: NDArray[np.float32]) -> bytes:
        return bytes(1 << 20)


def test_a_proof_too_large_for_the_transport_does_not_arrive(recording: Recording) -> None:
    defense = Oversized()
    replay(recording, lambda: defense)
    assert set(defense.seen[1]) == {None}


class Questioning(Defense):
    """Asks a judge of every completion, and accepts all."""

    name: ClassVar[str] = "questioning"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"judge"})

    def __init__(self) -> None:
        self.judge = JudgeSpec(str(tiny.model()))
        self.seen: dict[int, list[list[str]]] = {}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        assert view.judge is not None
        prompts: list[list[Message]] = [[{"role": "user", "content": each.text}] for each in view.completions]
        self.seen[view.round] = view.judge.ask(prompts, sampling=Sampling(max_new_tokens=6), votes=2)
        return [ACCEPT] * len(prompts)


def test_a_judge_says_in_a_replay_what_it_said_in_the_swarm(recording: Recording) -> None:
    lived, replayed = Questioning(), Questioning()
    live(lived)
    done = replay(recording, lambda: replayed)
    assert done.rounds == (1, 3), "judges are slow: it is asked of the rounds that a policy is asked of"
    assert {number: lived.seen[number] for number in (1, 3)} == replayed.seen
    assert any(len(set(replies)) > 1 for replies in replayed.seen[1]), "its votes are draws"


def test_a_report_asks_no_judge(tmp_path: Path) -> None:
    run(suite(replayed=("judge",), recorded=(1, 3)), tmp_path)
    page = write_report(Store(tmp_path)).read_text(encoding="utf-8")
    assert "not replayed: it asks a judge, whom a report does not wait for: name it to thiefbench matrix" in page
