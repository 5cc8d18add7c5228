"""A file's rounds as pools for a defense, put together from the lines of all senders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from thiefbench.defenses.aggregation.base import AVERAGING
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense, Verdict
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.defenses.stages.base import PIPELINE
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.round_record import CompletionRow, as_offered
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.views.defender import Judge
from thiefbench.judges import check_judge, judge_of
from thiefbench.pools.files import PoolFileError, Refused, read
from thiefbench.pools.schema import Header, Line, MalformedError
from thiefbench.pools.scores import JudgedCompletion, rates
from thiefbench.suite.analysis.recorded_rounds import Absent, AbsentText, ReplayError, pool_of
from thiefbench.suite.store.records import Score
from thiefbench.tasks.base import Item, Message, Sampling

NO_IDS = (
    "token ids, which the file does not hold: put ids into its lines, or give the texts a tokenizer with --model or "
    "--tokenizer"
)
NO_SEEDS = "the seeds of completions, which a file does not hold"
NO_SAMPLING = "the sampler's settings, which the file does not hold: put sampling into its header"


@dataclass(frozen=True)
class FiledItem:
    """An item as a file has it.

    Attributes:
        id: its name.
        question, answer: None where the file does not hold them.
        prompt: the chat messages that the model was given; empty where the file has none.
    """

    id: str
    question: str | None
    answer: str | None
    prompt: tuple[tuple[str, str], ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The prompt; the question alone where there is none."""
        prompt: list[Message] = [{"role": role, "content": content} for role, content in self.prompt]
        return prompt or [{"role": "user", "content": self.question or ""}]


@dataclass(frozen=True)
class FiledCompletion:
    """One completion as a file has it; None stands for what the file does not hold or nobody knows.

    Attributes:
        sender, text, reward: as in a line of a pool.
        ids: without EOS if it `ended` with one.
        ended: whether EOS closed it.
        logprobs: what the sender reports for each token, one more for EOS.
        malicious, payload: the labels.
    """

    sender: str | None
    text: str | None
    reward: float | None
    ids: tuple[int, ...] | None = None
    ended: bool = True
    logprobs: tuple[float, ...] | None = None
    malicious: bool | None = None
    payload: bool | None = None


CARRIED: Final[frozenset[str]] = frozenset({"homogeneous", "judge", "logprobs"})
"""What defenses may require outside a swarm: nobody has to hand it over, or completions may come with it."""
_REQUIRED: Final[Mapping[str, str]] = {
    "beacon": "seeds from a beacon",
    "proofs": "proofs of computation",
    "logprobs": "the senders' log-probs",
    "versions": "the versions of the senders' weights",
    ANSWER_KEYS: "the answers and tests that senders sent",
    RULE_REWARDS: "the task's rewards beside a judge's",
    AVERAGING: "the vectors of an exchange",
    PIPELINE: "the stages of a pipeline",
}


def not_carried(defense: Defense, carried: frozenset[str] = CARRIED) -> str:
    """What a defense requires beyond what a file or a trainer carries, in words that follow "needs"; empty if nothing.

    Without it, a defense would find nothing to object to and accept everything.

    Args:
        defense: the defense.
        carried: the requirements that are met.
    """
    return " and ".join(_REQUIRED.get(name, name) for name in sorted(defense.requires - carried))


@dataclass(frozen=True)
class Lacking:
    """Stand-ins for what completions or items of a file may lack; each is shared by all of them.

    Attributes:
        ids, senders, rewards, texts, questions, answers: what stands in the place of each.
    """

    ids: Absent = field(default_factory=lambda: Absent(NO_IDS))
    senders: Absent = field(default_factory=lambda: Absent("senders, which the file does not name"))
    rewards: Absent = field(default_factory=lambda: Absent("rewards, which the file does not hold"))
    texts: Absent = field(default_factory=lambda: AbsentText("texts, which the file does not hold"))
    questions: Absent = field(default_factory=lambda: AbsentText("questions, which the file does not hold"))
    answers: Absent = field(default_factory=lambda: AbsentText("reference answers, which the file does not hold"))

    @property
    def all(self) -> tuple[Absent, ...]:
        """Every one."""
        return (self.ids, self.senders, self.rewards, self.texts, self.questions, self.answers)


_T = TypeVar("_T")


def _known(value: _T | None, lacking: Absent) -> _T:
    """A value, or what stands in its place."""
    return cast(_T, lacking) if value is None else value


@dataclass(frozen=True)
class PoolEntry:
    """One completion of a file.

    Attributes:
        row: the completion as the engine records it; an unknown label is False there.
        line, position: where it stands: the line's or row's number from 1, and its place in the line's lists from 0.
        where: the line in words.
        filed: the completion as the file has it.
    """

    row: CompletionRow
    line: int
    position: int
    where: str
    filed: FiledCompletion

    @property
    def malicious(self) -> bool | None:
        """The label of its sender; None if unknown."""
        return self.filed.malicious

    @property
    def payload(self) -> bool | None:
        """The label of the completion; None if unknown."""
        return self.filed.payload

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """What its sender reports, or None."""
        return self.filed.logprobs

    @property
    def sender(self) -> str:
        """Its sender; empty where the file names none."""
        return self.filed.sender or ""

    def judged(self, verdict: Verdict) -> JudgedCompletion:
        """The completion with a verdict on it."""
        row = self.row
        return JudgedCompletion(
            row.round, self.sender, row.item_id, self.line, self.position, self.filed.reward, self.malicious,
            self.payload, verdict.action, verdict.score, verdict.reason, self.where,
        )  # fmt: skip


class GatheredRound:
    """The content of one round's lines, as far as they have been read."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: dict[str, FiledItem] = {}
        self.groups: dict[str, tuple[int, str]] = {}
        self.sizes: Counter[int] = Counter()
        self.entries: list[PoolEntry] = []

    def add(
        self,
        item: FiledItem,
        completions: Sequence[FiledCompletion],
        lacking: Lacking,
        line: int,
        where: str = "",
        group_name: str | None = None,
        first: int = 0,
    ) -> None:
        """Completions of one more line.

        Args:
            item: what they answer.
            completions: in the order of the line.
            lacking: what stands for what they lack.
            line: its number.
            where: the same in words.
            group_name: whose completions advantages are relative to; by default the item's.
            first: the place of the first completion in the line.

        Raises:
            MalformedError: they contradict an earlier line.
        """
        if self.items.get(item.id, item) != item:
            raise MalformedError("another question, answer or prompt for the item than an earlier line of the round")
        name = item.id if group_name is None else group_name
        group, grouped_item = self.groups.get(name, (len(self.groups), item.id))
        if grouped_item != item.id:
            raise MalformedError("another item for the group than an earlier line of the round")
        self.items[item.id], self.groups[name] = item, (group, item.id)
        for position, filed in enumerate(completions, first):
            row = CompletionRow(
                phase="train", round=self.number, node=-1, sender=_known(filed.sender, lacking.senders),
                item_id=item.id, group=group, place=self.sizes[group], ids=_known(filed.ids, lacking.ids),
                text=_known(filed.text, lacking.texts), ended=filed.ended, malicious=bool(filed.malicious),
                payload=bool(filed.payload), reward=_known(filed.reward, lacking.rewards), refused="",
                action="accept", score=None, reason="", token_weights=None, advantage=0.0, outcome=None,
            )  # fmt: skip
            self.entries.append(PoolEntry(row, line, position, where or f"line {line}", filed))
            self.sizes[group] += 1

    def pool_items(self, lacking: Lacking) -> list[Item]:
        """The item of every group."""
        items = [self.items[item] for _, item in self.groups.values()]
        return [
            Item(each.id, _known(each.question, lacking.questions), _known(each.answer, lacking.answers), "")
            for each in items
        ]


class FiledRounds:
    """The rounds of a file (`thiefbench.suite.analysis.recorded_rounds.Recorded`).

    Args:
        header: of the file, or None.
        rounds: by number.
        refused: lines that were not used.
        lacking: what stands in the rounds for what the file does not hold.
        name: of the file, for messages.
        format: the name of the file's format.
        notes: what a reader of the numbers has to know of the file.
        no_policy: why no policy can be given to it, to be put behind "NAME needs "; empty where one can.
    """

    def __init__(
        self,
        header: Header | None,
        rounds: Mapping[int, GatheredRound],
        refused: Refused,
        lacking: Lacking,
        name: str,
        format: str = "pool",
        notes: Sequence[str] = (),
        no_policy: str = "",
    ) -> None:
        self.header, self.refused, self.name = header or Header(thiefbench_pool=1), refused, name
        self.format, self.notes, self._no_policy, self._lacking = format, tuple(notes), no_policy, lacking
        self._rounds = {number: rounds[number] for number in sorted(rounds)}
        for each in self._rounds.values():
            each.entries.sort(key=lambda entry: (entry.row.group, entry.row.place))
        self.entries = {number: each.entries for number, each in self._rounds.items()}
        self._no_sampling, self._no_seeds = Absent(NO_SAMPLING), Absent(NO_SEEDS)
        self.absent: Sequence[Absent] = (*lacking.all, self._no_sampling, self._no_seeds)
        self._policy: Policy | None = None
        self._numerics: dict[str, Any] = {}
        self.pools: dict[int, list[CompletionRow]] = {}
        self.swarm: SwarmSpec | None = None
        self._gather()

    @property
    def names_senders(self) -> bool:
        """Whether every completion has a sender."""
        return all(entry.filed.sender is not None for entry in self.all_entries)

    @property
    def all_entries(self) -> list[PoolEntry]:
        """Every completion, round by round."""
        return [entry for entries in self.entries.values() for entry in entries]

    @property
    def unprompted(self) -> int:
        """Number of items, counted per round, that have a question and no prompt."""
        return sum(not item.prompt for each in self._rounds.values() for item in each.items.values())

    @property
    def cohorts(self) -> Sequence[FiledRounds]:
        """The file itself: its rounds are those of one receiver."""
        return [self]

    @property
    def kept(self) -> list[int]:
        """All rounds if there is a policy and the sampler's settings are known, else none."""
        return list(self.pools) if self._policy and self.header.sampling else []

    @property
    def seed(self) -> int:
        """The header's."""
        return self.header.seed

    @property
    def sampling(self) -> Sampling:
        """The header's."""
        sampling = self.header.sampling
        return cast(Sampling, self._no_sampling) if sampling is None else sampling.settings()

    @property
    def without_policy(self) -> str:
        """Why there is no policy and what to do about it."""
        if self._no_policy:
            return self._no_policy
        if self._policy:
            return NO_SAMPLING
        named = self.header.model
        return "the policy, which no file holds: give it with --model" + (f" {named}" if named else "")

    def lacks(self, defense: Defense) -> str:
        """Why a file lacks what a defense requires; empty if it lacks nothing."""
        if lacking := not_carried(defense):
            return f"{defense.name} needs {lacking}, which a file does not hold"
        if "logprobs" in defense.requires and any(entry.logprobs is None for entry in self.all_entries):
            return f"{defense.name} needs log-probs, which the file lacks for some completions"
        if defense.sees_labels and any(entry.payload is None for entry in self.all_entries):
            where = (
                ": put payload into its lines" if self.format == "pool" else f", as rollouts of {self.format} have none"
            )
            return f"{defense.name} sees labels, and the file has none for some completions{where}"
        return ""

    def judge_for(self, defense: Defense) -> Judge | None:
        """The judge that the defense names."""
        if "judge" not in defense.requires:
            return None
        check_judge(defense)
        assert defense.judge is not None
        return judge_of(defense.judge, **self._numerics)

    def compute_on(self, device: str, dtype: str) -> None:
        """Set the device and dtype of judges that are loaded here."""
        self._numerics = {"device": device, "dtype": dtype}

    def give_policy(self, policy: Policy) -> None:
        """Let defenses ask a model, the same in all rounds; its tokenizer encodes completions without ids.

        Raises:
            PoolFileError: the file's ids are not this model's.
        """
        self._policy = policy
        for entry in self.all_entries:
            if entry.filed.ids is not None and max(entry.filed.ids, default=0) >= policy.vocabulary:
                raise PoolFileError(
                    f"{self.name}, {entry.where}: the token id {max(entry.filed.ids)} is outside the model's "
                    f"vocabulary of {policy.vocabulary}; give the model that wrote the completions"
                )
        self.count_tokens(policy.encode)

    def count_tokens(self, encode: Callable[[str], Sequence[int]]) -> None:
        """Give token ids to the completions that have a text and no ids.

        Args:
            encode: gives a text's ids, without EOS.
        """
        for entries in self.entries.values():
            for place, entry in enumerate(entries):
                if entry.filed.ids is None and entry.filed.text is not None:
                    entries[place] = replace(entry, row=replace(entry.row, ids=tuple(encode(entry.filed.text))))
        self._gather()

    def pool(self, number: int, cache_of: Callable[[Sequence[Item]], ForwardCache]) -> Pool:
        """A round's pool; `cache_of` creates the forward cache for its distinct items' prompts."""
        filed_round, no_seed = self._rounds[number], cast(int, self._no_seeds)
        offered = [replace(as_offered(each.row, no_seed), logprobs=each.logprobs) for each in filed_round.entries]
        return pool_of(number, filed_round.pool_items(self._lacking), offered, cache_of)

    def pool_with_policy(self, number: int) -> Pool:
        """A round's pool with the given model.

        Raises:
            ReplayError: prompt and completion do not fit into the model.
        """
        policy, filed_round = cast(Policy, self._policy), self._rounds[number]

        def cache_of(items: Sequence[Item]) -> ForwardCache:
            return ForwardCache(policy, [policy.prompt_ids(filed_round.items[item.id].messages) for item in items])

        pool = self.pool(number, cache_of)
        for entry, (prompt, ids) in zip(filed_round.entries, pool.answers, strict=True):
            length = len(pool.cache.prompts[prompt]) + len(ids)
            if policy.context is not None and length > policy.context:
                raise ReplayError(
                    f"{entry.where} holds {length} tokens with its prompt, and the model reads {policy.context}"
                )
        return pool

    def scores(self, actions: Mapping[int, Sequence[Verdict]]) -> dict[str, Score]:
        """Rejection rates of verdicts on some rounds (see `thiefbench.pools.scores.rates`)."""
        return rates(self.judged(actions))

    def judged(self, verdicts: Mapping[int, Sequence[Verdict]]) -> list[JudgedCompletion]:
        """Every completion of the judged rounds with its verdict."""
        return [
            entry.judged(verdict)
            for number in sorted(verdicts)
            for entry, verdict in zip(self.entries[number], verdicts[number], strict=True)
        ]

    def _gather(self) -> None:
        self.pools = {number: [entry.row for entry in entries] for number, entries in self.entries.items()}


def read_rounds(path: Path) -> FiledRounds:
    """A file's rounds.

    Raises:
        PoolFileError: the file cannot be read, or has no valid line.
    """
    rounds: dict[int, GatheredRound] = {}
    lacking = Lacking()

    def take(number: int, line: Line) -> None:
        prompt = tuple((message.role, message.content) for message in line.prompt or ())
        item = FiledItem(line.item, line.question, line.answer, prompt)
        completions = [_completion(line, position) for position in range(len(line.completions))]
        gathered = rounds.get(line.round) or GatheredRound(line.round)
        gathered.add(item, completions, lacking, number, group_name=line.group)
        rounds[line.round] = gathered

    header, refused = read(path, take)
    if not rounds:
        first = f"; {refused.shown()[0]}" if refused.first else ""
        raise PoolFileError(f"{path} holds no line of a pool{first}")
    return FiledRounds(header, rounds, refused, lacking, str(path))


def _completion(line: Line, position: int) -> FiledCompletion:
    payload = None if line.payload is None else line.payload[position]
    return FiledCompletion(
        sender=line.sender,
        text=line.completions[position],
        reward=line.rewards[position],
        ids=None if line.ids is None else tuple(line.ids[position]),
        ended=line.has_ended(position),
        logprobs=None if line.logprobs is None else tuple(line.logprobs[position]),
        malicious=line.malicious,
        payload=False if line.malicious is False else payload,
    )
