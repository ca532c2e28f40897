"""A run's status that records the calls of a disk."""


class Status:
    """Records the reasons of pauses, in order; '' when the run continues."""

    def __init__(self, end: bool = False, replaced: bool = False) -> None:
        self.said: list[str] = []
        self.end, self.replaced = end, replaced

    def pause(self, reason: str) -> None:
        self.said.append(reason)

    def go_on(self) -> None:
        self.said.append("")

    def cancelled(self) -> bool:
        return self.end

    def hold(self) -> None:
        if self.replaced:
            raise RuntimeError("fenced")
