"""Where in a text the tokens stand that a defense masked, as far as the tokenizer is on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thiefbench.engine.heterogeneity import NodeClass
from thiefbench.engine.model.spans import token_spans
from thiefbench.zoo.models import BUILT_IN, resolve

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Span = tuple[int, int]


def model_of(cell: Mapping[str, Any], label: str) -> str:
    """Whose vocabulary a completion's ids are of: its cohort's in a population, else the cell's own model."""
    classes = [NodeClass(**fields) for fields in cell["swarm"].get("population") or ()]
    return next((each.model for each in classes if each.label == label), str(cell["model"]))


def masked_spans(model: str, ids: Sequence[int], text: str, weights: Sequence[float]) -> list[Span] | None:
    """First character of every masked token and the one behind its last.

    Args:
        model: as `model_of` says.
        ids, text: of the completion.
        weights: of its tokens, and of EOS where it ended; a token is masked where its weight is below 1.

    Returns:
        None where the model's tokenizer is not on this machine, or the ids are not of its vocabulary. Nothing is
        downloaded, as a store may be a stranger's.
    """
    tokenizer = _tokenizer(model)
    if tokenizer is None or not all(0 <= token < tokenizer.get_vocab_size() for token in ids):
        return None

    def decode(rows: Sequence[Sequence[int]]) -> list[str]:
        return [tokenizer.decode(list(row), skip_special_tokens=False) for row in rows]

    spans = token_spans(ids, text, decode([[token] for token in ids]), decode)
    masked = [(int(first), int(last)) for (first, last), weight in zip(spans, weights, strict=False) if weight < 1]
    return [span for span in masked if span[0] < span[1]]


@cache
def _tokenizer(model: str) -> Tokenizer | None:
    """A built-in model's tokenizer, or that of a hub model in the local cache.

    A path that only a record names is not read: it may be anything.
    """
    from tokenizers import Tokenizer

    path = Path(resolve(model)) / "tokenizer.json" if model in BUILT_IN else _cached(model)
    try:
        return Tokenizer.from_file(str(path)) if path is not None and path.is_file() else None
    except Exception:  # the library raises nothing more specific for a file that is no tokenizer
        return None


def _cached(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "tokenizer.json")
    except HFValidationError:  # no name of a hub's model
        return None
    return Path(path) if isinstance(path, str) else None
