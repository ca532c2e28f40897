"""rich's console, with text from elsewhere shown escaped."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from services.runtime.terminal import unescaped, visible


class EscapingConsole(Console):
    """Only its own styles and moves reach the terminal as such."""

    @property
    def file(self) -> IO[str]:
        """Where it writes: below the stream that would escape its styles."""
        stream: IO[str] = unescaped(super().file)
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What `renderable` looks like."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)
