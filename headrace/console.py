"""rich's console, which escapes foreign text."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from headrace.terminal import unescaped, visible


class EscapingConsole(Console):
    """A console whose own styles and moves reach the terminal; control characters in texts are
    escaped."""

    @property
    def file(self) -> IO[str]:
        """The stream to write to: below the stream that would escape the styles."""
        stream: IO[str] = unescaped(super().file)
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render `renderable` with escaped texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)
