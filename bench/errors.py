"""Which errors are the user's mistakes, told in one sentence instead of a traceback."""

from __future__ import annotations

_NAMES = {
    "SpecStringError", "ModelError", "SpecError", "TaskError", "SuiteError", "ReportError", "MatrixError",
    "SandboxUnavailable", "WorkerError", "MisuseError", "EntryError", "PoolFileError", "ExportError", "ReplayError",
    "MergeError",
}  # fmt: skip


def is_users(error: BaseException) -> bool:
    """Whether the error's message is a sentence for the user. By name: the classes' modules are heavy."""
    return any(kind.__name__ in _NAMES and kind.__module__.startswith("thiefbench.") for kind in type(error).__mro__)
