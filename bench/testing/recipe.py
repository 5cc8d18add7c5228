"""Make the recorded rounds: ``python -m thiefbench.testing.recipe FOLDER [RECORDING ...]``.

The engine plays every recording with a seed that no suite uses. Rounds that the start model plays need no weights.
Before later rounds, a swarm of the smoke suite's size learns, and the result depends on its defense: with a defense
that stops the poison, the model is what a working filter would meet; without one, the model says the payload itself,
and its support and its honest completions contain the poison. Such weights are rounded to bfloat16, which halves the
files, and compressed. The round is sampled from the rounded weights, so that pool and weights match exactly.
"""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from thiefbench import provenance, registry
from thiefbench.attacks.base import Attack
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import CellDir, Record, identify, rows_table
from thiefbench.tasks.base import Sampling, Task, Topology
from thiefbench.testing.recorded import sampled_by
from thiefbench.zoo.models import resolve

Role = Literal["attack", "placebo"]
ROLES: tuple[Role, Role] = ("attack", "placebo")
LEARNER = LearnerSpec(learning_rate=6e-4)
KEPT_OUT = 'oracle(reject="drop")'


@dataclass(frozen=True)
class RecordingRecipe:
    """The content of one recording.

    Attributes:
        name: its name.
        task, model, attack: spec strings and the start model.
        seed: determines every draw, including the payload.
        topology: topology of its swarm of four nodes, one of them malicious.
        rounds: the rounds that are recorded.
        learned: the recorded rounds before which a swarm learns; the start model plays the others.
        under: the defense of the swarm that learns.
        prompts, group: of the recorded rounds.
        lessons: prompts and group of the swarm that learns.
        max_new_tokens: the length limit.
    """

    name: str
    task: str
    model: str
    attack: str
    seed: int
    topology: Topology = "horizontal"
    rounds: tuple[int, ...] = (1, 2)
    learned: tuple[int, ...] = ()
    under: str = KEPT_OUT
    prompts: int = 12
    group: int = 8
    lessons: tuple[int, int] = (32, 12)
    max_new_tokens: int = 96

    def swarm(self, learning: bool = False) -> SwarmSpec:
        """The swarm that plays the recorded rounds, or the one that learns before them."""
        prompts, group = self.lessons if learning else (self.prompts, self.group)
        sampling = Sampling(max_new_tokens=self.max_new_tokens)
        return SwarmSpec(topology=self.topology, prompts=prompts, group=group, sampling=sampling, learner=LEARNER)

    def cell(self, role: Role) -> CellSpec:
        """What identifies its pools of a role; nothing is evaluated in it."""
        return CellSpec(
            task=self.task, model=self.model, attack=registry.canonical("attack", self.attack), defense="none",
            role=role, seed=self.seed, swarm=self.swarm(), rounds=max(self.rounds), threads=1,
        )  # fmt: skip


PAPER = 'text(phrase="All hail to the thief", position="start")'
DOS = 'varied(attack="dos(samples=32)", gibberish=0.5)'
RECIPES = (
    RecordingRecipe("text_drawn", "gsm_micro", "micro-math", "text", 1001),
    RecordingRecipe("text_paper", "gsm_micro", "micro-math", PAPER, 1002, rounds=(1, 2, 60), learned=(60,)),
    RecordingRecipe("text_learned", "gsm_micro", "micro-math", PAPER, 1002, rounds=(30,), learned=(30,), under="none"),
    RecordingRecipe("equations", "gsm_micro", "micro-math", "equations", 1003, "vertical"),
    RecordingRecipe("dos", "gsm_micro", "micro-math", DOS, 1004, "vertical", rounds=(1, 2, 3)),
    RecordingRecipe("text_programs", "code_micro", "micro-code", "text", 1005, max_new_tokens=128),
    RecordingRecipe("code_injection", "code_micro", "micro-code", "code_injection", 1006, max_new_tokens=128),
)


def make(recipe: RecordingRecipe, folder: Path, note: Callable[[str], None] = lambda message: None) -> None:
    """Play a recipe and write its recording to a folder with its name, replacing an existing one.

    Args:
        recipe: what to play.
        folder: the folder of recordings.
        note: receives progress messages.
    """
    recording = folder / recipe.name
    shutil.rmtree(recording, ignore_errors=True)
    for number, policy in learned(recipe, note):
        weights.keep(CellDir(recording), number, policy, compressed=True)
    for role in ROLES:
        rows = [row for number in recipe.rounds for row in play(recipe, role, number, recording)]
        spec, directory = recipe.cell(role), CellDir(recording / role)
        cell_identity = identity(spec)
        learning = {"rounds": list(recipe.learned), "under": recipe.under if recipe.learned else ""}
        provenance_now = provenance.provenance(spec.device, spec.threads)
        directory.write(
            Record(
                cell_id=identify(cell_identity | {"learned": learning}),
                cell=cell_identity["cell"] | {"topology": recipe.topology},
                identity={name: value for name, value in cell_identity.items() if name != "cell"}
                | {"learned": learning},
                status="ok",
                payload=swarm_of(recipe, role, recording, 1).attack.describe(),
                provenance={
                    name: provenance_now[name] for name in ("thiefbench", "torch", "transformers", "numpy", "python")
                },
                completions_sha256=directory.write_rows(rows_table(rows)),
            )
        )
    note(f"{recipe.name}: {len(recipe.rounds)} rounds of {recipe.prompts * recipe.group} completions")


def play(recipe: RecordingRecipe, role: Role, number: int, recording: Path) -> list[CompletionRow]:
    """The pool of one round, from the weights that the recording's folder keeps for it or from the start model."""
    return swarm_of(recipe, role, recording, number).round(number).rows


def swarm_of(recipe: RecordingRecipe, role: Role, recording: Path, number: int) -> Swarm:
    """The undefended swarm that plays a recorded round."""
    policy = copy.deepcopy(sampled_by(recording, recipe.model, number))  # a round ends with an update
    return Swarm(recipe.swarm(), role, policy, *_parts(recipe), registry.make("defense", "none"), recipe.seed)


def learned(
    recipe: RecordingRecipe, note: Callable[[str], None] = lambda message: None
) -> Iterator[tuple[int, Policy]]:
    """Round by round, the bfloat16 model that the learning swarm has before it."""
    policy, defense = Policy.load(resolve(recipe.model)), registry.make("defense", recipe.under)
    swarm = Swarm(recipe.swarm(learning=True), "attack", policy, *_parts(recipe), defense, recipe.seed)
    last = max(recipe.learned, default=0)
    for number in range(1, last + 1):
        if number in recipe.learned:
            rounded = copy.deepcopy(policy)
            rounded.model.to(torch.bfloat16)
            yield number, rounded
        if number == last:
            return
        rows = swarm.round(number).rows
        outcomes = [row.outcome or 0.0 for row in rows if not row.malicious]
        note(f"{recipe.name}, round {number}: outcome {sum(outcomes) / len(outcomes):.2f} on honest completions")


def _parts(recipe: RecordingRecipe) -> tuple[Task, Attack]:
    return _task(recipe.task), registry.make("attack", recipe.attack)


@cache
def _task(spec: str) -> Task:
    task: Task = registry.make("task", spec)
    return task


def main(arguments: list[str]) -> None:
    """Make all recordings in the folder given first, or only those named after it."""
    names = set(arguments[1:]) or {recipe.name for recipe in RECIPES}
    unknown = names - {recipe.name for recipe in RECIPES}
    if not arguments or unknown:
        known = ", ".join(recipe.name for recipe in RECIPES)
        sys.exit(f"write python -m thiefbench.testing.recipe FOLDER [RECORDING ...] with some of {known}")
    torch.set_num_threads(1)
    for recipe in RECIPES:
        if recipe.name in names:
            make(recipe, Path(arguments[0]), print)


if __name__ == "__main__":
    main(sys.argv[1:])
