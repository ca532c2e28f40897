"""The failures that drop a task, and the number of tries before.

A dropped task is never trained, and its reason is in the ledger. A prompt that is too long is
dropped at once: another try would fail alike. Any other failure releases the task, so that another
worker tries it; the third failure of one kind drops it (`release.lua`). Filters drop tasks too:
`filtering` for groups, `data.filter` for prompts (`group_tasks`).
"""

from dataclasses import dataclass

from rollout.vllm.client.policy_client import PastDeadline
from rollout.vllm.model_files import PromptTooLong
from rollout.work.group import VerifierBroke

TRIES = 3
"""Failures of one kind after which a task is dropped instead of released."""


@dataclass(frozen=True)
class TaskFailure:
    """One kind of failure of a task."""

    error: type[Exception]
    cause: str
    """The reason in the ledger."""
    summary: str
    """The run's reason if every task fails like this; an example is appended."""
    event: str = ""
    """The event that is added at the first failure of this kind."""
    drops: bool = False
    """Whether the first failure drops the task."""


FAILURES = (
    TaskFailure(
        PromptTooLong,
        "too_long",
        "every prompt tried is too long",
        "a row is dropped, as is any other like it (data.long_prompts cut would shorten it)",
        drops=True,
    ),
    TaskFailure(
        VerifierBroke,
        "verifier_error",
        "no completion can be scored",
        "a group without a single score is sampled again, and dropped in the end",
    ),
    TaskFailure(
        PastDeadline,
        "too_slow",
        "no group is finished in time (rollout.straggler_deadline)",
        "a prompt is sampled again",
    ),
    # Refused requests, damaged files, a broken episode.
    TaskFailure(Exception, "refused", "nothing can be sampled and scored"),
)


def kind_of(error: Exception) -> TaskFailure:
    """Return the first kind of failure that `error` is."""
    return next(kind for kind in FAILURES if isinstance(error, kind.error))
