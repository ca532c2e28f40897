"""The tokens that end a completion, and the tokens that a prompt leaves for an answer."""

from types import SimpleNamespace

import pytest

from rollout.vllm.model_files import PromptTooLong, answer_tokens, eos_token_ids
from tests.unit.rollout.chat_templates import CHATML, tokenizer_of


def test_a_prompt_that_fills_the_context_is_an_error():
    assert answer_tokens([1] * 10, 16) == 6
    assert answer_tokens([1] * 15, 16) == 1
    with pytest.raises(PromptTooLong, match="the prompt has 16 tokens and the context 16"):
        answer_tokens([1] * 16, 16)


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
    ],
)
def test_every_end_of_sequence_the_model_names_ends_a_completion(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = SimpleNamespace(eos_token_id=2, chat_template=None)
    assert eos_token_ids(tmp_path, tokenizer) == expected


def test_a_completion_ends_at_the_token_that_ends_the_templates_turn(tmp_path):
    tokenizer = tokenizer_of(CHATML)
    tokenizer.eos_token = "<|end|>"
    expected = sorted(map(tokenizer.convert_tokens_to_ids, ["<|end|>", "<|im_end|>"]))
    assert eos_token_ids(tmp_path, tokenizer) == expected
