"""What a turn of a session adds: together with what was sampled it is what the template writes."""

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollout.work.chat_rendering import added, opening

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
# As Qwen3's: the last answer shows its reasoning, or an empty one, and earlier ones do not.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}" + CALLS + "<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNENDED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eom|>", "<|begin|>", "<|start|>", "<|end|>"]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def tokenizer_of(template: str | None) -> Any:
    """A token for each byte, and for each special text."""
    alphabet = {character: id for id, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.chat_template = template
    return made


def ends_of(tokenizer: Any) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|eom|>")]


def tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def conversation(chance: random.Random) -> list[dict[str, Any]]:
    """Turns of questions, calls, results and answers; the last message is an answer."""
    texts = ["sum?", "4", "né", "日本", "a b", "x\ny", "🙂"]
    messages: list[dict[str, Any]] = []
    if chance.random() < 0.5:
        messages.append({"role": "system", "content": chance.choice(texts)})
    for turn in range(chance.randint(1, 4)):
        messages.append({"role": "user", "content": chance.choice(texts)})
        if chance.random() < 0.5:
            calls = [call(f"c{turn}{n}") for n in range(chance.randint(1, 2))]
            said = {"role": "assistant", "content": "", "tool_calls": calls}
            messages.append(said)
            messages += [
                {"role": "tool", "content": chance.choice(texts), "tool_call_id": one["id"]}
                for one in calls
            ]
        messages.append({"role": "assistant", "content": chance.choice(texts)})
    return messages


@pytest.mark.parametrize("template", [CHATML, LLAMA], ids=["chatml", "llama"])
def test_turns_add_up_to_what_the_template_writes(template: str) -> None:
    tokenizer, chance = tokenizer_of(template), random.Random(0)
    ends = ends_of(tokenizer)
    for _ in range(60):
        messages = conversation(chance)
        tools = TOOLS if chance.random() < 0.5 else []
        sequence: list[int] = []
        last: list[int] = []
        answered = 0
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = messages[:at]
            if not sequence:
                sequence = opening(before, tools, tokenizer)
            else:
                sequence += added(before, answered, tools, last, ends, tokenizer)
            whole = opening(before, tools, tokenizer)
            assert tokenizer.decode(sequence) == tokenizer.decode(whole)
            assert sequence == whole
            # What the policy would say in the template's words.
            ended = opening_of(messages[: at + 1], tools, tokenizer)
            last = ended[len(whole) :]
            last = last[: next(i for i, id in enumerate(last) if id in ends) + 1]
            sequence += last
            answered = at + 1


def opening_of(messages: list[dict[str, Any]], tools: Any, tokenizer: Any) -> list[int]:
    """A conversation to its end, by the template itself."""
    chat = [
        {
            **m,
            "tool_calls": [
                {**c, "function": {"name": "add", "arguments": {"a": 1}}} for c in calls
            ],
        }
        if (calls := m.get("tool_calls"))
        else m
        for m in messages
    ]
    return tokens(
        tokenizer, tokenizer.apply_chat_template(chat, tools=tools or None, tokenize=False)
    )


def test_a_template_that_drops_reasoning_leaves_what_was_sampled_alone() -> None:
    tokenizer = tokenizer_of(THINKING)
    last = tokens(tokenizer, "<think>\nhm\n</think>\n\n4<|im_end|>")
    messages = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    found = added(messages, 2, [], last, ends_of(tokenizer), tokenizer)
    shown = "\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert found == tokens(tokenizer, shown)


@pytest.mark.parametrize("last", ["four, or", ""], ids=["truncated", "empty"])
def test_an_answer_without_its_end_gets_it(last: str) -> None:
    tokenizer = tokenizer_of(CHATML)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": last},
        {"role": "user", "content": [{"type": "text", "text": "sure?"}]},
    ]
    said = tokens(tokenizer, last)
    found = added(messages, 2, [], said, ends_of(tokenizer), tokenizer)
    shown = "<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert found == tokens(tokenizer, shown)


def test_without_a_template_blank_lines_separate_messages() -> None:
    tokenizer = tokenizer_of(None)
    messages = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    assert tokenizer.decode(opening(messages[:1], [], tokenizer)) == "2+2"
    found = added(messages, 2, [], tokens(tokenizer, "4"), ends_of(tokenizer), tokenizer)
    assert tokenizer.decode(found) == "\n\nsure?"
    with pytest.raises(ValueError, match="no chat template"):
        opening(messages[:1], TOOLS, tokenizer)


def test_a_template_that_does_not_end_answers_is_refused() -> None:
    tokenizer = tokenizer_of(UNENDED)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked = [*messages, {"role": "user", "content": "c"}]
    with pytest.raises(ValueError, match="does not end an answer with one end-of-sequence token"):
        added(asked, 2, [], [1], ends_of(tokenizer), tokenizer)
