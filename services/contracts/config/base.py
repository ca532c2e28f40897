"""The base of every config section: no unknown keys, no changes after validation."""

from pydantic import BaseModel, ConfigDict


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


def refuse_if(wrong: bool, reason: str) -> None:
    """Raise ValueError with `reason`, which names the values and the way out, if `wrong`."""
    if wrong:
        raise ValueError(reason)
