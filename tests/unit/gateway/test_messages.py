"""Anthropic's Messages API: requests of the official client are taken, answers have its types, and
an answer that it sends back finds its turn."""

import json
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, ToolUseBlock

from services.contracts.policy_calls import Failure, Piece
from services.gateway.dialects.bodies import AnthropicModels, ModelsAsked
from services.gateway.dialects.messages_answers import MessagesWriter
from services.gateway.dialects.messages_requests import chat_body, messages_request
from services.gateway.openai.bodies import OpenAIModels
from services.gateway.openai.errors import SessionProblem, over
from tests.unit.gateway.dialect_clients import Policy, piece
from tests.unit.gateway.session_calls import SAMPLING

ASKED: Any = [{"role": "user", "content": "What is 27+35?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}


def client_of(policy: Policy) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key="k", http_client=policy.http, max_retries=0, _strict_response_validation=True
    )


def calling(arguments: str, id: str = "chatcmpl-tool-1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}}


def asked(client: anthropic.Anthropic, streams: bool, **options: Any) -> Message:
    if not streams:
        return client.messages.create(model="policy", max_tokens=50, **options)
    with client.messages.stream(model="policy", max_tokens=50, **options) as stream:
        return stream.get_final_message()


ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"content": " It is 62.\n"},
    "empty text": {"content": ""},
    "a thought": {"content": "62", "reasoning": "27 and 35"},
    "a thought in the text": {"content": "<think>\nhm\n</think>\n\n62"},
    "a call": {"tool_calls": [calling('{"a": 27, "b":[35.0, "é"]}')]},
    "a call after text": {"content": "Let me see.\n", "tool_calls": [calling('{"a":1}')]},
    "a call after a blank": {"content": "\n\n", "tool_calls": [calling("{}")]},
    "a thought, text and calls": {
        "content": "So:",
        "reasoning": "hm",
        "tool_calls": [calling('{"a": 1}'), calling('{"a": 2}', "chatcmpl-tool-2")],
    },
    "a call without arguments": {"tool_calls": [calling("")]},
    "null as arguments": {"tool_calls": [calling("null")]},
    "arguments that are no JSON": {"tool_calls": [calling('{"a": 1')]},
    "arguments that are a list": {"tool_calls": [calling("[1, 2]")]},
    "arguments with NaN": {"tool_calls": [calling('{"a": NaN}')]},
    "deep arguments": {"tool_calls": [calling("[" * 5000)]},
}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_the_client_sends_back_finds_its_turn(answer: str, streams: bool) -> None:
    policy = Policy(messages_request, piece(ANSWERS[answer]), piece({"content": "62"}))
    client = client_of(policy)
    options: dict[str, Any] = {"system": "You add.", "tools": [ADD], "cache_control": None}

    first = asked(client, streams, messages=ASKED, **options)
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "62"}
        for block in first.content
        if isinstance(block, ToolUseBlock)
    ]
    # A client's own text after the results of its tools.
    follows = [*results, {"type": "text", "text": "Go on."}]
    turns = [*ASKED, {"role": "assistant", "content": first.content}]
    asked(client, streams, messages=[*turns, {"role": "user", "content": follows}], **options)

    assert policy.continues == [False, True]
    roles = [message["role"] for message in policy.calls[1].messages]
    assert roles == ["system", "user", "assistant", *["tool"] * len(results), "user"]
    assert first.stop_reason == ("tool_use" if results else "end_turn")
    assert (first.usage.input_tokens, first.usage.output_tokens) == (7, 3)


def test_an_answer_has_its_blocks_in_order_and_as_the_policy_wrote_them() -> None:
    policy = Policy(messages_request, piece(ANSWERS["a thought, text and calls"]))

    message = asked(client_of(policy), False, messages=ASKED, tools=[ADD])

    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    call = message.content[2]
    assert isinstance(call, ToolUseBlock)
    assert (call.id, call.name, call.input) == ("chatcmpl-tool-1", "add", {"a": 1})


def test_a_stream_has_the_events_of_anthropics_api_in_their_order() -> None:
    writer = MessagesWriter("1", 0, "run")
    answer = piece(ANSWERS["a thought, text and calls"])
    lines = b"".join((*writer.begin(), *writer.events(answer))).decode().split("\n\n")[:-1]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]

    assert [line.partition("\n")[0] for line in lines] == [
        f"event: {event['type']}" for event in events
    ]
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        *[(f"content_block_{part}", 1) for part in ("start", "delta", "stop")],
        *[(f"content_block_{part}", 2) for part in ("start", "delta", "stop")],
        *[(f"content_block_{part}", 3) for part in ("start", "delta", "stop")],
        ("message_delta", None),
        ("message_stop", None),
    ]
    deltas = [event["delta"]["type"] for event in events if event["type"].endswith("block_delta")]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", *["input_json_delta"] * 2]
    assert events[0]["message"]["usage"]["input_tokens"] == 7


def test_text_that_comes_in_pieces_is_one_block() -> None:
    writer = MessagesWriter("1", 0, "run")
    pieces = [
        Piece(version=3),
        Piece(text="6"),
        Piece(),
        Piece(text="2"),
        Piece(finish_reason="length", prompt_tokens=5, sampled_tokens=2),
    ]
    text = b"".join(event for each in pieces for event in writer.events(each)).decode()
    events = [json.loads(line.partition("\ndata: ")[2]) for line in text.split("\n\n")[:-1]]

    assert [event["type"].removeprefix("content_block_") for event in events] == [
        *("message_start", "ping", "start", "delta", "delta", "stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert events[-2]["usage"]["input_tokens"] == 5
    assert MessagesWriter("1", 0, "run").whole(pieces)["content"] == [
        {"type": "text", "text": "62"}
    ]


@pytest.mark.parametrize(
    ("answer", "reason", "sequence"),
    [
        (piece({"content": "62"}), "end_turn", None),
        (piece({"content": "62"}, finish_reason="length"), "max_tokens", None),
        (piece({"content": "62"}, stop="\n\n"), "stop_sequence", "\n\n"),
        (piece({"tool_calls": [calling("{}")]}, finish_reason="length"), "max_tokens", None),
    ],
)
def test_the_end_of_an_answer_has_its_reason(
    answer: Piece, reason: str, sequence: str | None
) -> None:
    policy = Policy(messages_request, answer)
    message = asked(client_of(policy), True, messages=ASKED, stop_sequences=["\n\n"])
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert (policy.calls[0].stop, policy.calls[0].max_tokens) == (["\n\n"], 50)


def test_an_answer_that_breaks_off_is_raised_by_the_client() -> None:
    failure = Failure(status=503, message="the worker stops")
    policy = Policy(messages_request, Piece(text="half", failure=failure))
    with pytest.raises(anthropic.APIStatusError, match="the worker stops"):
        asked(client_of(policy), True, messages=ASKED)


def test_options_of_claude_code_are_taken_and_its_billing_header_is_not_read() -> None:
    policy = Policy(messages_request, piece({"content": "ok"}), piece({"content": "ok"}))
    client = client_of(policy)
    turns = [*ASKED, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    for number, messages in enumerate((ASKED, turns)):
        system: Any = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
            {"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}},
        ]
        client.beta.messages.create(
            model="claude", max_tokens=50, messages=messages, system=system, tools=[ADD],
            extra_body={"temperature": 1}, metadata={"user_id": "u"}, thinking={"type": "adaptive"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "high"}, tool_choice={"type": "auto"},
            betas=["interleaved-thinking-2025-05-14"],
        )  # fmt: skip
    assert policy.continues == [False, True]
    assert policy.calls[0].messages[0] == {"role": "system", "content": "You add."}


def test_results_and_texts_of_a_user_stay_in_their_order() -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]},
        {"type": "text", "text": "so"},
        {"type": "text", "text": "?"},
    ]
    assert chat_body({"messages": [{"role": "user", "content": content}]})["messages"] == [
        {"role": "user", "content": "see"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": content[3:]},
    ]


@pytest.mark.parametrize(
    ("choice", "parallel"), [({"type": "any"}, True), ({"type": "tool", "name": "add"}, False)]
)
def test_a_forced_call_is_forced(choice: dict[str, Any], parallel: bool) -> None:
    policy = Policy(
        messages_request, piece({"tool_calls": [calling("{}")]}), sampling=SAMPLING | {"top_k": 20}
    )
    chosen: Any = choice | {"disable_parallel_tool_use": not parallel}
    asked(client_of(policy), False, messages=ASKED, tools=[ADD], tool_choice=chosen)
    (call,) = policy.calls
    named = {"type": "function", "function": {"name": "add"}}
    assert call.structured == {"tool_choice": named if "name" in choice else "required"}
    assert call.parallel_tool_calls == parallel


def test_a_format_is_enforced() -> None:
    policy = Policy(messages_request, piece({"content": "{}"}), sampling=SAMPLING | {"top_k": 20})
    format: Any = {"type": "json_schema", "schema": SCHEMA}
    asked(client_of(policy), False, messages=ASKED, output_config={"format": format})
    assert policy.calls[0].structured == {"json": SCHEMA}


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}, *ASKED]}


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "image": (said("user", IMAGE), r"messages\[0\].content\[0\]: a block of type 'image' cannot"),
    "image of a tool": (
        said("user", {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}),
        r"messages\[0\].content\[0\].content\[0\]: a block of type 'image'",
    ),
    "document": (said("user", {"type": "document"}), "'document' cannot be used"),
    "block": (said("user", "x"), r"content\[0\]: must be an object with a type"),
    "text": (said("user", {"type": "text"}), r"content\[0\].text: must be a text"),
    "call": (said("assistant", {"type": "tool_use", "input": 1}), "input: must be an object"),
    "server's call": (said("assistant", {"type": "server_tool_use"}), "'server_tool_use' cannot"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "a role: user or assistant"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, "a text, or a list of blocks"),
    "no messages": ({"messages": []}, "messages: must be a list of at least one"),
    "prefill": ({"messages": [*ASKED, {"role": "assistant", "content": "It"}]}, "has begun cannot"),
    "system": ({"system": [IMAGE]}, r"system\[0\]: a block of type 'image'"),
    "server's tool": ({"tools": [SEARCH]}, r"tools\[0\]: a tool of type 'web_search_20250305'"),
    "no schema": ({"tools": [{"name": "a"}]}, r"tools\[0\]: must be an object with a name and an"),
    "bad schema": (
        {"tools": [ADD | {"input_schema": {"type": "x"}}]},
        r"tools\[0\].input_schema: this is no JSON schema",
    ),
    "choice": ({"tool_choice": {"type": "all"}}, "tool_choice: its type must be auto"),
    "forced": ({"tools": [ADD], "tool_choice": {"type": "any"}}, "tool_choice: it changes what"),
    "stops": ({"stop_sequences": ["a"] * 5}, "stop_sequences: must be a list of up to 4"),
    "temperature": ({"temperature": 0.2}, "temperature: the run samples with 1.0"),
    "servers": ({"mcp_servers": [{"url": "x"}]}, "mcp_servers: no such option is known"),
    "output": ({"output_config": {"task_budget": 5}}, "output_config.task_budget: no such option"),
    "format": ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: must be an"),
    "no max_tokens": ({"max_tokens": None}, "max_tokens: is required"),
    "unknown": ({"container": "c"}, "container: no such option is known here"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_by_name_in_anthropics_format(case: str) -> None:
    changed, message = REFUSED[case]
    policy = Policy(messages_request)
    with pytest.raises(anthropic.BadRequestError, match=message) as refused:
        client_of(policy).post(
            "/v1/messages",
            body={"model": "m", "max_tokens": 5, "messages": ASKED} | dict(changed),
            cast_to=Message,
        )
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")


@pytest.mark.parametrize(
    ("status", "type"),
    [(401, "authentication_error"), (409, "invalid_request_error"), (429, "rate_limit_error"),
     (500, "api_error"), (503, "overloaded_error")],
)  # fmt: skip
def test_an_error_has_anthropics_type_of_its_status(status: int, type: str) -> None:
    for path in ("/v1/messages", "/v1/sessions/a-b-0/v1/messages/count_tokens"):
        response = SessionProblem(status, "no").response(path)
        document = {"type": "error", "error": {"type": type, "message": "no"}}
        assert json.loads(bytes(response.body)) == document
    assert "type" not in json.loads(bytes(SessionProblem(status, "no").response("/v1/x").body))
    assert over("stale").response("/v1/messages").headers["x-should-retry"] == "false"


def test_models_are_listed_in_anthropics_form_for_its_clients_page_by_page() -> None:
    names = {f"run@{step}": 1_700_000_000 for step in range(5)}

    def page(request: httpx2.Request) -> httpx2.Response:
        ends = {name: request.url.params.get(name) for name in ("after_id", "before_id")}
        asked = ModelsAsked(
            request.headers["anthropic-version"], int(request.url.params["limit"]), **ends
        )
        return httpx2.Response(200, text=asked.listed(names).model_dump_json())

    client = anthropic.Anthropic(
        api_key="k",
        http_client=httpx2.Client(transport=httpx2.MockTransport(page)),
        _strict_response_validation=True,
    )
    assert [model.id for model in client.models.list(limit=2)] == [*names]
    before = client.models.list(limit=2, before_id="run@3")
    assert ([model.id for model in before.data], before.has_more) == (["run@1", "run@2"], True)
    assert ModelsAsked().listed(names) == OpenAIModels.named(names)
    nothing = ModelsAsked("2023-06-01").listed({})
    assert isinstance(nothing, AnthropicModels)
    assert (nothing.data, nothing.first_id, nothing.has_more) == ([], None, False)
