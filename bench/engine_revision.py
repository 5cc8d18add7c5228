"""The engine's revision: the version of the code that computes cells' results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from thiefbench.package_meaning import engine_digest

DECLARATIONS = "engine_revisions.json"
"""The file beside this module that declares which sources compute the same results."""


@dataclass(frozen=True)
class Declarations:
    """Which sources of the engine compute the results of an earlier revision.

    Attributes:
        base: the revision that introduced these results.
        equal: digests of other sources that compute results equal to the last bit, each with the reason for the change.
    """

    base: str
    equal: Mapping[str, str]

    def revision_of(self, digest: str) -> str:
        """The revision of the sources with this digest: the base if they are declared equal, else the digest."""
        return self.base if digest in self.equal else digest


def engine_revision() -> str:
    """Sixteen hex digits, part of every cell's identity; older records have an integer that was raised by hand.

    It names results: sources that are declared to compute the results of an earlier revision keep that revision, and
    all others have their own `sources_digest`.
    """
    return declarations().revision_of(sources_digest())


def sources_digest() -> str:
    """Sixteen hex digits computed from the code of the engine's sources (`package_meaning.engine_digest`).

    A change of a statement or a name changes them; a change of a comment, docstring or layout does not. Every Python
    version computes the same digits.
    """
    return engine_digest().hex()[:16]


@cache
def declarations() -> Declarations:
    """The declarations of this package; a maintainers' command (see CONTRIBUTING) adds to them."""
    content = json.loads(Path(__file__).with_name(DECLARATIONS).read_text(encoding="utf-8"))
    return Declarations(content["base"], content["equal"])
