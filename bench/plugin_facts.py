"""Facts about an attack, a defense or a task for `thiefbench show`: arguments, needs, source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from thiefbench import registry
from thiefbench.attacks.answer_keys import KeyedThreatModel
from thiefbench.attacks.base import ThreatModel
from thiefbench.attacks.reward_judges import JudgedThreatModel
from thiefbench.defenses.aggregation.base import AVERAGING
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense, Requirement
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.defenses.stages.base import PIPELINE
from thiefbench.tasks.base import Task

PluginKind = Literal["attack", "defense", "task"]

_REQUIREMENTS: Mapping[Requirement, str] = {
    "homogeneous": "homogeneous: all honest nodes hold equal weights",
    "beacon": "beacon: a slot's noise is keyed by a public beacon (seeds of the swarm)",
    "proofs": "proofs: senders attach a proof to each completion",
    "judge": "judge: a model to ask",
    "logprobs": "logprobs: log-probs come with completions (logprobs of the swarm)",
    "versions": "versions: completions come with the version of their weights (delay of the swarm)",
    AVERAGING: "averaging: nodes exchange weights instead of completions (averaging of the suite)",
    PIPELINE: "pipeline: the node is a pipeline, and its stages are checked (pipeline of the suite)",
    ANSWER_KEYS: "answer_keys: answers and tests come with completions (truth of the swarm)",
    RULE_REWARDS: "rule_rewards: a judge rewards, and nodes know the task's reward too (reward of the swarm)",
}
_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*): +", re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One argument of a constructor.

    Attributes:
        name: its name.
        default: as written in a spec string; empty if the argument is required.
        about: its description in the docstring; empty if there is none.
    """

    name: str
    default: str
    about: str


@dataclass(frozen=True)
class PluginFacts:
    """The facts about a plugin that are known without running it.

    Attributes:
        kind, spec: as given by the user.
        summary: the first paragraph of its docstring.
        about: the paragraphs of its docstring before the arguments; an item of a list is one of them.
        arguments: of its constructor, in order.
        needs: its requirements, one clause each; empty if it has none. None if they depend on missing arguments.
        source: the file that defines it.
    """

    kind: PluginKind
    spec: str
    summary: str
    about: tuple[str, ...]
    arguments: tuple[Argument, ...]
    needs: tuple[str, ...] | None
    source: str

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def facts(kind: PluginKind, spec: str) -> PluginFacts:
    """Look up a plugin; its class is loaded, and constructed if all its arguments have values.

    Args:
        kind: what the spec string names.
        spec: one plugin, with arguments or without; what it needs may depend on them.

    Raises:
        SpecStringError: it names nothing, several, or has arguments that its class refuses.
    """
    parsed = registry.parse(kind, spec)
    plugin: type = registry.find(kind, parsed.target)
    described, about = _docstring(plugin)
    arguments = tuple(
        Argument(name, "" if each.default is each.empty else repr(each.default), described.get(name, ""))
        for name, each in inspect.signature(plugin).parameters.items()
    )
    lacking = [each.name for each in arguments if not each.default and each.name not in parsed.arguments]
    made = None if lacking and not parsed.arguments else registry.make(kind, spec)
    return PluginFacts(kind, spec, about[0] if about else "", about, arguments, _needs(plugin, made), _file(plugin))


_SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields|Examples?):\n", re.MULTILINE)


def _docstring(plugin: type) -> tuple[dict[str, str], tuple[str, ...]]:
    """The descriptions of arguments in a class's own docstring, and its paragraphs before the first section."""
    text = inspect.cleandoc(plugin.__doc__ or "")
    section = re.split(r"^Args:\n", text, maxsplit=1, flags=re.MULTILINE)
    described: dict[str, str] = {}
    if len(section) == 2:
        body = re.split(r"^(?=\S)", section[1], maxsplit=1, flags=re.MULTILINE)[0]
        pieces = _ARGUMENT.split(body)[1:]
        for names, words in zip(pieces[::2], pieces[1::2], strict=True):
            described |= dict.fromkeys(names.split(", "), " ".join(words.split()))
    prose = _SECTION.split(text, maxsplit=1)[0]
    paragraphs = re.split(r"\n\n|\n(?=(?:[-*]|\d+\.) )", prose)
    return described, tuple(filter(None, (" ".join(each.split()) for each in paragraphs)))


def _needs(plugin: type, made: Any) -> tuple[str, ...] | None:
    """A plugin's requirements; without an instance, if they do not depend on arguments."""
    if issubclass(plugin, Task):
        programs = plugin.with_libraries is not Task.with_libraries
        return ("sandbox: answers are programs, which are run",) if programs else ()
    known_of: Any = plugin if made is None else made
    if issubclass(plugin, Defense):
        requires = known_of.requires
        if not isinstance(requires, frozenset):
            return None
        return tuple(_REQUIREMENTS.get(name, name) for name in sorted(requires))
    threat = known_of.threat
    return _granted_views(threat) if isinstance(threat, ThreatModel) else None


def _granted_views(threat: ThreatModel) -> tuple[str, ...]:
    """The grants that an attack needs."""
    granted = {
        f"topology: {' '.join(threat.topologies)}": len(threat.topologies) == 1,
        "oracle: a correct solution of every item": threat.oracle,
        "policy: its own copy of the current policy": threat.policy,
        f"queries: {threat.queries} questions to the defense per slot and round": threat.queries > 0,
        "beacon: the seed of every slot's honest draw": threat.beacon,
        "history: what arrived in earlier rounds": threat.history,
        "rehearsal: rounds on copies of the swarm before round 1": threat.rehearsal,
        "answer_keys: its own answers and tests, which receivers score by (truth of the swarm)": isinstance(
            threat, KeyedThreatModel
        ),
        "reward_judge: the judge that rewards, to run (reward of the swarm)": isinstance(threat, JudgedThreatModel),
    }
    return tuple(words for words, is_granted in granted.items() if is_granted)


def _file(plugin: type) -> str:
    try:
        return inspect.getsourcefile(plugin) or ""
    except TypeError:
        return ""
