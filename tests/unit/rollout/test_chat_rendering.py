"""A turn adds exactly the tokens that the template writes after what was sampled."""

import asyncio
import random
import threading
from itertools import pairwise
from typing import Any

import pytest

from rollout.text.chat_rendering import LONG_TEXT, added, opening
from services.contracts.rows.rendering import chat_text
from tests.unit.rollout.chat_templates import (
    CHATML,
    LLAMA,
    LLAMA31,
    QWEN3,
    THINKING,
    TOOLS,
    UNENDED,
    call,
    ends_of,
    tokenizer_of,
    tokens,
)

# Templates that look up the call of a tool's message, and that write tools before the last user.
BY_CALL = CHATML.replace(
    "{{ m.content }}",
    "{% set before = messages[loop.index0 - 1] %}{% if m.role == 'tool' %}"
    "{% for c in before.tool_calls if c.id == m.tool_call_id %}{{ c.function.name }}: {% endfor %}"
    "{% endif %}{{ m.content }}",
)
MOVING = (
    "{% set last = (messages | selectattr('role', 'eq', 'user') | list)[-1] %}"
    "{% for m in messages %}{% if tools and m == last %}[{{ tools | tojson }}]{% endif %}"
    "{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
)


def conversation(chance: random.Random, template: str) -> list[dict[str, Any]]:
    """Return questions, calls, results and answers; the last message is an answer."""
    most = 1 if template == LLAMA31 else 2
    texts = ["sum?", "4", "né", "日本", "a b", "x\ny", "🙂"]
    messages: list[dict[str, Any]] = []
    if chance.random() < 0.5:
        messages.append({"role": "system", "content": chance.choice(texts)})
    for turn in range(chance.randint(1, 4)):
        messages.append({"role": "user", "content": chance.choice(texts)})
        if chance.random() < 0.5:
            calls = [call(f"c{turn}{n}") for n in range(chance.randint(1, most))]
            said = {"role": "assistant", "content": "", "tool_calls": calls}
            messages.append(said)
            messages += [
                {"role": "tool", "content": chance.choice(texts), "tool_call_id": one["id"]}
                for one in calls
            ]
        messages.append({"role": "assistant", "content": chance.choice(texts)})
    return messages


@pytest.mark.parametrize("template", [CHATML, LLAMA, LLAMA31], ids=["chatml", "llama", "llama31"])
async def test_turns_add_up_to_the_templates_whole_text(template: str) -> None:
    tokenizer, chance = tokenizer_of(template), random.Random(0)
    ends = ends_of(tokenizer)
    for _ in range(60):
        messages = conversation(chance, template)
        tools = TOOLS if chance.random() < 0.5 else []
        sequence: list[int] = []
        last: list[int] = []
        answered = 0
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = messages[:at]
            if not sequence:
                sequence = await opening(before, tools, tokenizer)
            else:
                sequence += await added(before, answered, tools, last, ends, tokenizer)
            whole = await opening(before, tools, tokenizer)
            assert tokenizer.decode(sequence) == tokenizer.decode(whole)
            assert sequence == whole
            # The policy's answer, spelled as the template spells it.
            ended = opening_of(messages[: at + 1], tools, tokenizer)
            last = ended[len(whole) :]
            last = last[: next(i for i, id in enumerate(last) if id in ends) + 1]
            sequence += last
            answered = at + 1


def opening_of(messages: list[dict[str, Any]], tools: Any, tokenizer: Any) -> list[int]:
    """Render a whole conversation with the template."""
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


@pytest.mark.parametrize("template", [QWEN3, LLAMA31], ids=["qwen3", "llama31"])
async def test_a_turn_adds_what_the_template_writes_after_the_last_answer(template: str) -> None:
    tokenizer, chance = tokenizer_of(template), random.Random(0)
    ends = ends_of(tokenizer)
    for _ in range(60):
        messages = conversation(chance, template)
        tools = TOOLS if chance.random() < 0.5 else []
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        for before, at in pairwise(answers):
            whole = await opening(messages[:at], tools, tokenizer)
            found = await added(messages[:at], before + 1, tools, ends[:1], ends, tokenizer)
            assert tokenizer.decode(whole).endswith(tokenizer.decode(found))
            assert whole[-len(found) - 1] in ends


async def test_an_answer_with_two_calls_is_continued_if_the_template_takes_one() -> None:
    tokenizer = tokenizer_of(LLAMA31)
    results = [{"role": "tool", "content": n, "tool_call_id": f"c{n}"} for n in "12"]

    async def after(*calls: dict[str, Any]) -> list[int]:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": None, "tool_calls": list(calls)},
            *results,
        ]
        return await added(messages, 2, TOOLS, [1], ends_of(tokenizer), tokenizer)

    found = await after(call("c1"), call("c2"))
    assert found == await after(call("c1"))
    assert tokenizer.decode(found).count('ipython<|end_header_id|>\n\n"') == 2


async def test_an_answer_without_calls_may_have_an_empty_list_of_them() -> None:
    tokenizer = tokenizer_of(LLAMA31)
    plain: list[dict[str, Any]] = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    # vLLM's parsers and some clients write an empty list.
    empty = [plain[0], plain[1] | {"tool_calls": []}, plain[2]]
    assert await opening(empty, [], tokenizer) == await opening(plain, [], tokenizer)


async def test_a_template_that_drops_reasoning_leaves_sampled_tokens_alone() -> None:
    tokenizer = tokenizer_of(THINKING)
    last = tokens(tokenizer, "<think>\nhm\n</think>\n\n4<|im_end|>")
    messages = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    found = await added(messages, 2, [], last, ends_of(tokenizer), tokenizer)
    shown = "\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert found == tokens(tokenizer, shown)


@pytest.mark.parametrize("last", ["four, or", ""], ids=["truncated", "empty"])
async def test_an_answer_without_its_end_gets_it(last: str) -> None:
    tokenizer = tokenizer_of(CHATML)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": last},
        {"role": "user", "content": [{"type": "text", "text": "sure?"}]},
    ]
    said = tokens(tokenizer, last)
    found = await added(messages, 2, [], said, ends_of(tokenizer), tokenizer)
    shown = "<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert found == tokens(tokenizer, shown)


async def test_without_a_template_blank_lines_separate_messages() -> None:
    tokenizer = tokenizer_of(None)
    messages = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    assert tokenizer.decode(await opening(messages[:1], [], tokenizer)) == "2+2"
    found = await added(messages, 2, [], tokens(tokenizer, "4"), ends_of(tokenizer), tokenizer)
    assert tokenizer.decode(found) == "\n\nsure?"
    with pytest.raises(ValueError, match="no chat template"):
        await opening(messages[:1], TOOLS, tokenizer)


async def test_a_template_that_does_not_end_answers_is_refused() -> None:
    tokenizer = tokenizer_of(UNENDED)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked = [*messages, {"role": "user", "content": "c"}]
    with pytest.raises(ValueError, match="does not end an answer with one end-of-sequence token"):
        await added(asked, 2, [], [1], ends_of(tokenizer), tokenizer)


@pytest.mark.parametrize(
    "template",
    [CHATML, LLAMA, BY_CALL, QWEN3, LLAMA31],
    ids=["chatml", "llama", "by call", "qwen3", "llama31"],
)
async def test_the_name_of_a_call_that_spells_an_end_ends_nothing(template: str) -> None:
    tokenizer = tokenizer_of(template)
    last = tokens(tokenizer, "call<|im_end|>")

    async def after(id: str, name: str) -> list[int]:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": None, "tool_calls": [call(id, name)]},
            {"role": "tool", "content": "4", "tool_call_id": id},
        ]
        return await added(messages, 2, TOOLS, last, ends_of(tokenizer), tokenizer)

    plain = await after("__im_end__0", "add__im_end__")
    assert ("add__im_end__: 4" in tokenizer.decode(plain)) == (template == BY_CALL)
    assert await after("<|im_end|>0", "add<|im_end|>") == plain


async def test_further_keys_of_a_call_reach_no_template_that_writes_it_whole() -> None:
    tokenizer = tokenizer_of(
        CHATML.replace("{{ m.content }}", "{{ (m.tool_calls or []) | tojson }}")
    )

    async def after(more: dict[str, Any]) -> list[int]:
        asked = call("c0") | more
        asked["function"] |= more
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "content": "4", "tool_call_id": "c0"},
        ]
        return await added(messages, 2, TOOLS, [1], ends_of(tokenizer), tokenizer)

    assert await after({"index": "<|im_end|>"}) == await after({})


async def test_an_end_of_sequence_in_a_moved_tool_description_is_refused() -> None:
    tokenizer = tokenizer_of(MOVING)
    tool: Any = {"type": "function", "function": {"name": "add", "description": "2<|im_end|>"}}
    messages = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
    ]
    assert await added(messages, 2, TOOLS, [1], ends_of(tokenizer), tokenizer)
    with pytest.raises(ValueError, match="spelled in the description of a tool"):
        await added(messages, 2, [tool], [1], ends_of(tokenizer), tokenizer)


async def test_a_stand_in_is_rendered_once_for_all_turns_with_the_same_tools() -> None:
    tokenizer, rendered = tokenizer_of(CHATML), list[Any]()

    class Counting:
        """A tokenizer that notes what is rendered."""

        chat_template = tokenizer.chat_template
        decode = tokenizer.decode

        def __call__(self, text: str, **options: Any) -> Any:
            return tokenizer(text, **options)

        def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
            rendered.append(conversation)
            return tokenizer.apply_chat_template(conversation, **options)

    async def count(tools: list[dict[str, Any]], *calls: dict[str, Any]) -> int:
        answer = {"role": "assistant", "content": "4", **({"tool_calls": calls} if calls else {})}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "2+2"},
            answer,
            {"role": "user", "content": f"sure, {len(rendered)}?"},
        ]
        given = messages, 2, tools, [1], ends_of(tokenizer)
        before = len(rendered)
        found = await added(*given, counting)  # type: ignore[arg-type]
        assert found == await added(*given, tokenizer)
        return len(rendered) - before

    counting = Counting()
    # The first rendering also probes how the template reads contents.
    chat_text([{"role": "user", "content": "2+2"}], counting)
    assert [await count([]), await count([]), await count([])] == [3, 1, 1]
    assert [await count(TOOLS), await count(TOOLS)] == [3, 1]
    # Each call has another id.
    assert [await count(TOOLS, call("c")), await count(TOOLS, call("c"))] == [2, 2]


async def test_a_long_text_keeps_no_other_call_waiting() -> None:
    tokenizer, other = tokenizer_of(CHATML), threading.Event()

    class Slow:
        """A tokenizer that waits until another call has been at work."""

        chat_template = tokenizer.chat_template
        apply_chat_template = tokenizer.apply_chat_template

        def __call__(self, text: str, **options: Any) -> Any:
            assert other.wait(60)
            return tokenizer(text, **options)

    messages = [{"role": "user", "content": "2+" * LONG_TEXT}]
    asyncio.get_running_loop().call_soon(other.set)
    assert await opening(messages, [], Slow()) == await opening(messages, [], tokenizer)  # type: ignore[arg-type]


@pytest.mark.parametrize("history", [True, False], ids=["answer", "new"])
async def test_deeply_nested_arguments_are_refused(history: bool) -> None:
    tokenizer, deep = tokenizer_of(CHATML), call("c")
    deep["function"]["arguments"] = "[" * 100_000 + "]" * 100_000
    said = {"role": "assistant", "content": "", "tool_calls": [deep]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "2+2"}, said]
    messages.append({"role": "tool", "content": "4", "tool_call_id": "c"})
    if history:
        # The arguments do not change what follows the answer.
        assert await added(messages, 2, TOOLS, [1], ends_of(tokenizer), tokenizer)
    else:
        with pytest.raises(ValueError, match="nested too deeply"):
            await opening(messages, TOOLS, tokenizer)
