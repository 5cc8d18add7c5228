"""Where the built-in models are, and the fingerprint of any model's weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from thiefbench import registry
from thiefbench.error_messages import nearest

BUILT_IN = {
    "micro-math": "solves gsm_micro with worked reasoning",
    "micro-math-small": "like micro-math, less than half the size, other tokens",
    "micro-math-changes": "like micro-math, trained mostly on the domain changes",
    "micro-math-totals": "like micro-math, trained mostly on the domain totals",
    "micro-code": "answers code_micro with short Python programs",
    "micro-programs": "answers code_functions with functions that call others",
    "micro-judge": "judges completions of both tasks, for the defense judge",
    "micro-judge-hardened": "solves gsm_micro itself and compares, for judge_hardened",
}
"""The built-in models, each with its purpose."""
SOLVED = {
    "micro-math": "gsm_micro", "micro-math-small": "gsm_micro", "micro-math-changes": "gsm_micro",
    "micro-math-totals": "gsm_micro", "micro-code": "code_micro", "micro-programs": "code_functions",
}  # fmt: skip
"""The task that each of them answers; the judges answer none in a swarm."""

TOKENIZER = "tokenizer.json"
"""The file of a model's directory that holds its tokenizer."""


def solving(task: str) -> list[str]:
    """The built-in models that answer a task; `task` is its name."""
    return [model for model, solved in SOLVED.items() if solved == task]


class Misfit(NamedTuple):
    """A model that answers another task than the one that it is given.

    Attributes:
        task: the name of what it is given.
        model: the model.
        answers: the name of the task that it answers.
        fitting: a built-in model for the given task; None if there is none.
    """

    task: str
    model: str
    answers: str
    fitting: str | None


def misfit(task: str, models: Iterable[str]) -> Misfit | None:
    """The first of some models that is known to answer another task.

    Args:
        task: a spec string; nothing is known of tasks that no package declares.
        models: nothing is known of other models than the built-in ones.
    """
    name = registry.parse("task", task).target
    if name not in registry.names("task"):
        return None
    fitting = next(iter(solving(name)), None)
    return next((Misfit(name, each, SOLVED[each], fitting) for each in models if SOLVED.get(each, name) != name), None)


def resolve(model: str) -> str:
    """The directory of a built-in model, or `model` itself (a local directory or a hub name)."""
    return str(resources.files(__package__).joinpath(model)) if model in BUILT_IN else model


def weights_fingerprint(model: str) -> str:
    """SHA-256 over a local model's weights, config and tokenizer; a hub model is named by its resolved snapshot.

    A tokenizer counts in the layout in which `save_pretrained` writes it. The built-in models' tokenizers are stored
    without spaces and line breaks, at less than half the size, and have the fingerprints of the saved ones.

    Raises:
        ModelError: the hub cannot be reached and the model is not in the local cache.
    """
    directory = Path(resolve(model)).expanduser()
    if not directory.is_dir():
        directory = _snapshot(model)
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in {".safetensors", ".json", ".txt", ".jinja"} and path.is_file():
            digest.update(path.name.encode() + b"\0")
            digest.update(_file_digest(path))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    """SHA-256 of a file, or of the saved layout of a compact tokenizer."""
    with path.open("rb") as file:
        if path.name == TOKENIZER:
            return hashlib.sha256(_as_saved(file.read())).digest()
        return hashlib.file_digest(file, "sha256").digest()


def compact(tokenizer: bytes) -> bytes:
    """The JSON of a tokenizer without spaces and line breaks between its parts; the content is the same."""
    return json.dumps(json.loads(tokenizer), ensure_ascii=False, separators=(",", ":")).encode()


def _as_saved(tokenizer: bytes) -> bytes:
    """A compact tokenizer in the layout of `save_pretrained`; any other file's bytes as they are.

    Only what `compact` writes byte for byte is taken for compact. So no two files share a fingerprint that a parser
    could read in two ways, such as with a key given twice.
    """
    if b"\n" in tokenizer:
        return tokenizer
    try:
        if compact(tokenizer) != tokenizer:
            return tokenizer
        return json.dumps(json.loads(tokenizer), ensure_ascii=False, indent=2).encode()
    except (ValueError, RecursionError):
        return tokenizer


def _snapshot(model: str) -> Path:
    """The local copy of a hub model, downloaded where it is missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from thiefbench.engine.model.policy import ModelError

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]))
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        known = ", ".join(BUILT_IN)
        raise ModelError(
            f"the model {model} is not built in, not a directory, and cannot be downloaded from the hub; "
            f"{nearest(model, BUILT_IN)}built in: {known}"
        ) from error
