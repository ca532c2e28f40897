"""A chat template gets a run's variables and a row's whole text; plain prompts end openly."""

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from services.contracts.config.data import PromptOptions
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, render, use_template
from tests.unit.rollout.chat_templates import CHATML, QWEN3, tokenizer_of

ENDING = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
IN_PARTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for c in m['content'] %}{{ c['text'] }}{% endfor %}" + ENDING
)
# The system message joined as text, the user's in parts, as templates for images have it.
MIXED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'system' %}{{ m.content + '!' }}{% else %}"
    "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}{% endif %}" + ENDING
)
EITHER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text }}{% endfor %}{% endif %}" + ENDING
)
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "2+2"}
ASKED = "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"


def prompt(asked: Any, template: str | None, **options: Any) -> str:
    """The prompt's text, by its tokens."""
    tokenizer, options_ = tokenizer_of(template), PromptOptions(**options)
    use_template(tokenizer, options_)
    return str(tokenizer.decode(render(asked, options_, tokenizer)))


@pytest.mark.parametrize("template", [IN_PARTS, MIXED, EITHER, CHATML])
def test_a_template_gets_contents_in_a_form_that_it_can_read(template: str) -> None:
    assert prompt("2+2", template) == ASKED
    mark = "!" if template == MIXED else ""
    system = f"<|im_start|>system\nBe brief.{mark}<|im_end|>\n"
    assert prompt([SYSTEM, USER], template) == system + ASKED
    parts = {"role": "user", "content": [{"type": "text", "text": "2+2"}]}
    assert prompt([parts], template) == ASKED


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% for m in messages %}{{ m.text }}{% endfor %}",
        "{{ messages[0].content[:3] }}",
    ],
)
def test_a_template_that_leaves_the_text_out_refuses_the_row(template: str) -> None:
    with pytest.raises(ValueError, match=r"leaves out the text of message 1 \(user\), 'What is"):
        prompt("What is 2+2?", template)


def test_a_system_message_that_the_template_leaves_out_is_refused() -> None:
    silent = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ValueError, match=r"message 1 \(system\), 'Be brief.'"):
        prompt([SYSTEM, USER], silent)


def test_a_template_may_change_the_blanks_of_a_text() -> None:
    joined = "{% for m in messages %}{{ m.content.split() | join(' ') }}{% endfor %}"
    assert prompt(" a\n\n b ", joined) == "a b"


def test_a_run_gives_its_chat_template_variables() -> None:
    off = "<think>\n\n</think>\n\n"
    assert prompt("2+2", QWEN3) == ASKED
    assert prompt("2+2", QWEN3, chat_template_kwargs={"enable_thinking": False}) == ASKED + off
    assert prompt("2+2", QWEN3, chat_template_kwargs={"enable_thinking": True}) == ASKED


def test_a_run_may_bring_its_chat_template_which_the_tokenizer_keeps() -> None:
    assert prompt("2+2", CHATML, chat_template="{{ messages[0].content }}=") == "2+2="
    assert prompt("2+2", None, chat_template="{{ messages[0].content }}=") == "2+2="
    tokenizer = tokenizer_of(None)
    use_template(tokenizer, PromptOptions(chat_template="{{ messages[0].content }}="))
    assert tokenizer.chat_template == "{{ messages[0].content }}="
    use_template(tokenizer, PromptOptions(chat_template="none"))
    assert tokenizer.chat_template == "{{ messages[0].content }}="


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("chat_template", "my.jinja", "neither auto, none, nor the text of a Jinja template"),
        ("chat_template_kwargs", {"tools": []}, "'tools' is no variable of a template"),
        ("chat_template_kwargs", {"a b": 1}, "'a b' is no name of a variable"),
        ("chat_template_kwargs", {"a": float("nan")}, "NaN or Infinity"),
        ("chat_template_kwargs", {"a": "x" * 20_000}, "16,384 is the most"),
    ],
)
def test_a_template_and_variables_that_cannot_be_used_are_refused(
    option: str, value: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        PromptOptions(**{option: value})
    with pytest.raises(ValueError, match="and chat_template is none"):
        PromptOptions(chat_template="none", chat_template_kwargs={"a": 1})


BOS, END = "<|begin_of_text|>", "<|im_end|>"


@pytest.mark.parametrize(
    ("adds", "before"),
    [(f"$A {END}", ""), (f"{BOS} $A {END}", BOS), (f"{BOS} $A", BOS), ("$A", "")],
)
def test_a_plain_prompt_has_no_end_and_one_beginning(adds: str, before: str) -> None:
    tokenizer = tokenizer_of(None)
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=adds,
        special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in (BOS, END)],
    )

    def rendered(asked: Any) -> str:
        return str(tokenizer.decode(render(asked, PromptOptions(), tokenizer)))

    assert rendered("2+2?") == f"{before}2+2?"
    assert rendered([SYSTEM, USER]) == f"{before}Be brief.\n\n2+2"
    assert rendered(f"{BOS}2+2?") == f"{BOS}2+2?"
    assert rendered("") == before
    assert rendered("x" * 200) == before + "x" * 200


def test_a_system_message_goes_before_texts_and_chats_without_their_own() -> None:
    options = PromptOptions(system="Be brief.", template="Q: {prompt}")
    assert compose(Row(prompt="2+2"), options) == [SYSTEM, {"role": "user", "content": "Q: 2+2"}]
    assert compose(Row(prompt=[USER]), options) == [SYSTEM, USER]
    for role in ("system", "developer"):
        own = [{"role": role, "content": "Add."}, USER]
        assert compose(Row(prompt=own), options) == own
