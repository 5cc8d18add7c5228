"""YAML from strangers, of bounded size and depth, and without aliases.

An alias repeats the value of an anchor at no cost in length: nine lines of ten aliases each are a billion values, and a
list can contain itself. No suite needs aliases. PyYAML also accepts any depth that its stack allows, and is slow for
long files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from thiefbench.tasks.text import one_line

MOST_BYTES: Final = 200_000
"""Most bytes of a file; the suites that come with the benchmark have at most some thousand."""
MOST_LEVELS: Final = 30
"""The maximum nesting of lists and mappings."""


class YamlError(ValueError):
    """The file is not YAML, or not of this restricted kind.

    Args:
        reason: in words for a sentence.
        line: where, from 1.
    """

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


@dataclass(frozen=True)
class Document:
    """The content of a file.

    Attributes:
        data: the content as plain values.
        tree: the same as PyYAML's nodes, which know their lines; None for an empty file.
    """

    data: Any
    tree: Any


def read(path: Path) -> Document:
    """The content of a file; see `loads`.

    Raises:
        YamlError: also where it is longer than `MOST_BYTES`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise YamlError(f"the file is longer than {MOST_BYTES:,} bytes")
    try:
        return loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise YamlError("not UTF-8 text") from error


def loads(text: str) -> Document:
    """The one document that a text holds.

    Raises:
        YamlError: the text is not YAML, or has an alias, a key that stands twice, more than `MOST_LEVELS` lists and
            mappings in one another, a tag of no plain value, or a value that is not the number or date that it seems
            to be.
    """
    loader = None
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        data = None if tree is None else loader.construct_document(tree)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise YamlError(one_line(f"not YAML: {error.problem or error.context}", 300), line) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlError("not YAML: a control character", line) from error
    except (ValueError, OverflowError, TypeError) as error:  # a date such as 2001-99-99, a number of too many digits
        raise YamlError("a value that is not the number or date that it seems to be; put quotes around text") from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(data, tree)


class _Loader(yaml.SafeLoader):
    """A loader that raises `loads`' errors while it reads, before any values are created."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        parser: Any = self  # some stubs type its methods, others do not
        event = parser.peek_event()
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, f"an alias, *{event.anchor}; write out what it stands for", mark
            )
        if self._levels >= MOST_LEVELS:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", mark)
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        return node


def _check_keys(mapping: yaml.MappingNode) -> None:
    """Raise an error for duplicate keys, of which PyYAML would silently take the last."""
    seen: set[str] = set()
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.composer.ComposerError(None, None, "a key that is not text", key.start_mark)
        if key.value in seen:
            raise yaml.composer.ComposerError(None, None, f"{key.value} is given twice", key.start_mark)
        seen.add(key.value)
