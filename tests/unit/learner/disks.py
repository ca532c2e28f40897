"""A run's status that remembers what it was told."""


class Status:
    """What the run's status said, in order; '' for: it goes on."""

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
