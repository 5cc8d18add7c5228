"""Passed checks, so that `submit`, when started again, does not repeat a check of a minute.

Only the submitter's own command reads this. A verifier runs the check itself and ignores this file, because the store
comes from a stranger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from thiefbench import provenance
from thiefbench.engine.heterogeneity import plain
from thiefbench.engine.spec import SwarmSpec
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.isolation.staging import Staged
from thiefbench.suite.store.records import BrokenRecordError, Store, read_sealed, write_sealed

_FINDINGS: Final = TypeAdapter(list[Finding])
_VERSIONS: Final = ("thiefbench", "python", "torch", "transformers", "numpy", "scipy", "safetensors")
_MACHINE: Final = ("source_sha256", "platform", *provenance.MACHINE)
"""What else a pass depends on: the package's sources, and the machine, because time and memory are limited."""


def read_pass(store: Store, staged: Staged, baseline: bool, swarms: Sequence[SwarmSpec]) -> list[Finding] | None:
    """The findings of the check that the same bytes passed for a suite of these swarms; None if they did not pass, or
    the file is unusable."""
    try:
        findings = _FINDINGS.validate_python(read_sealed(_file(store, staged, baseline, swarms)).get("findings"))
    except (BrokenRecordError, ValidationError):
        return None
    return None if not findings or any(finding.status == "FAILED" for finding in findings) else findings


def write_pass(
    store: Store, staged: Staged, baseline: bool, swarms: Sequence[SwarmSpec], findings: Sequence[Finding]
) -> None:
    """Store that a defense broke no rule."""
    write_sealed(_file(store, staged, baseline, swarms), {"findings": [asdict(finding) for finding in findings]})


def _file(store: Store, staged: Staged, baseline: bool, swarms: Sequence[SwarmSpec]) -> Path:
    """A file named by everything the outcome depends on: the entry's files, the swarms, the versions, the machine."""
    made_by = provenance.provenance("cpu", 1)
    content = {
        "spec": staged.spec,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(staged.source.items())},
        "weights": sorted(path.name for path in staged.weights),  # their names hold the hash of their content
        "copy": staged.folder.name,
        "made_by": {name: made_by[name] for name in (*_VERSIONS, *_MACHINE)},
        "baseline": baseline,
        "swarms": [plain(swarm) for swarm in dict.fromkeys(swarms)],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return store.root / "checks" / f"{digest[:32]}.json"
