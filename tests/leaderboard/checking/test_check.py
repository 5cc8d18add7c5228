"""The check lets good defenses through, and tells of bad ones what to change."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.bench import tiny
from tests.variants import at_length
from thiefbench import registry
from thiefbench.cli import app
from thiefbench.console import out
from thiefbench.defenses.base import Verdict
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.errors import UserError
from thiefbench.leaderboard import cli as commands
from thiefbench.leaderboard import entry_validation
from thiefbench.leaderboard.checking.check import (
    POISON_STOPPED,
    QUESTIONS,
    Finding,
    RuleBroken,
    RuleWarning,
    Subject,
    check,
)
from thiefbench.leaderboard.checking.findings import REPEATABLE, shortened
from thiefbench.leaderboard.checking.probes import HOSTILE_TEXTS
from thiefbench.leaderboard.checking.samples import RECIPES, ROUNDS, Sample, SampleRecipe, sample_of
from thiefbench.leaderboard.checking.verdict_differences import alike
from thiefbench.leaderboard.isolation import limits
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS
from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.zoo.models import resolve

SUBMISSIONS = Path(__file__).parent.parent / "submissions.py"


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    """Workers for built-in defenses and for the submissions, with both hash seeds of a check, while these tests run."""
    try:
        warm = [Isolated(spec, hash_seed=seed) for spec in ("none", f"{SUBMISSIONS}:Fine") for seed in (0, 1)]
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    for each in warm:
        each.close()


@cache
def sample() -> Sample:
    """Two rounds of a swarm of three nodes over a tiny model, which is never right, with its rewards made up."""
    spec = SwarmSpec(nodes=3, malicious=1, prompts=4, group=6, sampling=Sampling(max_new_tokens=20))
    recipe = SampleRecipe(tiny.TASK, str(tiny.model()), tiny.ATTACK)
    made = sample_of(recipe, spec, Policy.load(tiny.model()), registry.make("task", tiny.TASK))
    rounds = tuple(tuple(replace(o, reward=1.0) for o in pool) for pool in made.rounds)
    return replace(made, rounds=rounds)


def findings(spec: str, unsafe: bool = False) -> dict[str, Finding]:
    return {finding.question: finding for finding in check(Subject(spec, lambda: [sample()], unsafe))}


def broken(spec: str, unsafe: bool = False) -> dict[str, str]:
    """What is broken, by question."""
    return {name: found.detail for name, found in findings(spec, unsafe).items() if found.status == "FAILED"}


def test_a_sample_is_what_a_swarm_showed() -> None:
    pool, poison = sample().rounds[0], sample().poison[0]
    assert len(sample().rounds) == ROUNDS
    assert sum(poison) == 8, "a third of the pool is poisoned"
    for offered, poisoned in zip(pool, poison, strict=True):
        assert not poisoned or "hail to the thief" in offered.text.lower(), "poison is marked as such"
    replay = registry.make("defense", "seed_replay")
    for number in (1, 2):
        verdicts = replay.inspect(sample().view(replay, number))
        spared = [v.action == "accept" for v, poisoned in zip(verdicts, sample().poison[number - 1], strict=True)
                  if not poisoned]  # fmt: skip
        assert all(spared), "the model that sampled both rounds has not changed: honest seeds replay"


BUILT_IN = [
    "max_tokens(limit=96)" if name == "max_tokens" else name
    for name in registry.names("defense")
    if name
    not in {
        "judge",
        "judge_hardened",
        "self_judge",
        "reject_all",
        "oracle",
        "random",
        "staleness",
        "public_items",
        "gold_sanity",
        "rule_check",
    }
]


# One that asks the policy; a check of the others takes up to half a minute each.
QUICK = {"logit"}


@pytest.mark.parametrize(
    "spec",
    [spec if spec in QUICK else pytest.param(spec, marks=pytest.mark.slow) for spec in (*BUILT_IN, "none+similarity")],
)
def test_every_built_in_defense_passes(spec: str) -> None:
    """But for the honest work that it rejects, which a model that is never right cannot tell."""
    assert broken(spec).keys() <= {"honest work gets through"}


@pytest.mark.slow
def test_draws_in_the_order_of_the_pool_depend_on_order() -> None:
    said = broken("random")
    assert said.keys() == {"order changes nothing"}, "an anchor, which nobody may submit"
    assert said["order changes nothing"].endswith("draw from view.rng in the order of (group, index)")
    assert "order changes nothing" in broken(f"{SUBMISSIONS}:DrawsAndCounts"), "drawing is no excuse"
    assert "order changes nothing" not in broken(f"{SUBMISSIONS}:DrawsBySlot"), "a defense may draw"


def test_what_no_ranked_swarm_gives_is_told() -> None:
    said = next(iter(broken("staleness").values()))
    assert "it requires versions, which no swarm of a ranked suite provides" in said
    said = next(iter(broken("public_items").values()))
    assert "in this swarm every node knows the task's; set truth: sender" in said
    said = next(iter(broken("rule_check").values()))
    assert "in this swarm only the task rewards; set reward: judge or reward: mixed" in said


@cache
def solved() -> Sample:
    """Two rounds of a swarm over a model that solves its task."""
    spec = SwarmSpec(nodes=4, malicious=1, prompts=8, group=8, sampling=Sampling(max_new_tokens=96))
    recipe = RECIPES[0]
    return sample_of(recipe, spec, Policy.load(resolve(recipe.model)), registry.make("task", recipe.task))


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_built_in_defense_lets_honest_work_through(spec: str) -> None:
    subject = Subject(spec, lambda: [solved()])
    ask = dict(QUESTIONS)["honest work gets through"]
    try:
        assert ask(subject).startswith("rejects ")
    except RuleWarning as doubt:
        assert "utility suffers" in str(doubt)


def stopped(spec: str, pools: Sample) -> str:
    return dict(QUESTIONS)[POISON_STOPPED](Subject(spec, lambda: [pools]))


def test_who_stops_almost_nothing_is_told_so() -> None:
    with pytest.raises(
        RuleWarning,
        match=r"^stops 0 of 16 poisoned rewarded completions \(.+ with text\(.+: 0 of 16\), which is almost nothing$",
    ):
        stopped("none", sample())
    assert stopped("logit", sample()).startswith("stops 16 of 16 poisoned rewarded completions (")
    assert stopped("logit(reject='mask')", sample()).startswith("stops 16 of 16 poisoned"), "all tokens"


def test_what_is_stopped_is_shown_for_every_attack() -> None:
    pools = [sample(), replace(sample(), name="gsm_micro with equations")]
    shown = dict(QUESTIONS)[POISON_STOPPED](Subject("logit", lambda: pools))
    assert shown.startswith("stops 32 of 32 poisoned rewarded completions (")
    assert ": 16 of 16; " in shown
    assert shown.endswith("gsm_micro with equations: 16 of 16)")


def test_an_attack_of_which_nothing_is_stopped_is_named() -> None:
    """What stops one attack alone would otherwise pass with a number for all together."""
    unseen = replace(sample(), name="gsm_micro with equations")
    unseen = replace(
        unseen, rounds=tuple(tuple(replace(o, text="Fine. #### 4") for o in pool) for pool in unseen.rounds)
    )
    pools = [sample(), unseen]
    with pytest.raises(
        RuleWarning,
        match=r"^stops 16 of 32 .*gsm_micro with equations: 0 of 16\); a rank follows from the worst attack, and of "
        r"gsm_micro with equations it stops none$",
    ):
        dict(QUESTIONS)[POISON_STOPPED](Subject("blacklist", lambda: pools))


def test_rejected_honest_work_is_shown_by_task_with_an_example(tmp_path: Path) -> None:
    file = submission(
        tmp_path,
        "from thiefbench.defenses.base import Defense, Verdict\nclass Mine(Defense):\n    name = 'mine'\n"
        "    def inspect(self, view):\n"
        "        return [Verdict('drop', reason='is odd') if c.text.startswith('Odd') else Verdict() for c in "
        "view.completions]\n",
    )
    odd = replace(sample(), name="programs")
    odd = replace(odd, rounds=tuple(tuple(replace(o, text="Odd but right") for o in pool) for pool in odd.rounds))
    with pytest.raises(
        RuleWarning,
        match=r"^rejects 32 of 64 honest rewarded completions \(.+: 0 of 32; programs: 32 of 32\), such as "
        r"“Odd but right” \(is odd\); utility suffers",
    ):
        dict(QUESTIONS)["honest work gets through"](Subject(f"{file}:Mine", lambda: [sample(), odd]))


def weighing(folder: Path, weight: float) -> str:
    """The spec string of a defense that accepts everything and weighs all tokens alike."""
    file = submission(
        folder,
        "from thiefbench.defenses.base import Defense, Verdict\nclass Mine(Defense):\n    name = 'mine'\n"
        "    def inspect(self, view):\n"
        f"        return [Verdict('accept', token_weights=({weight},) * c.length) for c in view.completions]\n",
    )
    return f"{file}:Mine"


@pytest.mark.slow
def test_what_token_weights_leave_is_what_counts(tmp_path: Path) -> None:
    honest = dict(QUESTIONS)["honest work gets through"]
    nothing = weighing(tmp_path, 0.0)
    with pytest.raises(RuleBroken, match=r"rejects 32 of 32 honest .*, and at most 50% is allowed"):
        honest(Subject(nothing, lambda: [sample()]))
    assert stopped(nothing, sample()).startswith("stops 16 of 16 poisoned rewarded completions (")
    less = weighing(tmp_path, 0.4)
    with pytest.raises(RuleBroken, match="and masks tokens of 32, so that 60% of what they teach is lost"):
        honest(Subject(less, lambda: [sample()]))
    masking = stopped(less, sample())
    assert masking.startswith("stops 0 and masks tokens of 16 of 16 poisoned rewarded"), "masking is stopping, too"
    whole = weighing(tmp_path, 1.0)
    assert honest(Subject(whole, lambda: [sample()])) == "rejects 0 of 32 honest rewarded completions"
    with pytest.raises(RuleWarning, match=r"^stops 0 of 16 poisoned rewarded completions \(.*\), which is"):
        stopped(whole, sample())


def test_a_class_that_its_spec_string_builds_around_another_is_refused(tmp_path: Path) -> None:
    file = submission(
        tmp_path,
        "from thiefbench.defenses.base import Defense\nclass Mine(Defense):\n    name = 'mine'\n"
        "    def __init__(self, defense: 'Defense | None' = None, words: str = ''):\n        self.defense = defense\n"
        "    def inspect(self, view):\n        return self.defense.inspect(view)\n",
    )
    ask = dict(QUESTIONS)["can be constructed from its spec string, twice"]
    with pytest.raises(RuleBroken, match=r"^its argument defense is a plugin, .* cannot be verified; construct it in"):
        ask(Subject(f"{file}:Mine(defense='similarity')", lambda: []))
    assert ask(Subject(f"{file}:Mine(words='similarity')", lambda: [])) == "mine"


def test_without_poison_there_is_nothing_to_stop() -> None:
    unrewarded = tuple(tuple(replace(o, reward=0.0) for o in pool) for pool in sample().rounds)
    assert stopped("none", replace(sample(), rounds=unrewarded)) == "no poisoned completion was rewarded"


def test_reject_all_rejects_nearly_everything() -> None:
    assert list(broken("reject_all")) == ["honest work gets through"]
    assert "rejects 32 of 32 honest" in broken("reject_all")["honest work gets through"]


def test_a_standing_row_may_reject_nearly_everything() -> None:
    ask = dict(QUESTIONS)["honest work gets through"]
    with pytest.raises(RuleWarning, match=r"rejects 32 of 32 honest .*, more than 50%; the board will flag it"):
        ask(Subject("reject_all", lambda: [sample()], baseline=True))


def test_oracle_sees_labels_and_is_asked_no_further() -> None:
    assert list(broken("oracle")) == ["can be constructed from its spec string, twice"]
    assert "wants to see labels" in broken("oracle")["can be constructed from its spec string, twice"]
    assert len(findings("oracle")) == 4


@pytest.mark.parametrize(
    ("name", "question", "said"),
    [
        ("Positional", "order changes nothing", "by their content, not by their position"),
        ("Counting", "equal views, equal verdicts", "a second instance in the same process"),
        ("Spots", "equal views, equal verdicts", "a second process, .*; draw from view.rng, not from a"),
        ("Reasons", "equal views, equal verdicts", "accept and the reason 'in .*' and, in another PYTHONHASHSEED"),
        ("Caches", "continues after a restart", "in round 5 .* after a restart at the end of round 1, accept with"),
        ("KeepsPolicy", "one valid verdict per completion", "in round 2 .* policy answers only during its round; keep"),
        ("NeedsSeeds", "hostile texts", "TypeError"),
        ("Clock", "equal views, equal verdicts", "not from a clock"),
        ("Letters", "pseudonyms change nothing", "the letters of a pseudonym carry no information"),
        ("KeysOfNumbers", "one valid verdict per completion", r"state\(\).* has the key .*, and keys of JSON are text"),
        ("CachesSlots", "equal views, equal verdicts", "deep copies attackers query, .*; keep state in the instance, "),
        ("CannotBeCopied", "equal views, equal verdicts", "copy.deepcopy of it fails .*; keep only what can be copied"),
        ("StartsThreads", "one valid verdict per completion", "can't start new thread .*; a submission starts no th"),
        ("Judgeless", "can be constructed from its spec string, twice", "requires a judge and names none; set its at"),
        ("LateToFail", "one valid verdict per completion", r"in round 3 of .*RuntimeError: too late \(submissions"),
        ("Divides", "an empty pool", r"ZeroDivisionError.*submissions\.py, line \d+"),
        ("Lazy", "one valid verdict per completion", "gave 1 verdict for 24 completions"),
        *at_length(
            ("SharesStrikes", "equal views, equal verdicts", "a second instance in the same process, .*; keep state"),
            ("SpotsTogether", "equal views, equal verdicts", "a second process, .*; draw from view.rng, not from a"),
            ("SpotsOfNumpy", "equal views, equal verdicts", "a second process, .*; draw from view.rng, not from a"),
            ("Window", "continues after a restart", "state's entry 'lengths' is another one if there was a restart"),
            ("FirstOfEquals", "pseudonyms change nothing", "after all senders were renamed"),
            ("Hashing", "equal views, equal verdicts", "another PYTHONHASHSEED"),
            ("LettersLater", "pseudonyms change nothing", "in round 20 .* after all senders were renamed"),
            ("RemembersFirst", "order changes nothing", "in round 4 .* by their content, not by their position"),
            ("PositionalAtSize", "order changes nothing", "by their content, not by their position"),
            ("Forgets", "continues after a restart", r"after restore\(state\(\)\), the state's entry 'rounds' differs"),
            ("StateOfNumpy", "one valid verdict per completion", r"state\(\)\['rounds'\] is a numpy.int64, which JSON"),
            ("CountsSenders", "order changes nothing", "with the pools in another order, accept"),
            ("Decoys", "equal views, equal verdicts", "drop and, in a deep copy of the instance, accept; let copy"),
            ("BansTheOdd", "continues after a restart", "in round 7 .* after a restart at the end of round 6, accept"),
            ("CountsStates", "equal views, equal verdicts", r"a second instance .*, and let state\(\) change nothing"),
            ("RemembersLong", "continues after a restart", "in round 62 .* after a restart at the end of round "),
            ("Hides", "continues after a restart", r"let state\(\) return all"),
            ("HashesLater", "equal views, equal verdicts", "another PYTHONHASHSEED, .*; sort what comes from a set"),
            ("Remembers", "continues after a restart", r"in round 9 .* after a restart at the end of round 1, accept"),
            ("Encodes", "hostile texts", "surrogates not allowed"),
        ),
    ],
)  # fmt: skip
def test_a_fault_is_found_and_named(name: str, question: str, said: str) -> None:
    found = broken(f"{SUBMISSIONS}:{name}")
    assert re.search(said, found.get(question, "")), found


@pytest.mark.parametrize(
    ("weights", "same"),
    [((0.5, 0.25), True), ((0.5004, 0.25), True), ((0.502, 0.25), False), ((0.5,), False), (None, False)],
)
def test_token_weights_are_alike_up_to_rounding(weights: tuple[float, ...] | None, same: bool) -> None:
    assert alike(Verdict(token_weights=(0.5, 0.25)), Verdict(token_weights=weights)) == same
    assert alike(Verdict(token_weights=weights), Verdict(token_weights=(0.5, 0.25))) == same


def test_it_says_how_many_rounds_were_tried() -> None:
    found = findings(f"{SUBMISSIONS}:Fine")
    hostile, large = len(HOSTILE_TEXTS) + 2, 4 * 384
    judged = 48 + 7 * 12 + hostile + 50 * 6 + large + 24
    said = f"{judged:,} completions of 1 swarm, in up to 64 rounds"
    assert found["one valid verdict per completion"].detail == said
    assert re.fullmatch(r"after rounds 1, 6 and \d\d", found["continues after a restart"].detail)


def test_rounds_are_drawn_by_the_content_of_the_files(tmp_path: Path) -> None:
    """Whoever verifies an entry has it in another folder."""
    drawn = []
    for folder, source in (("one", "x = 1\n"), ("two", "x = 1\n"), *((str(n), f"x = {n}\n") for n in range(2, 6))):
        (tmp_path / folder).mkdir()
        games = Subject(f"{submission(tmp_path / folder, source)}:Mine", lambda: [sample(), sample()]).games
        drawn.append([(game.restarts, [len(pool) for pool in game.pools]) for game in games])
        assert [len(game.pools) for game in games] == [64, 12]
        assert all(after < last <= len(game.pools) for game in games for after, last in game.restarts.items())
    assert drawn[0] == drawn[1]
    assert any(other != drawn[0] for other in drawn[2:])


def test_a_defense_may_read_its_own_verdicts_in_the_history() -> None:
    assert broken(f"{SUBMISSIONS}:Averages") == {}


def test_questions_about_equal_completions_have_equal_answers() -> None:
    """Whichever other completions are asked about with them."""
    logit = registry.make("defense", "logit")
    pools = sample().rounds[0], sample().rounds[0][3:9]
    whole, part = (sample().view(logit, 1, pool).policy.token_logprobs(pool) for pool in pools)
    for one, other in zip(whole[3:9], part, strict=True):
        assert (one == other).all()
    written = replace(pools[0][0], ids=(*pools[0][0].ids[:-1], 5))
    for _ in range(2):
        assert len(sample().view(logit, 1).policy.token_logprobs([written, pools[0][0]])[0]) == written.length


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize(
    ("written", "question"),
    [
        ("{file}:Nobody", "can be constructed from its spec string, twice"),
        ("{file}:Fine(x=1)", "can be constructed from its spec string, twice"),
        ("{file}:Misspelt", "can be constructed from its spec string, twice"),
        ("{broken}:Mine", "imports only what is allowed"),
        ("{forbidden}:Mine", "imports only what is allowed"),
    ],
)
def test_what_needs_no_pool_is_told_before_there_are_any(
    written: str, question: str, unsafe: bool, tmp_path: Path
) -> None:
    """And once, whatever else the same mistake would break."""
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "forbidden.py").write_text("import torch.nn")
    spec = written.format(file=SUBMISSIONS, broken=tmp_path / "broken.py", forbidden=tmp_path / "forbidden.py")

    def play() -> list[Sample]:
        raise AssertionError("no pool is made")

    found = [each for each in check(Subject(spec, play, unsafe)) if each.status == "FAILED"]
    assert [each.question for each in found] == [question]


def test_verdicts_that_are_drawn_are_not_compared_further() -> None:
    assert list(broken(f"{SUBMISSIONS}:Clock")) == ["equal views, equal verdicts"], "it breaks all that compare, too"


def test_a_defense_without_fault_passes_both_ways() -> None:
    for unsafe in (False, True):
        found = findings(f"{SUBMISSIONS}:Fine", unsafe)
        assert len(found) == len(QUESTIONS)
        wrong = {question: finding.status for question, finding in found.items() if finding.status != "ok"}
        clock = {REPEATABLE: "warning"}
        assert wrong == {POISON_STOPPED: "warning"} | clock, "it stops nothing, and may; another class reads the clock"


def test_faults_are_found_without_a_sandbox_too() -> None:
    assert "order changes nothing" in broken(f"{SUBMISSIONS}:Positional", unsafe=True)
    assert "an empty pool" in broken(f"{SUBMISSIONS}:Divides", unsafe=True)
    assert "gave 1 verdict for" in broken(f"{SUBMISSIONS}:Lazy", unsafe=True)["one valid verdict per completion"]


def test_much_honest_work_lost_is_a_warning() -> None:
    found = findings(f"{SUBMISSIONS}:Half")["honest work gets through"]
    assert found.status == "warning", found
    assert "utility suffers" in found.detail


# --- files ---


def submission(folder: Path, source: str) -> Path:
    file = folder / "mine.py"
    file.write_text(source)
    return file


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, numpy.linalg\nfrom scipy import stats\nfrom thiefbench.defenses.base import Defense\n", ""),
        (
            "import os\n\n\ndef f():\n    import torch.nn\n",
            "line 5 of mine.py imports torch.nn; it may import only the stand",
        ),
        ("from thiefbench.engine import swarm", "line 1 of mine.py imports thiefbench.engine"),
        ("from thiefbench import registry", "line 1 of mine.py imports thiefbench.registry"),
        ("from . import other", "line 1 of mine.py imports .; it may"),
        ("def f(:", "mine.py is not valid Python"),
        ("\0", "mine.py is not valid Python"),
        ("import importlib as i\n\ni.import_module('torch.nn')\n", "line 3 of mine.py imports torch.nn; it may import"),
        (
            "from importlib.util import find_spec\nfind_spec('torch')\n",
            "line 2 of mine.py imports torch; it may import",
        ),
        ("def f():\n    return __import__('torch')\n", "line 2 of mine.py imports torch; it may import only"),
        ("import importlib\nname = 'json'\nx = importlib.import_module(name), importlib.import_module('csv')", ""),
    ],
)
def test_imports(tmp_path: Path, source: str, said: str) -> None:
    told = entry_validation.wrong_import(submission(tmp_path, source))
    assert told.startswith(said), told
    assert bool(told) == bool(said), told


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n", ""),
        ("import typing\nif typing.TYPE_CHECKING:\n    import torch\nelse:\n    import jax", "line 5 .* imports jax"),
        ("import typing as t\nif t.TYPE_CHECKING:\n    import torch\n", ""),
        (f"import os\nif os{'.a' * 900}:\n    import torch\n", "line 3 .* imports torch"),
        (f"if 1{'+1' * 900}:\n    import torch\n", "line 2 of mine.py imports torch"),
        ("TYPE_CHECKING = True\nif TYPE_CHECKING:\n    import torch\n", "line 3 of mine.py imports torch"),
        ("from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import torch\n", "line 3 .* imports torch"),
    ],
)
def test_imports_for_type_checkers_are_free(tmp_path: Path, source: str, said: str) -> None:
    assert re.match(f"{said}(;|$)", entry_validation.wrong_import(submission(tmp_path, source)))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import time\nx = time.time()\n", "time.time, whose values no verifier can repeat"),
        ("from time import *\n", "all of time, whose values no verifier can repeat"),
        ("import time\nx = time.strptime('1', '%d')\ntime.sleep(0)\n", ""),
        ("import datetime as d\nx = d.date(2024, 5, 1) + d.timedelta(days=3)\n", ""),
        ("from datetime import datetime\nx = datetime(2024, 1, 1)\ny = datetime.now()\n", "datetime.datetime.now, "),
        ("import uuid\nx = uuid.uuid5(uuid.NAMESPACE_URL, 'a')\n", ""),
        ("import uuid\nx = uuid.uuid4()\n", "uuid.uuid4, whose values"),
        ("from scipy.stats import norm\nx = norm.rvs(size=3)\n", "rvs() without a random_state; pass view.rng"),
        ("from scipy.stats import norm\nx = norm.rvs(size=3, random_state=1)\n", ""),
        ("import tempfile\nx = tempfile.mkstemp()\n", "tempfile.mkstemp, whose values"),
        ("import numpy as np\nx = np.datetime64('now')\n", "numpy.datetime64, whose values"),
        ("import io, numpy\nnumpy.save(io.BytesIO(), [])\n", ""),
        ("class A:\n    def f(self):\n        self.write_text('a')\n", ""),
        (
            "import time, os\nx = time.time(), os.urandom(2)\ny = os.getpid()\nz = os.times()\na = os.environ\n",
            "os.urandom, whose values no verifier can repeat; line 2 of mine.py uses time.time, whose values no "
            "verifier can repeat; line 3 of mine.py uses os.getpid, whose values no verifier can repeat; and 2 more "
            "such places",
        ),
        ("import os\nx = os.urandom(8)\n", "os.urandom, whose values"),
        ("from os import urandom\nx = urandom(8)\n", "os.urandom, whose values"),
        ("from datetime import date\nx = date.today()\n", "datetime.date.today, whose values"),
        ("import random\nx = random.Random(3)\ny = random.Random()\n", "random.Random() without a seed; draw from"),
        ("from random import choice\nx = choice\n", "random.choice, whose generator the whole process shares; draw"),
        ("import numpy as np\nx = np.random.randn(3)\n", "numpy.random.randn, whose generator the whole"),
        ("import numpy as np\nx = np.random.default_rng()\n", "numpy.random.default_rng() without a seed; draw from"),
        ("import torch\nx = torch.randn(3)\n", "torch.randn, whose generator the whole process shares; pass one by"),
        ("import torch\nx = torch.randn_like(y)\n", "torch.randn_like, whose generator the whole process"),
        ("import torch\nx = torch.randn(3, generator=torch.Generator().manual_seed(1))\n", ""),
        ("x = open('a.txt', 'w')\n", "open, and the sandbox refuses to write files. What"),
        ("def f(path):\n    path.write_text('a')\n", "path.write_text, and the sandbox refuses"),
        ("import numpy\nnumpy.save('a.npy', [])\n", "numpy.save, and the sandbox refuses"),
        ("def f(path):\n    return path.open('a')\n", "path.open, and the sandbox refuses"),
        ("def f(path):\n    return path.open(), path.open('r')\n", ""),
        ("import os, random\nfrom os import path\nx = os.path.join('a')\nrng = random.Random(3)\n", ""),
        ("import numpy as np\nx = np.random.default_rng(3).normal()\n", ""),
        ("import numpy as np\nx = np.random.default_rng(None)\n", "numpy.random.default_rng() without a seed; draw"),
        ("import numpy as np\nx = np.random.Generator(np.random.PCG64())\n", "numpy.random.PCG64() without a seed"),
        ("import numpy as np\nx = np.random.Generator(np.random.PCG64(3))\n", ""),
        ("import os\nx = os.environ['HOME']\n", "os.environ, whose values no verifier can repeat"),
        (
            "def f(view, random):\n    return view.time, view.rng.random(), random.x, open('a'), open('w', 'rb')\n",
            "",
        ),
    ],
)
def test_what_cannot_be_repeated_is_warned_of(tmp_path: Path, source: str, named: str) -> None:
    spec = f"{submission(tmp_path, source)}:Mine"
    ask = dict(QUESTIONS)[REPEATABLE]
    if not named:
        assert ask(Subject(spec, lambda: [])) == ""
        return
    with pytest.raises(RuleWarning) as warned:
        ask(Subject(spec, lambda: []))
    assert re.match(rf"line \d of mine.py uses {re.escape(named)}", str(warned.value)), warned.value
    assert str(warned.value).endswith("when it is run again, and is then rejected")


@pytest.mark.parametrize(
    ("source", "package", "said"),
    [
        ("import other\n", False, "put an empty __init__.py beside it and write: from .other import ..."),
        ("from .other import x\n", False, "put an empty __init__.py beside it and write: from .other import ..."),
        ("from other import x\n", True, "To import a module of its own folder, write: from .other import ..."),
        ("import elsewhere\n", False, "thiefbench.defenses and thiefbench.tasks"),
    ],
)
def test_the_import_of_a_neighbour_is_told_how(tmp_path: Path, source: str, package: bool, said: str) -> None:
    (tmp_path / "other.py").write_text("x = 1\n")
    if package:
        (tmp_path / "__init__.py").touch()
    assert entry_validation.wrong_import(submission(tmp_path, source)).endswith(said)


def test_sizes_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = submission(tmp_path, "x = 1\n")
    assert entry_validation.wrong_size(file) == ""
    (tmp_path / "net.safetensors").write_bytes(b"weights")
    said = entry_validation.wrong_size(file)
    assert said.startswith("net.safetensors is not named after its content; rename it to net-")
    (tmp_path / "net.safetensors").rename(tmp_path / said.rpartition(" ")[2])
    assert entry_validation.wrong_size(file) == "", "the name that was asked for is the right one"
    monkeypatch.setattr(entry_validation, "WEIGHTS_BYTES", 3)
    assert "have 7 bytes, and at most 3 are allowed" in entry_validation.wrong_size(file)
    submission(tmp_path, "#" * (limits.FILE_BYTES + 1))
    assert "mine.py has 1,048,577 bytes" in entry_validation.wrong_size(file)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "my file.py",
            b"x = 1\n",
            "my file.py is not allowed in an entry; use only letters, digits and . _ - in names",
        ),
        ("mine.py", b"# -*- coding: latin-1 -*-\n", "mine.py names the encoding iso-8859-1; write it in UTF-8"),
        ("mine.py", b"x = 1\n# caf\xe9\n", "line 2 of mine.py is not in UTF-8; write all of it in UTF-8"),
    ],
)
def test_what_no_entry_may_hold_is_told_before_anything_runs(
    name: str, source: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(source)
    first = next(iter(check(Subject(f"{tmp_path / name}:Mine", lambda: []))))
    assert first.status == "FAILED"
    assert first.detail.startswith(said)


def reading(folder: Path, name: str) -> str:
    """The spec string of a defense that reads a file of its folder while it is loaded."""
    (folder / name).write_text("to be or not")
    file = submission(
        folder,
        "from pathlib import Path\nfrom thiefbench.defenses.base import ACCEPT, Defense\n"
        f"WORDS = (Path(__file__).parent / {name!r}).read_text()\nclass Mine(Defense):\n    name = 'mine'\n"
        "    def inspect(self, view):\n        return [ACCEPT] * len(view.completions)\n",
    )
    return f"{file}:Mine"


def test_data_beside_a_single_file_is_told(tmp_path: Path) -> None:
    spec = reading(tmp_path, "words.txt")
    with pytest.raises(
        DefenseError, match=r"words\.txt.*; words\.txt exists, but a single file is submitted alone: put"
    ):
        Isolated(spec)
    (tmp_path / "__init__.py").touch()
    Isolated(spec)


def test_data_that_no_entry_holds_is_told(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    first = next(iter(check(Subject(reading(tmp_path, "words.bin"), lambda: []))))
    assert first.detail.startswith(
        "mine.py names words.bin, which an entry does not hold; of a package's files, it holds"
    )
    assert next(iter(check(Subject(reading(tmp_path, "words.txt"), lambda: [])))).status == "ok"


def test_weights_beside_the_file_are_readable_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "net-abc.safetensors").write_bytes(b"weights")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    source = (
        "from pathlib import Path\nfrom thiefbench.defenses.base import ACCEPT, Defense\n"
        "class Mine(Defense):\n    name = 'mine'\n    def __init__(self, file):\n"
        "        self.text = Path(__file__).with_name(file).read_bytes()\n"
        "    def inspect(self, view):\n        return [ACCEPT] * len(view.completions)\n"
        "    def state(self):\n        return {'text': self.text.decode()}\n"
    )
    file = submission(tmp_path, source)
    assert Isolated(f"{file}:Mine(file='net-abc.safetensors')").state() == {"text": "weights"}
    with pytest.raises(Exception, match=r"No such file|Permission denied"):
        Isolated(f"{file}:Mine(file='secret.txt')")


# --- the command ---


def test_what_loops_while_it_is_loaded_is_told_after_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CAPS.making_seconds <= 20 < CAPS.seconds
    tried: list[float] = []

    def make(self: Subject, hash_seed: int = 0) -> Isolated:
        tried.append(CAPS.making_seconds)
        return Isolated(self.spec, replace(CAPS, making_seconds=1.0), hash_seed)

    monkeypatch.setattr(Subject, "make", make)
    told = list(check(Subject(f"{submission(tmp_path, 'while True: pass')}:Mine", lambda: [sample()])))
    assert told[-1].status == "FAILED"
    assert "took more than 1 seconds to be loaded and constructed; end what loops there" in told[-1].detail
    assert len(tried) == 1, "nobody waits for it twice"


@pytest.fixture
def on_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sample()  # now, because making its model prints a bar into whatever line a command writes
    monkeypatch.setattr("thiefbench.leaderboard.checking.samples.samples", lambda recipes: [made])


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ("none", 0, "none may be submitted, but see what it does not stop"),
        ("logit", 0, "logit may be submitted\n"),
        ("reject_all", 1, "FAILED  honest work gets through: rejects 32 of 32 honest"),
    ],
)
def test_the_command_prints_a_line_per_question(on_the_sample: None, spec: str, code: int, said: str) -> None:
    done = CliRunner().invoke(app, ["leaderboard", "check", spec])
    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert sum(line.startswith(("ok ", "FAILED ", "warning")) for line in done.output.splitlines()) == len(QUESTIONS)


def test_a_suite_that_takes_no_defense_is_told(on_the_sample: None, tmp_path: Path) -> None:
    """Its swarms may be checked in, but nothing can be submitted to it."""
    tiny.suite_file(tmp_path, task="gsm_micro(size=24)", attacks=["text"])
    for suite, why in (
        (
            str(tmp_path / "tiny.yaml"),
            f"released suite (see `thiefbench list suites`), and {tmp_path}/tiny.yaml is a file of your own",
        ),
        ("smoke", "no defense can be ranked on smoke: it has no placebo to beat"),
    ):
        done = CliRunner().invoke(app, ["leaderboard", "check", "logit", "--suite", suite])
        said = done.output.replace("\n", " ")
        assert (done.exit_code, "may be submitted" in said) == (0, False), done.output
        assert "logit keeps these rules, but " in said
        assert why in said
        assert "check it with --suite standard-v2, heterogeneous-v1, paper, rewards-v1, trial or truth-v1 too" in said


@pytest.mark.parametrize(
    ("spec", "suite", "said"),
    [
        ("logit", "averaging-v1", "in averaging-v1 nodes exchange weights, and logit inspects completions; submit an"),
        ("logit", "pipeline-v1", "in pipeline-v1 the node is a pipeline of stages, and logit inspects completions"),
        ("krum(f=1)", "standard-v2", "krum(f=1) is an aggregation, for swarms in which nodes exchange weights, and in"),
    ],
)
def test_what_submit_would_refuse_for_its_kind_is_not_checked(spec: str, suite: str, said: str) -> None:
    done = CliRunner().invoke(app, ["leaderboard", "check", spec, "--suite", suite])
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(said)


def test_what_earlier_weights_said_is_not_remembered() -> None:
    """Weights that differ a little move no number across a threshold; those of a policy that has learned do."""
    found = check(Subject(f"{SUBMISSIONS}:RemembersNumbers", lambda: [solved()], unsafe=True))
    said = next(each for each in found if each.question == "continues after a restart")
    assert (said.status, "in round 7 of" in said.detail) == ("FAILED", True), said.detail


def test_what_a_finding_says_moves_no_cursor() -> None:
    """An error's words are those of the submitted class."""
    with out.capture() as captured:
        commands._print(Finding("can be made\x1b[2J", "FAILED", "ValueError: \x1b]0;title\x07 [red]no[/red]"))
    assert captured.get() == "FAILED  can be made<U+001B>[2J: ValueError: <U+001B>]0;title<U+0007> [red]no[/red]\n"


def test_a_class_of_a_module_is_to_be_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submission(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for spec, written in (
        ("mine:Mine", "mine.py:Mine"), ("my.own:Mine(x=1)", "my/own.py:Mine"),
        ("package:Mine", "package/__init__.py:Mine"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["leaderboard", "check", spec])
        said = f"takes a class by its file, because an entry contains the file; write {written} instead"
        assert said in str(done.exception)


@pytest.mark.parametrize("spec", ["nowhere.py:Mine", "nonsense(", "loggit"])
def test_bad_usage_is_one_sentence(spec: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "thiefbench", "leaderboard", "check", spec], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_sandbox_it_says_how_to_go_on(on_the_sample: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_probe", lambda asked: ("", "no jail works"))
    done = CliRunner().invoke(app, ["leaderboard", "check", "none"])
    assert isinstance(done.exception, SandboxUnavailable)
    assert "no jail works" in str(done.exception)
    assert "--unsafe" in str(done.exception)
    done = CliRunner().invoke(app, ["leaderboard", "check", "none", "--unsafe"])
    assert done.exit_code == 0, done.output


def test_a_fault_of_several_questions_is_written_out_once() -> None:
    fault = "the defense yes failed in inspect: it returned True, which is not a Verdict"
    first = Finding("a pool of one", "FAILED", fault)
    earlier = [Finding("an empty pool", "ok", fault), first]
    assert shortened(first, earlier[:1]) == fault
    assert shortened(Finding("hostile texts", "FAILED", fault), earlier) == "the same as for 'a pool of one'"
    within = Finding("verdicts", "FAILED", f"in round 1: {fault}")
    assert shortened(within, earlier) == "in round 1: the same as for 'a pool of one'"
    other = Finding("verdicts", "FAILED", f"{fault}; and more")
    assert shortened(other, earlier) == other.detail
    assert shortened(Finding("verdicts", "FAILED", "late"), [Finding("a pool", "FAILED", "late")]) == "late"
