"""Chat templates and the model's files say by which tokens the assistant's turns end."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from services.contracts.rows.turn_end import eos_token_ids, turn_ends, unbegun
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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [2]),
        ({"config.json": '{"eos_token_id": 7}'}, [2, 7]),
        (
            {
                "config.json": '{"eos_token_id": 7}',
                "generation_config.json": '{"eos_token_id": [8, 2]}',
            },
            [2, 8],
        ),
        (
            {
                "config.json": '{"vocab_size": 9}',
                "generation_config.json": '{"eos_token_id": [-1, 8, 9]}',
            },
            [2, 8],
        ),
    ],
)
def test_every_end_of_sequence_the_model_names_ends_a_completion(
    tmp_path: Path, files: dict[str, str], expected: list[int]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = SimpleNamespace(eos_token_id=2, chat_template=None)
    assert eos_token_ids(tmp_path, tokenizer) == expected


def test_a_completion_ends_at_the_token_that_ends_the_templates_turn(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(CHATML)
    tokenizer.eos_token = "<|end|>"
    expected = sorted(map(tokenizer.convert_tokens_to_ids, ["<|end|>", "<|im_end|>"]))
    assert eos_token_ids(tmp_path, tokenizer) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, ""),
        (QWEN3, ""),
        (LLAMA31, ""),
        (CHATML.replace("add_generation_prompt", "false"), "<|im_start|>assistant"),
        (UNENDED, "assistant:"),
        # Mistral's: the answer follows the end of the question.
        (
            "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
            "{% else %} {{ m.content }}<|end|>{% endif %}{% endfor %}",
            "",
        ),
        (None, ""),
    ],
)
def test_a_template_that_does_not_begin_the_answer_is_known_by_what_its_prompts_lack(
    template: str | None, expected: str
) -> None:
    assert unbegun(tokenizer_of(template)) == expected
