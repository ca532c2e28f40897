"""Supervised runs teach what sampling asks for: prompts are rendered as rollout workers render
them."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from learner.batch.sft_rows import (
    NO_BYTES,
    Example,
    RowTokenizer,
    UnusableRow,
    example,
    lacking,
    unknown_id,
)
from learner.distributed import Ranks
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.sft import backward
from learner.supervised_loss import LikelihoodLoss
from services.contracts.config.data import Data, SFTData
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, render, use_template
from tests.unit.learner.policies import tiny_model

ALONE = Ranks(0, 1, torch.device("cpu"))
# In `TINY`'s alphabet: each message in brackets, then a sign for the policy's turn.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}={{ m['content'] }}"
    "{% else %}({{ m['content'] }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)
# ChatML, with shorter words.
CHAT = (
    "{% for m in messages %}<start>{{ m['role'][0] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>a\n{% endif %}"
)
# Like Qwen3's: it drops the reasoning of all turns except the last.
FORGETFUL = (
    "{% for m in messages %}<start>{{ m['role'][0] }}\n"
    "{% if loop.last and m.get('reasoning_content') %}{{ m['reasoning_content'] }}|{% endif %}"
    "{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>a\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<start>{{ m['role'][0] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{% if loop.last and m.get('reasoning_content') %}"
    "{{ m['reasoning_content'] }}|{% endif %}{{ m['content'] }}<end>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<end>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<start>a\n{% endif %}"
)
TEXT = Row(prompt="10+2", answer="12")
MESSAGES = Row(
    prompt=[{"role": "system", "content": "7"}, {"role": "user", "content": "10+2"}], answer="12"
)


def byte_tokenizer(merges: tuple[tuple[str, str], ...] = (), template: str | None = None) -> Any:
    """A tokenizer with a token for each byte, for a beginning and an end of sequence, and for each
    merge."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<bos>", "<eos>", *alphabet, *(a + b for a, b in merges)]
    made = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=["<start>", "<end>"],
    )
    fast.chat_template = template
    return fast


def tokenizer(chat_template: str | None = None) -> Any:
    made = tiny_model().tokenizer
    made.chat_template = chat_template
    return made


def turns(*contents: str | dict[str, Any]) -> list[dict[str, Any]]:
    """Alternating turns of a user and an assistant."""
    roles = ["user", "assistant"] * len(contents)
    return [
        {"role": role, **(content if isinstance(content, dict) else {"content": content})}
        for role, content in zip(roles, contents, strict=False)
    ]


def made(row: Row, tokens: Any, **options: Any) -> Any:
    return RowTokenizer(tokens, SFTData(dataset="d", **options)).row(row, 5)


def trained(row: Row, tokens: Any, **options: Any) -> list[str]:
    """The stretches of the row in the loss, as text."""
    found = made(row, tokens, **options)
    return [tokens.decode(found.tokens[start:end]) for start, end in found.spans]


@pytest.mark.parametrize(
    ("row", "options", "chat_template", "read"),
    [
        (TEXT, {}, None, "<bos>10+2"),
        (TEXT, {"template": "{prompt}="}, None, "<bos>10+2="),
        (TEXT, {}, TEMPLATE, "(10+2)="),
        (TEXT, {"system": "7", "template": "{prompt} -"}, TEMPLATE, "(7)(10+2 -)="),
        (TEXT, {"chat_template": "none", "template": "{prompt}="}, TEMPLATE, "<bos>10+2="),
        (MESSAGES, {"system": "8", "template": "{prompt}="}, TEMPLATE, "(7)(10+2)="),
    ],
    ids=["text", "template", "chat template", "system", "chat_template none", "messages"],
)
def test_a_rows_prompt_is_rendered_as_rollout_workers_do(
    row: Row, options: dict[str, Any], chat_template: str | None, read: str
) -> None:
    tokens = tokenizer(chat_template)
    rollout = Data(dataset="d", **options)
    asked = render(compose(row, rollout), rollout, tokens)

    found = example(made(row, tokens, **options))

    assert tokens.decode(asked) == read
    assert found.tokens.tolist() == [*asked, 5, 6, 2]
    assert found.loss_mask.tolist() == [False] * len(asked) + [True] * 3


def test_a_tokenizer_that_ends_texts_ends_no_prompt() -> None:
    tokens = tokenizer()
    tokens._tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    found = made(TEXT, tokens)
    assert tokens.decode(found.tokens) == "<bos>10+212<eos>"
    assert found.spans.tolist() == [[5, 8]]
    text = made(Row(prompt="10+2"), tokens, train_on="all")
    assert tokens.decode(text.tokens) == "<bos>10+2<eos>"


@pytest.mark.parametrize(
    "answer",
    [
        "({{ m.content }}){% else %}{{ m.content }}{{ sign }}",
        # Not prefix-stable, so only the marks locate the answer.
        "({{ m.content }}{% if loop.last %}-{% endif %}){% else %}"
        "{% generation %}{{ m.content }}{{ sign }}{% endgeneration %}",
    ],
)
def test_a_row_is_written_with_the_variables_of_its_run(answer: str) -> None:
    options = SFTData(dataset="d", chat_template_kwargs={"sign": "+"})
    tokens = tokenizer(
        "{% for m in messages %}{% if m.role == 'user' %}" + answer + "{% endif %}{% endfor %}"
    )
    use_template(tokens, options)
    row = RowTokenizer(tokens, options).row(TEXT, 0)
    assert tokens.decode(row.tokens) == "(10+2)12+<eos>"
    assert tokens.decode(row.tokens[slice(*row.spans[0])]).startswith("12+")


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("assistant", ["yes<end>", "bye<end>"]),
        ("last", ["bye<end>"]),
        # All but the first token.
        ("all", ["u\nhi<end>\n<start>a\nyes<end>\n<start>u\ngo<end>\n<start>a\nbye<end>\n"]),
    ],
)
def test_the_loss_is_on_assistants_turns_up_to_the_token_that_ends_them_or_on_all(
    train_on: str, expected: list[str]
) -> None:
    row = Row(prompt=turns("hi", "yes", "go"), answer="bye")
    assert trained(row, byte_tokenizer(template=CHAT), train_on=train_on) == expected


@pytest.mark.parametrize("unwanted", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
def test_a_turn_that_its_file_excludes_is_read_and_not_trained(unwanted: dict[str, Any]) -> None:
    last = {"role": "assistant", "content": "bye", "weight": 1}
    row = Row(prompt=turns("hi", {"content": "bad", **unwanted}, "go"), answer=last)
    tokens = byte_tokenizer(template=CHAT)
    assert "bad" in tokens.decode(made(row, tokens).tokens)
    assert trained(row, tokens) == ["bye<end>"]
    marks = MARKED.replace("<end>{% endgeneration %}", "{% endgeneration %}<end>")
    assert trained(row, byte_tokenizer(template=marks)) == ["bye<end>"]
    excluded = Row(prompt=turns("hi"), answer={**last, **unwanted})
    with pytest.raises(UnusableRow, match="row 5 has no token in the loss"):
        made(excluded, tokens)
    share = Row(prompt=turns("hi"), answer={**last, "weight": 0.5})
    with pytest.raises(UnusableRow, match=r"row 5 has a turn \(2\) of weight 0.5, and a turn is"):
        made(share, tokens)


def test_calls_and_contents_in_parts_are_written_as_in_a_session() -> None:
    template = (
        "{% for m in messages %}<start>{{ m['role'][0] }}\n{{ m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}{{ c['function']['arguments'] | tojson }}{% endfor %}"
        "<end>\n{% endfor %}{% if add_generation_prompt %}<start>a\n{% endif %}"
    )
    call = {"type": "function", "id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}
    asked = [
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1"}]}
    ]
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    made = byte_tokenizer(template=template)
    row = RowTokenizer(made, SFTData(dataset="x")).row(Row(prompt=asked, answer=answer), 0)

    assert made.decode(row.tokens) == '<start>u\n1+1<end>\n<start>a\n{"a": 1}<end>\n'
    # The user's text is the row's own.
    assert sum(size for size in row.sizes.tolist() if size > 0) == len("1+1")


def test_a_row_with_an_image_is_refused_when_it_is_stored() -> None:
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(UnusableRow, match=r"row 3: message 1 has a part that is no text"):
        RowTokenizer(byte_tokenizer(), SFTData(dataset="x")).row(Row(prompt=asked, answer="b"), 3)


def test_tools_and_reasoning_reach_the_template() -> None:
    template = "{% for tool in tools or [] %}{{ tool['name'] }};{% endfor %}" + FORGETFUL
    answer = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    row = Row(prompt=turns("sum"), answer=answer, columns={"tools": '[{"name": "add"}]'})
    tokens = byte_tokenizer(template=template)
    assert tokens.decode(made(row, tokens).tokens) == (
        "add;<start>u\nsum<end>\n<start>a\n2+2|4<end>\n"
    )
    assert trained(row, tokens) == ["2+2|4<end>"]


def test_a_template_that_changes_earlier_turns_is_refused_unless_it_marks_them() -> None:
    first = {"content": "2", "reasoning_content": "1+1"}
    row = Row(prompt=turns("a", first, "b"), answer="4")
    with pytest.raises(
        UnusableRow,
        match=r"row 5 is a conversation that the chat template writes "
        r"in another way .*: set data\.train_on to last, .*\{% generation %\}",
    ):
        made(row, byte_tokenizer(template=FORGETFUL))
    assert trained(row, byte_tokenizer(template=FORGETFUL), train_on="last") == ["4<end>"]
    assert trained(row, byte_tokenizer(template=MARKED)) == ["2<end>", "4<end>"]


def test_marks_that_leave_out_the_end_of_a_turn_do_not_leave_it_out_of_the_loss() -> None:
    row = Row(prompt=turns("hi", {"content": "yes", "reasoning_content": "so"}, "go"), answer="bye")
    marks = MARKED.replace("<end>{% endgeneration %}", "{% endgeneration %}<end>")
    assert trained(row, byte_tokenizer(template=marks)) == ["yes<end>", "bye<end>"]


def test_a_token_across_the_beginning_of_an_answer_is_cut_there_as_sampling_does() -> None:
    """The template ends a prompt with a line break, and two line breaks are one token."""
    tokens = byte_tokenizer((("Ċ", "Ċ"),), CHAT)
    row = Row(prompt="a", answer="\nb")
    asked = render(turns("a"), Data(dataset="d"), tokens)
    found = made(row, tokens)
    assert found.tokens[: len(asked)].tolist() == asked
    assert found.spans[0][0] == len(asked)
    assert tokens.decode(found.tokens) == "<start>u\na<end>\n<start>a\n\nb<end>\n"


def test_plain_text_begins_and_ends_with_the_tokens_for_that() -> None:
    tokens = byte_tokenizer(template=CHAT)
    found = made(Row(prompt="abc"), tokens, train_on="all")
    assert tokens.decode(found.tokens) == "<bos>abc<eos>"
    assert found.spans.tolist() == [[1, 5]]


def without(token: str, template: str | None = None) -> Any:
    tokens = byte_tokenizer(template=template)
    setattr(tokens, token, None)
    tokens.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    return tokens


CHATTY = byte_tokenizer(template=CHAT)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}


@pytest.mark.parametrize(
    ("row", "tokens", "options", "reason"),
    [
        (Row(prompt="a"), byte_tokenizer(), {}, "no answer .* set data.train_on to all"),
        (Row(prompt="a", answer=[1]), byte_tokenizer(), {}, r"has no answer to learn \(it is \[1"),
        (
            Row(prompt="a", answer={"tests": []}, columns={"code": "x", "id": 1}),
            byte_tokenizer(),
            {},
            r"with `--answer` \(its other columns of text are code\)",
        ),
        (Row(prompt=turns("a")), CHATTY, {}, "without an assistant's turn"),
        (
            Row(prompt=[*turns("a"), *turns("b")], answer="c"),
            CHATTY,
            {},
            "roles out of order: turn 2 is user, after user",
        ),
        (
            Row(prompt=[*turns("a", "b"), {"role": "system", "content": "x"}], answer="c"),
            CHATTY,
            {},
            "turn 3 is system, after assistant",
        ),
        (
            Row(prompt=[{"role": "human", "content": "a"}], answer="c"),
            CHATTY,
            {},
            r"has a turn of 'human' \(number 1\); roles are system",
        ),
        (Row(prompt=turns("a", "b", "c"), answer="d"), byte_tokenizer(), {}, "no chat template"),
        (Row(prompt="a"), without("bos_token"), {"train_on": "all"}, "set bos_token in"),
        (Row(prompt="a", answer="b"), without("eos_token"), {}, "set eos_token in"),
        (Row(prompt="1", answer="2"), without("eos_token", TEMPLATE), {}, "set eos_token in"),
        (
            Row(prompt=turns("a", CALL)),
            CHATTY,
            {},
            r"has `tool_calls` \(turn 2\) that the model's chat template leaves out",
        ),
        (
            Row(prompt=turns("a", {"content": None, "function_call": {"name": "f"}})),
            CHATTY,
            {"train_on": "all"},
            r"has `function_call` \(turn 2\) that the model's chat template leaves out",
        ),
        (
            Row(prompt=turns("a", {"content": "b", "reasoning_content": "c"})),
            CHATTY,
            {},
            r"has `reasoning_content` \(turn 2\) that the model's chat template leaves out",
        ),
        (
            Row(prompt="a", answer="b", columns={"tools": [{"name": "add"}]}),
            CHATTY,
            {},
            "has a column `tools` that the model's chat template leaves out",
        ),
        (
            Row(prompt=turns("a", "b\n", "c", "d")),
            byte_tokenizer(template=CHAT.replace("m['content']", "m['content'].strip('b')", 1)),
            {},
            r"has an answer \(turn 2\) whose text the chat template leaves out",
        ),
        (
            MESSAGES,
            tokenizer("{{ raise_exception('no system message here') }}"),
            {},
            "the chat template refuses .* no system message",
        ),
        (
            Row(prompt=[{"role": "user", "content": "1 x"}], answer="1"),
            tokenizer(TEMPLATE),
            {},
            "does not know: 'x'; add them",
        ),
        (
            Row(prompt="a", answer="b", columns={"tools": "{"}),
            CHATTY,
            {},
            "column `tools` that is no JSON",
        ),
    ],
)
def test_a_row_that_cannot_be_learned_is_named_with_the_way_out(
    row: Row, tokens: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnusableRow, match=rf"dataset row 5.*{reason}"):
        made(row, tokens, **options)


@pytest.mark.parametrize(
    ("row", "options", "chat_template", "spelled", "size"),
    [
        # The end of sequence spells nothing.
        (TEXT, {}, None, "12", 2),
        (TEXT, {"train_on": "all"}, None, "10+212", 6),
        # The template adds the brackets and the sign of the chat (7)(10+2)=.
        (MESSAGES, {"train_on": "all"}, TEMPLATE, "710+212", 7),
        # The first token is never counted. Here it belongs to a text.
        (
            TEXT,
            {"train_on": "all"},
            "{% for m in messages %}{{ m['content'] }}{% endfor %}",
            "0+212",
            5,
        ),
    ],
    ids=["answer", "all", "chat template", "no special token"],
)
def test_tokens_without_text_have_no_part_in_bits_per_byte(
    row: Row, options: dict[str, Any], chat_template: str | None, spelled: str, size: int
) -> None:
    tokens = tokenizer(chat_template)
    found = example(made(row, tokens, **options))
    assert found.sizes is not None
    counted = found.loss_mask & (found.sizes != NO_BYTES)
    assert tokens.decode(found.tokens[counted]) == spelled
    assert int(found.sizes[counted].sum()) == size


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_a_short_answer_is_not_found_in_what_the_template_writes_before_it(train_on: str) -> None:
    """`a` also stands in `<start>a`."""
    tokens = byte_tokenizer(template=CHAT)
    found = made(Row(prompt=turns("?", "a", "!"), answer="a"), tokens, train_on=train_on)
    (start, end), text = found.spans[-1], tokens.decode(found.tokens)
    answer = end - 2 if train_on != "all" else len(found.tokens) - 3
    assert text.endswith("<start>a\na<end>\n")
    assert found.sizes[answer] == 1
    assert (found.sizes[start:end] > 0).sum() == {"assistant": 1, "last": 1, "all": 4}[train_on]


def test_a_character_of_several_tokens_counts_its_bytes_once() -> None:
    found = made(Row(prompt="a€", answer="é"), byte_tokenizer(), train_on="all")
    # <bos>, a, then three bytes of the sign, then two of the answer, <eos>.
    assert found.sizes.tolist() == [NO_BYTES, 1, 3, 0, 0, 2, 0, NO_BYTES]


def test_characters_without_a_token_are_found_once_each() -> None:
    assert lacking("y1x+x", tokenizer()) == ["x", "y"]
    assert lacking("1 + 2", tokenizer()) == []
    # As GPT-2's tokenizer has it: its end of text is a token of every row.
    named_twice = tokenizer()
    named_twice.unk_token = named_twice.eos_token
    assert unknown_id(named_twice) is None
    assert lacking("1 + 2", named_twice) == []


def test_the_loss_of_packed_conversations_is_the_sum_of_each_alone() -> None:
    loaded, tokens = tiny_model(), tiny_model().tokenizer
    loaded.model.double()
    policy = TokenLogprobs(loaded.model)
    rows = [Row(prompt=f"{n}+{n}" * (1 + n % 4), answer=str(2 * n)) for n in range(12)]
    examples = [example(made(row, tokens), component=n % 2) for n, row in enumerate(rows)]

    def nats(rows: list[Example]) -> torch.Tensor:
        loss = LikelihoodLoss(rows, 2, ALONE)
        backward(policy, loss, MicroBatches(ALONE, 10_000))
        assert loss.nats is not None
        return loss.nats

    alone = torch.stack([nats([one]) for one in examples]).sum(0)
    torch.testing.assert_close(nats(examples), alone, rtol=1e-6, atol=0)
