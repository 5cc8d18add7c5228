"""The names allowed in an entry's spec string: declared defenses, and .py files that are part of the entry.

This holds at every level of nesting. An entry comes from a stranger, and `verify` is run before anybody has read it: a
module named as ``package.module:Class`` would be imported into the verifier's process, and a path could lead anywhere
on the verifier's disk. The classes of an entry's own files are loaded in the sandbox only.
"""

from __future__ import annotations

from collections.abc import Collection

from thiefbench import registry


def foreign_code(spec: str, listed: Collection[str], kind: registry.Kind = "defense") -> str:
    """The forbidden name in an entry's defense or attack, as a clause; empty if there is none.

    Args:
        spec: the entry's spec string; nothing of the entry is loaded.
        listed: the entry's files, by their path in it.
        kind: of the spec string.

    Raises:
        SpecStringError: it is malformed, or contains a name that is not declared.
    """
    for _, target in registry.named_in(kind, spec):
        file, colon, _ = target.rpartition(":")
        if colon and not file.endswith(".py"):
            return f"names {target}, which is neither a declared name nor a class in a .py file of the entry"
        if colon and file not in listed:
            return f"names the file {file}, which is not part of the entry"
    return ""
