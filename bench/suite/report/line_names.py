"""What readers see in place of the name `none`, which a swarm that is attacked without a defense has in records."""

from __future__ import annotations

from typing import Final

ATTACKED: Final = "attacked"
UNDEFENDED: Final = f"{ATTACKED}, no defense"


def line_label(name: str) -> str:
    """The name of a line of a comparison, for readers."""
    return UNDEFENDED if name == "none" else name
