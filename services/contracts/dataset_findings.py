"""What the rows of a dataset are like: lengths, repetitions, references that cannot be read."""

from typing import Literal

from pydantic import BaseModel, Field

CountState = Literal["counting", "counted", "failed"]


class LengthBucket(BaseModel):
    """Rows of similar length."""

    start: int = Field(description="The shortest length of the bucket.")
    end: int = Field(description="The longest one.")
    rows: int = Field(description="Rows between these lengths, which count as inside.")


class TextLengths(BaseModel):
    """How long texts are, in characters."""

    rows: int = Field(description="Rows that have the text.")
    min: int = Field(description="The shortest.")
    median: int = Field(description="Half of the rows are no longer.")
    p95: int = Field(description="95 % of the rows are no longer.")
    max: int = Field(description="The longest.")
    longest_row: int = Field(description="The index of the first row with the longest text.")
    mean: float = Field(description="The mean.")
    buckets: list[LengthBucket] = Field(
        description="Numbers of rows for a histogram. Each bucket begins at a power of two."
    )


class TokenLengths(BaseModel):
    """How long rows are in a model's tokens."""

    model: str = Field(description="The model.")
    rows: int = Field(description="Rows that were counted, evenly chosen from a large dataset.")
    min: int = Field(description="The shortest.")
    median: int = Field(description="Half of the rows are no longer.")
    max: int = Field(description="The longest.")


class RepeatedRow(BaseModel):
    """A row that repeats an earlier one."""

    row: int = Field(description="Its index.")
    first: int = Field(description="The index of the first row like it.")


class Repetitions(BaseModel):
    """Rows that repeat earlier rows."""

    rows: int = Field(description="How many repeat an earlier one.")
    examples: list[RepeatedRow] = Field(description="The first of them.")


class UnreadableReference(BaseModel):
    """A reference that a verifier cannot read."""

    row: int = Field(description="The row's index.")
    reason: str = Field(description="Why.")


class ReadReferences(BaseModel):
    """What a verifier makes of the references of a dataset."""

    verifier: str = Field(description="Its name.")
    state: CountState = Field(description="`counting`: it reads further ones; ask again.")
    rows: int = Field(description="References that it has read.")
    unreadable: int = Field(
        description="References that it cannot read. Answers to their rows have no reward."
    )
    examples: list[UnreadableReference] = Field(description="The first of them.")
    remark: str = Field("", description="What it finds odd in most of the others.")
    problem: str | None = Field(None, description="Why it has not read all of them.")


class RowFindings(BaseModel):
    """Counts over all rows of a dataset."""

    prompts: TextLengths = Field(description="The prompts; of a chat, all contents together.")
    answers: TextLengths | None = Field(description="The references. Null: no row has one.")
    duplicates: Repetitions = Field(description="Rows with prompt and answer of an earlier row.")
    other_answers: Repetitions = Field(
        description="Rows with the prompt of an earlier row, and an answer that no earlier row has "
        "for it."
    )
