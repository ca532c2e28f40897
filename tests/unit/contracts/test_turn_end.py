"""Chat templates say by which tokens the assistant's turns end."""

import pytest

from services.contracts.rows.turn_end import turn_ends
from tests.unit.rollout.chat_templates import (
    CHATML,
    LLAMA,
    LLAMA31,
    QWEN3,
    THINKING,
    UNENDED,
    tokenizer_of,
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, ["<|im_end|>"]),
        (THINKING, ["<|im_end|>"]),
        (QWEN3, ["<|im_end|>"]),
        (LLAMA, ["<|eom|>", "<|im_end|>"]),
        (LLAMA31, ["<|eot_id|>"]),
        # Two special tokens: the last one ends the turn.
        (CHATML.replace("<|im_end|>", "<|end|> <|eom|>"), ["<|eom|>"]),
        (UNENDED, []),
        ("{{ raise_exception('no') }}", []),
        # It writes no answer, so that the last token ends the question.
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}", []),
        (None, []),
    ],
)
def test_a_turn_ends_by_the_special_token_after_an_answer_or_a_call(
    template: str | None, expected: list[str]
) -> None:
    tokenizer = tokenizer_of(template)
    ids = {end: tokenizer.convert_tokens_to_ids(end) for end in expected}
    assert turn_ends(tokenizer) == ids
