"""Check in about a minute whether an attack on exchanged weights or on a pipeline may be submitted.

The attack is isolated as in its cells, and plays two rounds of a small swarm of a built-in model without a defense,
once as an attack and once as its own placebo; an honest swarm then answers without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from thiefbench import registry
from thiefbench.averaging.exchange import REFUSED
from thiefbench.averaging.spec import AveragingSpec
from thiefbench.averaging.swarm import AveragingSwarm
from thiefbench.defenses.aggregation.mean import Mean
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.leaderboard.attacking.running import ends_training
from thiefbench.leaderboard.checking import check_attack as of_completions
from thiefbench.leaderboard.checking.check_attack import ROUNDS, AttackSubject
from thiefbench.leaderboard.checking.findings import (
    FILES,
    IMPORTS,
    REPEATABLE,
    Finding,
    RuleBroken,
    RuleWarning,
    ask_all,
    can_be_repeated,
    files_are_in_order,
)
from thiefbench.leaderboard.checking.samples import SampleRecipe
from thiefbench.leaderboard.isolation.isolated_attack import AttackError
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.isolation.limits import CONTROL_ASR
from thiefbench.pipeline.cohort import PipelineBackend
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.swarm import PipelineSwarm
from thiefbench.tasks.base import Sampling
from thiefbench.wording import counted
from thiefbench.zoo.models import resolve

Exchanging = Literal["weight_attack", "stage_attack"]
_RECIPES: Mapping[Exchanging, SampleRecipe] = {
    "weight_attack": SampleRecipe("gsm_micro", "micro-math-small", "boosted", "vertical"),
    "stage_attack": SampleRecipe("gsm_micro", "micro-math", "stage_backdoor"),
}
_AVERAGING, _PIPELINE = AveragingSpec(method="diloco", every=1), PipelineSpec(stages=4, malicious=2, microbatches=2)
_SEED = 0
_NOTHING: Mapping[Exchanging, str] = {
    "weight_attack": "a malicious node sends nothing",
    "stage_attack": "the stage adds nothing to its weights, and sends what it computed",
}


class TensorAttackSubject(AttackSubject):
    """An attack to check.

    Attributes:
        kind: what nodes exchange in the swarms that it is for.
        done: the swarms that have played, by role and hash seed.
        used: what the attack sent in that with role "attack"; see `Cost.sent`.
    """

    def __init__(self, spec: str, kind: Exchanging) -> None:
        super().__init__(spec, (_RECIPES[kind],), size=(4, 4))
        self.kind, self.used = kind, 0
        self.done: dict[tuple[Role, int], AveragingSwarm | PipelineSwarm] = {}

    def swarm_of(self, recipe: SampleRecipe) -> SwarmSpec:
        """The settings of a small swarm."""
        prompts, group = self.size
        sampling = Sampling(max_new_tokens=recipe.max_new_tokens)
        if self.kind == "stage_attack":
            return SwarmSpec(nodes=1, malicious=0, prompts=prompts, group=group, sampling=sampling)
        return SwarmSpec(topology="vertical", nodes=4, malicious=1, prompts=prompts, group=group, sampling=sampling)

    def swarm(self, role: Role, hash_seed: int = 0) -> AveragingSwarm | PipelineSwarm:
        """A fresh small swarm with a fresh attack and no defense."""
        parts: dict[str, Any] = {
            "spec": self.swarm_of(self.recipe),
            "role": role,
            "policy": [Policy.load(resolve(self.recipe.model))],
            "task": self.task,
            "attack": self.attack if hash_seed == 0 else isolated_attack(self.spec, hash_seed=hash_seed),
            "defense": registry.make("defense", "none"),
            "seed": _SEED,
        }
        if self.kind == "stage_attack":
            return PipelineSwarm(_PIPELINE, None, backend=PipelineBackend(), **parts)
        return AveragingSwarm(_AVERAGING, Mean(), backend=LocalBackend(), **parts)

    def played(self, role: Role, hash_seed: int = 0) -> AveragingSwarm | PipelineSwarm:
        """Such a swarm after the first rounds."""
        at = (role, hash_seed)
        if at not in self.done:
            swarm = self.swarm(role, hash_seed)
            try:
                for number in range(1, ROUNDS + 1):
                    swarm.round(number)
            except DivergedError as error:
                raise AttackError(ends_training(self.attack.name, error)) from error
            if at == ("attack", 0):
                self.used = sum(cost.sent for cost in self.attack.costs.values())
            self.done[at] = swarm
        return self.done[at]

    def rounds(self, role: Role, hash_seed: int = 0) -> list[CompletionRow]:
        """Answers of honest nodes after the first rounds; malicious nodes send no completions."""
        return self.played(role, hash_seed).evaluate(ROUNDS, self.answers).rows


def check_tensor_attack(subject: TensorAttackSubject) -> Iterator[Finding]:
    """Ask all questions, in order; stop where the attack cannot be constructed or does not send.

    Raises:
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that does not exist.
    """
    first = (of_completions.imports, of_completions.is_made, _fits, _sends)
    yield from ask_all(QUESTIONS, subject, AttackError, first, lambda: subject.attack, of_completions.is_made)


def _fits(subject: TensorAttackSubject) -> str:
    of_completions.fits(subject)
    exchanged = "a pipeline" if subject.kind == "stage_attack" else "nodes that exchange weights"
    return f"{subject.recipe.task}, {exchanged}"


def _sends(subject: TensorAttackSubject) -> str:
    refused = _refused(subject.played("attack"))
    if not subject.used:
        raise RuleWarning(f"in {ROUNDS} rounds {_NOTHING[subject.kind]}; an attack that never does measures nothing")
    if refused:
        raise RuleWarning(f"honest nodes refuse it {counted(len(refused), 'time')}: {refused[0]}")
    return f"in {ROUNDS} rounds, {counted(subject.used, 'time')}"


def _refused(swarm: AveragingSwarm | PipelineSwarm) -> list[str]:
    """Why what was sent in a played swarm was refused, a clause each time."""
    if isinstance(swarm, PipelineSwarm):
        return [row.refusal for row in swarm.stage_rows if row.malicious and row.refused]
    return [
        row.reason for row in swarm.exchanges if row.malicious and row.action == REFUSED and row.reason != "missing"
    ]


def _is_determined(subject: TensorAttackSubject) -> str:
    one, other = (_weights(subject.played("attack", hash_seed)) for hash_seed in (0, 1))
    if not torch.equal(one, other):
        raise RuleBroken(
            "the honest models end with other weights if it runs in another process with another PYTHONHASHSEED; draw "
            "from view.rng, not from a clock, os.urandom or hash(), and sort what comes from a set"
        )
    return f"{len(one):,} weights, after processes of {ROUNDS} rounds"


def _weights(swarm: Swarm) -> torch.Tensor:
    return torch.cat([each.detach().float().reshape(-1) for each in swarm.policy.weights().values()])


def _has_a_placebo(subject: TensorAttackSubject) -> str:
    if refused := _refused(subject.played("placebo")):
        raise RuleBroken(f"honest nodes refuse what its placebo sends: {refused[0]}")
    answers = subject.rounds("placebo")
    probed = [row for row in answers if row.phase == "probe"]
    outcomes = [(row, row.outcome) for row in probed or answers if row.outcome is not None]
    rate = sum(outcome for _, outcome in outcomes) / max(1, len(outcomes))
    if rate >= CONTROL_ASR:
        poisoned = next(row for row, outcome in outcomes if outcome)
        raise RuleBroken(
            f"after {ROUNDS} rounds of its placebo, the mean outcome of {len(outcomes)} answers is {rate:.3f}; one "
            f"that counts is {poisoned.text[:100]!r}"
        )
    return f"{rate:.3f} over {len(outcomes)} answers after {ROUNDS} rounds"


QUESTIONS: Sequence[tuple[str, Callable[[TensorAttackSubject], str]]] = (
    (FILES, files_are_in_order("attack")),
    (IMPORTS, of_completions.imports),
    (REPEATABLE, can_be_repeated("attack")),
    ("can be constructed from its spec string, twice", of_completions.is_made),
    ("fits a swarm", _fits),
    ("its payload depends on the seed alone", of_completions.draws_a_family),
    ("sends what its swarm exchanges", _sends),
    ("equal views, equal weights", _is_determined),
    ("its placebo is clean", _has_a_placebo),
    ("clean text does not satisfy its outcome", of_completions.spares_clean_text),
    ("its outcome depends on item and completion alone", of_completions.judges_alike),
    ("time", of_completions.is_quick),
)
"""Every question with the function that answers it, in the order in which they are asked."""
