"""A tokenizer that the user names, for rollouts whose token ids are another model's than ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thiefbench.engine.model.policy import ModelError
from thiefbench.pools.schema import MalformedError
from thiefbench.tasks.text import one_line


class NamedTokenizer:
    """A tokenizer alone, without the model's weights.

    Args:
        source: a local directory or a name on the Hugging Face hub.

    Raises:
        ModelError: it cannot be had.
    """

    def __init__(self, source: str | Path) -> None:
        from transformers import AutoTokenizer

        if str(source).startswith((".", "/", "~")) and not Path(source).expanduser().is_dir():
            raise ModelError(f"there is no directory {source} with a tokenizer")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except Exception as error:  # whatever a library says of a damaged file, the user reads one sentence
            reason = one_line(str(error), 200) or type(error).__name__
            raise ModelError(f"the tokenizer {source} cannot be loaded: {reason}") from error
        self._size = len(self._tokenizer)
        self._closing = {self._tokenizer.eos_token_id, self._tokenizer.pad_token_id} - {None}

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens visible.

        Raises:
            MalformedError: an id is none of the tokenizer's.
        """
        if max(ids, default=0) >= self._size:
            raise MalformedError("a token id that the named tokenizer does not have", f"{max(ids)}")
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def closes(self, token: int) -> bool:
        """Whether a token ends a completion: EOS, or the one for padding, which some models close turns with."""
        return token in self._closing

    def encode(self, text: str) -> list[int]:
        """The ids of a completion's text, without EOS."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
