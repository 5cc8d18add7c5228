"""The recipe of the recorded rounds: seeded, exact about its weights, and still what the shipped recordings hold."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.variants import at_length
from thiefbench import registry
from thiefbench.suite.analysis.replay import replay as replay_cell
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import CellDir
from thiefbench.tasks.base import Item
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing import recipe
from thiefbench.testing.recipe import RECIPES, ROLES, RecordingRecipe, Role
from thiefbench.testing.recorded import RECORDINGS, names, opened, replay, sampled_by

AGAIN = "make it again with python -m thiefbench.testing.recipe bench/testing/recordings"
BY_NAME = {each.name: each for each in RECIPES}
EACH = pytest.mark.parametrize("name", sorted(BY_NAME))
FIRST = pytest.mark.parametrize("name", [*sorted(BY_NAME)[:2], *at_length(*sorted(BY_NAME)[2:])])
BOTH = pytest.mark.parametrize("role", ROLES)


@pytest.fixture(scope="module")
def small() -> RecordingRecipe:
    return RecordingRecipe(
        "small", tiny.TASK, str(tiny.model()), tiny.ATTACK, 5, rounds=(1, 3), learned=(3,), under="none", prompts=4,
        group=4, lessons=(4, 8), max_new_tokens=20,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(small: RecordingRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    recipe.make(small, folder)
    return folder


def test_it_is_seeded(small: RecordingRecipe, made: Path, tmp_path: Path) -> None:
    recipe.make(small, tmp_path)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert len(files) == 6, "two pools with their records, the weights of one round and their index"
    for file in files:
        assert (made / file).read_bytes() == (tmp_path / file).read_bytes(), f"{file} comes out the same again"


def test_a_later_round_is_sampled_from_the_weights_that_are_kept(small: RecordingRecipe, made: Path) -> None:
    own = made / small.name
    assert weights.kept(CellDir(own)) == [3], "the start model needs no weights"
    assert (own / "weights" / "round-000003.safetensors.gz").stat().st_size < 0.5 * sum(
        4 * tensor.numel() for tensor in sampled_by(own, small.model, 1).weights().values()
    ), "they are kept in less than half the size"
    for role in ROLES:
        judged = replay_cell(opened(small.name, role, made), lambda: registry.make("defense", "seed_replay"))
        assert judged.rounds == (1, 3)
        for number in judged.rounds:
            pool = opened(small.name, role, made).pools[number]
            rejected = [v.action != "accept" for v in judged.verdicts[number]]
            honest = [said for row, said in zip(pool, rejected, strict=True) if not row.malicious]
            assert honest, "there are honest completions"
            assert not any(honest), f"round {number}: the recorded weights draw every honest token again"


def test_a_model_that_learned_without_a_defense_is_judged_by_name_only(small: RecordingRecipe, made: Path) -> None:
    assert replay(lambda: registry.make("defense", "none"), small.name, made).attacks == (small.name,)
    with pytest.raises(Exception, match="no recorded rounds of 'text'"):
        replay(lambda: registry.make("defense", "none"), "text", made)


def test_the_command_makes_what_is_named(
    small: RecordingRecipe, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "RECIPES", (small,))
    recipe.main([str(tmp_path), "small"])
    assert names(tmp_path) == ["small"]
    for words in ([], [str(tmp_path), "large"]):
        with pytest.raises(SystemExit, match=r"write python -m thiefbench.testing.recipe FOLDER .* some of small"):
            recipe.main(words)


def test_every_recipe_has_its_recording() -> None:
    assert names() == sorted(BY_NAME), f"recordings and recipes belong together: {AGAIN}"


@EACH
@BOTH
def test_a_recording_was_made_by_its_recipe(name: str, role: Role) -> None:
    known, record = BY_NAME[name], opened(name, role).record
    assert record.cell == known.cell(role).as_dict() | {"topology": known.topology}, (
        f"the recipe {name} was changed since its rounds were recorded: {AGAIN} {name}"
    )
    assert record.identity["learned"]["rounds"] == list(known.learned)
    assert weights.kept(CellDir(RECORDINGS / name)) == list(known.learned), "the weights are there and intact"


@FIRST
def test_a_recording_is_what_today_s_sources_give(name: str) -> None:
    known, number = BY_NAME[name], BY_NAME[name].rounds[-1]
    shipped = opened(name, "attack").pools[number]
    try:
        played = recipe.play(known, "attack", number, RECORDINGS / name)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    today = {(row.group, row.place): (row.text, row.reward, row.payload) for row in played}
    other = sum(today[row.group, row.place] != (row.text, row.reward, row.payload) for row in shipped)
    assert other <= 0.05 * len(shipped), (  # a near-tie may fall otherwise on another machine
        f"the recording {name} is stale: {other} of {len(shipped)} completions of round {number} come out otherwise "
        f"with today's engine, task or attack; {AGAIN} {name}"
    )


@EACH
def test_a_placebo_differs_from_its_attack_in_malicious_slots_alone(name: str) -> None:
    attacked, placebo = (opened(name, role).pools for role in ROLES)
    for number in BY_NAME[name].rounds:
        for one, other in zip(attacked[number], placebo[number], strict=True):
            assert (one.item_id, one.malicious) == (other.item_id, other.malicious)
            assert one.malicious or one.ids == other.ids, "honest nodes say the same"
            assert not other.payload, "a placebo carries no payload"


@cache
def items_of(task: str) -> dict[str, Item]:
    """A task's items for training, by their ids."""
    return {row["id"]: Item.from_row(row) for row in registry.make("task", task).items("train")}


@FIRST
@pytest.mark.parametrize("role", ["attack", pytest.param("placebo", marks=pytest.mark.slow)])
def test_a_recording_agrees_with_its_weights_and_its_task(name: str, role: Role) -> None:
    recording, items = opened(name, role), items_of(BY_NAME[name].task)
    judged = replay_cell(recording, lambda: registry.make("defense", "seed_replay"))
    for number, rows in recording.pools.items():
        swarm = recipe.swarm_of(BY_NAME[name], role, RECORDINGS / name, number)
        assert [row.text for row in rows] == swarm.policy.decode([row.ids for row in rows]), "ids decode to the text"
        verdicts = zip(rows, judged.verdicts[number], strict=True)
        assert not [row.text for row, said in verdicts if not row.malicious and said.action != "accept"], (
            f"round {number}: the weights draw every honest token again"
        )
        try:
            rewards = swarm.task.rewards([items[row.item_id] for row in rows], [row.text for row in rows])
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        assert rewards == [row.reward for row in rows], f"round {number}: the task rewards it as recorded"
