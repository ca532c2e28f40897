"""The base of every config section: it refuses unknown keys, and is frozen after validation."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """A part of the run config."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        # A key that is a word of Python's (`lambda`) has an alias, and is written by that.
        serialize_by_alias=True,
    )

    @field_validator("*")
    @classmethod
    def _fits_64_bits(cls, value: Any) -> Any:
        # torch, numpy and Redis take no larger ones: the learner would crash on them, not here.
        values = value if isinstance(value, list | tuple) else [value]
        too_large = (isinstance(item, int) and not -(2**63) <= item < 2**63 for item in values)
        refuse_if(any(too_large), "is beyond 64 bits: choose a number below 9.2e18")
        return value


def refuse_if(wrong: bool, reason: str) -> None:
    """Raise ValueError with `reason`, which names the values and the way out, if `wrong`."""
    if wrong:
        raise ValueError(reason)
