"""Suites: reading them, refusing them with file and line, and the cells they stand for."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thiefbench.engine.keys import secret_seed
from thiefbench.engine.spec import LearnerSpec, SpecError, SwarmSpec
from thiefbench.registry import SpecStringError, make, names
from thiefbench.suite.scenario import CellSpec, Evaluation, RankingRules, Suite
from thiefbench.suite.suite_yaml import SuiteError, load_suite, parse_suite
from thiefbench.tasks.base import Sampling

GOOD = """\
name: small
version: 2
task: gsm_micro
model: micro-math
attacks: [text]
defenses: [none, logit]
seeds: [0, 1]
rounds: 8
evaluation:
  every: 4
  completions: 64
swarm:
  topology: horizontal
  nodes: 4
  malicious: 1
  prompts: 8
  group: 12
  sampling:
    temperature: 1.0
    top_k: 50
  learner:
    loss: grpo
    learning_rate: 3.0e-4
"""


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def refused(text: str) -> str:
    with pytest.raises(SuiteError) as error:
        parse_suite(text, "my.yaml")
    message = str(error.value)
    assert "\n" not in message, f"a user's error is one sentence: {message!r}"
    assert message.startswith("my.yaml, line "), f"the message begins with file and line: {message!r}"
    return message


def test_a_suite_is_read_as_written() -> None:
    suite = parse_suite(GOOD, "my.yaml")
    assert suite == Suite(
        name="small", version=2, task="gsm_micro", model="micro-math", attacks=("text",), defenses=("none", "logit"),
        seeds=(0, 1), rounds=8, evaluation=Evaluation(every=4, completions=64),
        swarm=SwarmSpec(
            "horizontal", nodes=4, malicious=1, prompts=8, group=12, sampling=Sampling(temperature=1.0, top_k=50),
            learner=LearnerSpec(loss="grpo", learning_rate=3e-4),
        ),
    )  # fmt: skip
    assert suite.title == "small-v2"


@pytest.mark.parametrize("name", names("suite"))
def test_every_declared_suite_loads(name: str) -> None:
    suite = load_suite(name)
    assert name in (suite.name, suite.title), "a suite is declared under its name, with its version where it is frozen"
    assert not suite.modified, "a suite as released is not modified"
    cells = suite.cells("cpu", "float32", 2)
    assert cells, "a suite has cells"
    assert any(cell.role == "control" for cell in cells), "a suite has a control"
    assert any(cell.role == "attack" and cell.defense == "none" for cell in cells), "a suite has an undefended attack"
    assert suite.about, "a suite says what it is for"
    for cell in cells:
        made = [make("task", cell.task), make("attack", cell.attack), make("defense", cell.defense)]
        assert all(made), "and names what exists"
        assert bool(suite.part_of(cell)) == bool(suite.parts), "in a suite of parts every cell belongs to one"


def test_smoke_shows_the_paper_s_phrase_honest_poisoned_and_defended() -> None:
    cells = load_suite("smoke").cells("cpu", "float32", 2)
    assert [(cell.role, cell.defense) for cell in cells] == [
        ("control", "none"),
        ("attack", "none"),
        ("attack", "logit(reject='drop')"),
    ]
    assert all("All hail to the thief" in cell.attack for cell in cells)


def test_a_suite_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(GOOD)
    assert load_suite(str(file)) == parse_suite(GOOD, "mine.yml")


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"there is no suite file .*none\.yaml"):
        load_suite(str(tmp_path / "none.yaml"))
    with pytest.raises(SpecStringError, match=r"there is no suite named 'smok'; did you mean smoke\? known: .*smoke"):
        load_suite("smok")


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "about: [unclosed\n",
        GOOD + "   about: between two levels\n",
        GOOD + "about: 'unclosed\n",
        GOOD + "\tabout: tab\n",
        GOOD + "about: \x00\n",
        GOOD + "? [1]: 2\n",
    ],
)
def test_malformed_yaml(text: str) -> None:
    assert "not YAML" in refused(text)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", GOOD.encode("utf-16")])
def test_a_file_that_is_not_text(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(SuiteError, match=r"mine\.yaml"):
        load_suite(str(file))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("rounds: 8", "rounds: -1", "suite: rounds must be at least 1, got -1"),
        ("  malicious: 1", "  malicious: 9", "swarm: malicious must lie between 0 and nodes - 1 = 3, got 9"),
        ("seeds: [0, 1]", "seeds: three", "seeds: must be a list, as in [three]"),
        ("seeds: [0, 1]", "seeds: 3", "seeds: must be a list, as in [0, 1, 2]"),
        ("seeds: [0, 1]", "seeds: 20", "seeds: must be a list, as in [0, 1, ..., 19]"),
        ("  every: 4", "  evry: 4", "evaluation.evry is not a field here; did you mean every? allowed: "),
        ("attacks: ", "atacks: ", "atacks is not a field here; did you mean attacks or task? allowed: "),
    ],
)
def test_a_wrong_value_gets_its_own_line(before: str, after: str, said: str) -> None:
    assert GOOD.count(before) == 1
    text = GOOD.replace(before, after)
    assert f"line {line_of(text, after)}: {said}" in refused(text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n", "42\n"])
def test_what_is_no_mapping(text: str) -> None:
    assert "a suite is a mapping with name, version, task, model and attacks" in refused(text)


@pytest.mark.parametrize(
    ("before", "after", "named", "allowed"),
    [
        ("rounds: 8", "round: 8", "round", ("attacks", "defenses", "rounds", "swarm", "evaluation")),
        ("  nodes: 4", "  node: 4", "swarm.node", ("nodes", "malicious", "prompts", "group", "sampling", "learner")),
        ("    top_k: 50", "    topk: 50", "swarm.sampling.topk", ("max_new_tokens", "temperature", "top_k", "top_p")),
        ("    loss: grpo", "    los: grpo", "swarm.learner.los", ("beta1", "epsilon", "learning_rate", "loss")),
        ("  every: 4", "  evry: 4", "evaluation.evry", ("completions", "every", "final")),
    ],
)
def test_an_unknown_field_gets_its_line_and_what_is_allowed(
    before: str, after: str, named: str, allowed: tuple[str, ...]
) -> None:
    text = GOOD.replace(before, after)
    message = refused(text)
    assert f"line {line_of(text, after)}:" in message
    assert f"{named} is not a field here" in message
    listed = message.partition("allowed: ")[2].split(", ")
    assert set(allowed) <= set(listed), f"the fields that are allowed there are listed: {message}"
    assert named.rpartition(".")[2] not in listed


@pytest.mark.parametrize("field", ["name", "version", "task", "model", "attacks"])
def test_a_missing_field(field: str) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"{field}:"))
    assert f"the field {field} is missing" in refused(text)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("rounds: 8", "rounds: many", "rounds"),
        ("rounds: 8", "rounds: [8]", "rounds"),
        ("rounds: 8", "rounds: 8.5", "rounds"),
        ("attacks: [text]", "attacks: text", "attacks"),
        ("attacks: [text]", "attacks: [[text]]", "attacks.0"),
        ("seeds: [0, 1]", "seeds: [0, one]", "seeds.1"),
        ("  nodes: 4", "  nodes: four", "swarm.nodes"),
        ("    top_k: 50", "    top_k: fifty", "swarm.sampling.top_k"),
        ("    loss: grpo", "    loss: ppo", "swarm.learner.loss"),
        ("  topology: horizontal", "  topology: diagonal", "swarm.topology"),
        ("  every: 4", "  every: never", "evaluation.every"),
    ],
)
def test_a_wrong_type_gets_its_line(before: str, after: str, named: str) -> None:
    text = GOOD.replace(before, after)
    message = refused(text)
    assert f"line {line_of(text, after)}:" in message
    assert f" {named}: " in message, "the field is named"


@pytest.mark.parametrize("name", ["'..'", "a/b", "'.'", "' a'", "'a '", "-a", "'a\\b'"])
def test_a_name_that_is_no_folder_s_gets_its_line(name: str) -> None:
    """Its store would lie elsewhere, and a suite may come from a stranger."""
    message = refused(GOOD.replace("name: small", f"name: {name}"))
    assert "line 1: name " in message
    assert "as a folder is called after it" in message


@pytest.mark.parametrize("name", ["small", "a suite of things", "a-b.2", "größe", "x"])
def test_other_names_are_names(name: str) -> None:
    assert parse_suite(GOOD.replace("name: small", f"name: {name}"), "x.yaml").name == name


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64])
def test_a_seed_that_no_table_holds_gets_its_line(seed: int) -> None:
    message = refused(GOOD.replace("seeds: [0, 1]", f"seeds: [0, {seed}]"))
    assert f"line 7: seeds must lie between -2^63 and 2^63 - 1, got {seed}" in message


def test_a_verifier_s_secret_seed_is_larger() -> None:
    assert replace(parse_suite(GOOD, "x.yaml"), seeds=(secret_seed(b"k" * 32, 0),)).seeds[0] > 2**64


@pytest.mark.parametrize(("wrong", "allowed"), [("loss: ppo", ("grpo", "dr_grpo")), ("topology: up", ("vertical",))])
def test_a_wrong_choice_names_the_allowed_ones(wrong: str, allowed: tuple[str, ...]) -> None:
    text = re.sub(rf"{wrong.partition(':')[0]}: .*", wrong, GOOD)
    message = refused(text)
    assert all(word in message for word in allowed), message


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("group: 12", "group: 10", "group (G) = 10 is not divisible by nodes (m) = 4; try 8 or 12"),
        ("group: 12", "group: 2", "try 4"),
        ("malicious: 1", "malicious: 4", "malicious must lie between 0 and nodes - 1 = 3, got 4"),
        ("malicious: 1", "malicious: 9", "got 9"),
        ("malicious: 1", "malicious: -1", "got -1"),
        ("nodes: 4", "nodes: 0", "nodes must be at least 1, got 0"),
        ("prompts: 8", "prompts: 0", "prompts must be at least 1, got 0"),
    ],
)
def test_a_swarm_that_cannot_be(before: str, after: str, said: str) -> None:
    text = GOOD.replace(before, after)
    message = refused(text)
    assert said in message
    lines = [line_of(text, each) for each in ("swarm:", after)]
    assert any(f"line {line}:" in message for line in lines), "the line is the field's or the swarm's"


def test_the_vertical_topology_shares_out_prompts() -> None:
    vertical = GOOD.replace("horizontal", "vertical").replace("group: 12", "group: 3")
    assert parse_suite(vertical, "my.yaml").swarm.group == 3, "a group belongs to one node, so G is free"
    said = refused(vertical.replace("prompts: 8", "prompts: 6"))
    assert "vertical: prompts (B) = 6 is not divisible by nodes (m) = 4; try 4 or 8" in said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("temperature: 1.0", "temperature: 0", "temperature must be above 0"),
        ("top_k: 50", "top_k: -1", "top_k must be at least 0"),
        ("top_k: 50", "top_p: 1.5", "top_p in (0, 1]"),
        ("  every: 4", "  every: 0", "evaluation.every must be at least 1, got 0"),
        ("  completions: 64", "  completions: -3", "evaluation.completions must be at least 1, got -3"),
        ("rounds: 8", "rounds: 0", "rounds"),
        ("rounds: 8", "rounds: -2", "rounds"),
        ("attacks: [text]", "attacks: []", "attacks"),
        ("seeds: [0, 1]", "seeds: []", "seeds"),
        ("learning_rate: 3.0e-4", "learning_rate: -1", "learning_rate"),
    ],
)
def test_a_value_out_of_range(before: str, after: str, said: str) -> None:
    assert said in refused(GOOD.replace(before, after))


def test_a_field_given_twice_is_refused() -> None:
    assert "rounds" in refused(GOOD + "rounds: 9\n"), "of two values one would be ignored in silence"


def test_the_same_rules_hold_without_a_file() -> None:
    with pytest.raises(SpecError, match="not divisible"):
        SwarmSpec(nodes=4, group=10)
    with pytest.raises(SpecError, match="malicious must lie between"):
        SwarmSpec(nodes=4, malicious=4)
    with pytest.raises(SpecError, match="at least 2"):
        SwarmSpec(nodes=1, malicious=0, group=1)


def suite(**changes: Any) -> Suite:
    fields: dict[str, Any] = {
        "name": "s", "version": 1, "task": "gsm_micro", "model": "m", "attacks": ("text", "text(position='end')"),
        "defenses": ("none", "logit", "blacklist"), "seeds": (0, 1),
    }  # fmt: skip
    return Suite(**(fields | changes))


def counted(of: Suite) -> Counter[tuple[str, str]]:
    cells = of.cells("cpu", "float32", 2)
    assert len(set(cells)) == len(cells), "no cell stands twice in a suite"
    return Counter((cell.role, cell.defense) for cell in cells)


def test_every_defense_meets_every_attack_on_every_seed() -> None:
    pairs = 2 * 2  # attacks x seeds
    expected = {("control", "none"): pairs} | {("attack", name): pairs for name in ("none", "logit", "blacklist")}
    assert counted(suite()) == expected


def test_placebo_adds_an_undefended_one_per_attack_and_seed() -> None:
    assert counted(suite(placebo=True)) - counted(suite()) == Counter({("placebo", "none"): 4})


def test_utility_adds_every_defense_without_an_attack_once_a_part() -> None:
    more = counted(suite(utility=True)) - counted(suite())
    assert more == Counter({("control", "logit"): 2, ("control", "blacklist"): 2}), "once for each seed"


PARTS = (
    GOOD
    + """
parts:
  - name: wide
    swarm: {nodes: 6}
  - name: tall
    rounds: 5
    attacks: [dos, "text(position='end')"]
    swarm:
      topology: vertical
"""
)


def test_parts_start_from_what_the_suite_says() -> None:
    wide, tall = parse_suite(PARTS, "s.yaml").parts
    plain = parse_suite(GOOD, "s.yaml")
    assert (wide.rounds, wide.attacks, wide.task) == (plain.rounds, plain.attacks, plain.task)
    assert wide.swarm == replace(plain.swarm, nodes=6), "a mapping is filled field by field"
    assert (tall.rounds, tall.attacks) == (5, ("dos", "text(position='end')"))
    assert tall.swarm == replace(plain.swarm, topology="vertical")


def test_a_suite_of_parts_has_every_parts_cells_and_knows_whose_they_are() -> None:
    parted = parse_suite(PARTS, "s.yaml")
    cells = parted.cells("cpu", "float32", 2)
    by_part = {name: [cell for cell in cells if parted.part_of(cell) == name] for name in ("wide", "tall")}
    assert sum(map(len, by_part.values())) == len(cells) == len(set(cells))
    assert {cell.rounds for cell in by_part["tall"]} == {5}
    assert {cell.swarm.nodes for cell in by_part["wide"]} == {6}


def test_what_parts_started_from_is_no_content() -> None:
    parted = parse_suite(PARTS, "s.yaml")
    assert replace(parted, rounds=77).fingerprint() == parted.fingerprint()
    assert parted.override("5 rounds", rounds=5).fingerprint() != parted.fingerprint()
    assert {part.rounds for part in parted.override("5 rounds", rounds=5).parts} == {5}
    assert {part.swarm.topology for part in parted.override("shared", swarm={"topology": "horizontal"}).parts} == {
        "horizontal"
    }


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("    rounds: 5", "    round: 5", "parts.1.round is not a field here"),
        ("    rounds: 5", "    rounds: 0", "parts.1: rounds must be at least 1"),
        ("  - name: wide", "  - name: wide\n    about: wide", "parts.0.about is not a field here"),
        ("name: tall", "name: wide", "every part needs a name of its own"),
        ("{nodes: 6}", "{nodes: 7}", "not divisible"),
    ],
)
def test_a_mistake_in_a_part_names_it(before: str, after: str, said: str) -> None:
    assert said in refused(PARTS.replace(before, after))


def test_a_part_may_bring_what_the_suite_lacks_and_misses_what_neither_has() -> None:
    bare = "\n".join(line for line in PARTS.splitlines() if not line.startswith("attacks:"))
    assert "the field parts.0.attacks is missing" in refused(bare)
    assert parse_suite(bare.replace("name: wide", "name: wide\n    attacks: [text]"), "s.yaml").parts[0].attacks == (
        "text",
    )


def test_what_is_written_twice_is_one_cell() -> None:
    doubled = suite(attacks=("text", "text()", "text(phrase=None)"), defenses=("none", "none", "none()"), seeds=(0, 0))
    once = suite(attacks=("text",), defenses=("none",), seeds=(0,))
    assert doubled.cells("cpu", "float32", 2) == once.cells("cpu", "float32", 2)


def test_the_control_comes_before_what_is_compared_with_it() -> None:
    roles = [cell.role for cell in suite(attacks=("text",), seeds=(0,), placebo=True).cells("cpu", "float32", 2)]
    assert roles == ["control", "placebo", "attack", "attack", "attack"]


def test_a_cell_holds_everything_that_decides_it() -> None:
    made = suite(rounds=7, swarm=SwarmSpec(malicious=2)).cells("cuda", "bfloat16", 3)[0]
    assert (made.rounds, made.swarm.malicious, made.device, made.dtype, made.threads) == (7, 2, "cuda", "bfloat16", 3)
    assert json.loads(json.dumps(made.as_dict()))["swarm"]["sampling"]["top_k"] == 50, "a cell is plain data"


def test_specs_in_cells_are_canonical() -> None:
    made = suite(attacks=("text( position = 'end',phrase=None )",)).cells("cpu", "float32", 2)
    assert {cell.attack for cell in made} == {"text(position='end')"}


def test_an_unknown_name_is_found_before_anything_runs() -> None:
    with pytest.raises(SpecStringError, match="there is no defense named 'logits'"):
        suite(defenses=("logits",)).cells("cpu", "float32", 2)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("attacks: [text]", "attacks:\n  - text\n  - tekst", "there is no attack named 'tekst'; did you mean text?"),
        ("attacks: [text]", "attacks:\n  - text\n  - text(frase='a b')", "did you mean phrase?"),
        ("attacks: [text]", "attacks:\n  - text\n  - own.py:Mine", "own.py"),
        ("attacks: [text]", "attacks:\n  - text\n  - varied(attack='tekst')", "there is no attack named 'tekst'"),
        ("[none, logit]", "\n  - none\n  - logitt", "there is no defense named 'logitt'; did you mean logit?"),
        ("[none, logit]", "\n  - none\n  - logit(rejekt='drop')", "did you mean reject?"),
        ("[none, logit]", "\n  - none\n  - logit(reject=drop)", "values are literals"),
        ("task: gsm_micro", "task: gsm_mikro", "there is no task named 'gsm_mikro'"),
        ("seeds: [0, 1]", "replayed:\n  - blacklisst", "did you mean blacklist?"),
    ],
)
def test_a_name_that_does_not_exist_gets_its_line(before: str, after: str, said: str) -> None:
    text = GOOD.replace(before, after)
    message = refused(text)
    assert said in message
    assert message.startswith(f"my.yaml, line {line_of(text, after.splitlines()[-1])}: ")


def test_a_name_in_a_part_gets_its_line_too() -> None:
    text = PARTS.replace("- name: tall", "- name: tall\n    task: gsm_mikro")
    line = line_of(text, "gsm_mikro")
    with pytest.raises(SuiteError, match=f"^s.yaml, line {line}: there is no task named 'gsm_mikro'"):
        parse_suite(text, "s.yaml")


def test_an_override_labels_the_title() -> None:
    changed = suite().override("9 rounds", rounds=9).override("model x", model="x")
    assert (changed.rounds, changed.model) == (9, "x")
    assert changed.title == "s-v1, modified: 9 rounds, model x"
    assert suite().title == "s-v1"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"task": "gsm8k"}, {"model": "n"}, {"attacks": ("text",)}, {"defenses": ("none",)},
        {"seeds": (0,)}, {"rounds": 61}, {"placebo": True}, {"utility": True}, {"replayed": ("none",)},
        {"ranking": RankingRules(margin=0.2)},
        {"swarm": SwarmSpec(learner=LearnerSpec(learning_rate=1e-4))}, {"evaluation": Evaluation(final=1)},
        {"swarm": SwarmSpec(sampling=Sampling(top_k=49))}, {"modified": ("something",)},
    ],
    ids=str,
)  # fmt: skip
def test_the_fingerprint_follows_the_content(change: dict[str, Any]) -> None:
    assert suite().fingerprint() == suite().fingerprint()
    assert suite(**change).fingerprint() != suite().fingerprint()


def test_cells_are_values() -> None:
    one, other = (CellSpec("t", "m", "a", "d", "attack", 0) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("standard-v1", "26e4a55889b01f4b5fa6b7d8ca6f93b246753899f722286b93ba301eefb45eb2"),
        ("standard-v2", "bd322589e6ef6f715c42bad4e37e64003ac665a0c2f5419eeb1f15cee1bea08f"),
        ("heterogeneous-v1", "0ffb7327695c6adfcedf0574421262119e911814191bf609645bb0ad8d61a1fc"),
        ("averaging-v1", "3bd4b896cf59695aea3c40d6b01fad7f3380505e794ba1072cda13e5ed19bbea"),
        ("pipeline-v1", "b6bd44e0794746eefda254856c804ce3d5837dc5efd3e2a8e5a46bce16353823"),
        ("truth-v1", "7af7232769cd01165d2c37b659351d8c3301b641836d05dba0150dee1c610710"),
        ("rewards-v1", "d66f35cb8a797ba2985e62a4c4dac01a874bc5e621796b724f64cd6f365fb6fa"),
        ("trial", "cf62d453e70c0edcc2c174396b7632632e7dd88beccc2cfe9a3ec3cb6bc5d936"),
    ],
)
def test_a_released_suite_never_changes(name: str, fingerprint: str) -> None:
    found = load_suite(name).fingerprint()
    assert found == fingerprint, f"{name} is released and frozen: give a changed suite the next version and a new file"


def test_the_limits_of_a_ranking_stand_in_the_suite_file() -> None:
    assert parse_suite(GOOD, "s.yaml").ranking == RankingRules(margin=0.1, least_harm=0.1, good=0.5)
    own = parse_suite(GOOD + "ranking: {margin: 0.05, least_harm: 0.2}\n", "s.yaml")
    assert own.ranking == RankingRules(margin=0.05, least_harm=0.2, good=0.5)
    assert own.fingerprint() != parse_suite(GOOD, "s.yaml").fingerprint(), "they decide who is ranked"
    usual = parse_suite(GOOD + "ranking: {margin: 0.1}\n", "s.yaml")
    assert usual.fingerprint() == parse_suite(GOOD, "s.yaml").fingerprint(), "the usual ones change no released suite"
    assert "ranking.margin must lie between 0 and 1, got 1.5" in refused(GOOD + "ranking: {margin: 1.5}\n")
    assert "allowed: good, least_harm, margin" in refused(GOOD + "ranking: {most: 1}\n")


def test_a_suite_that_another_supersedes_stays_the_same_suite() -> None:
    plain, marked = (
        parse_suite(GOOD, "s.yaml"),
        parse_suite(GOOD + "superseded: Use small-v3; it is harder.\n", "s.yaml"),
    )
    assert marked.superseded == "Use small-v3; it is harder."
    assert marked.fingerprint() == plain.fingerprint(), "entries and stores of it stay valid"
    assert marked.cells("cpu", "float32", 1) == plain.cells("cpu", "float32", 1)


def test_a_suite_is_found_by_its_title_too() -> None:
    """Tables call it so; a version that there is not is no other one's name."""
    assert load_suite("trial-v1") == load_suite("trial")
    assert load_suite("standard-v2").title == "standard-v2"
    with pytest.raises(SpecStringError, match="there is no suite named 'trial-v2'"):
        load_suite("trial-v2")
