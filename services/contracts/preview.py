"""Rows of a dataset as a run's model will read them. The gateway has a child process render them
(`learner.tools.preview`), and shows them with each submission."""

from typing import Any, Literal

from pydantic import BaseModel, Field

Form = Literal["chat_template", "plain_text"]


class AskedRow(BaseModel):
    """A row to render."""

    index: int
    prompt: str | list[dict[str, Any]]
    answer: Any = None
    columns: dict[str, Any] = {}


class CountedRows(BaseModel):
    """Rows of one dataset to count, with how its prompts are asked."""

    template: str
    system: str | None
    chat_template: str | None = None
    """Null: the run's."""
    rows: list[AskedRow]
    most: int | None
    """Tokens of the longest usable row. None: nobody knows."""
    roomy: int | None
    """Tokens of the longest prompt that leaves an answer `sampling.max_tokens`. None: unknown, as
    for supervised rows."""


class PreviewJob(BaseModel):
    """A request to the child process."""

    config: dict[str, Any]
    """The run's."""
    folder: str
    """The tokenizer's folder."""
    rows: list[AskedRow]
    characters: int
    """Most that is shown of a row."""
    counted: dict[str, CountedRows] = {}
    """By the keys that name the datasets."""


class RenderedPiece(BaseModel):
    """A part of a rendered row."""

    text: str = Field(description="With special tokens; a long one lacks its middle.")
    trained: bool = Field(description="Whether the loss of a supervised run counts it.")


class ReferenceVerdict(BaseModel):
    """A verifier's verdict on the reference itself, given as an answer."""

    verifier: str = Field(description="Its name.")
    reward: float | None = Field(description="Null: it broke.")
    status: str = Field(description="`correct`, `wrong`, …")
    detail: str = Field(description="A sentence for a person.")


class RenderedRow(BaseModel):
    """A row as the model will read it."""

    index: int = Field(description="Its place in the dataset, from 0.")
    answer: Literal["chosen", "rejected"] | None = Field(
        None, description="Which of two answers is shown, if the run compares two."
    )
    pieces: list[RenderedPiece] = Field(
        default_factory=list, description="Its text: one piece, or trained ones and others in turn."
    )
    tokens: int | None = Field(
        None, description="Of all its text. Null: the tokenizer is not on the gateway's host."
    )
    trained_tokens: int | None = Field(
        None, description="Those that the loss of a supervised run counts."
    )
    reference: str | None = Field(
        None, description="The verifier's reference, as text or JSON; a long one lacks its middle."
    )
    verdicts: list[ReferenceVerdict] = Field(
        default_factory=list,
        description="Of the reference itself, given as an answer. Only `POST /v1/preview` asks, if "
        "the reference is a text or a number.",
    )
    problem: str | None = Field(None, description="Why it cannot be rendered.")


class RowCounts(BaseModel):
    """Counts over all rows of a dataset, or over evenly chosen rows of a large one."""

    rows: int = Field(0, description="Rows that were rendered.")
    fewest_tokens: int = Field(0, description="Of the shortest row.")
    most_tokens: int = Field(0, description="Of the longest row.")
    median_tokens: int = Field(0, description="Half of the rows have no more.")
    too_long: int = Field(0, description="Rows that have more tokens than a row may have.")
    crowded: int = Field(
        0, description="Prompts that leave an answer fewer tokens than `sampling.max_tokens`."
    )
    unusable: int = Field(0, description="Rows that cannot be rendered. `rows` leaves them out.")
    first_unusable: tuple[int, str] | None = Field(
        None, description="The first such row, and why it cannot be rendered."
    )
    unknown: int = Field(
        0, description="Prompts with characters that the tokenizer has no token for."
    )
    unknown_characters: list[str] = Field(
        default_factory=list, description="Some of these characters."
    )
    special: int = Field(
        0, description="Prompts whose own text has special tokens that a chat template writes, too."
    )
    special_tokens: list[str] = Field(default_factory=list, description="Some of these tokens.")
    left_out: dict[str, int] = Field(
        default_factory=dict,
        description="Prompts with earlier answers (`assistant`), `tool_calls`, results of tools "
        "(`tool`) or descriptions of tools (`tools`) that the model would not read.",
    )


class Rendering(BaseModel):
    """Rows, and what rendered them."""

    form: Form | None = Field(
        None,
        description="`chat_template`: the model's chat template; `plain_text`: none, so that blank "
        "lines join the messages of a chat. Null: nobody knows here.",
    )
    rows: list[RenderedRow] = Field(default_factory=list, description="In their order.")
    unbegun: str = Field(
        "",
        description="What the chat template writes between prompt and answer, if prompts lack it.",
    )
    has_end: bool = Field(True, description="Whether the model names a token that ends an answer.")
    unread_variables: list[str] = Field(
        default_factory=list,
        description="Names in `data.chat_template_kwargs` that the chat template does not mention.",
    )
    idle_variables: list[str] = Field(
        default_factory=list,
        description="Names of texts in `data.chat_template_kwargs` that the chat template "
        "mentions, and without which the first row is the same.",
    )
    counts: dict[str, RowCounts] = Field(
        default_factory=dict, description="By the keys that name the datasets: `data.dataset`, …"
    )
    note: str | None = Field(
        None, description="Why there is no row, or what rows lack that the model will read."
    )

    @property
    def first(self) -> "Rendering":
        """The first row alone, with both answers if there are two."""
        rows = [row for row in self.rows if row.index == self.rows[0].index]
        return self.model_copy(update={"rows": rows})


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning and its end."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    left_out = len(text) - head - tail
    return f"{text[:head]} […{left_out:,} characters…] {text[len(text) - tail :]}"
