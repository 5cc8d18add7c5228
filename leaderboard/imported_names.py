"""What names in a Python file stand for through its imports; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def aliases_of(tree: ast.Module) -> dict[str, str]:
    """What the names that a file imports stand for, such as "np" for "numpy" and "choice" for "random.choice"."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {each.asname: each.name for each in node.names if each.asname}
            aliases |= {top: top for each in node.names if not each.asname for top in [each.name.partition(".")[0]]}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return aliases


def full_name(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """The dotted name of what an expression names through an import; empty if it names anything else."""
    attributes = []
    while isinstance(node, ast.Attribute):  # a stranger's file may nest them deeper than Python can recurse
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    first = aliases.get(node.id, "open" if node.id == "open" else "")
    return ".".join((first, *reversed(attributes))) if first else ""
