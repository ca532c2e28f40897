"""Render dataset rows as text that shows what the model reads and which parts are trained. Pure,
except for the tokenizer."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from learner.batch.row_counts import counted
from learner.batch.sft_rows import RowTokenizer, TokenRow, UnusableRow
from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.config.episodes import Tools
from services.contracts.preview import (
    AskedRow,
    PreviewJob,
    RenderedPiece,
    RenderedRow,
    Rendering,
    shortened,
)
from services.contracts.rows.dataset import Row
from services.contracts.rows.preference import PAIR
from services.contracts.rows.rendering import (
    compose,
    render,
    templated,
    unread_variables,
    use_template,
)
from services.contracts.rows.turn_end import eos_token_ids, unbegun

MOST_PIECES = 64
"""Pieces that are shown of one row. A long conversation has more."""
LEAST = 40
"""Fewest characters that are shown of each piece."""


def rendered(job: PreviewJob, tokenizer: Any) -> Rendering:
    config = parse_config(job.config)
    use_template(tokenizer, config.data)
    rows = [
        shown
        for asked in job.rows
        for shown in (
            [_prompt(asked, config, tokenizer, job.characters)]
            if isinstance(config, RLConfig)
            else _learned(asked, config, tokenizer, job.characters)
        )
    ]
    form = "chat_template" if templated(config.data, tokenizer) else "plain_text"
    unread = unread_variables(config.data.chat_template_kwargs, tokenizer)
    # A template that fails for all rows, maybe after seconds, is not asked again.
    works = any(row.problem is None for row in rows)
    looked = job.rows[:1] if form == "chat_template" else []
    idle = [name for asked in looked for name in _idle(asked, config, tokenizer, unread)]
    return Rendering(
        form=form,
        rows=rows,
        unbegun=unbegun(tokenizer) if works and form == "chat_template" else "",
        has_end=not works or bool(eos_token_ids(Path(job.folder), tokenizer)),
        unread_variables=unread,
        idle_variables=idle,
        counts=counted(job, config, tokenizer),
    )


def _idle(
    asked: AskedRow, config: RLConfig | SFTConfig, tokenizer: Any, unread: list[str]
) -> list[str]:
    """Return the text variables of the chat template that do not change the row's tokens: their
    value may be misspelt. For episodes with tools the list is empty, because tools are not rendered
    here and a variable may affect only them."""
    if isinstance(config, RLConfig) and isinstance(config.rollout.episode, Tools):
        return []
    variables = config.data.chat_template_kwargs
    names = [
        name for name, value in variables.items() if isinstance(value, str) and name not in unread
    ]
    if not names or (tokens := _tokens(asked, config, tokenizer)) is None:
        return []
    idle = []
    for name in names:
        others = {other: value for other, value in variables.items() if other != name}
        use_template(tokenizer, config.data.model_copy(update={"chat_template_kwargs": others}))
        if _tokens(asked, config, tokenizer) == tokens:
            idle.append(name)
    use_template(tokenizer, config.data)
    return idle


def _tokens(asked: AskedRow, config: RLConfig | SFTConfig, tokenizer: Any) -> list[int] | None:
    """Return the row's tokens, with the first of two answers, or None if the row cannot be
    rendered."""
    try:
        if isinstance(config, RLConfig):
            return render(compose(_row(asked), config.data), config.data, tokenizer)
        answer = PAIR[0] if config.objective.type == "dpo" else None
        row = RowTokenizer(tokenizer, config.data, answer).row(_row(asked), asked.index)
        return [int(token) for token in row.tokens]
    except (ValueError, UnusableRow):
        return None


def _row(asked: AskedRow) -> Row:
    return Row(prompt=asked.prompt, answer=asked.answer, columns=asked.columns)


def _prompt(asked: AskedRow, config: RLConfig, tokenizer: Any, characters: int) -> RenderedRow:
    try:
        ids = render(compose(_row(asked), config.data), config.data, tokenizer)
    except ValueError as error:
        return RenderedRow(index=asked.index, problem=str(error))
    pieces = [RenderedPiece(text=shortened(_text(tokenizer, ids), characters), trained=False)]
    return RenderedRow(index=asked.index, pieces=pieces, tokens=len(ids))


def _learned(
    asked: AskedRow, config: SFTConfig, tokenizer: Any, characters: int
) -> list[RenderedRow]:
    """Render the row, or each of its two answers."""
    answers = PAIR if config.objective.type == "dpo" else (None,)
    rows = []
    for answer in answers:
        shown: dict[str, Any] = {"index": asked.index, "answer": answer}
        try:
            row = RowTokenizer(tokenizer, config.data, answer).row(_row(asked), asked.index)
        except UnusableRow as error:
            rows.append(RenderedRow(**shown, problem=str(error)))
            continue
        trained = sum(int(end - start) for start, end in row.spans)
        pieces = _pieces(row, tokenizer, characters)
        rows.append(
            RenderedRow(**shown, pieces=pieces, tokens=len(row.tokens), trained_tokens=trained)
        )
    return rows


def _pieces(row: TokenRow, tokenizer: Any, characters: int) -> list[RenderedPiece]:
    """Cut the row at the edges of its trained spans."""
    edges = sorted({0, *(int(edge) for span in row.spans for edge in span), len(row.tokens)})
    starts = {int(start) for start, _ in row.spans}
    cuts = list(pairwise(edges))
    shown = cuts[:MOST_PIECES]
    each = max(characters // len(shown), LEAST)
    pieces = []
    for start, end in shown:
        text = shortened(_text(tokenizer, row.tokens[start:end].tolist()), each)
        pieces.append(RenderedPiece(text=text, trained=start in starts))
    if len(cuts) > len(shown):
        pieces.append(RenderedPiece(text=f" […{len(cuts) - len(shown)} parts…]", trained=False))
    return pieces


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
