"""A preview shows what a run reads and trains."""

from typing import Any

import pytest

from learner.batch.rendered_rows import MOST_PIECES, rendered
from services.contracts.config import parse_config
from services.contracts.preview import AskedRow, PreviewJob, RenderedRow
from tests.unit.rollout.chat_templates import CHATML, tokenizer_of

CHAT = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]


def preview(config: dict[str, Any], *rows: AskedRow, characters: int = 1000) -> Any:
    whole = parse_config({"model": {"path": "m"}, **config}).model_dump(mode="json")
    job = PreviewJob(config=whole, folder="m", rows=list(rows), characters=characters)
    tokenizer = tokenizer_of(CHATML)
    tokenizer.eos_token = "<|im_end|>"
    return rendered(job, tokenizer)


def rl(**data: Any) -> dict[str, Any]:
    return {"type": "rl", "data": {"dataset": "d", **data}, "rewards": [{"verifier": "math"}]}


def sft(**more: Any) -> dict[str, Any]:
    return {"type": "sft", "data": {"dataset": "d"}, **more}


def marked(row: RenderedRow) -> str:
    return "".join(f"[{piece.text}]" if piece.trained else piece.text for piece in row.pieces)


def test_a_prompt_is_shown_as_the_policy_gets_it() -> None:
    found = preview(rl(template="Q: {prompt}"), AskedRow(index=3, prompt="2+2"))
    (row,) = found.rows
    text = "<|im_start|>user\nQ: 2+2<|im_end|>\n<|im_start|>assistant\n"
    assert (found.form, marked(row), row.index) == ("chat_template", text, 3)
    # Three special tokens, and one for each byte besides.
    assert row.tokens == 3 + len(text) - 2 * len("<|im_start|>") - len("<|im_end|>")
    plain = preview(rl(chat_template="none"), AskedRow(index=0, prompt="2+2"))
    assert (plain.form, marked(plain.rows[0]), plain.rows[0].tokens) == ("plain_text", "2+2", 3)


def test_the_trained_parts_of_a_row_are_marked() -> None:
    (row,) = preview(sft(), AskedRow(index=0, prompt=CHAT)).rows
    assert marked(row) == (
        "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>]\n"
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n[4<|im_end|>]\n"
    )
    assert row.trained_tokens == 4


def test_both_answers_of_a_pair_are_shown() -> None:
    pair = AskedRow(index=0, prompt="2+2", columns={"chosen": "4", "rejected": "5"})
    rows = preview(sft(objective={"type": "dpo"}), pair).rows
    assert [(row.answer, marked(row)[-12:]) for row in rows] == [
        ("chosen", "[4<|im_end|>]\n"[-12:]),
        ("rejected", "[5<|im_end|>]\n"[-12:]),
    ]


def test_a_row_that_cannot_be_rendered_gives_its_reason_and_the_others_are_rendered() -> None:
    silent = (
        "{% for m in messages %}{% if m.content != 'x' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    rows = [AskedRow(index=0, prompt="x"), AskedRow(index=1, prompt="2+2")]
    first, second = preview(rl(chat_template=silent), *rows).rows
    assert "leaves out the text of message 1 (user)" in first.problem
    assert (marked(second), second.problem) == ("2+2", None)
    (unanswered,) = preview(sft(), AskedRow(index=7, prompt="2+2")).rows
    assert unanswered.problem.startswith("dataset row 7 has no answer to learn")


@pytest.mark.parametrize(("rounds", "length"), [(1, 3000), (500, 30)])
def test_a_rendered_row_has_a_bounded_size(rounds: int, length: int) -> None:
    chat = [{**turn, "content": turn["content"] * length} for turn in CHAT[:2]] * rounds
    job = preview(sft(data={"dataset": "d", "train_on": "last"}), AskedRow(index=0, prompt=chat))
    (row,) = job.rows
    assert len(row.pieces) <= MOST_PIECES + 1
    assert len(marked(row)) < 1500
    assert row.tokens > 3 * length * rounds


def test_a_variable_that_the_template_does_not_read_is_named() -> None:
    variables = {"enable_thinkng": False, "tools_first": True}
    template = "{{ messages[0].content }}{% if tools_first %}!{% endif %}"
    config = rl(chat_template=template, chat_template_kwargs=variables)
    found = preview(config, AskedRow(index=0, prompt="2+2"))
    assert (marked(found.rows[0]), found.unread_variables) == ("2+2!", ["enable_thinkng"])


@pytest.mark.parametrize("kind", [rl, lambda **data: sft(data={"dataset": "d", **data})])
def test_a_variable_whose_value_changes_nothing_is_named(kind: Any) -> None:
    think = "{% if enable_thinking is defined and enable_thinking is false %}!{% endif %}"
    effort = "{{ effort|default('low') }}"
    template = think + effort + CHATML

    def idle(**variables: Any) -> list[str]:
        config = kind(chat_template=template, chat_template_kwargs=variables)
        found = preview(config, AskedRow(index=0, prompt=CHAT))
        assert found.rows[0].problem is None
        names: list[str] = found.idle_variables
        return names

    assert idle(enable_thinking="fasle", effort="high") == ["enable_thinking"]
    assert idle(enable_thinking=False, effort="low") == ["effort"]
    # A default value may be another type than text, which cannot be misspelt.
    assert idle(enable_thinking=True, effort="high") == []
