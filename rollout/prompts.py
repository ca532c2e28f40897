"""From a dataset row to the policy's prompt: rendered once, in token ids from there on.

The tokenizer comes from the folder that the learner exported for the run, so that rollout and
learner agree on every id.
"""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from services.contracts.config.run import Data
from services.contracts.dataset import Row

Chat = list[dict[str, Any]]


class TokenizerLike(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    chat_template: Any
    eos_token_id: int | None

    def __call__(self, text: str) -> Any: ...

    def apply_chat_template(self, conversation: Chat, **options: Any) -> Any: ...

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]: ...


class PromptTooLong(ValueError):
    """A prompt leaves no room for even one token of an answer."""


def load_tokenizer(model: Path, trust_remote_code: bool = False) -> TokenizerLike:
    """The tokenizer of an exported model folder."""
    from transformers import AutoTokenizer

    tokenizer: TokenizerLike = AutoTokenizer.from_pretrained(
        str(model), trust_remote_code=trust_remote_code, local_files_only=True
    )
    return tokenizer


def eos_token_ids(model: Path, tokenizer: TokenizerLike) -> list[int]:
    """Every id that ends a completion: those of generation_config.json, else of config.json,
    and the tokenizer's."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = model / name
        value = (
            msgspec.json.decode(file.read_bytes()).get("eos_token_id") if file.exists() else None
        )
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
            break
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return sorted(found)


def compose(row: Row, data: Data) -> str | Chat:
    """What the policy is asked, before any tokenizer: text, or messages where the row or the
    system prompt makes it a chat."""
    if not isinstance(row.prompt, str):
        return row.prompt
    # Not str.format: prompts and templates may hold braces of their own.
    text = data.template.replace("{prompt}", row.prompt)
    if data.system is None:
        return text
    return [{"role": "system", "content": data.system}, {"role": "user", "content": text}]


def render(asked: str | Chat, data: Data, tokenizer: TokenizerLike) -> list[int]:
    """The prompt's token ids.

    Without a chat template (or with `chat_template: none`) the messages' contents are joined by
    blank lines. Raises ValueError for a chat that the template refuses.
    """
    if data.chat_template == "auto" and tokenizer.chat_template:
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        try:
            ids = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise ValueError(f"the chat template refuses this prompt: {error}") from error
        return list(ids)
    text = asked if isinstance(asked, str) else "\n\n".join(str(m["content"]) for m in asked)
    return list(tokenizer(text)["input_ids"])


def room(prompt_tokens: list[int], context: int) -> int:
    """Tokens an answer may have. Raises PromptTooLong where there is none."""
    left = context - len(prompt_tokens)
    if left < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt_tokens)} tokens and the context {context} "
            "(rollout.vllm.max_model_len): no room for an answer"
        )
    return left
