"""Text from elsewhere as a terminal may show it.

Names, reasons and answers come from whoever has a key, and from models. A terminal obeys control
characters in them: they can change what stands above, or turn the order of letters round.
"""

import json
import re
import sys
import unicodedata
from functools import lru_cache
from typing import Any, TextIO

# ASCII first: most text has nothing else.
SUSPECT = re.compile(r"[^\n\t -~\u00a1-\u02ff\u3000-\ud7ff]")
JOINERS = "\u200c\u200d"
"""What Persian and emoji need; they move nothing."""


def visible(text: str) -> str:
    """`text` with what a terminal would obey as JSON writes it, such as \\u001b. Line ends and tabs
    stay."""
    return SUSPECT.sub(lambda match: _shown(match[0]), text)


def one_line(text: str) -> str:
    """As `visible`, and without line ends and tabs."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


@lru_cache(1000)
def _shown(character: str) -> str:
    unsafe = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return json.dumps(character)[1:-1] if unsafe and character not in JOINERS else character


class Escaping:
    """A text stream that shows what is written to it. rich writes its own styles beside it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write `text` as `visible` shows it."""
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


def escape_output() -> None:
    """Have all that this process prints pass `visible`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Escaping):
            setattr(sys, name, Escaping(stream))


def unescaped(stream: Any) -> Any:
    """What is below `stream`, for a writer that escapes text itself."""
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    return stream
