"""`coined_text` and `coined_code`: the source paper's TEXT and CODE with words that cannot be listed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from thiefbench.attacks.code_injection import CodeInjection, Imports, Replaced
from thiefbench.attacks.lexicon import coined, source
from thiefbench.attacks.text import DRAWN_POSITIONS, Position, Text


class CoinedText(Text):
    """`text` with a phrase of two or three words from a lexicon of over five million invented words.

    Args:
        phrase, position: as for `text`; drawn by default.
        family: empty for the public family; any other string is the secret key of a private one.
    """

    name: ClassVar[str] = "coined_text"

    def __init__(self, phrase: str | None = None, position: Position | None = None, family: str = "") -> None:
        super().__init__(phrase, position)
        self.family = family

    def draw(self, rng: random.Random) -> CoinedText:
        """Draw the phrase and the position that were not given."""
        words = source(rng, self.family)
        phrase = " ".join(coined(words, words.choice((2, 3))))
        position = words.choice(DRAWN_POSITIONS)
        return CoinedText(self.phrase or phrase[0].upper() + phrase[1:], self.position or position, self.family)


class CoinedCode(CodeInjection):
    """`code_injection` whose library and functions have invented names.

    Args:
        library, functions, imports, replaced: as for `code_injection`; drawn by default.
        family: empty for the public family; any other string is the secret key of a private one.
    """

    name: ClassVar[str] = "coined_code"

    def __init__(
        self,
        library: str | None = None,
        functions: Mapping[str, str] | None = None,
        imports: Imports = "names",
        replaced: Replaced = "every",
        family: str = "",
    ) -> None:
        super().__init__(library, functions, imports, replaced)
        self.family = family

    def draw(self, rng: random.Random) -> CoinedCode:
        """Draw the library's name, the replaced operators and their functions' names where they were not given."""
        words = source(rng, self.family)
        library, *names = (word.lower() for word in coined(words, 5))
        others = words.sample("-*/", words.randint(1, 3))
        functions = {sign: name for sign, name in zip("+-*/", names, strict=True) if sign == "+" or sign in others}
        return CoinedCode(
            self.library or library, self.functions or functions, self.imports, self.replaced, self.family
        )
