"""Find the conversation that a call continues, although clients rewrite earlier turns."""

from itertools import pairwise
from typing import Any

import pytest

from services.contracts.sessions import (
    Call,
    chat_histories,
    text_histories,
)
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import completions_call
from services.gateway.sessions.histories import beginnings, continued
from tests.unit.gateway.session_calls import ASKED, SAMPLING, TOOL, chat


def continues(call: Call, known: dict[str, list[int]], lengths: tuple[int, ...] = ()) -> Any:
    """(new, path) of `call` in a session with these histories."""
    histories = beginnings(call, lengths)
    last = [known[digest][-1] if digest in known else None for _, digest in histories]
    # Each path is a chain of parents.
    parents = [-1] * 9
    for path in known.values():
        for before, turn in pairwise(path):
            parents[turn] = before
    continuation = continued(call, histories, last, parents)
    return continuation.new, continuation.path


def test_what_the_client_sends_back_continues_the_conversation() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    known = {chat_histories([TOOL], [*ASKED, answer])[-1]: [0]}
    # As the official client dumps it, with a result after it.
    dumped = {**answer, "refusal": None, "annotations": None, "function_call": None, "content": ""}
    result = {"role": "tool", "tool_call_id": "c", "content": "4"}
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]}
    ]
    for asked in (ASKED, parts):
        next_call = chat(messages=[*asked, dumped, result], tools=[TOOL])
        assert continues(next_call, known) == (2, [0])
    for messages, tools in (
        ([*ASKED, dumped], [TOOL]),
        ([{"role": "user", "content": "3+3"}, dumped, result], [TOOL]),
        ([*ASKED, {**dumped, "content": "edited"}, result], [TOOL]),
        ([*ASKED, dumped, result], []),
        (ASKED, [TOOL]),
    ):
        assert continues(chat(messages=messages, tools=tools), known) == (0, [])


def test_an_answer_that_comes_back_as_a_refusal_continues_the_conversation() -> None:
    known = {chat_histories([], [*ASKED, {"role": "assistant", "content": "I won't."}])[-1]: [0]}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't."}]}
    asked = [*ASKED, refusal, {"role": "user", "content": "please"}]
    assert continues(chat(messages=asked), known) == (2, [0])


def called(arguments: str) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("sampled", "sent"),
    [
        ('{"a":1, "b" : [2.0,"\\u00e9"]}', '{"b": [2, "é"], "a": 1}'),
        ('{"a": NaN}', '{"a":NaN}'),
        ('{"a": 1e999}', '{"a":Infinity}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("null", "{}"),
        ("", "{}"),
        ('"\\ud800"', ' "\\ud800"'),
        ("{a: 1", "{a: 1"),
        ("[" * 100_000, "[" * 100_000),
        ("[" * 500 + "]" * 500, "[" * 500 + "]" * 500),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_arguments_that_were_parsed_and_written_again_continue_the_conversation(
    sampled: str, sent: str
) -> None:
    known = {chat_histories([TOOL], [*ASKED, called(sampled)])[-1]: [0]}
    result = {"role": "tool", "tool_call_id": "c", "content": "4"}
    messages = [*ASKED, called(sent), result]
    assert continues(chat(messages=messages, tools=[TOOL]), known) == (2, [0])


@pytest.mark.parametrize(
    ("arguments", "other"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('"4"', "4"),
        ("{a: 1", '"{a: 1"'),
        ("true", "1"),
        ("null", "0"),
        # How much of the stack is left decides whether this can be read.
        ("[" * 500 + "]" * 500, " " + "[" * 500 + "]" * 500),
    ],
)
def test_other_arguments_are_another_conversation(arguments: str, other: str) -> None:
    assert chat_histories([], [called(arguments)]) != chat_histories([], [called(other)])


def test_the_longest_conversation_is_continued_and_an_edit_forks_before_it() -> None:
    conversation: list[Any] = [*ASKED, {"role": "assistant", "content": "4"}]
    longer = [
        *conversation,
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    ]
    known = {chat_histories([], conversation)[-1]: [0], chat_histories([], longer)[-1]: [0, 2]}
    thanks = {"role": "user", "content": "thanks"}
    assert continues(chat(messages=[*longer, thanks]), known) == (4, [0, 2])
    assert continues(chat(messages=[*conversation, thanks]), known) == (2, [0])
    edited = [*longer[:3], {"role": "assistant", "content": "no"}, thanks]
    assert continues(chat(messages=edited), known) == (2, [0])


def test_a_completions_prompt_begins_with_the_earlier_turns() -> None:
    known = dict(zip(text_histories("2+24 sure?yes", [4, 13]), ([0], [0, 1]), strict=True))
    known |= {text_histories([1, 2], [2])[0]: [2]}
    asked: dict[Any, tuple[int, list[int]]] = {
        "2+24 sure?": (4, [0]),
        "2+24 sure?yes.": (13, [0, 1]),
        "2+24 sure?no": (4, [0]),
        "2+24": (0, []),
        "1,2,3": (0, []),
        (1, 2, 3): (2, [2]),
        (1, 3, 3): (0, []),
        (1, 2): (0, []),
    }
    for prompt, expected in asked.items():
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
        assert continues(completions_call(body, SAMPLING), known, (2, 4, 13)) == expected
    half = Call(kind="completions", prompt="\ud8002+2")
    assert continues(half, known, (2, 4, 13)) == (0, [])
    unusable: list[Any] = ["", [], ["a", "b"], [[1]], [1 << 40], [-1], [True], None]
    for prompt in unusable:
        with pytest.raises(SessionProblem, match="prompt"):
            completions_call({"prompt": prompt}, SAMPLING)
