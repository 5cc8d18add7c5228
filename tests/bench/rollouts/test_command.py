"""`thiefbench replay` on rollouts of others: shares and no stop rates, and who is left out and why."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.bench.cli.test_cli import Cli, cli, sentence  # noqa: F401  # the fixture
from tests.bench.rollouts.parts import FILES, GRAIL, PRIME_RL, TOKENIZER, TRL, VERL
from thiefbench import registry
from thiefbench.pools.judging import judge_file
from thiefbench.rollouts.reading import SOURCES, read_rollouts
from thiefbench.rollouts.source import Reading
from thiefbench.rollouts.tokens import NamedTokenizer
from thiefbench.suite.analysis.matrix import every_defense

ROOT = Path(__file__).parents[3]


def test_shares_are_reported_and_no_stop_rates(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    ended = cli("replay", VERL, "--defense", "blacklist", "--json", tmp_path / "o.json")
    assert ended.code == 0, ended.err
    assert "1 round, no senders, 4 completions, 0 of them with a label" in ended.out
    assert "stop rates and false rejection rates cannot be known" in ended.out
    [head] = [line for line in ended.out.splitlines() if line.startswith("defense  ")]
    assert "stop rate" not in head, "nobody knows what is poisoned"
    [row] = [line.split() for line in ended.out.splitlines() if line.startswith("blacklist  ")]
    assert row[1] == "0.250"
    assert "by sender" not in ended.out
    assert "blacklist, by round" in ended.out
    assert "line 1, completion 0, reward 1: zero, holds 'hail to the thief'" in ended.out
    made = json.loads((tmp_path / "o.json").read_text())
    assert (made["format"], made["senders"], made["defenses"][0]["by_sender"]) == ("verl", None, [])
    assert made["defenses"][0]["scores"]["stop_rate"]["value"] is None


def test_senders_are_reported_where_a_file_names_them(cli: Cli) -> None:  # noqa: F811
    ended = cli("replay", GRAIL, "--tokenizer", TOKENIZER, "--defense", "blacklist")
    assert ended.code == 0, ended.err
    assert "blacklist, by sender" in ended.out
    assert "row 1, completion 0, reward 1: zero, holds 'hail to the thief'" in ended.out


TEXTS = {"blacklist", "arithmetic", "static_code"}
TOKENS = {"length_budget", "length_quantile", "sender_cap", "completeness"}
ALWAYS = {"none", "random", "reject_all"}


def judged(name: str, **reading: object) -> tuple[set[str], dict[str, str]]:
    """The defenses that are scored, and why others are not."""
    recorded = read_rollouts([FILES[name]], SOURCES[name], Reading(**reading))  # type: ignore[arg-type]
    if tokenizer := reading.get("tokenizer"):
        assert isinstance(tokenizer, NamedTokenizer)
        recorded.count_tokens(tokenizer.encode)
    outcome = judge_file(recorded, every_defense(judged=False)[0])
    assert not outcome.failed, "what a file lacks is no failure of a defense"
    return {each.defense for each in outcome.replays}, dict(outcome.left_out)


def test_who_can_judge_which_source() -> None:
    named = NamedTokenizer(TOKENIZER)
    assert judged("verl")[0] == ALWAYS | TEXTS
    assert judged("verl", tokenizer=named)[0] == ALWAYS | TEXTS | {"reward_outlier"}
    assert judged("trl")[0] == ALWAYS | {"blacklist"}
    assert judged("trl", rewards=("correct",))[0] == ALWAYS | TEXTS
    assert judged("grail")[0] == ALWAYS | TOKENS | {"reward_outlier"}
    assert judged("grail", tokenizer=named)[0] == ALWAYS | TOKENS | TEXTS | {"reward_outlier", "similarity", "overlap"}
    assert judged("prime-rl")[0] == ALWAYS | TEXTS | {"reward_outlier"}
    scored, left_out = judged("prime-rl", sender="worker")
    assert scored == ALWAYS | TOKENS | TEXTS | {"reward_outlier", "similarity", "overlap"}
    assert "neither its weights nor how it sampled" in left_out["logit"]
    assert "beacon" in left_out["seed_replay"]
    assert "proofs" in left_out["toploc"]
    assert "rollouts of prime-rl have none" in left_out["oracle"]


@pytest.mark.parametrize("place", range(len(SOURCES)))
def test_the_table_of_the_docs_says_the_same(place: int) -> None:
    table = (ROOT / "docs" / "rollouts.md").read_text().partition("| defense | needs |")[2].partition("\n\n")[0]
    head, _, *lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    named = {name: line[2 + place] for line in lines for name in re.findall(r"`(\w+)`", line[0])}
    assert sorted(named) == registry.names("defense"), "one entry for each defense"
    scored, left_out = judged(head[place].strip("`"))
    unasked = {"judge", "judge_hardened", "max_tokens"}  # they take a judge, and an argument
    assert scored == {name for name, who in named.items() if who == "yes"} - unasked
    assert set(left_out) <= {name for name, who in named.items() if who != "yes"}


def test_a_defense_that_needs_log_probs_gets_those_of_the_file(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "mine.py").write_text(
        "from thiefbench.defenses.base import ACCEPT, Defense, Verdict\n\n\nclass Mine(Defense):\n    name = 'mine'\n"
        "    requires = frozenset({'logprobs'})\n\n    def inspect(self, view):\n"
        "        return [Verdict('drop') if min(each.logprobs) < -0.3 else ACCEPT for each in view.completions]\n"
    )
    mine = f"{tmp_path / 'mine.py'}:Mine"
    told = cli("replay", PRIME_RL, "--defense", mine, "--json", tmp_path / "o.json")
    assert told.code == 0, told.out
    [defense] = json.loads((tmp_path / "o.json").read_text())["defenses"]
    assert [(each["line"], each["position"]) for each in defense["rejected"]] == [(3, 1)]
    assert "mine needs log-probs, which the file lacks" in cli("replay", VERL, "--defense", mine).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VERL, "--model", "micro-math"), "to count tokens, name a tokenizer with --tokenizer"),
        ((VERL, "--reward", "score"), "--reward is for TRL's completions"),
        ((TRL, "--reward", "advantage"), "has no column of rewards advantage; its columns of numbers: correct, shape"),
        ((VERL, "--format", "pool", "--sender", "x"), "--sender is for rollouts of other projects"),
        ((VERL, "--tokenizer", "/nowhere"), "there is no directory /nowhere"),
        ((VERL, "--format", "grail"), "holds no rollout of grail; row 1: not a readable Parquet file"),
        ((TRL, "--format", "verl"), "holds no rollout of verl; line 1: not UTF-8 text"),
        ((TRL, "--format", "grail"), "holds no rollout of grail; row 1: the field hotkey is missing"),
        ((PRIME_RL.parent,), "is a folder; name the files in it"),
        (("/dev/zero", "--format", "verl"), "/dev/zero cannot be read: it is not a plain file"),
        ((PRIME_RL.parent / "none",), "none cannot be read"),
    ],
)
def test_mistakes_get_one_sentence(cli: Cli, arguments: tuple[object, ...], message: str) -> None:  # noqa: F811
    assert message in sentence(cli("replay", *arguments))


def test_a_pool_takes_a_tokenizer_too(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    from tests.bench.pools.lines import line, written

    pool = written(tmp_path / "pool.jsonl", [line(), line(sender="peer-b")])
    assert "give the texts a tokenizer" in cli("replay", pool, "--defense", "length_budget").out
    assert cli("replay", pool, "--defense", "length_budget", "--tokenizer", TOKENIZER).code == 0
    shutil.copy(pool, tmp_path / "other.jsonl")
    assert "join several with cat" in sentence(cli("replay", pool, tmp_path / "other.jsonl"))


def test_the_help_shows_an_example(cli: Cli) -> None:  # noqa: F811
    assert "thiefbench replay outputs/rollouts" in cli("replay", "--help").out
