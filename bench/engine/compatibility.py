"""Whether attack, defense, task and swarm are compatible."""

from __future__ import annotations

from thiefbench.attacks.answer_keys import KeyedThreatModel
from thiefbench.attacks.base import Attack
from thiefbench.attacks.reward_judges import JudgedThreatModel
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.engine.keys import generator
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.tasks.base import Task


def provided(spec: SwarmSpec) -> set[str]:
    """What a defense may require in a swarm, out of `Requirement`, `ANSWER_KEYS` and `RULE_REWARDS`."""
    return {
        "judge",
        *({"homogeneous", "proofs"} if spec.homogeneous else ()),
        *({"beacon"} if spec.seeds == "beacon" else ()),
        *({"logprobs"} if spec.logprobs != "none" else ()),
        *({"versions"} if spec.delay else ()),
        *({ANSWER_KEYS} if spec.truth == "sender" else ()),
        *({RULE_REWARDS} if spec.reward != "rule" else ()),
    }


def check_requirements(spec: SwarmSpec, defense: Defense) -> None:
    """Check that a swarm meets a defense's requirements.

    Raises:
        SpecError: it does not.
    """
    lacking = set(defense.requires) - provided(spec)
    if "beacon" in lacking:
        raise SpecError(
            f"the defense {defense.name} requires seeds from a beacon, and in this swarm every node announces its own; "
            "set seeds: beacon, or choose a defense for announced seeds"
        )
    if ANSWER_KEYS in lacking:
        raise SpecError(
            f"the defense {defense.name} compares the answers and tests that senders send, and in this swarm every "
            "node knows the task's; set truth: sender"
        )
    if RULE_REWARDS in lacking:
        raise SpecError(
            f"the defense {defense.name} compares a judge's rewards with the task's, and in this swarm only the task "
            "rewards; set reward: judge or reward: mixed"
        )
    if lacking:
        raise SpecError(
            f"the defense {defense.name} requires {', '.join(sorted(lacking))}, which this swarm does not give"
        )


def drawn(attack: Attack, seed: int, spec: SwarmSpec, task: Task) -> Attack:
    """The attack with the payload of a seed.

    Raises:
        SpecError: it does not fit the swarm's topology or the task.
    """
    if spec.topology not in attack.threat.topologies:
        fitting = " or ".join(sorted(attack.threat.topologies))
        raise SpecError(f"the attack {attack.name} needs the {fitting} topology, and this swarm is {spec.topology}")
    if isinstance(attack.threat, KeyedThreatModel) and spec.truth != "sender":
        raise SpecError(
            f"the attack {attack.name} sends its own answers and tests, and in this swarm every node knows the task's; "
            "set truth: sender"
        )
    if isinstance(attack.threat, JudgedThreatModel) and spec.reward == "rule":
        raise SpecError(
            f"the attack {attack.name} deceives a judge that rewards, and in this swarm the task's rule does; set "
            "reward: judge or reward: mixed"
        )
    if attack.copies > 1 and spec.sharing is None:
        raise SpecError(
            f"the attack {attack.name} offers more than it owes, which counts only where nodes draw from what is "
            "offered; give the swarm sharing"
        )
    return drawn_for(task, attack, seed)


def domains_of(spec: SwarmSpec, task: Task) -> list[str]:
    """The domain of every node's items; empty for all items.

    Raises:
        SpecError: the task has no such domain.
    """
    if not spec.population:
        return [""] * spec.nodes
    for node_class in spec.population:
        if node_class.domain and node_class.domain not in task.domains:
            known = f"it has {', '.join(task.domains)}" if task.domains else "it has none"
            raise SpecError(f"the task {task.name} has no domain {node_class.domain!r}; {known}")
    return [spec.population[kind].domain for kind in spec.classes]


def drawn_for(task: Task, attack: Attack, seed: int) -> Attack:
    """The attack with the payload of a seed, for any swarm.

    Raises:
        SpecError: it does not fit the task.
    """
    member = attack.draw_for(task, generator(seed, "payload"))
    if not member.fits(task):
        raise SpecError(f"the attack {attack.name} does not fit the task {task.name}; choose another task or payload")
    return member
