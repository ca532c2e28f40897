"""Turn a dataset row into the text that is trained, and locate the assistant's turns in it. Pure.

A chat template writes the text. To locate a turn, the chat is written up to the turn's start and up
to its end. Both texts must be prefixes of the whole text (the template is prefix-stable), or
training would see other text than sampling does later. A template that is not prefix-stable may
mark its answers itself (`{% generation %}`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from services.contracts.config.data import SFTData
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import Chat, for_template
from services.contracts.rows.rendering import chat_text, compose, for_tokenizer, variables_of
from services.contracts.rows.template_limits import limited
from services.contracts.rows.turn_end import ending

FIRST = ("system", "developer")
"""Roles that may only begin a chat."""
BEFORE = {
    "user": (*FIRST, "assistant", ""),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
"""Roles that may come directly before each role. The empty string is the start of the chat."""
CALLS = ("tool_calls", "function_call")
"""Keys of a turn that calls tools; OpenAI's older one last."""
REASONING = ("reasoning_content",)
"""Keys of a turn that hold the reasoning before its answer."""
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The tag before an answer in a template that marks its answers."""


@dataclass(frozen=True)
class ChatRow:
    """A dataset row as turns."""

    turns: Chat
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class ChatText:
    """A conversation as text, written by its chat template."""

    text: str
    spans: list[tuple[int, int]]
    """[start, end) characters of each trained turn of the assistant, including its end."""
    ended: bool
    """Whether the last turn ends with a special token. The policy ends its turn with that token."""
    begins: dict[int, int]
    """First character of each turn of the assistant, by turn number, if it could be located."""


def chat_row(row: Row, data: SFTData) -> ChatRow | str:
    """Return `row` as a conversation, or as plain text if it has no answer. Raises ValueError with
    a message that continues the row's number."""
    if isinstance(row.prompt, str) and row.answer is None:
        if data.train_on != "all":
            raise ValueError(
                f"has no answer to learn (it is {row.answer!r}): map a column to `answer` when the "
                "dataset is uploaded, or set data.train_on to all for plain text"
            )
        return data.template.replace("{prompt}", row.prompt)
    asked = compose(row, data)
    turns = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    if row.answer is not None:
        turns.append(answer_turn(row.answer, row.columns))
    check_roles(turns)
    turns = for_template(turns)
    if data.train_on != "all" and all(turn["role"] != "assistant" for turn in turns):
        raise ValueError(
            "is a conversation without an assistant's turn, so it has nothing to learn: remove it, "
            "or set data.train_on to all"
        )
    return ChatRow(turns, tools_of(row))


def answer_turn(answer: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the turn for a row's `answer`: text, a number, or a whole message of the assistant.
    Raises ValueError for anything else; `columns`, the row's others, only help to word it."""
    if isinstance(answer, dict) and answer.get("role") == "assistant":
        return answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        texts = [name for name, value in columns.items() if isinstance(value, str)]
        named = f" (its other columns of text are {', '.join(texts)[:200]})" if texts else ""
        raise ValueError(
            f"has no answer to learn (it is {answer!s:.200}): upload the file without a "
            f"`--mapping`, and name a column of text with `--answer`{named}"
        )
    return {"role": "assistant", "content": str(answer)}


def tools_of(row: Row) -> list[dict[str, Any]] | None:
    """Return the row's column `tools`: JSON schemas, parsed if the column is text."""
    tools = row.columns.get("tools")
    if isinstance(tools, str):
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError as error:
            raise ValueError(f"has a column `tools` that is no JSON: {error}") from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("has a column `tools` that is no list of JSON schemas: fix it")
    return tools


def check_roles(turns: Chat) -> None:
    before = ""
    for number, turn in enumerate(turns, 1):
        role = turn["role"]
        if role in FIRST:
            allowed = before in ("", *FIRST)
        elif role in BEFORE:
            allowed = before in BEFORE[role]
        else:
            known = ", ".join([*FIRST, *BEFORE])
            raise ValueError(f"has a turn of {role!r} (number {number}); roles are {known}")
        if not allowed:
            after = f"after {before}" if before else "at the beginning"
            raise ValueError(
                f"has roles out of order: turn {number} is {role}, {after}; user and assistant "
                "take turns, system comes first, and tool follows an assistant's call"
            )
        before = role


def write(
    row: ChatRow,
    tokenizer: Any,
    train_on: Literal["assistant", "last", "all"],
    special: Sequence[str],
    ends: Collection[str] = (),
) -> ChatText:
    """Write the conversation with the tokenizer's chat template. `special`: texts of the special
    tokens; `ends`: texts of the tokens that end a turn in this template. Raises ValueError with a
    message that continues the row's number."""
    turns, tools = row.turns, row.tools
    whole = chat_text(turns, tokenizer, tools, answer_follows=False)
    answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    untrained = {i for i in answers if not is_trained(turns[i], i)}
    if train_on == "last":
        answers = answers[-1:]
    spans: list[tuple[int, int]] | None = []
    if train_on != "all" or turns[-1]["role"] == "assistant":
        spans = _by_prefixes(turns, tools, tokenizer, whole, answers)
    if spans is None and train_on != "all":
        spans = generated_parts(turns, tokenizer, tools)
        if spans is None:
            raise ValueError(_unstable(train_on))
        spans = [(start, _with_end(whole, end, ends)) for start, end in spans]
        spans = spans[-1:] if train_on == "last" else spans
    located = spans is not None and len(spans) == len(answers)
    places = dict(zip(answers, spans or [], strict=True)) if located else {}
    begins = {i: start for i, (start, _) in places.items()}
    _check_kept(row, tokenizer, whole)
    _check_contents(turns, {i: whole[start:end] for i, (start, end) in places.items()})
    if untrained.intersection(answers) and train_on != "all":
        if not located:
            raise ValueError(
                f"has a turn ({min(untrained) + 1}) that is not to be trained, and the template's "
                "marks do not show which text is that turn: split the conversation into rows"
            )
        spans = [place for i, place in places.items() if i not in untrained]
    cut = [(start, _end(whole, start, end, special)) for start, end in spans or []]
    ended = turns[-1]["role"] != "assistant" or ending(whole, special) is not None
    return ChatText(whole, [span for span in cut if span[0] < span[1]], ended, begins)


def is_trained(turn: Mapping[str, Any], index: int) -> bool:
    """Whether the loss has this turn of the assistant. Files of OpenAI's format say `weight: 0` if
    not, files of Axolotl's `train: false`. Raises ValueError for a share of a turn."""
    weight = turn.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(
            f"has a turn ({index + 1}) of weight {weight!r:.40}, and a turn is trained or not: "
            "set it to 0 or 1"
        )
    return weight != 0 and turn.get("train") is not False


def _by_prefixes(
    turns: Chat,
    tools: list[dict[str, Any]] | None,
    tokenizer: Any,
    whole: str,
    answers: Sequence[int],
) -> list[tuple[int, int]] | None:
    """Return the spans of `answers`, or None if the template is not prefix-stable."""
    spans = []
    for i in answers:
        before = chat_text(turns[:i], tokenizer, tools)
        after = whole
        if i < len(turns) - 1:
            after = chat_text(turns[: i + 1], tokenizer, tools, answer_follows=False)
        if not (after.startswith(before) and whole.startswith(after)):
            return None
        spans.append((len(before), len(after)))
    return spans


def _end(whole: str, start: int, end: int, special: Sequence[str]) -> int:
    """Return the `end` of a turn without the blanks after its last special token, because sampling
    ends at that token."""
    turn = whole[start:end].rstrip()
    return start + len(turn) if ending(turn, special) else end


def _with_end(whole: str, end: int, ends: Collection[str]) -> int:
    """Extend the `end` of a marked answer past the token that ends the turn. If the marks left this
    token out, the policy would never learn to end its turn."""
    following = (end + len(text) for text in ends if whole.startswith(text, end))
    return max(following, default=end)


def _check_kept(row: ChatRow, tokenizer: Any, whole: str) -> None:
    """Raise ValueError if the template drops the tools, a turn's calls, or the reasoning of the
    last answer: `whole` is the same text without them."""

    def is_dropped(turns: Chat, tools: list[dict[str, Any]] | None) -> bool:
        try:
            return chat_text(turns, tokenizer, tools, answer_follows=False) == whole
        except ValueError:
            # The template refuses a result without a call, so it reads calls.
            return False

    if row.tools and is_dropped(row.turns, None):
        raise ValueError(
            "has a column `tools` that the model's chat template leaves out, so that calls of "
            "unknown tools would be learned: take a model whose template describes tools, or "
            "remove the column"
        )
    last = max((i for i, turn in enumerate(row.turns) if turn["role"] == "assistant"), default=-1)
    for i, turn in enumerate(row.turns):
        # Templates may drop the reasoning of earlier answers.
        for keys in (CALLS, REASONING) if i == last else (CALLS,):
            named = [key for key in keys if turn.get(key)]
            silent = {key: value for key, value in turn.items() if key not in keys}
            turns = [*row.turns[:i], silent, *row.turns[i + 1 :]]
            if named and is_dropped(turns, row.tools):
                raise ValueError(
                    f"has `{named[0]}` (turn {i + 1}) that the model's chat template leaves out, "
                    "so that a turn without it would be learned: take a model whose template "
                    f"writes `{keys[0]}`, write it into the turn's content, or remove it"
                )


def _check_contents(turns: Chat, written: Mapping[int, str]) -> None:
    """Raise ValueError if the template drops the text of a turn. `written`: the template's text for
    each turn, by turn number."""
    for i, text in written.items():
        # Templates may drop reasoning at the start of the content.
        lines = str(turns[i].get("content") or "").strip().splitlines()
        if lines and lines[-1].strip() not in text:
            raise ValueError(
                f"has an answer (turn {i + 1}) whose text the chat template leaves out, so that an "
                "empty turn would be learned: take a template that writes `content` as a text"
            )


def generated_parts(
    chat: Chat, tokenizer: Any, tools: list[dict[str, Any]] | None = None
) -> list[tuple[int, int]] | None:
    """Return the [start, end) characters that the template marks as the assistant's, or None if the
    template has no marks. Raises ValueError as `chat_text` does."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or not MARKED.search(template):
        return None
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special = {name: getattr(tokenizer, name, None) for name in names}
    try:
        messages = for_tokenizer(chat, tokenizer)
        with limited():
            _, (parts,) = render_jinja_template(
                [messages],
                tools=tools,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **{name: value for name, value in special.items() if value is not None},
                **variables_of(tokenizer),
            )
    except Exception as error:
        raise ValueError(f"the chat template refuses this prompt: {error}") from error
    return [(int(start), int(end)) for start, end in parts]


def _unstable(train_on: str) -> str:
    last = "" if train_on == "last" else "set data.train_on to last, if only earlier turns change; "
    return (
        "is a conversation that the chat template writes in another way turn by turn than as a "
        "whole (it may drop the reasoning of earlier turns), so what is sampled later could not be "
        f"trained: {last}take a template that marks the assistant's turns with "
        "{% generation %}; or split the conversation into rows of one answer each"
    )
