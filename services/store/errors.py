"""Errors that only the store raises."""

from redis.exceptions import ConnectionError


class Fenced(RuntimeError):
    """Another learner has taken over the run; this learner may not change it any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"another learner has taken over run {run}")


class PlanStands(RuntimeError):
    """A batch was planned twice, differently. The first plan is the one that is replayed."""

    def __init__(self, run: str, step: int) -> None:
        super().__init__(
            f"step {step} of run {run} has another plan, or a checkpoint that covers it: restart "
            "the learner, which replays what is recorded"
        )


class Unplanned(RuntimeError):
    """A checkpoint contains a batch that was never planned."""

    def __init__(self, run: str, step: int) -> None:
        super().__init__(
            f"run {run} cannot commit a checkpoint that covers step {step}, which has no plan: "
            "restart the learner, which resumes from the current checkpoint"
        )


class Unreadable(ValueError):
    """A record in Redis is not one that a Headrace of this schema wrote."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be read: {reason[:500]}")


class StreamFull(RuntimeError):
    """The stream of this run takes no more bytes: complete this attempt later."""


class Gone(KeyError):
    """A run that another run needs is deleted, or is being deleted."""

    def __str__(self) -> str:
        return str(self.args[0])


class StillRunning(ValueError):
    """A run that has not ended cannot be continued by another run or deleted."""

    def __init__(self, run: str, state: str) -> None:
        super().__init__(f"run {run} is {state}: cancel it before it is resumed, or let it go on")


class RedisFull(ConnectionError):
    """Redis has reached its `maxmemory` and refuses writes that may grow. Waiting helps, as when
    Redis is away."""

    def __init__(self) -> None:
        super().__init__(
            "Redis has no memory left: raise its limit (`CONFIG SET maxmemory …`), or delete runs "
            "that are over (`headrace rm RUN`)"
        )


class LostWrites(RuntimeError):
    """Redis does not have writes that it had acknowledged."""
