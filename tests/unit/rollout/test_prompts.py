"""From dataset rows to token ids."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollout.prompts import PromptTooLong, compose, eos_token_ids, render, room
from services.contracts.config.run import Data
from services.contracts.dataset import Row


class Letters:
    """A tokenizer of one id per character, with a chat template if told so."""

    eos_token_id: int | None = 2

    def __init__(self, template: str | None = None) -> None:
        self.chat_template: Any = template

    def __call__(self, text: str) -> Any:
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        assert options["add_generation_prompt"]
        if any(m["role"] == "system" for m in conversation) and self.chat_template == "no system":
            raise RuntimeError("System role not supported")
        return self("".join(f"<{m['role']}>{m['content']}" for m in conversation))["input_ids"]

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        return ["".join(map(chr, ids)) for ids in sequences]


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_a_text_prompt_goes_into_the_template_braces_and_all():
    data = Data(dataset="d", template="Q: {prompt} {as JSON}")
    assert compose(Row(prompt="{x}"), data) == "Q: {x} {as JSON}"


def test_a_system_message_makes_a_text_a_chat_and_leaves_chats_alone():
    data = Data(dataset="d", system="Be brief.")
    assert compose(Row(prompt="2+2"), data) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2"},
    ]
    chat = [{"role": "user", "content": "hi"}]
    assert compose(Row(prompt=chat), data) == chat


def test_the_chat_template_is_used_where_there_is_one():
    data = Data(dataset="d")
    assert text(render("2+2", data, Letters("yes"))) == "<user>2+2"
    assert text(render("2+2", data, Letters())) == "2+2"
    plain = Data(dataset="d", chat_template="none")
    assert text(render("2+2", plain, Letters("yes"))) == "2+2"


def test_a_chat_without_a_template_is_joined_by_blank_lines():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}]
    assert text(render(chat, Data(dataset="d"), Letters())) == "Be brief.\n\n2+2"


def test_a_prompt_the_template_refuses_says_so():
    chat = [{"role": "system", "content": "x"}]
    with pytest.raises(ValueError, match="refuses this prompt: System role not supported"):
        render(chat, Data(dataset="d"), Letters("no system"))


def test_room_is_what_the_prompt_leaves_and_none_is_an_error():
    assert room([1] * 10, 16) == 6
    assert room([1] * 15, 16) == 1
    with pytest.raises(PromptTooLong, match="the prompt has 16 tokens and the context 16"):
        room([1] * 16, 16)


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
    assert eos_token_ids(tmp_path, SimpleNamespace(eos_token_id=2)) == expected
