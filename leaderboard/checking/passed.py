"""Which defense passed the check before, so that `submit`, started again, does not repeat a minute of it.

Only the submitter's own command reads this. A verifier puts its questions to the defense itself and takes no pass from
a store, which is a stranger's to it.
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
from thiefbench.leaderboard.checking.check import Finding
from thiefbench.leaderboard.isolation.staging import Staged
from thiefbench.suite.store.records import BrokenRecordError, Store, read_sealed, write_sealed

_FINDINGS: Final = TypeAdapter(list[Finding])
_VERSIONS: Final = ("thiefbench", "python", "torch", "transformers", "numpy", "scipy", "safetensors")
_MACHINE: Final = ("source_sha256", "platform", *provenance.MACHINE)
"""What else a pass depends on: the package's sources, and the machine, as time and memory count."""


def read_pass(store: Store, staged: Staged, baseline: bool) -> list[Finding] | None:
    """What the check found when the same bytes passed it; None where they did not, or the file cannot be used."""
    try:
        findings = _FINDINGS.validate_python(read_sealed(_file(store, staged, baseline)).get("findings"))
    except (BrokenRecordError, ValidationError):
        return None
    return None if not findings or any(finding.status == "FAILED" for finding in findings) else findings


def write_pass(store: Store, staged: Staged, baseline: bool, findings: Sequence[Finding]) -> None:
    """Remember that a defense broke no rule."""
    write_sealed(_file(store, staged, baseline), {"findings": [asdict(finding) for finding in findings]})


def _file(store: Store, staged: Staged, baseline: bool) -> Path:
    """Named by all that the outcome depends on: the files that the entry holds, the versions, the machine."""
    made_by = provenance.provenance("cpu", 1)
    content = {
        "spec": staged.spec,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(staged.source.items())},
        "weights": sorted(path.name for path in staged.weights),  # their names hold the hash of their content
        "copy": staged.folder.name,
        "made_by": {name: made_by[name] for name in (*_VERSIONS, *_MACHINE)},
        "baseline": baseline,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return store.root / "checks" / f"{digest[:32]}.json"
