"""The manifest of an attack's entry, attack.json: who submitted which attack, on which suite, against which defenses.

It comes from a stranger: names are checked, sizes are bounded, and unknown fields are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from thiefbench.attacks.base import ThreatModel
from thiefbench.leaderboard.isolation.attack_wire import Reference
from thiefbench.leaderboard.isolation.limits import ATTACK_QUERIES
from thiefbench.leaderboard.isolation.sandbox_paths import AttackKind
from thiefbench.leaderboard.manifest import (
    EntryModel,
    Line,
    Machine,
    Manifest,
    Numerics,
    Packed,
    Sha256,
    SuiteName,
    Versions,
    checked_paths,
    checked_slug,
    checked_weights,
)

ATTACK_MANIFEST: Final = "attack.json"
ATTACK_SOURCE: Final = "attack"
"""The folder of its source."""
MOST_TARGETS: Final = 20
"""Defenses that one entry is run against."""


class Granted(EntryModel):
    """The threat model of a submitted attack; see `thiefbench.attacks.base.ThreatModel`. It has no rehearsal.

    Attributes:
        kind: of the attack: on completions, on exchanged weights, or by a stage of a pipeline.
    """

    kind: AttackKind = "attack"
    context: Literal["in-context", "out-of-context"]
    topologies: tuple[Literal["horizontal", "vertical"], ...] = Field(min_length=1, max_length=2)
    oracle: bool
    policy: bool
    queries: int = Field(ge=0, le=ATTACK_QUERIES)
    beacon: bool
    history: bool

    @property
    def black_box(self) -> bool:
        """Whether it knows nothing of the weights: none are exchanged, and it has no policy to sample from or teach."""
        return self.kind == "attack" and not self.policy

    def in_words(self) -> list[str]:
        """What it is granted and what not, a clause each."""
        by_completions = self.kind == "attack"  # what an inner attack is granted beyond that, others do not have
        poison = f"its poison is {self.context} text, in {' and '.join(self.topologies)} swarms"
        return [
            poison if by_completions else _EXCHANGED[self.kind].format(self.context),
            "it has a correct solution of every item" if self.oracle else "it has no solutions",
            "it samples, measures and teaches its own copy of the policy"
            if self.policy
            else "it cannot see the policy's weights"
            if by_completions
            else "it has no copy of an honest node's model",
            f"it queries the defense about up to {self.queries} submissions per slot and round"
            if self.queries and by_completions
            else "it cannot query the defense",
            *(["it knows the seed of every slot's honest draw"] if self.beacon and by_completions else []),
            *(["it keeps the pools of earlier rounds"] if self.history and by_completions else []),
        ]


_EXCHANGED: Final[Mapping[str, str]] = {
    "weight_attack": "its nodes send weights, and know what the honest ones send; what it teaches is {} text",
    "stage_attack": "it is a stage of a pipeline, and knows the start weights of all; what it teaches is {} text",
}
"""What attacks of these kinds do, with the kind of text that they teach."""


def granted(threat: ThreatModel, kind: AttackKind = "attack") -> Granted:
    """The threat model of an attack of a kind as an entry states it."""
    fields = {name: getattr(threat, name) for name in Granted.model_fields if name != "kind"}
    return Granted(**fields | {"kind": kind, "topologies": tuple(sorted(threat.topologies))})


class Target(EntryModel):
    """A listed defense that the attack was run against.

    Attributes:
        slug: its entry's folder.
        defense: its spec string, as in its own cells.
        entry_sha256: of its entry's manifest when the attack was run.
        source_sha256: of its source.
    """

    slug: str
    defense: Annotated[str, Field(min_length=1, max_length=2000)]
    entry_sha256: Sha256
    source_sha256: Sha256

    @field_validator("slug")
    @classmethod
    def _slug(cls, slug: str) -> str:
        return checked_slug(slug)

    def meets(self, listed: Manifest) -> bool:
        """Whether this is the listed defense: its entry may have got further seeds or another name since."""
        return (self.slug, self.defense, self.source_sha256) == (listed.slug, listed.defense, listed.source_sha256)


class AttackManifest(EntryModel):
    """The content of attack.json.

    Attributes:
        schema_version: of this format.
        slug: the folder's name.
        name, authors, paper: for readers; the paper's address begins with https:// or is empty.
        about: the first line of the attack's docstring.
        attack: the spec string as it was run in the cells: a declared name, or a file of the entry relative to its
            folder: ``attack/mine.py:Attack(k=3)``.
        threat: what it is granted.
        reference: what its harm is measured against: its placebo, or the swarm without an attack.
        targets: the defenses that it was run against.
        suite: the suite whose swarms it was run in; `parts` are those that it fits, an empty name in a suite of one.
        seeds: the suite's seeds.
        submitted: the date.
        numerics: the numerical settings of every cell.
        versions: the versions of Python and of the distributions with which the cells were run.
        machine: hardware and commit, from the records.
        source_sha256: hash of the attack's source, as in the cells' identities.
        files: the SHA-256 of every file in the folder except attack.json, by path.
        weights: safetensors files of the attack; they are in the archive.
        archive: full records and raw completions.
    """

    schema_version: Literal[1] = 1
    slug: str
    name: Line
    authors: tuple[Line, ...] = Field(min_length=1, max_length=50)
    paper: str = Field(default="", max_length=300, pattern=r"^(https://[^\s<>\"']+)?$")
    about: str = Field(default="", max_length=200)
    attack: Annotated[str, Field(min_length=1, max_length=2000)]
    threat: Granted
    reference: Reference = "placebo"
    targets: tuple[Target, ...] = Field(min_length=1, max_length=MOST_TARGETS)
    suite: SuiteName
    parts: tuple[Annotated[str, Field(max_length=200)], ...] = Field(min_length=1, max_length=100)
    seeds: tuple[int, ...] = Field(min_length=1, max_length=100)
    submitted: date
    numerics: Numerics
    versions: Versions
    machine: Machine
    source_sha256: Sha256
    files: dict[str, Sha256]
    weights: tuple[Packed, ...] = ()
    archive: Packed

    @field_validator("slug")
    @classmethod
    def _slug(cls, slug: str) -> str:
        return checked_slug(slug)

    @field_validator("files")
    @classmethod
    def _paths(cls, files: dict[str, str]) -> dict[str, str]:
        return checked_paths(files, ATTACK_SOURCE)

    @field_validator("weights")
    @classmethod
    def _weights(cls, weights: tuple[Packed, ...]) -> tuple[Packed, ...]:
        return checked_weights(weights)

    @model_validator(mode="after")
    def _consistent(self) -> AttackManifest:
        if self.archive.name != (expected := f"{self.slug}.tar"):
            raise ValueError(f"the archive must be named {expected}, not {self.archive.name!r}")
        for what, names in (("target", [each.slug for each in self.targets]), ("part", self.parts)):
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} is listed twice")
        return self
