"""An isolated defense says what it says in process, and a hostile one gets nowhere and is told off by name."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import DefenderView, LabelledView
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.swarm import Swarm
from thiefbench.leaderboard.isolation import sandbox_paths
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS, Caps
from thiefbench.leaderboard.isolation.unconfined import Unconfined
from thiefbench.leaderboard.isolation.wire import Malformed, scored_in
from thiefbench.tasks import sandbox, sandbox_session
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing.contracts.pools import SEED, fresh, hostile, recorded, swarm

FILE = Path(__file__).parent.parent / "hostile.py"
SMALL = replace(CAPS, memory=256 << 20, printed=100_000, message=1 << 20, questions=20)
HASTY = replace(SMALL, seconds=1.0)  # for what takes all the time it gets: a busy machine needs longer for the rest


@pytest.fixture(params=["the usual", pytest.param("the other", marks=pytest.mark.slow)], scope="module")
def jail(request: pytest.FixtureRequest) -> Iterator[str]:
    """A back end that works here, named in the environment; with a warm worker for each file that defenses are in.

    That each of them keeps programs in is tried in tests/tasks/test_sandbox.py; the usual one is that which is picked.
    """
    try:
        usual = sandbox.backend()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        picked = {"the usual": usual, "the other": next(name for name in sandbox.BACKENDS if name != usual)}
        patch.setenv(sandbox.VARIABLE, picked[request.param])
        patch.setenv("THIEFBENCH_CANARY", "feathers")
        try:
            sandbox.backend()
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        with warm():
            yield picked[request.param]


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    """Such workers in the back end that is picked."""
    try:
        sandbox.backend()
    except SandboxUnavailable:
        yield
    else:
        with warm():
            yield


@contextmanager
def warm() -> Iterator[None]:
    """Workers for the built-in defenses, the hostile file and the plugins: a worker ends with its last defense."""
    kept = [Isolated(spec) for spec in ("none", f"{FILE}:Does(what='fork')", f"{tiny.PLUGINS}:Counts")]
    yield
    for each in kept:
        each.close()


def view() -> DefenderView:
    return fresh(recorded(labels=False)[0])


def failure(spec: str, caps: Caps = SMALL) -> str:
    """How an isolated defense of the hostile file fails at a pool."""
    with pytest.raises(DefenseError) as caught:
        made = Isolated(f"{FILE}:{spec}", SMALL)
        made.caps = caps
        made.inspect(view())
    return str(caught.value)


# --- the same as in process ---


@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "random(rate=0.5)",
        "logit",
        "logit(reject='mask')",
        "similarity(words=1, reject='mask')",
        "length_budget",
        "seed_replay",
        "likelihood(false_rejection=0.5)",
        "reputation(defense='logit(reject=\"mask\")+random(rate=0.5)', level=0.5)",
        f"{tiny.PLUGINS}:Counts+max_tokens(limit=12)",
    ],
)
def test_isolated_verdicts_are_those_in_process_to_the_bit(jail: str, spec: str) -> None:
    own, isolated = registry.make("defense", spec), Isolated(spec)
    assert (isolated.name, isolated.requires, isolated.judge) == (own.name, own.requires, own.judge)
    for known in recorded(labels=False):
        mine, theirs = fresh(known), fresh(known)
        assert isolated.inspect(theirs) == list(own.inspect(mine)), "verdicts, scores, weights and reasons are equal"
        assert theirs.rng.getstate() == mine.rng.getstate(), "its draws count in the caller's generator too"
    assert isolated.state() == own.state()


USES_SCIPY = """
import importlib

from thiefbench.defenses.base import Defense, Verdict


class Mine(Defense):
    name = "mine"

    def inspect(self, view):
        chance = importlib.import_module({module}).stats.binom.sf(2, 10, 0.5)
        return [Verdict("drop", score=float(chance)) for _ in view.completions]
"""


@pytest.mark.parametrize("module", ["'scipy'", "'sci' + 'py'"])
def test_scipy_is_there_whether_or_not_the_source_names_it(jail: str, tmp_path: Path, module: str) -> None:
    (tmp_path / "mine.py").write_text(USES_SCIPY.format(module=module))
    spec = f"{tmp_path / 'mine.py'}:Mine"
    warm = json.loads(sandbox_paths.setup(spec))["warm"]
    assert warm == (["scipy.special", "scipy.stats"] if module == "'scipy'" else []), "it takes long to import"
    assert {verdict.score for verdict in Isolated(spec).inspect(view())} == {0.9453125}, "968 / 1024"


def test_every_built_in_name_that_uses_scipy_starts_with_it() -> None:
    users = {name for name in registry.names("defense") if json.loads(sandbox_paths.setup(name))["warm"]}
    assert users == {"reputation", "similarity"}
    assert not [name for name in registry.names("attack") if json.loads(sandbox_paths.setup(name, "attack"))["warm"]]


def test_judges_are_asked_through_the_stream() -> None:
    for spec in ("judge(votes=2)", "self_judge"):
        own, isolated = registry.make("defense", spec), Isolated(spec)
        given = [list(defense.inspect(fresh(recorded(labels=False)[0]))) for defense in (own, isolated)]
        assert given[0] == given[1], f"{spec} reads the same replies"
        assert isolated.judge == own.judge


def test_published_items_and_rewards_by_other_answers_cross_too() -> None:
    views = recorded(False, frozenset({ANSWER_KEYS}))
    for spec in ("public_items", "gold_sanity"):
        own, isolated = registry.make("defense", spec), Isolated(spec)
        given = [[list(defense.inspect(fresh(known))) for known in views] for defense in (own, isolated)]
        assert given[0] == given[1], f"{spec} compares the same answers, and gets the same rewards"
        assert {verdict.action for verdicts in given[0] for verdict in verdicts} == {"accept", "drop"}
    with pytest.raises(Malformed, match="the item 'other', which is not of this round"):
        scored_in({"item": "other", "answer": "1", "tests": "", "texts": []}, views[0])
    item = next(iter(views[0].items))
    with pytest.raises(Malformed, match="something that is not text"):
        scored_in({"item": item, "answer": 1, "tests": "", "texts": []}, views[0])
    with pytest.raises(Malformed, match="more than 1,048,576 characters"):
        scored_in({"item": item, "answer": "1", "tests": "", "texts": ["x" * (1 << 20)]}, views[0])


def test_rewards_of_the_rule_cross_too() -> None:
    own, isolated = registry.make("defense", "rule_check"), Isolated("rule_check")
    views = recorded(False, frozenset({RULE_REWARDS}))
    given = [[list(defense.inspect(fresh(known))) for known in views] for defense in (own, isolated)]
    assert given[0] == given[1]
    assert {verdict.action for verdicts in given[0] for verdict in verdicts} == {"accept", "drop"}


@pytest.mark.slow
def test_hostile_completions_cross_unchanged() -> None:
    pool = replace(view(), completions=hostile(view()))
    for spec in ("similarity", "arithmetic", "static_code", "logit"):
        given = [list(d.inspect(copy.copy(pool))) for d in (registry.make("defense", spec), Isolated(spec))]
        assert given[0] == given[1], f"{spec} sees the same NUL bytes, lone surrogates and numbers that are none"


def test_an_empty_pool_has_no_verdicts() -> None:
    empty = replace(view(), completions=(), items={})
    for spec in ("logit", "similarity"):
        assert Isolated(spec).inspect(empty) == []


def test_state_goes_on_in_another_process_and_in_a_copy() -> None:
    spec = f"{tiny.PLUGINS}:Counts"
    first, second = recorded(labels=False)
    one, other = Isolated(spec), Isolated(spec)
    for seen in (first, second):
        one.inspect(fresh(seen))
    stored = json.loads(json.dumps(one.state()))
    other.restore(stored)
    copied = copy.deepcopy(one)
    own = registry.make("defense", spec)
    for seen in (first, second):
        own.inspect(fresh(seen))
    wanted = list(own.inspect(fresh(second)))
    assert any(verdict.action == "drop" for verdict in wanted), "these verdicts depend on the rounds before"
    for isolated in (one, other, copied):
        assert isolated.inspect(fresh(second)) == wanted
    assert stored != one.state(), "what one does afterwards is not the other's"


def test_proofs_are_made_as_in_process() -> None:
    import numpy as np

    states = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    assert Isolated("toploc").prove(states) == registry.make("defense", "toploc").prove(states)


def test_a_swarm_ends_the_same_with_an_isolated_defense() -> None:
    rows = []
    for defense in (registry.make("defense", "logit+length_budget"), Isolated("logit+length_budget")):
        lived: Swarm = swarm(defense)
        rows.append([lived.round(number).rows for number in (1, 2, 3)])
    assert rows[0] == rows[1], "every verdict and advantage of three rounds"


def test_history_is_sent_once_and_again_where_it_changed() -> None:
    spec = f"{tiny.PLUGINS}:Counts"  # asserts that its history is complete
    first, second = recorded(labels=False)
    isolated = Isolated(spec)
    isolated.inspect(fresh(first))
    isolated.inspect(fresh(second))
    isolated.inspect(replace(fresh(second), history=copy.deepcopy(second.history)))
    isolated.inspect(fresh(first))
    with pytest.raises(DefenseError, match="the history holds every past round"):
        isolated.inspect(replace(fresh(second), history=()))


# --- hostile ones ---


def test_labels_and_the_host_are_nowhere_to_be_found(jail: str, tmp_path: Path) -> None:
    store = tmp_path / "record.json"
    store.write_text("labels")
    hidden = [
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/maps",
        str(store),
        str(tmp_path),
        __file__,
    ]
    hidden += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getppid()}/cmdline", tiny.__file__]
    labelled = recorded(labels=True)[0]
    assert isinstance(labelled, LabelledView)
    words = ["hail to the thief", "feathers", str(SEED), "LabelledView(", str(store)]
    spy = Isolated(f"{FILE}:Spies(words={words[:4]}, paths={hidden})")
    for seen in (recorded(labels=False)[0], labelled):
        clean = [o for o in seen.completions if "hail" not in o.text.lower()]
        verdicts = spy.inspect(replace(fresh(seen), completions=tuple(clean), **_cut(seen, clean)))
        assert clean, "something is left to judge"
        assert verdicts[0].reason == "", "no file, no process, no variable, no memory tells"


def test_a_worker_that_dies_is_no_fault_of_its_guest(jail: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from thiefbench.defenses.base import ACCEPT, Defense\nclass Mine(Defense):\n    name = 'mine'\n"
        "    def inspect(self, view):\n        return [ACCEPT] * len(view.completions)\n"
    )
    guest = Isolated(f"{tmp_path / 'mine.py'}:Mine")  # in a worker of its own
    guest.inspect(view())
    guest._host._worker.process.kill()
    with pytest.raises(SandboxUnavailable, match=r"the sandbox's worker died.*; run the same command again"):
        for _ in range(1000):  # the kernel takes a moment to end the guest with its worker
            guest.inspect(view())


def test_a_guest_s_memory_tells_nothing_of_other_guests(jail: str) -> None:
    """Verification starts guests in a fixed order, so whoever can count them knows which cell it is in."""
    spec = f"{FILE}:LooksBack"
    told = []
    with contextlib.ExitStack() as others:
        for number in range(4):
            guest = Isolated(spec)
            others.callback(guest.close)
            told.append(guest.inspect(view())[0])
            if number == 1:
                others.pop_all().close()
    assert {each.score for each in told} == {0.0}, "no program is known"
    assert "_become" in told[0].reason, "it has seen the frames of what started it"
    assert len({each.reason for each in told}) == 1, "and they say the same in the first guest as in the fourth"


def test_a_guest_s_folders_end_with_its_sandbox(jail: str) -> None:
    """The kernel remembers which names were looked for in a folder of the disk, and so would later guests."""
    if jail != "namespaces":
        pytest.skip("Landlock hides no folder; what ran in it is not called re-executed")
    said = Isolated(f"{FILE}:Strolls").inspect(view())[0]
    assert said.score == 1, "all folders are the sandbox's own"
    assert int(said.reason) > 500, "and hold the files"


def test_a_whole_number_as_score_is_stored_as_any_other(jail: str) -> None:
    scores = {verdict.score for verdict in Isolated(f"{FILE}:Answers(what='score whole')").inspect(view())}
    assert scores == {2.0**60}
    assert {type(score) for score in scores} == {float}


def _cut(seen: DefenderView, clean: list[object]) -> dict[str, object]:
    return {"payload": (True,) * len(clean)} if isinstance(seen, LabelledView) else {}


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("socket", "PermissionError"),
        ("passwd", "FileNotFoundError|PermissionError"),
        ("write", "PermissionError|FileNotFoundError|Read-only"),
        ("write beside", "PermissionError|Read-only"),
        ("overwrite", "PermissionError|Read-only"),
        ("fork", "PermissionError"),
        ("bomb", "PermissionError"),
        ("thread", "can't start new thread"),
        ("run", "PermissionError|FileNotFoundError"),
        ("kill parent", "PermissionError"),
        ("kill all", "PermissionError"),
        ("trace parent", "PermissionError|FileNotFoundError"),
        ("look around", re.escape("sees [], -1, 0, and of its own [0, 0, 0, 0, 0, 0, 0, 0]")),
        ("engine", "No module named 'thiefbench.engine'|Permission denied.*engine"),
        ("undeclared", "No module named 'pyarrow'|Permission denied.*pyarrow"),
        ("swallow", "MemoryError|ran out of memory in inspect: it may use 256 MiB"),
        ("never", "took more than 1 seconds of its own for inspect"),
        ("sleep", "took more than 1 seconds of its own for inspect"),
        ("flood", "printed more than 100,000 bytes"),
        ("exit", "ended its own process in inspect"),
        ("stop", r"failed in inspect: KeyboardInterrupt \(hostile\.py, line \d+\)"),
        ("unsayable", "failed in inspect: _UnsayableError: an exception whose message cannot be made"),
        ("out", r"failed in inspect: MemoryError \(hostile\.py, line \d+\); it may use 256 MiB"),
        ("leave", r"failed in inspect: SystemExit: I am done \(hostile\.py, line \d+\)"),
        ("crash", "was killed in inspect .*[Ss]egmentation fault"),
        ("close", "ended its own process in inspect"),
        ("giant", "sent a message of 1,099,511,627,776 bytes, and at most 1,048,576 are allowed"),
        ("long giant", "sent a message of 16,777,216 bytes, and at most 1,048,576 are allowed"),
        ("noise", "sent a message of .* bytes, and at most 1,048,576 are allowed"),
        ("no json", "sent a message that is not JSON"),
        ("deep", "sent a message that is not JSON, or nested too deeply"),
        ("digits", "sent a message"),
        ("arrays", "sent arrays where none are allowed"),
        ("early", "gave a reply in inspect that belongs to no request"),
        ("strange question", "sent an unknown question, 'weights'"),
        ("unknown item", "sent a question about the item 'x', which is not of this round"),
        ("unknown place", "sent a question about something that is not a completion"),
        ("long prompt", "sent a message of 2,|sent a prompt of more than"),
        ("endless reply", "sent max_new_tokens 1000000000; it must lie between 1 and 4096"),
        ("patched", "gave something other than a list of verdicts"),
    ],
)  # fmt: skip
def test_a_hostile_deed_fails_and_is_named(jail: str, monkeypatch: pytest.MonkeyPatch, deed: str, said: str) -> None:
    if deed == "close":  # it goes on for ever without its stream
        monkeypatch.setattr(sandbox_session, "_LEAVE", 0.5)
    told = failure(f"Does(what={deed!r})", HASTY if deed in ("never", "sleep") else SMALL)
    assert told.startswith("the defense does "), "the sentence names the defense"
    assert re.search(said, told), f"it says what happened: {told}"
    assert not Path("/tmp/written").exists()
    assert not FILE.with_name("written").exists()


@pytest.mark.parametrize("deed", ["socket", "never", "exit", "swallow", "flood", "giant"])
def test_a_hostile_constructor_fails_alike(jail: str, deed: str) -> None:
    with pytest.raises(DefenseError, match=r"hostile\.py"):
        Isolated(f"{FILE}:Does(what={deed!r}, early=True)", HASTY if deed == "never" else SMALL)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("too few", "gave 15 verdicts for 16 completions"),
        ("too many", "gave 17 verdicts for 16 completions"),
        ("nothing", "failed in inspect: it returned None; return a list with one Verdict per completion"),
        ("texts", r"it returned 'accept', which is not a Verdict; return a list with .* such as ACCEPT or Verdict"),
        ("nan", "gave the score nan; a score must be a finite number"),
        ("infinite", "gave the score inf"),
        ("score text", "gave the score high"),
        ("score bool", "gave the score True"),
        ("score object", "object objects are not plain data"),
        ("action", "gave the action 'maybe'; a verdict's action must be accept, zero, drop or skip"),
        ("action list", "gave the action"),
        ("action deep", "gave the action 'list'|RecursionError"),
        ("reason", "gave a reason of 10,000 characters; a reason must be text of at most 500"),
        ("reason bytes", "bytes objects are not plain data"),
        ("weights", r"gave 1000 token weights for \d+ tokens"),
        ("weights negative", r"gave the token weight -5\.0; it must lie between 0 and 1"),
        ("weights great", r"gave the token weight 1e\+299; it must lie between 0 and 1"),
        ("weights nan", "gave the token weight nan; it must lie between 0 and 1"),
        ("weights text", "gave the token weight 1; it must lie between 0 and 1"),
        ("huge", "what it returned takes .* bytes, and at most 1,048,576 are allowed; return less"),
    ],
)  # fmt: skip
def test_what_is_no_verdict_is_named(what: str, said: str) -> None:
    assert re.search(said, told := failure(f"Answers(what={what!r})")), told


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("SeesLabels", "wants to see labels"),
        ("Nameless", "name of Nameless must be a string"),
        ("Needy", "requires of Needy has 'labels'; known: homogeneous, beacon, proofs, judge"),
        ("Fickle", "requires something other than homogeneous, beacon, proofs, judge"),
        ("AsksOutside(endpoint='http://localhost:1')", "names a judge behind a server"),
        ("AsksOutside(model='/some/model')", "names a judge that no submission may ask; it may ask micro-judge"),
        ("NoDefense", "NoDefense is not a subclass"),
        ("Nobody", "the defense cannot be constructed: hostile.py has no class Nobody"),
        ("Does(deed='fork')", "the defense cannot be constructed: got an unexpected keyword argument 'deed'; "),
        ("AsksOddly", "sent a question that the policy cannot answer: a token id outside the vocabulary"),
        ("Asks", "sent more than 20 questions in a round"),
    ],
)
def test_what_is_no_defense_is_named(spec: str, said: str) -> None:
    assert said in failure(spec)


@pytest.mark.parametrize("spec", ["Nobody", "Nameless", "Does(deed='fork')", "Does(what='nothing', early=True)"])
def test_why_it_cannot_be_made_is_said_without_paths_and_once(spec: str) -> None:
    for make in (Isolated, Unconfined):
        with pytest.raises(DefenseError) as error:
            make(f"{FILE}:{spec}")
        said = str(error.value)
        assert said.startswith("the defense cannot be constructed: "), said
        assert (said.count(FILE.name) <= 1, "/" in said, "SpecStringError" in said) == (True, False, False), said


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("list", "gave a state that is list"),
        ("nan", r"state\(\)\['a'\]\[0\] is nan; a state is JSON, whose numbers are finite"),
        ("infinite", r"state\(\)\['a'\]\['mean'\] is -inf"),
        ("set", r"state\(\)\['names'\] is a set, which JSON does not have; return sorted"),
        ("nested", "gave a state with a number that is not finite, or deeper than 100|RecursionError"),
        ("object", "object objects are not plain data: numbers, strings, lists"),
        ("deep", "RecursionError|nested too deeply"),
        ("huge", "bytes, and at most .*, such as a smaller state or tensor, or"),
    ],
)
def test_a_state_that_is_none_is_named(what: str, said: str) -> None:
    with pytest.raises(DefenseError, match=said):
        Isolated(f"{FILE}:BadState(what={what!r})", SMALL).state()


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(registry.SpecStringError, match=r"there is no file nowhere\.py"):
        Isolated("nowhere.py:Mine")


def test_after_a_failure_everything_fails_at_once() -> None:
    broken = Isolated(f"{FILE}:Does(what='exit')", SMALL)
    with pytest.raises(DefenseError) as first:
        broken.inspect(view())
    for call in (broken.state, lambda: broken.restore({}), lambda: broken.inspect(view())):
        with pytest.raises(DefenseError) as again:
            call()
        assert again.value is first.value, "the first error stays the answer"


def test_a_policy_s_own_error_is_not_the_defense_s() -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            def fails(*_: object, **__: object) -> None:
                raise RuntimeError("no memory on the device")

            return fails

    with pytest.raises(RuntimeError, match="no memory on the device"):
        Isolated("logit").inspect(replace(view(), policy=Broken()))


def test_processes_end_with_their_defense() -> None:
    isolated = Isolated("none", hash_seed=7)  # which no other has
    process = isolated._host._worker.process
    assert process.poll() is None
    del isolated
    gc.collect()
    assert process.wait(10) is not None, "no process is left behind"


@pytest.mark.slow
def test_files_are_found_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from thiefbench.defenses.base import Defense, Verdict\n\n\n"
        "class Mine(Defense):\n"
        "    name = 'mine'\n\n"
        "    def inspect(self, view):\n"
        "        return [Verdict('drop')] * len(view.completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    for spec in ("mine.py:Mine", "similarity+./mine.py:Mine", "reputation(defense='mine.py:Mine')"):
        made = Isolated(spec)
        assert {verdict.action for verdict in made.inspect(view())} == {"drop"}, spec
        made.close()
