"""The contract of a defense: it sees a round's whole pool and gives one verdict per completion.

A new defense is one class with a `name` and `inspect`, declared under the entry-point group ``thiefbench.defenses``
or given as ``path/to/file.py:Class``. It never sees who is malicious.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from thiefbench.tasks.base import Message, Sampling

if TYPE_CHECKING:  # the registry reads this module to list names, and needs no arrays for that
    import numpy as np
    from numpy.typing import NDArray

Action = Literal["accept", "zero", "drop"]
Requirement = Literal["homogeneous", "beacon", "proofs", "judge", "logprobs", "versions"]


class JudgeError(RuntimeError):
    """A judge gives no answers, or no decisions. The cell fails, as there is no verdict to act on."""


@dataclass(frozen=True)
class Verdict:
    """What happens to one completion.

    Attributes:
        action: "accept"; "zero" sets its reward to 0 (the paper's rule); "drop" takes the row out of its group.
        score: how suspicious it is, in a unit of the defense, for reports.
        token_weights: one factor in [0, 1] per token of the completion (EOS included when it ended), multiplied into
            the token's loss after advantages; the divisor stays the length. 0 learns nothing from a token and 1 all.
            Outside of the range a filter would no longer filter: a negative weight turns the lesson round, and a large
            one lets a token outweigh the rest of the pool.
        reason: a few words for reports.
    """

    action: Action = "accept"
    score: float | None = None
    token_weights: tuple[float, ...] | None = None
    reason: str = ""


ACCEPT = Verdict()


@dataclass(frozen=True)
class PoolCompletion:
    """One completion as an honest node received it.

    Attributes:
        item_id: key into `DefenderView.items`.
        group: number of its group this round, from 0 to B - 1.
        index: its place in the group, from 0 to G - 1.
        sender: pseudonym of the sending node, lasting one run.
        ids: token ids, without the closing EOS.
        text: decoded from `ids`, special tokens visible.
        ended: whether EOS closed it.
        reward: the task's reward, in [0, 1].
        logprobs: one log-prob per token, EOS included when it ended: those that the swarm has recomputed, or else those
            that the sender claims. None where there are none.
        seed: the seed of the noise that it should be drawn with. With a beacon the receiver computes it; where seeds
            are announced it is the sender's claim, and None if the sender claims no valid seed.
        proof: what the sender's `Defense.prove` returned for it, a claim; None where no defense requires proofs.
        version: how many updates the weights had that the sender claims to have sampled from; in round n the current
            weights have had n - 1. None where nothing is ever stale.
        refused: nothing arrived for the slot, or something that no node may send, such as a control token inside a
            completion. It leaves its group whatever the verdict.
    """

    item_id: str
    group: int
    index: int
    sender: str
    ids: tuple[int, ...]
    text: str
    ended: bool
    reward: float
    logprobs: tuple[float, ...] | None = None
    seed: int | None = None
    proof: bytes | None = None
    version: int | None = None
    refused: bool = False

    @property
    def length(self) -> int:
        """Its number of tokens, EOS included when it ended."""
        return len(self.ids) + self.ended


@dataclass(frozen=True)
class ItemFacts:
    """What every node knows of an item."""

    question: str
    answer: str


@dataclass(frozen=True)
class PastRound:
    """A finished round: its completions (without seeds, proofs and log-probs) and this defense's verdicts on them."""

    round: int
    completions: tuple[PoolCompletion, ...]
    verdicts: tuple[Verdict, ...]


class PolicyView(Protocol):
    """The defender's own model. Arrays have one entry per token of the completion, EOS included when it ended."""

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """Natural-log probability of every token, untruncated, at the sampler's temperature."""

    def ranks(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """How many tokens have a strictly higher logit than the one submitted; 0 is the most probable."""

    def in_support(
        self, completions: Sequence[PoolCompletion], tolerance: float | None = None
    ) -> list[NDArray[np.bool_]]:
        """Whether the sampler's settings could have let each token through.

        A token whose logit misses the support by at most `tolerance` (in logits) counts as inside; the default is
        the numerical noise of the model's dtype between two batch shapes.
        """

    def replay(self, completions: Sequence[PoolCompletion], tolerance: float | None = None) -> list[NDArray[np.bool_]]:
        """Whether each token is the one that the noise of `PoolCompletion.seed` draws after the tokens before it.

        It takes one forward pass over the offered tokens. Without a seed it is False for every token. A token also
        passes if it misses the drawn token's score (scaled logit plus noise) or the edge of the support by at most
        `tolerance`, in logits; the default is the numerical noise of the model's dtype between two batch shapes.
        """

    def hidden(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """The last layer's states from which each token is predicted, shape (tokens, hidden size)."""

    def spans(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """Where in `text` every token lies, shape (tokens, 2): its first character and the one after its last.

        A character whose bytes are split over several tokens belongs to each of them. EOS lies after the text.
        """

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        """One sampled completion text per chat prompt, with noise that nothing else uses.

        Control tokens written out in a prompt are broken up, so a prompt may quote untrusted text. A prompt that does
        not fit into the model's context together with a completion gets an empty text.
        """


@dataclass(frozen=True)
class JudgeSpec:
    """The judge of a defense that requires "judge"; the engine loads it or connects to it.

    Attributes:
        model: a built-in model, a local directory or a hub name; with `endpoint`, the name it is served under.
        endpoint: base URL of an OpenAI-compatible server, such as "http://localhost:8000/v1"; None loads the model.
    """

    model: str
    endpoint: str | None = None


class JudgeView(Protocol):
    """A model outside the swarm that a defense may ask."""

    def ask(self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, votes: int = 1) -> list[list[str]]:
        """`votes` replies to each chat prompt, drawn independently.

        A prompt that does not fit into the judge's context together with a reply gets no replies: an empty list.
        The replies of a local judge do not depend on the order of `prompts`, and equal prompts get equal replies.

        Raises:
            JudgeError: the judge does not answer.
        """


@dataclass(frozen=True)
class DefenderView:
    """What a cohort knows when it inspects a round's pool.

    Attributes:
        round: the round's number, from 1.
        completions: the whole pool, those of the cohort included, in keyed-shuffled order (position tells nothing).
        items: question and answer by item id.
        sampling: the settings that every honest node samples with.
        history: finished rounds, oldest first.
        rng: keyed by (seed, round), equal for all nodes of a cohort.
        policy: the cohort's current model.
        judge: the model named by the defense's `judge`; None for a defense that requires none.
    """

    round: int
    completions: tuple[PoolCompletion, ...]
    items: Mapping[str, ItemFacts]
    sampling: Sampling
    history: Sequence[PastRound]
    rng: random.Random
    policy: PolicyView
    judge: JudgeView | None = None


@dataclass(frozen=True)
class LabelledView(DefenderView):
    """The view of benchmark rows with `sees_labels` alone: it adds which completions carry a payload."""

    payload: tuple[bool, ...] = field(default=())


class Defense(ABC):
    """A filter on the shared pool. Constructor arguments are its parameters and part of a cell's identity.

    Attributes:
        name: its name in lists and reports.
        requires: what it needs, checked before a run starts: "homogeneous" (all honest nodes hold equal weights),
            "beacon" (a slot's noise is keyed by a public beacon, see `SwarmSpec.seeds`), "proofs" (see `prove`),
            "judge" (a model to ask, which `judge` names), "logprobs" (log-probs come with completions, see
            `SwarmSpec.logprobs`), "versions" (completions come with the version of their weights, see
            `SwarmSpec.delay`).
        judge: the model it asks; part of a cell's identity.
        sees_labels: True only for rows of the benchmark itself, which cannot be submitted.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    sees_labels: ClassVar[bool] = False
    judge: JudgeSpec | None = None

    @abstractmethod
    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """One verdict per completion of `view`, in its order."""

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """What a sender attaches to its completion where the defense requires "proofs".

        Args:
            states: the sender's own `PolicyView.hidden` of the completion, shape (tokens, hidden size).
        """
        raise NotImplementedError(f"the defense {self.name} requires proofs but does not say how they are made")

    def state(self) -> dict[str, Any]:
        """What must survive a restart, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; a defense that overrides `state` overrides this too."""
        if state:
            raise NotImplementedError(f"the defense {self.name} has a state but no restore")
