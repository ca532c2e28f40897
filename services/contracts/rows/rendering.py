"""From a dataset row to the policy's prompt, in token ids. Pure, except for the tokenizer.

Rollout workers, supervised runs and `headrace chat` all render here, so the policy sees the same
tokens in each.
"""

from typing import Any, Protocol

from services.contracts.config.data import PromptOptions
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import Chat, for_template
from services.contracts.rows.template_limits import CHARACTERS, limited

NO_TEMPLATE = "tools: the model has no chat template that could describe them"


class PromptTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering uses."""

    chat_template: Any

    def __call__(self, text: str, **options: Any) -> Any: ...

    def apply_chat_template(self, conversation: Chat, **options: Any) -> Any: ...


def compose(row: Row, options: PromptOptions) -> str | Chat:
    """The prompt before any tokenizer: text, or messages if the row is a chat or there is a system
    message."""
    if not isinstance(row.prompt, str):
        return row.prompt
    # Not str.format: prompts and templates may hold braces of their own.
    text = options.template.replace("{prompt}", row.prompt)
    if options.system is None:
        return text
    return [{"role": "system", "content": options.system}, {"role": "user", "content": text}]


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
    if options.chat_template == "auto" and tokenizer.chat_template:
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        # The template has written the special tokens.
        text = chat_text(chat, tokenizer, tools or None)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if tools:
        raise ValueError(NO_TEMPLATE)
    return list(tokenizer(plain_text(asked))["input_ids"])


def chat_text(
    chat: Chat,
    tokenizer: PromptTokenizer,
    tools: list[dict[str, Any]] | None = None,
    answer_follows: bool = True,
) -> str:
    """The chat as its template writes it, and if an answer follows the beginning of that. Raises
    ValueError for a chat that the template refuses, and for a template that exceeds the limits."""
    chat = for_template(chat)
    try:
        with limited():
            text = tokenizer.apply_chat_template(
                _in_known_roles(chat, tokenizer),
                tools=tools,
                add_generation_prompt=answer_follows,
                tokenize=False,
            )
    except Exception as error:  # a template is a program, and raises what it likes
        raise ValueError(f"the chat template refuses this prompt: {error}") from error
    if len(text) > CHARACTERS:
        raise ValueError(f"the chat template makes {len(text):,} characters of this prompt")
    return str(text)


def _in_known_roles(chat: Chat, tokenizer: PromptTokenizer) -> Chat:
    """`chat` with `system` in place of `developer`, OpenAI's newer name for it, unless the template
    names that role: many templates write nothing of a message whose role they do not know."""
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
    said = zip(asked, for_template(asked), strict=True)
    return "\n\n".join(str(m["content"]) for given, m in said if given.get("content") is not None)
