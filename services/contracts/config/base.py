"""What every config section shares: no unknown keys, no silent changes after validation."""

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
