"""The plugin that a contract tests: from a spec string, a class, or the subclass's own `make`."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from thiefbench import registry


def made(contract: object, kind: Literal["attack", "defense", "aggregation", "stage_check", "task"]) -> Any:
    """A fresh plugin from the contract's attribute of this name, a spec string or a class.

    If the attribute is missing or invalid, the test fails with one sentence.
    """
    value, class_name = getattr(contract, kind, None), type(contract).__name__
    if isinstance(value, str):
        try:
            return registry.make(kind, value)
        except registry.SpecStringError as error:
            pytest.fail(f"{class_name}: {error}", pytrace=False)
    if isinstance(value, type):
        try:
            return value()
        except TypeError as error:
            pytest.fail(
                f"{class_name}: {error}; give a spec string with arguments, or a method make(self) that returns the "
                f"{kind}",
                pytrace=False,
            )
    return pytest.fail(
        f'{class_name} does not say what to test: write {kind} = "my_{kind}.py:Mine", {kind} = Mine, or a method '
        f"make(self) that returns the {kind}",
        pytrace=False,
    )
