"""The command line: exit codes, one sentence per mistake, and nothing heavy before it is needed."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench import tiny
from tests.bench.tiny import ATTACK, PLUGINS
from tests.variants import at_length
from thiefbench import __version__, registry
from thiefbench.cli import main
from thiefbench.cli.overrides import Overrides
from thiefbench.errors import UsageError
from thiefbench.plugin_facts import facts
from thiefbench.suite.analysis.matrix import every_defense
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.torch_settings import SPINS
from thiefbench.zoo.models import BUILT_IN

EXAMPLES = Path(__file__).parents[2] / "examples"
Cli = Callable[..., "Ended"]


@dataclass
class Ended:
    """How a command ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Runs a command in this process, in an empty directory; whatever `main` does not handle fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["thiefbench", *map(str, words)])
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        printed = capfd.readouterr()
        assert isinstance(code, int)
        return Ended(code, printed.out, printed.err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tiny.suite_file(tmp_path)


def sentence(ended: Ended) -> str:
    """The one sentence that a user's mistake gets."""
    assert ended.code == 2, f"bad use or input exits with 2: {ended}"
    assert "Traceback" not in ended.err, "without a traceback"
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, f"with exactly one sentence on stderr: {ended.err}"
    assert lines[0].startswith("error: ")
    assert ended.out == "", "and nothing on stdout"
    return lines[0]


def sentence_after_progress(ended: Ended) -> str:
    """As `sentence`, after what was said while it began."""
    assert ended.code == 2, ended
    assert "Traceback" not in ended.err
    *_, last = ended.err.strip().splitlines()
    assert last.startswith("error: ")
    assert sum(line.startswith("error: ") for line in ended.err.splitlines()) == 1
    return last


SUBMITTED = """
from thiefbench.defenses.base import ACCEPT, Defense

class Mine(Defense):
    name = "mine"

    def inspect(self, view):
        return [ACCEPT] * len(view.completions)
"""

LIGHT_COMMANDS = (
    "--help", "run --help", "matrix --help", "compare --help", "replay --help", "merge --help",
    "list attacks", "list defenses", "list tasks", "list suites", "list models",
    "show defense logit", "show attack varied", "show task openmath", "show defense logit(tolerance=0.5)",
)  # fmt: skip

MISTYPED = {
    "run smoke --defense logti": "did you mean logit?",
    "run smoke --defense none+logti": "did you mean logit?",
    "run smoke --defense logit(toleranc=1.0)": "its arguments: reject, tolerance, reach",
    "run smoke --attack varied(attack='txt')": "did you mean text?",
    "run smoke --defense nowhere.py:Mine": "there is no file nowhere.py",
    "run smoke --task gsm_mikro": "did you mean gsm_micro or gsm8k?",
    "run smoke --gap 0.2": "write --plan beside it",
    "run smok": "did you mean smoke?",
    "run nowhere.yaml": "there is no suite file nowhere.yaml",
    "run .": ". is a folder; write the name of a suite, or of a file that ends in .yaml or .yml",
    "matrix smoke smok": "did you mean smoke?",
    "audit --task gsm_micro --attack txt": "did you mean text?",
    "replay pools.jsonl --defense logti": "did you mean logit?",
    "show defense logti": "did you mean logit?",
    "leaderboard check logti": "did you mean logit?",
    "leaderboard submit logit --suite trail": "did you mean trial?",
}
"""Commands with a slip of the pen, and what the answer holds."""

# Every command in a process of its own, forked from one that has imported what each of them imports first.
LIGHT = """
import os, sys
from thiefbench.cli import main
for command in sys.argv[1:]:
    if not os.fork():
        sys.argv, code = ["thiefbench", *command.split()], 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        heavy = [name for name in ("torch", "transformers", "datasets", "pyarrow", "scipy") if name in sys.modules]
        print(f"{command}: exit code {code or 0}, loaded {heavy}", file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded_by_commands() -> list[str]:
    """How every light and every mistyped command ended, and what it loaded."""
    words = [sys.executable, "-c", LIGHT, *LIGHT_COMMANDS, *MISTYPED]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_help_and_list_import_nothing_heavy(loaded_by_commands: list[str], command: str) -> None:
    assert f"{command}: exit code 0, loaded []" in loaded_by_commands, "it answers without the engine"


@pytest.mark.parametrize("command", MISTYPED)
def test_what_is_mistyped_is_answered_before_anything_heavy_is_loaded(
    cli: Cli, loaded_by_commands: list[str], command: str
) -> None:
    assert f"{command}: exit code 2, loaded []" in loaded_by_commands
    assert MISTYPED[command] in sentence(cli(*command.split()))


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run smoke --defense logi", ["logit"]),
        ("run smoke --defense none+logi", ["none+logit"]),
        ("run smoke --attack te", ["text"]),
        ("run smoke --task gsm_", ["gsm_micro"]),
        ("run smoke --model micro-j", ["micro-judge", "micro-judge-hardened"]),
        ("run sta", ["standard-v1", "standard-v2"]),
        ("matrix smoke tri", ["trial"]),
        ("leaderboard check simi", ["similarity"]),
        ("leaderboard submit none --suite tri", ["trial"]),
        ("show attack do", ["dodge", "dos"]),
        ("show task gsm8", ["gsm8k"]),
        ("show logi", ["logit"]),
        ("list defenses logi", ["logit"]),
        ("list models micro-j", ["micro-judge", "micro-judge-hardened"]),
        ("audit --task gsm_micro --attack du", []),
    ],
)
def test_a_shell_completes_names(cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]) -> None:
    words = ["thiefbench", *typed.split()]
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # else click calls the program python -m pytest
    monkeypatch.setenv("_THIEFBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert cli().out.split() == offered


def test_completion_can_be_installed(cli: Cli) -> None:
    assert "--install-completion" in cli("--help").out


def test_run_shows_its_options_in_groups_and_examples(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("run", "--help").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    places = [shown.index(f"─ {panel} ─") for panel in ("What to run", "Results", "Plan without running")]
    assert places == sorted(places)
    assert places[0] < shown.index("--defense") < places[1] < shown.index("--store") < places[2]
    examples = [line.split() for line in shown.splitlines() if line.strip().startswith("thiefbench ")]
    assert len(examples) >= 2
    for words in examples:
        assert words[1] == "run"
        assert words[2] in registry.names("suite")


@pytest.mark.parametrize("kind", ["attack", "defense", "task"])
def test_show_describes_every_plugin(kind: Any) -> None:
    for name in registry.names(kind):
        shown = facts(kind, name)
        assert shown.summary.startswith(registry.summary(kind, name).rstrip(".")[:40])
        assert Path(shown.source).is_file()
        assert [each.name for each in shown.arguments if not each.about] == [], f"{name} explains its arguments"
        assert shown.needs is not None or any(not each.default for each in shown.arguments)


def test_show_says_what_one_plugin_is(cli: Cli, tmp_path: Path) -> None:
    shown = cli("show", "defense", "logit")
    assert shown.code == 0, shown.err
    assert "logit (defense)" in shown.out
    assert ["reject", "'zero'"] in [line.split()[:2] for line in shown.out.splitlines()]
    assert "needs: homogeneous: all honest nodes hold equal weights" in shown.out
    assert shown.out.rstrip().endswith("defenses/logit.py")
    assert "queries: 7 questions to the defense" in cli("show", "attack", "adaptive(budget=7)").out
    assert "policy: its own copy" in cli("show", "attack", "adaptive(mode='logit')").out, "needs follow arguments"
    assert "must be given" in cli("show", "defense", "max_tokens").out
    assert "sandbox" in cli("show", "task", "code_micro").out
    assert "needs: nothing" in cli("show", "task", "gsm_micro").out
    (tmp_path / "mine.py").write_text(SUBMITTED)
    mine = json.loads(cli("show", "defense", "mine.py:Mine", "--json").out)
    assert (mine["arguments"], mine["needs"], mine["source"]) == ([], [], str(tmp_path / "mine.py"))
    assert "did you mean text" in sentence(cli("show", "attack", "txt"))


def test_show_says_all_of_a_docstring_before_its_arguments(cli: Cli) -> None:
    shown = cli("show", "defense", "arithmetic").out.split("argument")[0]
    assert "Reject rewarded completions whose reasoning states a wrong equation (2 + 2 = 5).\n\n" in shown
    assert "A wrong answer with a wrong step is honest work" in shown
    steps = [line[:3] for line in cli("show", "attack", "auto").out.splitlines() if line[:1].isdigit()]
    assert steps[:3] == ["1. ", "2. ", "3. "], "an item of a list has a line of its own"


def test_show_says_what_a_suite_holds(cli: Cli, file: Path) -> None:
    shown = cli("show", "standard-v2")
    assert shown.code == 0, shown.err
    named = dict(line.split(None, 1) for line in shown.out.splitlines() if len(line.split()) > 1)
    assert (named["Seeds"], named["Rounds"]) == ("0-4", "60"), "the last part's"
    assert shown.out.count("contrast(attack='own')") == 1
    assert [line for line in shown.out.splitlines() if line in ("vertical", "horizontal", "programs")] == [
        "vertical", "horizontal", "programs",
    ]  # fmt: skip
    met = [line for line in shown.out.splitlines() if line.startswith("Requirements met")]
    assert met == ["Requirements met  homogeneous, beacon, proofs, judge"] * 3, "of each part, and not of every suite"
    assert "Requirements met" not in cli("show", "pipeline-v1").out, "whose defenses inspect no completions"
    for words in (["show", "suite", "standard-v2"], ["list", "suites", "standard-v2"]):
        assert cli(*words).out == shown.out
    told = json.loads(cli("show", "averaging-v1", "--json").out)
    assert [part["swarm"]["Exchange"].rpartition(", ")[2] for part in told["parts"]] == ["diloco", "noloco"]
    assert f"run {file} --plan" in cli("show", file).out, "a file of one's own, too"
    assert cli("show", "standard-v1").out.splitlines()[1].startswith("Superseded. ")


def test_show_says_that_a_class_has_no_docstring(cli: Cli, tmp_path: Path) -> None:
    plain = "    def __init__(self, level=3):\n        pass\n"
    (tmp_path / "plain.py").write_text(
        "from thiefbench.defenses.base import Defense\n\nclass Mine(Defense):\n    name = 'mine'\n"
        f"{plain}    def inspect(self, view):\n        return []\n"
    )
    shown = cli("show", "defense", "plain.py:Mine").out
    assert shown.splitlines()[1] == "Its class has no docstring."
    assert ["level", "3"] in [line.split() for line in shown.splitlines()]
    assert "what it is" not in shown, "a column without a word is left out"
    assert "what it is" in cli("show", "defense", "logit").out


def test_a_mistyped_model_gets_the_nearest_name(cli: Cli, file: Path) -> None:
    said = sentence_after_progress(cli("run", file, "--model", "micro-mth"))
    assert "did you mean micro-math or " in said
    assert "built in: micro-math, " in said


def test_later_paragraphs_of_a_help_are_as_wide_as_the_window(cli: Cli) -> None:
    shown = [line.strip() for line in cli("leaderboard", "submit", "--help").out.splitlines()]
    assert any(
        "the cells that every defense is measured against, only the defense's own are run." in line for line in shown
    )


def test_help_names_the_commands(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    assert all(
        command in shown.out for command in ("run", "matrix", "list", "audit", "report", "compare", "replay", "merge")
    )
    assert cli("--version").out.strip() == __version__


@pytest.mark.parametrize("kind", ["attack", "defense", "task", "suite", "stage_check", "stage_attack"])
def test_list_shows_every_name_with_what_it_is(cli: Cli, kind: registry.Kind) -> None:
    shown = cli("list", f"{kind}s")
    assert shown.code == 0
    for name in registry.names(kind):
        line = next(line for line in shown.out.splitlines() if line.split()[:1] == [name])
        assert registry.summary(kind, name)
        assert registry.summary(kind, name)[:30] in line


def test_list_shows_every_model_with_what_it_is(cli: Cli) -> None:
    shown = cli("list", "models")
    assert shown.code == 0
    for name, summary in BUILT_IN.items():
        line = next(line for line in shown.out.splitlines() if line.split()[:1] == [name])
        assert summary in line, "a model's line says what it is for, and fits"
    assert "hub name" in shown.out, "and any other model can be named too"


def test_a_misspelt_kind_gets_a_suggestion_and_singular_or_plural_do(cli: Cli) -> None:
    assert "there is no kind 'defence'; did you mean defenses? known: attacks" in sentence(cli("list", "defence"))
    assert "there is no kind 'defence'; did you mean defense? known: attack, " in sentence(
        cli("show", "defence", "logit")
    )
    assert "logit is the name of a defense; write thiefbench show defense logit" in sentence(cli("list", "logit"))
    assert cli("list", "defense").out == cli("list", "defenses").out
    assert cli("show", "defenses", "logit").out == cli("show", "defense", "logit").out


def test_one_plugin_is_shown_however_it_is_asked_for(cli: Cli) -> None:
    shown = cli("show", "defense", "logit").out
    assert "needs: homogeneous" in shown
    for words in (["show", "logit"], ["list", "defenses", "logit"], ["list", "defense", "logit"]):
        assert cli(*words).out == shown
    assert cli("show", "adaptive(budget=7)").out == cli("show", "attack", "adaptive(budget=7)").out
    assert (
        cli("list", "aggregations", "median").out == cli("show", "defense", "median").out == cli("show", "median").out
    )
    assert cli("list", "suites", "smoke").out == cli("show", "smoke").out
    assert [line.split()[0] for line in cli("list", "models", "micro-math").out.splitlines()] == ["micro-math"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "logti"], "there is no attack, defense, task or suite named 'logti'; did you mean logit"),
        (["show", "defense"], "name a defense; thiefbench list defenses lists them"),
        (["show", "nowhere.yaml"], "there is no suite file nowhere.yaml"),
        (["show", "micro-math"], "micro-math is a model; thiefbench list models"),
        (["show", "mine.py:Mine(floor=2)"], "write thiefbench show attack|defense|task mine.py:Mine"),
        (["list", "defenses", "logti"], "there is no defense named 'logti'; did you mean logit"),
        (["list", "suites", "smok"], "there is no suite named 'smok'; did you mean smoke? known: averaging-v1"),
    ],
)
def test_what_cannot_be_shown_gets_the_command_that_can(cli: Cli, words: list[str], said: str) -> None:
    assert said in sentence(cli(*words))


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["check", "logit"], "thiefbench leaderboard check"),
        (["check-attack"], "thiefbench leaderboard check-attack"),
        (["train"], "thiefbench zoo train"),
    ],
)
def test_a_command_without_its_group_is_told_the_group(cli: Cli, words: list[str], written: str) -> None:
    assert sentence(cli(*words)) == f"error: there is no command thiefbench {words[0]}; write {written}"


AN_ATTACK = """
from thiefbench.attacks.base import Attack
class Mine(Attack): pass
"""


def test_attacks_and_defenses_are_told_the_command_that_takes_them(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "attack.py").write_text(AN_ATTACK)
    (tmp_path / "defense.py").write_text(SUBMITTED)
    for words, said in (
        (["check", "attack.py:Mine"], "is an attack; write thiefbench leaderboard check-attack attack.py:Mine"),
        (["submit", "text"], "text is an attack; write thiefbench leaderboard attack ENTRY text"),
        (["check-attack", "defense.py:Mine"], "is a defense; write thiefbench leaderboard check defense.py:Mine"),
        (["attack", ".", "krum(f=1)"], "krum(f=1) is a defense; write thiefbench leaderboard submit 'krum(f=1)'"),
    ):  # fmt: skip
        assert sentence(cli("leaderboard", *words)).endswith(said)


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_command_without_its_argument_prints_its_help(cli: Cli, command: str) -> None:
    shown = cli(command)
    assert shown.code == 2
    assert "defense" in shown.out + shown.err
    assert "Missing argument" not in shown.out + shown.err


def test_a_store_whose_last_run_is_unreadable_is_not_called_empty(cli: Cli, file: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert cli("run", file, "--store", store, "--threads", "1").code == 0
    (store / "run.json").write_text("[")
    said = sentence(cli("report", store))
    assert f"{store / 'run.json'}, which says what was run last, is damaged" in said
    assert f"run the same suite again with --store {store}" in said
    assert "2 finished cells are kept" in said
    (store / "run.json").unlink()
    assert "is missing" in sentence(cli("report", store))
    assert cli("run", file, "--store", store, "--threads", "1").code == 0
    assert cli("report", store).code == 0, "what the sentence says to do helps"
    assert "is not a folder" in sentence(cli("report", file))


def test_an_unknown_command_or_option_is_bad_use(cli: Cli, file: Path) -> None:
    for words in (
        ["rum"],
        ["list", "atacks"],
        ["run", file, "--defence", "none"],
        ["run", file, "--seeds", "0"],
        ["run"],
    ):
        ended = cli(*words)
        assert ended.code == 2, f"bad use exits with 2: {words}"
        assert "Traceback" not in ended.err


def test_a_run_prints_a_table_and_says_what_to_do_next(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("run", file, "--store", tmp_path / "store", "--threads", "1", "--defense", "logit")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[-3:] == ["rate", "rejection", "reward"])
    assert lines[first - 1].split() == ["stop", "false", "clean"]
    assert lines[first].split()[:4] == ["swarm", "seed", "ASR", "drift"]
    rows = [line.split() for line in lines[first + 1 : first + 4]]
    swarms = [["no", "attack"], ["attacked,", "no", "defense"], ["attacked,", "logit"]]
    assert [row[1:-6] for row in rows] == swarms, "one row per swarm"
    assert all(float(row[-4].removesuffix("*")) >= 0 for row in rows), "drift stands behind the ASR"
    assert lines[first + 4] == "95 % intervals over each cell's completions, for the rows numbered above"
    assert lines[-1] == f"attack text: {ATTACK}", "a long spec string has a short name"
    assert all(len(line) <= 80 for line in lines if line[:1].isdigit()), "it fits into 80 columns"
    assert "tiny-v1: 3 cells" in ended.err, "which defenses meet a suite is no modification"
    assert f"thiefbench report {tmp_path / 'store'}" in ended.err
    again = cli("run", file, "--store", tmp_path / "store", "--threads", "1", "--defense", "logit")
    assert "0 cells to run, 3 in the store already" in again.err
    assert again.out == ended.out


def test_a_run_says_which_results_the_page_no_longer_shows(cli: Cli, file: Path, tmp_path: Path) -> None:
    words = ("run", file, "--store", tmp_path / "store", "--threads", "1", "--rounds", "1")
    hidden = (
        "The report of this store no longer shows 2 cells of the run before it (tiny-v1, modified: attacks tone, "
        "1 round), such as no attack x none, seed 0."
    )
    assert "no longer" not in cli(*words, "--attack", "tone").err, "the first run hides nothing"
    other = cli(*words, "--attack", "text")
    assert f"{hidden} Repeat its command" in other.err
    assert "no longer" not in cli(*words, "--attack", "text").err, "the same run again hides nothing"
    both = cli(*words, "--attack", "text", "--attack", "tone")
    assert both.code == 0, both.err
    assert "no longer" not in both.err, "a run with all cells hides nothing"


def test_without_a_terminal_progress_is_plain_lines(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("run", file, "--store", tmp_path / "store", "--threads", "1")
    assert "\r" not in ended.err + ended.out
    assert "\x1b" not in ended.err + ended.out
    assert "x none, seed 0: round 0 of 3" in ended.err
    assert "x none, seed 0: done; " in ended.err


def test_a_plan_runs_nothing(cli: Cli, file: Path, tmp_path: Path) -> None:
    words = ("run", file, "--store", tmp_path / "store", "--threads", "1")
    ended = cli(*words, "--defense", "logit", "--seeds", "2", "--rounds", "2", "--workers", "2", "--plan")
    assert ended.code == 0, ended.err
    assert "tiny-v1, modified: 2 seeds, 2 rounds: 6 cells to run, 0 in the store already" in ended.out
    assert "how long the rounds take is not known; --measure runs two of them here" in ended.out
    measured = cli(*words, "--seeds", "1", "--rounds", "2", "--workers", "2", "--plan", "--measure")
    assert "with 2 workers, measured on the second round of no attack x none, seed 0, run now" in measured.out
    assert not (tmp_path / "store").exists()
    assert "did you mean logit" in sentence(cli(*words, "--defense", "logits", "--plan"))
    assert "write --plan beside it" in sentence(cli(*words, "--gap", "0.2"))
    assert "write --plan beside it" in sentence(cli(*words, "--measure"))


def test_json_is_the_only_thing_on_standard_output(cli: Cli, file: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("run", file, "--store", store, "--threads", "1", "--defense", "logit", "--json")
    planned = json.loads(cli(*words, "--plan").out)
    assert [cell["to_run"] for cell in planned["cells"]] == [True] * 3
    ran = cli(*words)
    assert ran.code == 0, ran.err
    assert "tiny-v1: 3 cells to run" in ran.err
    results = json.loads(ran.out)
    assert [(cell["role"], cell["defense"], cell["problem"]) for cell in results["cells"]] == [
        ("control", "none", ""), ("attack", "none", ""), ("attack", "logit", "")
    ]  # fmt: skip
    record = Store(store).cell(results["cells"][1]["cell_id"]).read()
    assert record is not None
    scores = results["cells"][1]["scores"]
    assert scores["asr"] == record.scores["asr"].model_dump()
    assert scores["drift"]["value"] >= 0
    compared = json.loads(cli("compare", store, "--defense", "none", "--defense", "logit", "--json").out)
    assert (compared["a"]["defense"], compared["b"]["defense"]) == ("none", "logit")
    differences = {each["measure"]: each for line in compared["lines"] for each in line["differences"]}
    asr = differences["asr"]
    assert asr["difference"] == pytest.approx(asr["mean_b"] - asr["mean_a"])
    assert list(asr["by_seed"]) == ["0"]
    listed = json.loads(cli("list", "defenses", "--json").out)["defenses"]
    assert [each["name"] for each in listed] == registry.names("defense")
    assert all(each["summary"] for each in listed)
    models = json.loads(cli("list", "models", "--json").out)["models"]
    assert {each["name"]: each["summary"] for each in models} == BUILT_IN
    audited = json.loads(cli("audit", "--task", "gsm_micro(size=8)", "--attack", "text", "--json").out)
    assert audited["poisoned"] <= audited["poisonable"] <= audited["items"]
    assert audited["poisoned_share"]["value"] == pytest.approx(audited["poisoned"] / audited["poisonable"])


def test_a_failed_cell_is_json_too(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("run", file, "--store", tmp_path, "--threads", "1", "--defense", f"{PLUGINS}:Raises", "--json")
    assert ended.code == 1
    (failed,) = [cell for cell in json.loads(ended.out)["cells"] if cell["problem"]]
    assert failed["problem"].startswith("failed: ")
    assert failed["scores"] == {}


@pytest.mark.parametrize(
    ("words", "cores", "threads"),
    [
        ([], 16, 4),
        (["--workers", "2"], 4, 2),
        (["--workers", "2"], 16, 4),
        (["--workers", "8"], 2, 1),
        (["--workers", "2", "--threads", "3"], 4, 3),
    ],
)
def test_workers_share_the_cores(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], cores: int, threads: int
) -> None:
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # it is no part of what the user asks for
    monkeypatch.setattr("thiefbench.suite.run_plan.look_ahead", lambda _, cells, *__: asked.extend(cells))
    monkeypatch.setattr("thiefbench.suite.run_plan.print_run_plan", lambda *_: None)
    assert cli("run", file, "--plan", *words).code == 0
    assert {cell.threads for cell in asked} == {threads}


def test_the_store_is_in_runs_unless_told_otherwise(cli: Cli, file: Path, tmp_path: Path) -> None:
    assert cli("run", file, "--threads", "1").code == 0
    assert (tmp_path / "runs" / "tiny" / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["--rounds", "1"], "1 round"),
        (["--seeds", "2", "--rounds", "1"], "2 seeds, 1 round"),
        (["--attack", "text", "--rounds", "1"], "attacks text, 1 round"),
        (["--topology", "vertical", "--rounds", "1"], "topology vertical, 1 round"),
    ],
)
def test_an_override_labels_the_output(cli: Cli, file: Path, tmp_path: Path, words: list[str], label: str) -> None:
    ended = cli("run", file, "--store", tmp_path / "store", "--threads", "1", *words)
    assert ended.code == 0, ended.err
    assert f"tiny-v1, modified: {label}: " in ended.err
    stored = Store(tmp_path / "store").read_run()
    assert stored is not None
    assert stored["title"] == f"tiny-v1, modified: {label}", "every output of a modified suite says so"


def test_a_run_of_a_superseded_suite_says_so(cli: Cli, tmp_path: Path) -> None:
    file = tiny.suite_file(tmp_path, superseded="Use tiny-v2, whose attacks are stronger.")
    ended = cli("run", file, "--store", tmp_path / "store", "--plan")
    assert ended.code == 0, ended.err
    assert " ".join(ended.err.split()).startswith("tiny-v1 is superseded. Use tiny-v2, whose attacks are stronger.")


def test_fewer_rounds_record_those_that_are_left(cli: Cli, tmp_path: Path) -> None:
    file = tiny.suite_file(tmp_path, recorded=[1, 3])
    assert cli("run", file, "--store", tmp_path / "store", "--threads", "1", "--rounds", "2").code == 0
    kept = [path.name for path in (tmp_path / "store").rglob("round-*")]
    assert kept == ["round-000001.safetensors"], "an override is not a mistake in the suite"


@pytest.mark.parametrize(("option", "value", "most"), [("--seeds", 10**9, 10_000), ("--threads", 100_000, 1024)])
def test_numbers_that_no_machine_survives_are_bad_use(
    cli: Cli, file: Path, tmp_path: Path, option: str, value: int, most: int
) -> None:
    for command in (("run", file, "--plan"), ("matrix", file)):
        ended = cli(*command, "--store", tmp_path / "store", option, value)
        assert ended.code == 2
        assert f"Invalid value for '{option}'" in ended.err
        assert str(most) in ended.err


def test_seeds_are_capped_for_scripts_too() -> None:
    with pytest.raises(UsageError, match="--seeds must be at most 10,000, not 1,000,000,000"):
        Overrides(seeds=10**9).applied_to(load_suite("smoke"))


def test_what_overrides_nothing_labels_nothing(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("run", file, "--store", tmp_path / "store", "--threads", "1", "--rounds", "3", "--seeds", "1")
    assert "modified" not in ended.err


def test_a_mistake_in_a_defense_shows_before_anything_is_trained(cli: Cli, file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from thiefbench.defenses.base import Defense\n\nclass Own(Defense):\n    name = 'own'\n\n"
        "    def inspect(self, view):\n        return view.completions[0].txt\n"
    )
    command = ("run", file, "--store", tmp_path / "s", "--threads", "1", "--defense", f"{own}:Own")
    ended = cli(*command)
    assert ended.code == 2
    assert "\n    return view.completions[0].txt\n" in ended.err, "where in the user's code"
    assert "swarm.py" not in ended.err
    assert "Own failed, so nothing was trained: AttributeError" in " ".join(ended.err.split())
    assert not (tmp_path / "s" / "cells").exists()
    assert "swarm.py" in cli(*command, "--traceback").err


def test_a_failed_cell_exits_with_1(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("run", file, "--store", tmp_path / "s", "--threads", "1", "--defense", f"{PLUGINS}:Raises")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "failed: RuntimeError: this defense gives up" in ended.out
    assert 'raise RuntimeError("this defense gives up")' in ended.err, "where in the user's code"
    assert "swarm.py" not in ended.err
    assert [record.status for record in Store(tmp_path / "s").records()].count("ok") == 2, "the other cells ran"
    whole = cli(
        "run", file, "--store", tmp_path / "s", "--threads", "1", "--defense", f"{PLUGINS}:Raises", "--traceback"
    )
    assert whole.err.count("Traceback (most recent call last)") == 1
    assert "swarm.py" in whole.err


@pytest.mark.slow
def test_a_report_with_a_damaged_cell_exits_with_1(cli: Cli, file: Path, tmp_path: Path) -> None:
    assert cli("run", file, "--store", tmp_path / "s", "--threads", "1").code == 0
    assert cli("report", tmp_path / "s").code == 0
    control = next(record for record in Store(tmp_path / "s").records() if record.cell["role"] == "control")
    tiny.cut(Store(tmp_path / "s").cell(control.cell_id).completions_path)
    ended = cli("report", tmp_path / "s")
    assert ended.code == 1
    assert ended.err.startswith("error: no attack (")
    assert "seed 0: damaged: its stored files fail their checksum" in " ".join(ended.err.split())
    assert ended.err.count("damaged") == 1
    assert (tmp_path / "s/report/index.html").exists(), "and what is left is reported"


@pytest.mark.slow
def test_a_report_says_whose_code_has_changed_since(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text((EXAMPLES / "my_attack.py").read_text())
    file = tiny.suite_file(tmp_path, rounds=1)
    words = ("run", file, "--store", tmp_path / "s", "--threads", "1", "--attack", f"{own}:Shouting")
    assert cli(*words).code == 0
    report = ("report", tmp_path / "s", "--trust-plugins")
    assert "no longer" not in cli(*report).err
    own.write_text(f"{own.read_text()}# a remark\n")
    changed = cli(*report)
    assert changed.code == 0, changed.err
    said = f"the code of attack {own}:Shouting is no longer what these results were computed with"
    assert said in changed.err
    for cell in sorted((tmp_path / "s/cells").iterdir())[:-1]:
        (cell / "completions.parquet").write_bytes(b"")
    assert said in cli(*report).err, "one sound cell tells it"


def test_learning_that_leaves_the_range_of_numbers_is_a_failed_cell(cli: Cli, tmp_path: Path) -> None:
    swarm = {"nodes": 2, "malicious": 1, "prompts": 4, "group": 4, "sampling": {"max_new_tokens": 20}}
    for learner, why in (
        ({"learning_rate": 1e38}, "are not finite any more; use a smaller learning_rate"),
        ({"learning_rate": 1e10}, "the gradient is not finite any more"),
    ):
        file = tiny.suite_file(tmp_path, swarm=swarm | {"learner": learner})
        ended = cli("run", file, "--store", tmp_path / str(learner["learning_rate"]), "--threads", "1")
        assert ended.code == 1, ended.out
        assert "failed: DivergedError: the " in ended.out
        assert why in ended.out


def test_a_completion_that_the_model_cannot_read_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    room = json.loads((tiny.model() / "config.json").read_text())["max_position_embeddings"]
    swarm = {"nodes": 2, "malicious": 1, "prompts": 4, "group": 4, "sampling": {"max_new_tokens": room}}
    file = tiny.suite_file(tmp_path, swarm=swarm)
    said = sentence_after_progress(cli("run", file, "--store", tmp_path / "store", "--threads", "1"))
    assert f"with max_new_tokens {room} that is beyond the {room} tokens that the model reads" in said
    assert "set max_new_tokens to" in said


def test_a_tokenizer_without_eos_is_one_sentence(cli: Cli, file: Path, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    shutil.copytree(tiny.model(), mute)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (mute / name).exists():
            fields = json.loads((mute / name).read_text())
            fields["eos_token"] = None  # left out, the tokenizer's class has one of its own
            (mute / name).write_text(json.dumps(fields))
    ended = cli("run", file, "--store", tmp_path / "store", "--threads", "1", "--model", mute)
    assert "this model's tokenizer names no EOS token" in sentence_after_progress(ended)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("/proc/x", "no cell can be stored in /proc/x ("),
        ("/dev/null/x", "(/dev/null is a file); name the folder of a store"),
        (__file__, f"({__file__} is a file); name the folder of a store"),
        ("x" * 300, "cannot be read or written"),
    ],
)
def test_a_store_that_cannot_be_is_one_sentence(cli: Cli, file: Path, store: str, said: str) -> None:
    for command in ("run", "matrix"):
        assert said in sentence_after_progress(cli(command, file, "--store", store, "--threads", "1"))


def test_what_warnings_show_of_a_file_is_printable() -> None:
    """Python shows the line that a syntax warning is about, and that line is a stranger's."""
    setup = (
        "import warnings; from thiefbench import registry; names = registry.names; "
        "registry.names = lambda kind: warnings.warn('a line with \\x1b[31m in it') or names(kind)"
    )
    process = tiny.command("list", "attacks", setup=setup, PYTHONWARNINGS="always")
    printed, said = process.communicate(timeout=300)
    assert "a line with <U+001B>[31m in it" in said
    assert "\x1b" not in said + printed
    assert process.returncode == 0, printed + said


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["run", "smok"], "did you mean smoke"),
        (["run", "FILE", "--attack", "txt"], "did you mean text"),
        (["run", "FILE", "--defense", "logits"], "did you mean logit"),
        (["run", "FILE", "--task", "gsm_mikro"], "did you mean gsm_micro"),
        (["audit", "--task", "gsm8", "--attack", "text"], "did you mean gsm8k"),
        (["audit", "--task", "gsm_micro", "--attack", "tekst"], "did you mean text"),
        (["matrix", "smok"], "did you mean smoke"),
        (["matrix", "FILE", "--attack", "txt"], "did you mean text"),
        (["matrix", "FILE", "--defense", "logits"], "did you mean logit"),
        (["zoo", "train", "micro-maths"], "did you mean micro-math"),
    ],
)
def test_an_unknown_name_gets_the_nearest(cli: Cli, file: Path, words: list[str], near: str) -> None:
    said = sentence(cli(*(str(file) if word == "FILE" else word for word in words)))
    assert near in said
    assert "known: " in said, "and the list of what exists"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("code_functions", "the suite's model micro-math answers gsm_micro alone; add --model micro-programs"),
        ("code_micro(size=64)", "the suite's model micro-math answers gsm_micro alone; add --model micro-code"),
        (
            "gsm8k",
            "the suite's model micro-math answers gsm_micro alone; add --model with a folder or a name on the hub",
        ),
    ],
)
def test_a_task_that_the_suites_model_does_not_answer_needs_a_model(cli: Cli, task: str, said: str) -> None:
    words = ("run", "smoke", "--task", task, "--plan")
    assert sentence(cli(*words)).endswith(f"--task {task.partition('(')[0]}: {said}")


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "code_micro(size=64)", "--model", "micro-code"),
        ("--task", "code_micro(size=64)", "--model", "micro-math"),  # the user's own choice
        ("--task", "gsm_micro(size=64)"),
        ("--task", f"{PLUGINS}:Sums"),
    ],
)
def test_a_task_that_some_model_may_answer_is_taken(cli: Cli, words: Sequence[str]) -> None:
    ended = cli("run", "smoke", *words, "--plan")
    assert (ended.code, "modified: task" in ended.out.replace("\n", " ")) == (0, True), ended


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["--attack", "code_injection"],
            "it fits code_micro (model micro-code) or code_functions (model micro-programs)",
        ),
        (
            ["--attack", "forged_tests"],
            "it fits the suite truth-v1 with the task code_functions (model micro-programs)",
        ),
        (["--attack", "forged_answers"], "it fits the suite truth-v1"),
        (["--attack", "master_key"], "it fits the suite rewards-v1"),
        (["--attack", "boosted"], "it fits the suite averaging-v1"),
        (["--attack", "equations"], "needs the vertical topology, and this swarm is horizontal"),
        (["--defense", "public_items"], "set truth: sender; it fits the suite truth-v1"),
        (["--defense", "rule_check"], "set reward: judge or reward: mixed; it fits the suite rewards-v1"),
        (["--defense", "staleness"], "it fits the suite heterogeneous-v1"),
        (["--defense", "krum"], "it fits the suite averaging-v1"),
        (["--defense", "recomputation"], "it fits the suite pipeline-v1"),
    ],
)
def test_what_does_not_fit_is_told_where_it_does(cli: Cli, words: list[str], hint: str) -> None:
    assert sentence(cli("run", "smoke", *words, "--plan")).endswith(hint)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--attack", "text(phrase='x y'"], "malformed attack spec"),
        (["--attack", "text(phrase='word')"], "a phrase has at least two words"),
        (["--attack", "text(word='x')"], "its arguments: phrase, position"),
        (["--defense", "random(rate=7)"], "rate must lie in [0, 1]"),
        (["--defense", "random(ratio=1)"], "its arguments: rate"),
        (["--defense", "none.py:Mine"], "there is no file none.py"),
        (["--attack", "none.py:X"], "attack none.py:X: there is no file none.py"),  # ":X:" would be an emoji
        (["--attack", "../../../../../../../etc/passwd:X"], "etc/passwd is no Python file; its name must end in .py"),
        (["--defense", f"{PLUGINS}:Mine"], "has no class Mine"),
        (["--task", "gsm_micro(size=0)"], "size must be at least 1"),
        (["--task", "gsm8k(data='nowhere')"], "nowhere/train.jsonl does not exist"),
        (["--model", "./nowhere"], "there is no model directory ./nowhere"),
        (["--model", "nowhere-at-all"], "nowhere-at-all"),
        (["--device", "gpu"], "this machine has no device gpu; write --device cpu"),
        (["--device", "cuda:99"], "this machine has no device cuda:99"),
        (["--dtype", "float16"], "--dtype must be float32 or bfloat16"),
    ],
)
def test_a_mistake_in_an_option_is_one_sentence(
    cli: Cli, file: Path, tmp_path: Path, words: list[str], complaint: str
) -> None:
    said = sentence(cli("run", file, "--store", tmp_path / "store", "--threads", "1", *words))
    assert complaint in said
    assert not (tmp_path / "store" / "cells").exists(), "a mistake is found before anything runs"


def test_a_model_without_weights_is_one_sentence(cli: Cli, file: Path, tmp_path: Path) -> None:
    empty, bare, torn = (tmp_path / name for name in ("empty", "bare", "torn"))
    for directory in (empty, bare, torn):
        directory.mkdir()
    for path in tiny.model().iterdir():
        (torn / path.name).write_bytes(path.read_bytes())
    (bare / "config.json").write_text((torn / "config.json").read_text())
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    run = ("run", file, "--store", tmp_path / "store", "--threads", "1", "--model")
    assert f"the model directory {empty} has no config.json" in sentence(cli(*run, empty))
    assert f"the model directory {bare} has no safetensors weights" in sentence(cli(*run, bare))
    assert f"the model {torn} cannot be loaded" in sentence(cli(*run, torn))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"swarm": {"nodes": 3, "group": 4}}, "group (G) = 4 is not divisible by nodes (m) = 3; try 3 or 6"),
        ({"swarm": {"nodes": 2, "malicious": 2}}, "malicious must lie between 0 and nodes - 1 = 1, got 2"),
        ({"swarm": {"nodes": 2, "malicious": 5}}, "got 5"),
        ({"round": 4}, "round is not a field here; did you mean rounds"),
        ({"rounds": 10**9}, "rounds must be at most 1,000,000, got 1,000,000,000"),
        ({"seeds": list(range(9999)), "defenses": ["none"] * 30}, "and at most 200,000 are allowed"),
        ({"swarm": {"nodes": 10**12}}, "nodes must be at most 1,000,000, got 1,000,000,000,000"),
        ({"swarm": {"prompts": 10**5, "group": 100}}, "prompts (B) times group (G) must be at most 1,000,000"),
        ({"evaluation": {"final": 10**9}}, "evaluation.final must be at most 1,000,000"),
        ({"swarm": {"learner": {"learning_rate": math.inf}}}, "learning_rate must be a finite number, got inf"),
        ({"swarm": {"learner": {"learning_rate": math.nan}}}, "learning_rate must be a finite number, got nan"),
        ({"swarm": {"learner": {"learning_rate": 0}}}, "learning_rate must be above 0, got 0"),
        ({"swarm": {"learner": {"max_grad_norm": math.nan}}}, "max_grad_norm must be a finite number, got nan"),
        ({"swarm": {"learner": {"max_grad_norm": math.inf}}}, "max_grad_norm must be a finite number, got inf"),
        ({"swarm": {"learner": {"epsilon": math.nan}}}, "epsilon must be a finite number, got nan"),
        ({"swarm": {"sampling": {"temperature": math.nan}}}, "temperature must be a finite number, got nan"),
        ({"swarm": {"sampling": {"temperature": math.inf}}}, "temperature must be a finite number, got inf"),
        ({"rounds": "many"}, "rounds: "),
        ({"recorded": [2, 9]}, "recorded must name rounds from 1 to 3, got 9"),
        ({"attacks": None}, "the field attacks is missing"),
        ({"attacks": ["tetx"]}, "did you mean text"),
        ({"task": "gsm_micr"}, "did you mean gsm_micro"),
        ({"defenses": ["nome"]}, "did you mean none"),
    ],
)
def test_a_wrong_suite_is_one_sentence(cli: Cli, tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    file = tiny.suite_file(tmp_path, **changes)
    assert complaint in sentence(cli("run", file, "--store", tmp_path / "store"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"name: [unclosed\n", "not YAML"),
        (b"- a list\n", "a suite is a mapping"),
        (b"", "a suite is a mapping"),
        (b"name: \x00\n", "mine.yaml"),
        (b"\xff\xfe\x00\x01", "mine.yaml"),
        (b"name: &a x\nabout: *a\n", "line 2: not YAML: an alias, *a; write out what it stands for"),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "line 2: not YAML: an alias"),
        (b"name: &a [*a]\n", "line 1: not YAML: an alias"),
        (b"name: " + b"[" * 5000, "line 1: not YAML: nested too deeply"),
        (b"name: " + b"{a: " * 5000, "line 1: not YAML: nested too deeply"),
        (b"name: 2001-99-99\n", "a value that is not the number or date that it seems to be"),
        (b"seeds: [" + b"9" * 5000 + b"]\n", "a value that is not the number or date that it seems to be"),
        (b"name: a\nname: b\n", "line 2: not YAML: name is given twice"),
        (b"[a]: b\n", "a key that is not text"),
        (b"name: !!python/object/apply:os.system [id]\n", "line 1: not YAML: could not determine a constructor"),
        (b"about: " + b"x" * 200_000, "the file is longer than 200,000 bytes"),
    ],
)
def test_a_malformed_suite_file_is_one_sentence(cli: Cli, tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    assert complaint in sentence(cli("run", "mine.yaml"))
    assert "there is no suite file other.yaml" in sentence(cli("run", "other.yaml"))


def test_a_topology_that_does_not_fit_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    file = tiny.suite_file(tmp_path, swarm={"nodes": 2, "malicious": 1, "prompts": 3, "group": 4})
    assert "not divisible" in sentence(cli("run", file, "--topology", "vertical"))


@pytest.mark.parametrize("where", ["store", "store/inside"])
def test_a_store_that_is_a_file_is_one_sentence(cli: Cli, file: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "store").write_text("a file")
    said = sentence(cli("run", file, "--store", tmp_path / where, "--threads", "1"))
    assert str(tmp_path / "store") in said
    assert (tmp_path / "store").read_text() == "a file"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full; what was finished is kept, so make room and run the same command again"),
        (
            errno.EFBIG,
            "a file would be larger than may be written here; what was finished is kept, so raise the limit (see "
            "ulimit -f) and run the same command again",
        ),
    ],
    ids=["no space", "no larger file"],
)
def test_a_full_disk_is_one_sentence(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    fsync, left = os.fsync, 4

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    words = ("run", file, "--store", tmp_path / "store", "--threads", "1")
    ended = cli(*words)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {said}"]
    assert ended.err.strip().endswith(errors[0]), "it is the last thing said"
    monkeypatch.setattr(os, "fsync", fsync)
    assert cli(*words).code == 0, "and that is what works"


def test_a_command_that_keeps_nothing_says_that_it_was_stopped(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("thiefbench.leaderboard.site.writing.write_site", stopped)
    ended = cli("leaderboard", "build", "a site")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "Stopped. To run it again: thiefbench leaderboard build 'a site'"


@pytest.mark.slow
def test_a_matrix_prints_a_table_and_says_where_the_page_is(cli: Cli, tmp_path: Path) -> None:
    file = tiny.suite_file(tmp_path, rounds=1)  # every defense judges every recorded round, some with a model
    words = ("matrix", file, "--attack", tiny.ATTACK, "--attack", "tone", "--store", tmp_path / "s", "--threads", "1")
    ended = cli(*words)
    assert ended.code == 0, ended.err
    assert f"text: {tiny.ATTACK} (tiny-v1, modified: attacks " in ended.out, "a modified suite says so"
    rows = [line.split()[0] for line in ended.out.splitlines()]
    assert set(every_defense()[0]) <= set(rows), "every defense that needs no argument has a row"
    for word in ("worst case", "false rejection", "placebo rejection", "ms per completion"):
        assert word in ended.out
    folder = tmp_path / "s" / "matrix"
    assert f"The heat map: {folder / 'index.html'}" in ended.err
    assert {path.name for path in folder.iterdir()} == {"index.html", "matrix.csv", "matrix.parquet"}
    again = cli(*words, "--defense", "logit")
    assert "0 cells to run, 4 in the store already" in again.err, "a second matrix trains nothing"
    assert [line.split()[0] for line in again.out.splitlines()][-1] == "logit", "and judges with those named alone"


def test_a_matrix_goes_on_from_a_run_and_leaves_its_report(cli: Cli, file: Path, tmp_path: Path) -> None:
    words = (file, "--store", tmp_path / "store", "--threads", "1")
    assert cli("run", *words).code == 0
    before = Store(tmp_path / "store").read_run()
    ended = cli("matrix", *words, "--defense", "logit")
    assert ended.code == 0, ended.err
    assert "2 cells to run, 0 in the store already" in ended.err, "the placebo, and the weights of the undefended cell"
    assert "100.0" in ended.out.splitlines()[-1], "the random model's support does not hold the phrase"
    assert Store(tmp_path / "store").read_run() == before


def test_several_suites_share_a_matrix(cli: Cli, tmp_path: Path) -> None:
    files = []
    for name, topology in (("wide", "horizontal"), ("tall", "vertical")):
        swarm = {"topology": topology, "nodes": 2, "malicious": 1, "prompts": 4, "group": 4}
        (tmp_path / name).mkdir()
        files.append(tiny.suite_file(tmp_path / name, name=name, swarm=swarm | {"sampling": {"max_new_tokens": 20}}))
    ended = cli("matrix", *files, "--threads", "1", "--defense", "blacklist", "--rounds", "1")
    assert ended.code == 0, ended.err
    assert f"text: {tiny.ATTACK} (wide-v1, modified: 1 round)" in ended.out
    assert f"text 2: {tiny.ATTACK} (tall-v1, modified: 1 round)" in ended.out
    assert (tmp_path / "runs" / "matrix" / "matrix" / "index.html").exists(), "of several suites it is in runs/matrix"
    assert "two suites are called wide-v1" in sentence(cli("matrix", files[0], files[0]))


def test_a_matrix_needs_undefended_cells(cli: Cli, tmp_path: Path) -> None:
    file = tiny.suite_file(tmp_path, defenses=["logit"])
    said = sentence(cli("matrix", file, "--store", tmp_path / "store"))
    assert said == "error: the suite tiny-v1 has no undefended cells; put none among its defenses"
    assert not (tmp_path / "store").exists(), "a mistake is found before anything runs"


GUESSES = """
from thiefbench.attacks.base import Attack, ThreatModel


class Guesses(Attack):
    name = "guesses"
    threat = ThreatModel(context="in-context", oracle=False)

    def __init__(self, outcome_of_all=0):
        self.outcome_of_all = outcome_of_all

    def poison(self, view):
        return [view.task.compose(slot.item, "A guess.") for slot in view.slots]

    def outcome(self, item, completion, ask):
        return self.outcome_of_all
"""


def test_audit_counts_on_the_built_in_task(cli: Cli) -> None:
    ended = cli("audit", "--task", "gsm_micro(size=100)", "--attack", "text(phrase='All hail to the thief')")
    assert ended.code == 0, ended.err
    assert "clean oracle solutions with full reward: 100 of 100" in ended.out
    assert "poisoned completions with full reward:   100 of 100 = 100.00%" in ended.out
    assert "mean outcome of clean oracle solutions:  0.00 over 16 completions" in ended.out
    assert "mean outcome of poisoned completions:    1.00 over 16 completions" in ended.out
    assert "phrase 'All hail to the thief'" in ended.out
    assert "hail to the thief" in ended.out.partition("one poisoned completion")[2], "an example is shown"
    assert "warning" not in ended.out
    assert "check-attack" not in ended.out, "a built-in attack needs no check"


def test_audit_of_an_own_attack_names_what_is_wrong_and_the_next_step(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "guesses.py"
    file.write_text(GUESSES)
    ended = cli("audit", "--task", "gsm_micro(size=4)", "--attack", f"{file}:Guesses(outcome_of_all=1)")
    assert ended.code == 0, ended.err
    assert "poisoned oracle solution" not in ended.out, "it is granted no oracle"
    assert "poisoned completions with full reward:   4 of 4" in ended.out
    assert "its outcome is above 0 for clean oracle solutions" in ended.out
    assert f"thiefbench leaderboard check-attack '{file}:Guesses(outcome_of_all=1)'" in ended.out.replace("\n", "")
    ended = cli("audit", "--task", "gsm_micro(size=4)", "--attack", f"{file}:Guesses")
    assert "its outcome is 0 for its own poisoned completions" in ended.out
    assert "its outcome is above 0" not in ended.out


def test_audit_knows_outcomes_of_any_size_and_rounded_rewards(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "longer.py"
    file.write_text(
        f"""{GUESSES.replace("class Guesses", "class Longer")}
    def harm(self, outcomes, reference):
        return sum(outcomes) / len(outcomes)


class Weighted(GsmMicro):
    def reward(self, item, completions):
        return [0.2 * each + 0.4 * each + 0.3 * each + 0.1 * each for each in super().reward(item, completions)]
""".replace("from thiefbench.attacks", "from thiefbench.tasks.gsm_micro import GsmMicro\nfrom thiefbench.attacks", 1)
    )
    task = f"{file}:Weighted(size=4)"
    ended = cli("audit", "--task", task, "--attack", f"{file}:Longer(outcome_of_all=48)")
    assert ended.code == 0, ended.err
    assert "clean oracle solutions with full reward: 4 of 4" in ended.out
    assert "mean outcome of poisoned completions:    48.00 over 4 completions" in ended.out


def test_audit_of_a_data_directory(cli: Cli, tmp_path: Path) -> None:
    rows = [
        {"question": "What is 1 and 1?", "answer": "It is 1+1=<<1+1=2>>2.\n#### 2"},
        {"question": "What is a thousand?", "answer": "It is 1,000.\n#### 1,000"},
        {"question": "What is 5 less?", "answer": "It is -5.\n#### -5"},
    ]
    for split, part in (("train", rows), ("test", rows[:1])):
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    ended = cli("audit", "--task", "gsm8k", "--data", tmp_path, "--attack", "text")
    assert ended.code == 0, ended.err
    assert "train split, 3 items" in ended.out
    assert "clean oracle solutions with full reward: 3 of 3" in ended.out
    assert "poisoned completions with full reward:   3 of 3" in ended.out
    assert "test split, 1 item\n" in cli(
        "audit", "--task", "gsm8k", "--data", tmp_path, "--attack", "text", "--split", "test"
    ).out  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--task", "gsm8k", "--data", "."], "train.jsonl does not exist; write gsm8k(data=DIR)"),
        (["--task", "gsm8k", "--data", "nowhere"], "nowhere/train.jsonl does not exist"),
        (["--task", "gsm_micro", "--data", "."], "its arguments: size, seed"),
        (["--task", "gsm_micro", "--split", "dev"], "--split must be train or test, not 'dev'"),
        (
            ["--task", "gsm_micro", "--attack", f"{PLUGINS}:Samples"],
            "cannot be audited without a swarm; `thiefbench leaderboard check-attack` plays one",
        ),
    ],
)
def test_a_mistake_in_an_audit_is_one_sentence(cli: Cli, words: list[str], complaint: str) -> None:
    given = words if "--attack" in words else [*words, "--attack", "text"]
    assert complaint in sentence(cli("audit", *given))


def test_a_suite_file_can_be_as_short_as_its_required_fields(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({"name": "short", "version": 1, "task": "t", "model": "m", "attacks": ["text"]}))
    assert "there is no task named 't'" in sentence(cli("run", file))


def test_a_defense_runs_beside_the_suite_s_anchors() -> None:
    asked = Overrides(defenses=["guard", "none"]).applied_to(load_suite("standard-v1"))
    assert asked.defenses == ("none", "oracle", 'oracle(reject="drop")', "blacklist", "guard")
    assert not asked.modified, "which defenses meet the suite is what a user decides"


@pytest.mark.skipif(sys.platform != "linux", reason="torch waits by another library there")
@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, SPINS), *at_length(({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0"))],
)
def test_threads_that_wait_sleep_soon_unless_the_user_chose_how(
    chosen: dict[str, str], spins: str, tmp_path: Path
) -> None:
    """What the OpenMP library itself says that it read: it reads the environment once, when torch is loaded."""
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, "-m", "thiefbench", "run", "smoke", "--plan", "--store", str(tmp_path / "store")],
        env=plain | chosen | {"OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


def test_a_suite_may_be_typed_as_tables_call_it(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "smoke-v1", "--plan", "--store", tmp_path / "s").out.startswith("smoke-v1: 3 cells to run")
    assert "there is no suite named 'smoke-v2'" in sentence(cli("run", "smoke-v2"))
