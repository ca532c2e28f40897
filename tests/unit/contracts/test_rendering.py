"""From dataset rows to token ids, the same for all who render prompts."""

from typing import Any

import pytest

from services.contracts.config.data import PromptOptions
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, render


class Letters:
    """A tokenizer of one id per character, with a chat template if told so."""

    def __init__(self, template: str | None = None) -> None:
        self.chat_template: Any = template

    def __call__(self, text: str, **options: Any) -> Any:
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        assert options["add_generation_prompt"]
        if any(m["role"] == "system" for m in conversation) and self.chat_template == "no system":
            raise RuntimeError("System role not supported")
        assert not options["tokenize"]
        return "".join(f"<{m['role']}>{m['content']}" for m in conversation)


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_a_text_prompt_goes_into_the_template_braces_and_all() -> None:
    options = PromptOptions(template="Q: {prompt} {as JSON}")
    assert compose(Row(prompt="{x}"), options) == "Q: {x} {as JSON}"


@pytest.mark.parametrize(
    ("template", "role"), [("system, user", "system"), ("system, developer, user", "developer")]
)
def test_a_developers_message_is_a_system_message_where_the_template_knows_no_other(
    template: str, role: str
) -> None:
    asked = [{"role": "developer", "content": "Add."}, {"role": "user", "content": "1+1"}]
    found = render(asked, PromptOptions(), Letters(template))
    assert text(found) == f"<{role}>Add.<user>1+1"
    assert asked[0]["role"] == "developer"


def test_a_chat_template_is_used_if_the_tokenizer_has_it() -> None:
    options = PromptOptions()
    assert text(render("2+2", options, Letters("yes"))) == "<user>2+2"
    assert text(render("2+2", options, Letters())) == "2+2"
    plain = PromptOptions(chat_template="none")
    assert text(render("2+2", plain, Letters("yes"))) == "2+2"


def test_a_chat_without_a_template_is_joined_by_blank_lines() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}]
    assert text(render(chat, PromptOptions(), Letters())) == "Be brief.\n\n2+2"


def test_a_prompt_the_template_refuses_says_so() -> None:
    chat = [{"role": "system", "content": "x"}]
    with pytest.raises(ValueError, match="refuses this prompt: System role not supported"):
        render(chat, PromptOptions(), Letters("no system"))
