"""The reward service's HTTP contract for the tool `python`: `POST /v1/python`."""

from pydantic import BaseModel, ConfigDict, Field

MAX_PROGRAM = 1 << 16
"""Characters."""


class PythonRequest(BaseModel):
    """A program that the policy wrote."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"code": "print(6 * 7)"}}
    )

    code: str = Field(max_length=MAX_PROGRAM, description="The program.")
    seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Seconds of CPU time that all of its processes may take together, and by the "
        "clock, without what it waits for a CPU.",
    )


class PythonOutput(BaseModel):
    """The program's output, as the policy reads it."""

    output: str = Field(
        description="What it printed, at most 64 KiB, and how it failed if it did: the end of its "
        "traceback, and the exit code or the limit that it reached."
    )
