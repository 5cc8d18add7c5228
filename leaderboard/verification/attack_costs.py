"""What an attack says that it used in a cell, against what can be true.

Costs come from whoever ran the cell. What honest nodes saw bounds them from below, and what a run can use at all bounds
them from above: the limits of `thiefbench.leaderboard.isolation`, the attack's threat model and the size of the swarm.
Between these, only running the cell again tells whether they are true.
"""

from __future__ import annotations

from thiefbench.leaderboard.attacking.manifest import Granted
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackCost
from thiefbench.leaderboard.isolation.attack_services import MOST_COPIES, MOST_ROWS, MOST_STEPS
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import MOST_STAGE_STEPS
from thiefbench.leaderboard.isolation.limits import ATTACK_CAPS, POOL, TENSOR_ATTACK_CAPS
from thiefbench.leaderboard.verification.rescoring import Beside, InconsistentError, SubmittedCell
from thiefbench.wording import counted

_VIEWS = 2
"""In a round an attack on completions is asked at most twice: which items it picks, and what it sends."""


def check_costs(cell: SubmittedCell, beside: Beside, threat: Granted) -> None:
    """Check an attack's cost in a cell; raises InconsistentError where no run has it.

    Activations that are not finite are left out of what was seen: they may be what a stage computed.

    Args:
        cell: of an attack's entry.
        beside: what the cell stores beside its completions.
        threat: what the attack is granted.
    """
    assert isinstance(cell.scores, AttackCell)
    cost, seen = cell.scores.cost, _seen(beside) if cell.spec.role == "attack" else set()
    times = len({number for number, _ in seen})
    if cost.sent < len(seen) or cost.rounds < times:
        raise InconsistentError(
            f"the entry says that the attack sent or added something {counted(cost.sent, 'time')}, in "
            f"{counted(cost.rounds, 'round')}, and honest nodes saw it {counted(len(seen), 'time')}, in "
            f"{counted(times, 'round')}"
        )
    most = _most(cell, beside, threat)
    for name in AttackCost.model_fields:
        if getattr(cost, name) > getattr(most, name):
            raise InconsistentError(
                f'of its costs, "{name}" is {getattr(cost, name):,}, and the {cell.spec.role} cell of no run has more '
                f"than {getattr(most, name):,}"
            )
    if cost.rounds > cost.sent:
        raise InconsistentError(
            f"the entry says that the attack sent something in {counted(cost.rounds, 'round')}, and "
            f"{counted(cost.sent, 'time')} in all"
        )


def _seen(beside: Beside) -> set[tuple[int, int]]:
    """By exchange or round, who sent or added something that honest nodes noticed."""
    seen = {(row.exchange, row.sender) for row in beside.exchanges if row.malicious and row.reason != "missing"}
    return seen | {
        (row.round, row.stage)
        for row in beside.stages
        if row.malicious and (row.altered or (row.refused and row.refusal != "not finite"))
    }


def _most(cell: SubmittedCell, beside: Beside, threat: Granted) -> AttackCost:
    """The most that any run of the cell can use."""
    if cell.spec.role == "control":
        return AttackCost()
    swarm, rounds, tensors = cell.spec.swarm, cell.spec.rounds, threat.kind != "attack"
    slots = swarm.nodes * swarm.prompts * swarm.group
    sent, exchanges = slots * rounds, len({row.exchange for row in beside.exchanges})
    if tensors:
        sent = exchanges * swarm.malicious + sum(1 + row.passes for row in beside.stages if row.malicious)
    # A stage asks in its lesson before round 1 alone, an attack on weights in every exchange.
    views = {"attack": _VIEWS * rounds, "stage_attack": 1}.get(threat.kind, exchanges)
    questions = (TENSOR_ATTACK_CAPS if tensors else ATTACK_CAPS).questions * max(1, -(-slots // POOL))
    drawn = views * questions * MOST_ROWS if threat.policy or tensors else 0
    steps = views * (MOST_COPIES * MOST_STEPS + MOST_STAGE_STEPS * questions * (threat.kind == "stage_attack"))
    attacks = cell.spec.role == "attack"
    return AttackCost(
        rounds=min(rounds, sent) if attacks else 0,
        sent=sent if attacks else 0,
        queries=0 if tensors else threat.queries * slots * rounds,
        samples=drawn,
        scored=drawn,
        steps=steps if drawn else 0,
    )
