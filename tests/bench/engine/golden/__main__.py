"""Make the golden values anew, after a change to the engine that was meant: `python -m tests.bench.engine.golden`.

Prints what changed, for the changelog.
"""

from __future__ import annotations

import sys

import torch

from tests.bench.engine.golden.comparing import differences, told
from tests.bench.engine.golden.parts import PARTS
from tests.bench.engine.golden.players import closest_draw
from tests.bench.engine.golden.stored import FILE, read, written

LEAST_LEAD = 5e-4
"""By how much every sampled token must win, in logits: fifty times what was seen between versions and processors."""


def main() -> int:
    """Play all parts, say what changed, and store it."""
    torch.set_num_threads(1)
    before, made = read() if FILE.is_file() else {"parts": {}}, {}
    for name, play in PARTS.items():
        with closest_draw() as leads:
            made[name] = play()
        if leads and min(leads) < LEAST_LEAD:
            print(f"{name}: a token wins by only {min(leads):.1e}, and may be another one elsewhere; take another seed")
            return 2
    changed = {name: list(differences(before["parts"].get(name, {}), made[name])) for name in made}
    for name, found in changed.items():
        print(f"{name}: {len(found)} differences\n{told(found)}" if found else f"{name}: as before")
    for name in before["parts"].keys() - made.keys():
        print(f"{name}: is no part any more")
    kept = before["parts"] if not any(changed.values()) else {}
    parts = {name: kept.get(name, made[name]) for name in made}
    FILE.write_text(written({"parts": parts}), encoding="utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
