"""Lines that the processes of an installation log, as their readers see them."""

from typing import Literal

from pydantic import BaseModel, Field

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""In order: a reader who asks for one gets those behind it, too."""


class WrittenLine(BaseModel):
    """A line as its process wrote it."""

    time: float = Field(description="When it was written, in Unix seconds.")
    process: str = Field(
        description="Its process: `learner` (the supervisor of the ranks), `learner/RANK`, "
        "`rollout/WORKER`, `vllm/WORKER`, `gateway/HOST` or `reward/HOST`.",
        examples=["learner/0"],
    )
    host: str = Field(description="The host of the process.")
    level: Level = Field(description="How much it matters.")
    text: str = Field(
        description="The message and its details, of at most 4,000 characters; a traceback is on "
        "further lines. Secrets are masked.",
        examples=["vLLM serves  seconds=41.3"],
    )
    run: str | None = Field(None, description="The run that the process worked on, if it said so.")


class LogLine(WrittenLine):
    """A line of a log."""

    id: str = Field(description="Orders lines by when they arrived.", examples=["1718000000000-0"])


def is_of(process: str, wanted: str) -> bool:
    """Whether `process` is `wanted`, or one of its kind: `learner/0` is a `learner`."""
    return process == wanted or process.startswith(f"{wanted}/")


class RecentLines(BaseModel):
    """The newest lines of a process without access to Redis. The gateway asks for them."""

    start: str = Field(description="Names this start of the process: its lines count from 0.")
    next: int = Field(description="The number of the line that comes next.")
    lines: list[WrittenLine] = Field(description="The lines that were asked for, oldest first.")
