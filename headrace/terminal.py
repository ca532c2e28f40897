"""Makes foreign text safe for a terminal.

Names, reasons and answers come from clients and from models. A terminal obeys control characters in
them: they can change earlier lines, or reverse the order of letters.
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
"""Needed by Persian and emoji; they move nothing."""


def visible(text: str) -> str:
    """Return `text` with control characters escaped as in JSON, such as \\u001b. Line ends and tabs
    stay."""
    return SUSPECT.sub(lambda match: _shown(match[0]), text)


def one_line(text: str) -> str:
    """Return `text` like `visible`, with line ends and tabs escaped too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


@lru_cache(1000)
def _shown(character: str) -> str:
    unsafe = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return json.dumps(character)[1:-1] if unsafe and character not in JOINERS else character


class Escaping:
    """A text stream that escapes what is written to it. rich bypasses it for its own styles."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write `text` as `visible` returns it."""
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


def escape_output() -> None:
    """Escape everything that this process prints."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Escaping):
            setattr(sys, name, Escaping(stream))


def unescaped(stream: Any) -> Any:
    """Return the stream below `stream`, for a writer that escapes text itself."""
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    return stream
