"""Errors of the store's own."""

from redis.exceptions import ConnectionError


class Fenced(RuntimeError):
    """Another learner has taken the run over; this one may change nothing any more."""

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
    """A checkpoint holds a batch that was never planned, so nobody can say what it taught."""

    def __init__(self, run: str, step: int) -> None:
        super().__init__(
            f"run {run} cannot commit a checkpoint that covers step {step}, which has no plan: "
            "restart the learner, which resumes from the current checkpoint"
        )


class Unreadable(ValueError):
    """What Redis holds of one run or dataset is not what any Headrace of this schema wrote."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be read: {reason[:500]}")


class NoRoom(RuntimeError):
    """Redis holds as many bytes of this run's groups as it may: hand this one in later."""


class Gone(KeyError):
    """A run that another needs is not there, or will not be in a moment."""

    def __str__(self) -> str:
        return str(self.args[0])


class StillRunning(ValueError):
    """A run that has not ended can neither be continued by another nor deleted."""

    def __init__(self, run: str, state: str) -> None:
        super().__init__(f"run {run} is {state}: cancel it before it is resumed, or let it go on")


class RedisFull(ConnectionError):
    """Redis has reached its `maxmemory` and takes no write that may grow. Waiting helps, as where
    Redis is away."""

    def __init__(self) -> None:
        super().__init__(
            "Redis has no memory left: raise its limit (`CONFIG SET maxmemory …`), or delete runs "
            "that are over (`headrace rm RUN`)"
        )


class LostWrites(RuntimeError):
    """Redis does not have what it had acknowledged."""
