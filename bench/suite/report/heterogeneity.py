"""The report's parts for swarms whose nodes are not all equal and always present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thiefbench.engine.heterogeneity import plain
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.measures import Unit
from thiefbench.suite.analysis.scoring import of_class
from thiefbench.suite.report.tables import Shown, show
from thiefbench.wording import counted

MEASURES: tuple[tuple[str, Unit], ...] = (
    ("asr", "rate"),
    ("clean_reward", "reward"),
    ("start_reward", "reward"),
    ("mean_length", "tokens"),
)


@dataclass(frozen=True)
class ClassRow:
    """A line of the results table for one class of nodes: its name, the class, and its scores as text."""

    line: str
    label: str
    shown: tuple[Shown | None, ...]


def class_rows(comparison: Comparison, by_domain: bool = False) -> list[ClassRow]:
    """Every trained line for each class; empty if there is only one class.

    Of experts, the classes are domains, and the last column says how often a domain's own expert led the answers.
    """
    measures = (*MEASURES, ("own_expert", "rate")) if by_domain else MEASURES
    rows = []
    for line in comparison.lines:
        if line.how == "trained":
            marked = of_class("asr", "")
            names = dict.fromkeys(name for result in line.results for name in result.scores if name.startswith(marked))
            for label in (name.removeprefix(marked) for name in names):
                shown = tuple(show(line.scores(of_class(measure, label)), unit) for measure, unit in measures)
                rows.append(ClassRow(line.name, label, shown))
    return rows


def regime_facts(cell: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a cell's nodes learn, and how they differ from equal, synchronous, always present nodes."""
    swarm = cell["swarm"]
    learner = swarm["learner"]
    regime = [("Learner", _learner(learner))]
    if population := swarm.get("population"):
        regime.append(("Population", ", ".join(_share(each) for each in population)))
    if experts := cell.get("experts"):
        regime.append(("Experts", _experts(experts)))
    if (source := swarm.get("logprobs", "none")) != "none":
        regime.append(("Log-probs", f"{source} ones travel with completions" if source == "reported" else source))
    if delay := swarm.get("delay"):
        regime.append(("Delay", _delay(delay)))
    if churn := swarm.get("churn"):
        rounds = ", ".join(str(number) for number in churn["crashes"]) or "none"
        regime.append(
            (
                "Crashes",
                f"in round {rounds}, {counted(churn['down'], 'round')} each; recovery from {churn['recovery']}"
                + (
                    f", checked with a tolerance of {churn['tolerance']:g}"
                    if churn.get("tolerance") is not None
                    else ""
                ),
            )
        )
    if sharing := swarm.get("sharing"):
        cap = "" if sharing["per_sender"] is None else f", at most {sharing['per_sender']} of one sender"
        regime.append(("Sharing", f"I = {sharing['local']} own groups and J = {sharing['external']} of others{cap}"))
    if swarm.get("truth", "public") == "sender":
        regime.append(("Truth", "answers and tests are those that senders send with their work"))
    if (by := swarm.get("reward", "rule")) != "rule":
        regime.append(("Reward", _reward(by, swarm.get("reward_judge", {}))))
    return regime


def _reward(by: str, given: Mapping[str, Any]) -> str:
    judge = plain(RewardJudgeSpec()) | dict(given)
    which = "" if by == "judge" else f", for {100 * judge['share']:.3g}\u00a0% of the items; the rule for the others"
    server = f" at {judge['endpoint']}" if judge["endpoint"] else ""
    return f"the judge {judge['model']}{server}, contents {judge['prompt']}{which}"


def _learner(learner: Mapping[str, Any]) -> str:
    beside = {
        "cispo": f", C = {learner.get('ratio_cap', 2.0):g}",
        "ftis": f", C = {learner.get('ratio_cap', 2.0):g}, g = {learner.get('kl_gate', 50.0):g}",
        "gepo": f", eps = {learner['epsilon']:g}",
        "gspo": f", eps = {learner['epsilon']:g}",
    }.get(learner["loss"], "")
    if (delta := learner.get("delta")) is not None:
        beside += f", delta = {delta:g}"
    return f"{learner['loss']}, learning rate {learner['learning_rate']:g}{beside}"


def _experts(experts: Mapping[str, Any]) -> str:
    if experts["training"] == "together":
        return "none: one model learns from all groups; its scores are shown by the domain of the question"
    evidence = f", evidence: {experts['evidence']}" if experts["weighting"] in ("uniform_prior", "cached_prior") else ""
    top = f", the best {experts['top']} at each token" if experts["top"] else ""
    return f"each class learns from its own groups; they answer together by {experts['weighting']}{evidence}{top}"


def _share(each: Mapping[str, Any]) -> str:
    asks = f", asking {each['domain']}" if each["domain"] else ""
    return f"{100 * each['share']:.3g}\u00a0% {each['model']}{asks}"


def _delay(delay: Mapping[str, Any]) -> str:
    limit = "" if delay["limit"] is None else f", at most {delay['limit']}"
    if delay["kind"] == "constant":
        return f"{counted(delay['rounds'], 'round')}{limit}"
    return f"lognormal, {delay['least']} to {counted(delay['rounds'], 'round')}{limit}"
