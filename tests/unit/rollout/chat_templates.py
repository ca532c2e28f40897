"""Chat templates and a tokenizer of bytes, for tests of sessions. Our own templates in `templates`
write the same texts as the published templates of their names."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CALLS = (
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "\n</tool_call>{% endfor %}"
)
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + CALLS + "<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin|>{% if tools %}<|start|>system<|end|>\n\n{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}"
    + CALLS
    + "{% if m.tool_calls %}<|eom|>{% else %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
# Like Qwen3's: the last answer shows its reasoning, or an empty one, and earlier answers show none.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}" + CALLS + "<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3, LLAMA31 = (
    (Path(__file__).parent / "templates" / f"{name}.jinja").read_text()
    for name in ("qwen3", "llama31")
)
UNENDED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENDS = ["<|im_end|>", "<|eom|>", "<|eot_id|>"]
SPECIAL = [*ENDS, "<|im_start|>", "<|begin|>", "<|start|>", "<|end|>"]
SPECIAL += ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def tokenizer_of(template: str | None) -> Any:
    """A token for each byte, and for each special text."""
    alphabet = {character: id for id, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin_of_text|>")
    made.chat_template = template
    return made


def ends_of(tokenizer: Any) -> list[int]:
    """Its template's special tokens come first."""
    template = tokenizer.chat_template or ""
    return [
        tokenizer.convert_tokens_to_ids(token)
        for token in sorted(ENDS, key=lambda end: end not in template)
    ]


def tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def call(id: str, name: str = "add") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}
