"""A tokenizer for GenRL's trainer that leaves no gap between a prompt and its completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class _Prompt(str):
    """A text that `apply_chat_template` made."""


class CompletionsPaddedRight:
    """A tokenizer that pads prompts on the left, as GenRL's own, and completions on the right.

    GenRL's trainer (`gensyn-genrl` 0.3.0) pads both on the left and joins them, so that all but the longest completion
    of a round are learned behind a gap. It takes another tokenizer as `processing_class`.

    Args:
        tokenizer: a transformers tokenizer with a chat template. All that this class does not have is taken from it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        """What the tokenizer makes of a chat; a text is known as a prompt from here on."""
        made = self._tokenizer.apply_chat_template(*args, **options)
        return _Prompt(made) if isinstance(made, str) else made

    def __call__(self, text: str | Sequence[str], **options: Any) -> Any:
        """Token ids and their mask; padding is on the left of prompts and on the right of other texts."""
        texts = [text] if isinstance(text, str) else text
        side = "left" if all(isinstance(each, _Prompt) for each in texts) else "right"
        return self._tokenizer(text, padding_side=side, **options)
