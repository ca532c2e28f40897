"""Long prompts lose the beginning of their longest text, and the template stays whole."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollout.run_events import RunEvents
from rollout.vllm.model_files import PromptTooLong, answer_tokens
from rollout.work.long_prompts import cut_event, rendered
from services.contracts.config.data import PromptOptions
from services.contracts.rows.messages import Chat
from tests.unit.rollout.chat_templates import CHATML, tokenizer_of

# A token for each byte and for each special token: with a question of n bytes, n + 19 tokens.
ASKED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"


@pytest.mark.parametrize(
    ("prompt", "longest", "expected", "lost"),
    [
        ("abcdefghij", None, ASKED.format("abcdefghij"), 0),
        ("abcdefghij", 29, ASKED.format("abcdefghij"), 0),
        ("abcdefghij", 22, ASKED.format("hij"), 7),
        # The system message has 19 tokens, and is shorter than the question.
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "0123456789"}]},
            ],
            42,
            SYSTEM + ASKED.format("6789"),
            6,
        ),
    ],
)
def test_the_longest_text_loses_its_beginning_and_the_template_nothing(
    prompt: str | Chat, longest: int | None, expected: str, lost: int
) -> None:
    tokenizer = tokenizer_of(CHATML)
    found = rendered(prompt, PromptOptions(), tokenizer, None, 64, longest)
    assert tokenizer.decode(found.tokens) == expected
    assert found.lost == lost
    assert longest is None or len(found.tokens) <= longest


def test_a_prompt_without_a_template_is_cut_as_text() -> None:
    tokenizer = tokenizer_of(None)
    found = rendered("abcdefghij", PromptOptions(), tokenizer, None, 8, 4)
    assert tokenizer.decode(found.tokens) == "ghij"


@pytest.mark.parametrize(
    ("longest", "reason"),
    [
        (None, "the prompt has 29 tokens and the context 29"),
        # The question has 10 of the tokens, and one of them stays.
        (19, "the prompt has 29 tokens, and 29 after it was cut: the most that .* is 19"),
    ],
)
def test_a_prompt_that_cannot_be_cut_enough_is_too_long(longest: int | None, reason: str) -> None:
    with pytest.raises(PromptTooLong, match=reason):
        rendered("abcdefghij", PromptOptions(), tokenizer_of(CHATML), None, 29, longest)


async def test_a_frequent_event_is_counted_in_powers_of_ten() -> None:
    messages: list[str] = []

    async def add(run: str, kind: str, data: dict[str, Any]) -> None:
        messages.append(data["message"])

    store: Any = SimpleNamespace(events=SimpleNamespace(add=add))
    events = RunEvents("r", "w", store)
    for row in range(120):
        await events.counted("cut", cut_event(f"dataset row {row}", 7, 1022))
    said = (
        "a prompt is cut (data.long_prompts): dataset row {} has lost 7 of 1,029 tokens, at the "
        "beginning of its longest text"
    )
    assert messages == [
        said.format(0),
        said.format(9) + " (10 so far)",
        said.format(99) + " (100 so far)",
    ]


def test_a_prompt_that_fills_the_context_is_an_error() -> None:
    assert answer_tokens([1] * 10, 16) == 6
    assert answer_tokens([1] * 15, 16) == 1
    with pytest.raises(PromptTooLong, match="the prompt has 16 tokens and the context 16"):
        answer_tokens([1] * 16, 16)
