"""From a dataset row to the policy's prompt, in token ids. Pure, except for the tokenizer.

Rollout workers, supervised runs and `headrace chat` all render here, so the policy sees the same
tokens in each. The chat template of a run and its variables are the tokenizer's (`use_template`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from services.contracts.config.data import PromptOptions
from services.contracts.rows.content_parts import in_parts, roles_in_parts
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import Chat, for_template
from services.contracts.rows.template_limits import CHARACTERS, limited

NO_TEMPLATE = "tools: the model has no chat template that could describe them"
VARIABLES = "chat_template_kwargs"
"""The attribute of a tokenizer that holds the variables of its run's chat template."""
SYSTEM = ("system", "developer")
KEPT = (*SYSTEM, "user")
"""Roles whose text a template must write."""
PROBED = 64
"""Characters of a text that show what a tokenizer puts before it."""


class PromptTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering uses."""

    chat_template: Any

    def __call__(self, text: str, **options: Any) -> Any: ...

    def apply_chat_template(self, conversation: Chat, **options: Any) -> Any: ...


def use_template(tokenizer: PromptTokenizer, options: PromptOptions) -> None:
    """Give `tokenizer` the chat template of a run, if that has its own, and its variables. A
    tokenizer that is saved afterwards has the template."""
    if options.own_template is not None:
        tokenizer.chat_template = options.own_template
    setattr(tokenizer, VARIABLES, options.chat_template_kwargs)


def variables_of(tokenizer: PromptTokenizer) -> Mapping[str, Any]:
    """The variables that the run gives its chat template."""
    variables: Mapping[str, Any] = getattr(tokenizer, VARIABLES, {})
    return variables


def unread_variables(names: Iterable[str], tokenizer: PromptTokenizer) -> list[str]:
    """Return the variables among `names` that the chat template does not mention."""
    template = str(tokenizer.chat_template or "")
    return [name for name in names if not re.search(rf"\b{re.escape(name)}\b", template)]


def compose(row: Row, options: PromptOptions) -> str | Chat:
    """The prompt before any tokenizer: text, or messages if the row is a chat or there is a system
    message. A chat keeps its own system message."""
    prompt = row.prompt
    if isinstance(prompt, str):
        # Not str.format: prompts and templates may hold braces of their own.
        prompt = options.template.replace("{prompt}", prompt)
        if options.system is None:
            return prompt
        prompt = [{"role": "user", "content": prompt}]
    if options.system is None or any(message.get("role") in SYSTEM for message in prompt):
        return prompt
    return [{"role": "system", "content": options.system}, *prompt]


def render(
    asked: str | Chat,
    options: PromptOptions,
    tokenizer: PromptTokenizer,
    tools: list[dict[str, Any]] | None = None,
) -> list[int]:
    """The prompt's token ids. `tools`: functions that it describes to the policy, in OpenAI's form.

    Without a chat template, or with `chat_template: none`, blank lines join the messages' contents.
    Raises ValueError for a chat that the template refuses, and for tools without a template.
    """
    if templated(options, tokenizer):
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        # The template has written the special tokens.
        text = chat_text(chat, tokenizer, tools or None)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if tools:
        raise ValueError(NO_TEMPLATE)
    return text_ids(plain_text(asked), tokenizer)


def text_ids(text: str, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a text that an answer follows: with what the tokenizer puts before a text, unless
    the text has it, and without the end of sequence that some put behind it."""
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    before = begin_ids(text, tokenizer)
    return ids if before and ids[: len(before)] == before else [*before, *ids]


def begin_ids(text: str, tokenizer: PromptTokenizer) -> list[int]:
    """The ids that the tokenizer puts before a text: mostly none, or a beginning of sequence."""
    probe = text[:PROBED]
    bare = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(probe)["input_ids"])
    if not bare:
        return [id for id in whole if id == getattr(tokenizer, "bos_token_id", None)]
    places = (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    return whole[: next(places, 0)]


def templated(options: PromptOptions, tokenizer: PromptTokenizer) -> bool:
    """Whether a chat template writes the prompts."""
    return options.chat_template != "none" and bool(tokenizer.chat_template)


def chat_text(
    chat: Chat,
    tokenizer: PromptTokenizer,
    tools: list[dict[str, Any]] | None = None,
    answer_follows: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return the chat as its template writes it, with the beginning of the assistant's turn if an
    answer follows. `variables` replace the run's of the same names. Raises ValueError for a chat
    that the template refuses or whose text it leaves out, and for a template that exceeds the
    limits."""
    chat = for_template(chat)
    try:
        messages = for_tokenizer(chat, tokenizer)
        text = _written(messages, tokenizer, tools, answer_follows, variables or {})
    except Exception as error:  # a template is a program, and raises what it likes
        raise ValueError(f"the chat template refuses this prompt: {error}") from error
    if len(text) > CHARACTERS:
        raise ValueError(f"the chat template makes {len(text):,} characters of this prompt")
    _check_kept(chat, text)
    return text


def for_tokenizer(chat: Chat, tokenizer: PromptTokenizer) -> Chat:
    """`chat`, as `for_template` has it, as the tokenizer's chat template reads it. Raises
    TemplateTooGreedy."""

    def written(messages: Chat, answer_follows: bool) -> str:
        return _written(messages, tokenizer, None, answer_follows, {})

    messages = _in_known_roles(chat, tokenizer)
    state = str(tokenizer.chat_template), repr(variables_of(tokenizer))
    return in_parts(messages, roles_in_parts(tokenizer, state, written))


def _written(
    messages: Chat,
    tokenizer: PromptTokenizer,
    tools: list[dict[str, Any]] | None,
    answer_follows: bool,
    variables: Mapping[str, Any],
) -> str:
    with limited():
        text = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=answer_follows,
            tokenize=False,
            **{**variables_of(tokenizer), **variables},
        )
    return str(text)


def _check_kept(chat: Chat, text: str) -> None:
    """Raise ValueError if `text` lacks the content of a message of the system or the user.
    Templates may change the blanks."""
    squeezed: str | None = None
    for number, message in enumerate(chat, 1):
        content = message["content"]
        if message.get("role") not in KEPT or not isinstance(content, str):
            continue
        if content.strip() in text:
            continue
        squeezed = "".join(text.split()) if squeezed is None else squeezed
        if "".join(content.split()) not in squeezed:
            raise ValueError(
                f"the chat template leaves out the text of message {number} ({message['role']}), "
                f"{content.strip()[:60]!r}, so the model would not read it: take another template "
                "(data.chat_template), or leave the message out"
            )


def _in_known_roles(chat: Chat, tokenizer: PromptTokenizer) -> Chat:
    """Replace the role `developer`, OpenAI's newer name for `system`, by `system`, unless the
    template names `developer`. Many templates drop a message with an unknown role."""
    if "developer" in str(tokenizer.chat_template):
        return chat
    return [
        {**message, "role": "system"} if message.get("role") == "developer" else message
        for message in chat
    ]


def plain_text(asked: str | Chat) -> str:
    """The prompt without a chat template: the messages' contents, joined by blank lines."""
    if isinstance(asked, str):
        return asked
    pairs = zip(asked, for_template(asked), strict=True)
    return "\n\n".join(
        str(shown["content"]) for message, shown in pairs if message.get("content") is not None
    )
