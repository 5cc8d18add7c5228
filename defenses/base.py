"""The contract of a defense: it sees a round's whole pool and gives one verdict per completion.

A new defense is one class with a `name` and the method `inspect`, declared under the entry-point group
``thiefbench.defenses`` or named as ``path/to/file.py:Class``. It does not see who is malicious.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from thiefbench.tasks.base import Message, Sampling

if TYPE_CHECKING:  # numpy is not imported here, because the registry reads this module only to list names
    import numpy as np
    from numpy.typing import NDArray

Action = Literal["accept", "zero", "drop"]
Requirement = Literal["homogeneous", "beacon", "proofs", "judge", "logprobs", "versions"]


class JudgeError(RuntimeError):
    """A judge gives no answers, or no decisions. The cell fails, because there is no verdict to apply."""


@dataclass(frozen=True)
class Verdict:
    """What happens to one completion.

    Attributes:
        action: "accept"; "zero" sets its reward to 0 (the paper's rule); "drop" removes it from its group; "skip"
            leaves its reward in its group's mean and standard deviation, but nothing is learned from it. A type checker
            knows the first three; for the last, write `Verdict(SKIP)` (`thiefbench.defenses.skipping`).
        score: how suspicious it is, in a unit that the defense chooses, for reports.
        token_weights: one factor in [0, 1] per token of the completion (EOS included when it ended), multiplied into
            the token's loss after advantages; the divisor stays the length. With 0, nothing is learned from a token;
            with 1, it counts in full. Other values are not allowed, because a negative weight would reverse what is
            learned, and a large one would let a token outweigh the rest of the pool.
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
        sender: pseudonym of the sending node, constant during a run.
        ids: token ids, without the closing EOS.
        text: decoded from `ids`, special tokens visible.
        ended: whether it ended with EOS.
        reward: the task's reward, in [0, 1].
        logprobs: one log-prob per token, EOS included when it ended: recomputed by the swarm, or else claimed by the
            sender; under a secret seed, each is lower by a random number up to 1e-4. None if the swarm sends none.
        seed: the seed of the noise with which it should be drawn. With a beacon, the receiver computes it; if seeds are
            announced, it is the sender's claim, or None if the sender claims no valid seed.
        proof: what the sender claims that `Defense.prove` returned for it; None if no defense requires proofs.
        version: the number of updates of the weights from which the sender claims to have sampled; in round n the
            current weights have had n - 1. None in swarms without delay.
        refused: whether nothing arrived for the slot, or something that is not allowed, such as a control token inside
            a completion. It leaves its group whatever the verdict.
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
        """Its number of tokens, including EOS if it ended."""
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

        A token whose logit is at most `tolerance` (in logits) below the edge of the support counts as inside; the
        default is the numerical noise of the model's dtype between two batch shapes.
        """

    def replay(self, completions: Sequence[PoolCompletion], tolerance: float | None = None) -> list[NDArray[np.bool_]]:
        """Whether each token is the one that the noise of `PoolCompletion.seed` draws after the tokens before it.

        This takes one forward pass over the offered tokens. Without a seed, the result is False for every token. A
        token also passes if it is at most `tolerance` (in logits) below the drawn token's score (scaled logit plus
        noise) or below the edge of the support; the default is the numerical noise of the model's dtype between two
        batch shapes.
        """

    def hidden(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """The last layer's states from which each token is predicted, shape (tokens, hidden size)."""

    def spans(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """Where in `text` every token lies, shape (tokens, 2): its first character and the one after its last.

        A character whose bytes are split over several tokens belongs to each of them. EOS is located after the text.
        """

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        """One sampled completion text per chat prompt, drawn with separate noise.

        Control tokens written out in a prompt are broken up, so a prompt may quote untrusted text. If a prompt and a
        completion do not fit into the model's context together, the text is empty.
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
        completions: the whole pool, the cohort's own included, in a shuffled order that carries no information.
        items: question and answer, by item id.
        sampling: the settings that every honest node samples with.
        history: finished rounds, oldest first.
        rng: keyed by (seed, round), equal for all nodes of a cohort.
        policy: the cohort's current model.
        judge: the model named by the defense's `judge`; None if the defense requires none.
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
    """The view for anchors with `sees_labels`: it also says which completions carry a payload."""

    payload: tuple[bool, ...] = field(default=())


class Defense(ABC):
    """A filter on a round's pool. Constructor arguments are its parameters and part of a cell's identity.

    Attributes:
        name: its name in lists and reports.
        requires: what it needs, checked before a run starts: "homogeneous" (all honest nodes hold equal weights),
            "beacon" (a slot's noise is keyed by a public beacon, see `SwarmSpec.seeds`), "proofs" (see `prove`),
            "judge" (a model to ask, which `judge` names), "logprobs" (log-probs come with completions, see
            `SwarmSpec.logprobs`), "versions" (completions come with the version of their weights, see
            `SwarmSpec.delay`).
        judge: the model it asks; part of a cell's identity.
        sees_labels: True only for anchors, which cannot be submitted.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[Requirement]] = frozenset()
    sees_labels: ClassVar[bool] = False
    judge: JudgeSpec | None = None

    @abstractmethod
    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """One verdict per completion of `view`, in its order."""

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """What a sender attaches to its completion if the defense requires "proofs".

        Args:
            states: the sender's own `PolicyView.hidden` of the completion, shape (tokens, hidden size).
        """
        raise NotImplementedError(f"the defense {self.name} requires proofs but does not say how they are made")

    def state(self) -> dict[str, Any]:
        """What the defense must remember after a restart, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned; a defense that overrides `state` must override this too."""
        if state:
            raise NotImplementedError(f"the defense {self.name} has a state but no restore")
