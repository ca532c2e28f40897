"""The beginning of a file, as it would become rows of a dataset."""

from typing import Any

from pydantic import BaseModel, Field


class MappedRow(BaseModel):
    """A row of a dataset, made of a row of a file."""

    prompt: str | list[dict[str, Any]] = Field(description="Text, or chat messages.")
    answer: Any = Field(description="The verifier's reference.")
    columns: dict[str, Any] = Field(description="The columns that are neither.")


class FilePreview(BaseModel):
    """The beginning of a file: its own columns, and the rows of a dataset that they become."""

    format: str | None = Field(description="Its format. Null: it cannot be told.")
    columns: list[str] = Field(description="Columns of the first rows.")
    source: list[dict[str, Any]] = Field(
        description="The first rows as they stand in the file. A long value is text without its "
        "middle."
    )
    prompt: list[str] = Field(description="The columns that become the prompt.")
    answer: list[str] = Field(description="The columns that become the answer.")
    rows: list[MappedRow] = Field(description="The same rows as the dataset would have them.")
    notes: list[str] = Field(description="Guesses about how the file is read.")
    problem: str | None = Field(description="Why the file or the mapping cannot be used.")
