"""A file's rounds as pools for a defense, put together from the lines of all senders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from thiefbench.defenses.base import Defense, Verdict
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.round_record import CompletionRow, as_offered
from thiefbench.engine.views.defender import Judge
from thiefbench.judges import check_judge, judge_of
from thiefbench.pools.files import PoolFileError, Refused, read
from thiefbench.pools.schema import Header, Line, MalformedError
from thiefbench.pools.scores import JudgedCompletion, rates
from thiefbench.suite.analysis.recorded_rounds import Absent, ReplayError, pool_of
from thiefbench.suite.store.records import Score
from thiefbench.tasks.base import Item, Message, Sampling

NO_IDS = "token ids, which the file does not hold: put ids into its lines, or give the texts a tokenizer with --model"
NO_SEEDS = "the seeds of completions, which a file does not hold"
NO_SAMPLING = "the sampler's settings, which the file does not hold: put sampling into its header"


@dataclass(frozen=True)
class PoolEntry:
    """One completion of a file.

    Attributes:
        row: the completion as the engine records it; an unknown label is False there.
        line, position: the line's number, from 1, and the place in the line's lists, from 0.
        malicious, payload: the labels; None if unknown.
        logprobs: the sender's reported log-probs, or None.
    """

    row: CompletionRow
    line: int
    position: int
    malicious: bool | None
    payload: bool | None
    logprobs: tuple[float, ...] | None

    def judged(self, verdict: Verdict) -> JudgedCompletion:
        """The completion with a verdict on it."""
        row = self.row
        return JudgedCompletion(
            row.round, row.sender, row.item_id, self.line, self.position, row.reward, self.malicious, self.payload,
            verdict.action, verdict.score, verdict.reason,
        )  # fmt: skip


class _Round:
    """The content of one round's lines, as far as they have been read."""

    def __init__(self) -> None:
        self.items: dict[str, tuple[Item, list[Message]]] = {}
        self.groups: dict[str, tuple[int, str]] = {}
        self.sizes: Counter[int] = Counter()
        self.entries: list[PoolEntry] = []

    def add(self, number: int, line: Line, no_ids: Absent) -> None:
        """One more line.

        Raises:
            MalformedError: it contradicts an earlier line.
        """
        prompt = [{"role": message.role, "content": message.content} for message in line.prompt or ()]
        item_and_prompt = (Item(line.item, line.question, line.answer, ""), prompt)
        if self.items.get(line.item, item_and_prompt) != item_and_prompt:
            raise MalformedError("another question, answer or prompt for the item than an earlier line of the round")
        name = line.item if line.group is None else line.group
        group, item = self.groups.get(name, (len(self.groups), line.item))
        if item != line.item:
            raise MalformedError("another item for the group than an earlier line of the round")
        self.items[line.item], self.groups[name] = item_and_prompt, (group, item)
        for position in range(len(line.completions)):
            self.entries.append(_entry(number, line, position, group, self.sizes[group], no_ids))
            self.sizes[group] += 1

    def messages(self, item: str) -> list[Message]:
        """The prompt of an item; only the question if its lines have no prompt."""
        known, prompt = self.items[item]
        return prompt or [{"role": "user", "content": known.question}]


class FiledRounds:
    """The rounds of a file (`thiefbench.suite.analysis.recorded_rounds.Recorded`).

    Args:
        header: of the file, or None.
        rounds: by number.
        refused: lines that were not used.
        no_ids: the placeholder in completions without ids.
        name: of the file, for messages.
    """

    def __init__(
        self, header: Header | None, rounds: Mapping[int, _Round], refused: Refused, no_ids: Absent, name: str
    ) -> None:
        self.header, self.refused, self.name = header or Header(thiefbench_pool=1), refused, name
        self._rounds = {number: rounds[number] for number in sorted(rounds)}
        for each in self._rounds.values():
            each.entries.sort(key=lambda entry: (entry.row.group, entry.row.place))
        self.entries = {number: each.entries for number, each in self._rounds.items()}
        self._no_sampling, self._no_seeds = Absent(NO_SAMPLING), Absent(NO_SEEDS)
        self.absent: Sequence[Absent] = (no_ids, self._no_sampling, self._no_seeds)
        self._policy: Policy | None = None
        self._numerics: dict[str, Any] = {}
        self.pools: dict[int, list[CompletionRow]] = {}
        self._gather()

    @property
    def all_entries(self) -> list[PoolEntry]:
        """Every completion, round by round."""
        return [entry for entries in self.entries.values() for entry in entries]

    @property
    def unprompted(self) -> int:
        """Number of items, counted per round, that have a question and no prompt."""
        return sum(not prompt for each in self._rounds.values() for _, prompt in each.items.values())

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
        if self._policy:
            return NO_SAMPLING
        named = self.header.model
        return "the policy, which no file holds: give it with --model" + (f" {named}" if named else "")

    def lacks(self, defense: Defense) -> str:
        """Why a file lacks what a defense requires; empty if it lacks nothing."""
        if "beacon" in defense.requires:
            return f"{defense.name} needs seeds from a beacon, which a file does not hold"
        if "proofs" in defense.requires:
            return f"{defense.name} needs proofs, which a file does not hold"
        if "versions" in defense.requires:
            return f"{defense.name} needs the versions of the senders' weights, which a file does not hold"
        if defense.sees_labels and any(entry.payload is None for entry in self.all_entries):
            return f"{defense.name} sees labels, and the file has none for some completions: put payload into its lines"
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
        for entries in self.entries.values():
            for place, entry in enumerate(entries):
                row = entry.row
                if isinstance(row.ids, Absent):
                    entries[place] = replace(entry, row=replace(row, ids=tuple(policy.encode(row.text))))
                elif max(row.ids, default=0) >= policy.vocabulary:
                    raise PoolFileError(
                        f"{self.name}, line {entry.line}: the token id {max(row.ids)} is outside the model's "
                        f"vocabulary of {policy.vocabulary}; give the model that wrote the completions"
                    )
        self._gather()

    def pool(self, number: int, cache_of: Callable[[Sequence[Item]], ForwardCache]) -> Pool:
        """A round's pool; `cache_of` creates the forward cache for its distinct items' prompts."""
        filed_round = self._rounds[number]
        items = [filed_round.items[item][0] for _, item in filed_round.groups.values()]
        no_seed = cast(int, self._no_seeds)
        offered = [replace(as_offered(each.row, no_seed), logprobs=each.logprobs) for each in filed_round.entries]
        return pool_of(number, items, offered, cache_of)

    def pool_with_policy(self, number: int) -> Pool:
        """A round's pool with the given model.

        Raises:
            ReplayError: prompt and completion do not fit into the model.
        """
        policy, filed_round = cast(Policy, self._policy), self._rounds[number]

        def cache_of(items: Sequence[Item]) -> ForwardCache:
            return ForwardCache(policy, [policy.prompt_ids(filed_round.messages(item.id)) for item in items])

        pool = self.pool(number, cache_of)
        for entry, (prompt, ids) in zip(filed_round.entries, pool.answers, strict=True):
            length = len(pool.cache.prompts[prompt]) + len(ids)
            if policy.context is not None and length > policy.context:
                raise ReplayError(
                    f"line {entry.line} holds {length} tokens with its prompt, and the model reads {policy.context}"
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
    rounds: dict[int, _Round] = {}
    no_ids = Absent(NO_IDS)

    def take(number: int, line: Line) -> None:
        rounds.setdefault(line.round, _Round()).add(number, line, no_ids)

    header, refused = read(path, take)
    if not rounds:
        first = f"; line {refused.first[0][0]}: {refused.first[0][1]}" if refused.first else ""
        raise PoolFileError(f"{path} holds no line of a pool{first}")
    return FiledRounds(header, rounds, refused, no_ids, str(path))


def _entry(number: int, line: Line, position: int, group: int, place: int, no_ids: Absent) -> PoolEntry:
    payload = None if line.payload is None else line.payload[position]
    if line.malicious is False:
        payload = False
    row = CompletionRow(
        phase="train", round=line.round, node=-1, sender=line.sender, item_id=line.item, group=group, place=place,
        ids=cast("tuple[int, ...]", no_ids) if line.ids is None else tuple(line.ids[position]),
        text=line.completions[position], ended=line.has_ended(position), malicious=bool(line.malicious),
        payload=bool(payload), reward=line.rewards[position], refused="", action="accept", score=None, reason="",
        token_weights=None, advantage=0.0, outcome=None,
    )  # fmt: skip
    logprobs = None if line.logprobs is None else tuple(line.logprobs[position])
    return PoolEntry(row, number, position, line.malicious, payload, logprobs)
