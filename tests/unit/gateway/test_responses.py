"""OpenAI's Responses API: requests of the official client are taken, answers have its types, and
items that it sends back find their turn."""

import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall

from services.contracts.policy_calls import Failure, Piece
from services.contracts.sessions import SessionName
from services.gateway.dialects.responses_answers import ResponsesWriter, echo_of
from services.gateway.dialects.responses_requests import chat_body, responses_request
from services.gateway.openai.errors import SessionProblem
from services.gateway.sessions.kept_responses import KeptConversation, conversation_entry
from services.gateway.sessions.responses import Responses
from tests.unit.gateway.dialect_clients import Policy, piece
from tests.unit.gateway.session_calls import SAMPLING
from tests.unit.gateway.test_messages import ANSWERS, SCHEMA, calling

ASKED: Any = [{"role": "user", "content": "What is 27+35?"}]
ADD: Any = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}


def client_of(policy: Policy) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="k",
        base_url="http://gateway/v1",
        http_client=policy.http,
        max_retries=0,
        _strict_response_validation=True,
    )


def asked(client: openai.OpenAI, streams: bool, **options: Any) -> Response:
    if not streams:
        return client.responses.create(model="policy", **options)
    with client.responses.stream(model="policy", **options) as stream:
        return stream.get_final_response()


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_the_client_sends_back_finds_its_turn(answer: str, streams: bool) -> None:
    policy = Policy(responses_request, piece(ANSWERS[answer]), piece({"content": "62"}))
    client = client_of(policy)
    options: dict[str, Any] = {"instructions": "You add.", "tools": [ADD]}

    first = asked(client, streams, input=ASKED, **options)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "62"}
        for item in first.output
        if isinstance(item, ResponseFunctionToolCall)
    ]
    back = [item.to_dict() for item in first.output]
    follows = outputs or ASKED
    asked(client, streams, input=[*ASKED, *back, *follows], **options)

    assert policy.continues == [False, True]
    roles = [message["role"] for message in policy.calls[1].messages]
    after = ["tool"] * len(outputs) or ["user"]
    assert roles == ["system", "user", "assistant", *after]
    assert (first.status, first.instructions, first.tools[0].type) == (
        "completed", "You add.", "function",
    )  # fmt: skip
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens) == (7, 3)


def test_a_stream_has_the_events_of_openais_api_in_their_order() -> None:
    writer = ResponsesWriter(echo_of({}), "resp_1", 0, "run")
    answer = piece(ANSWERS["a thought, text and calls"])
    lines = b"".join((*writer.begin(), *writer.events(answer))).decode().split("\n\n")[:-1]
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]

    assert [line.partition("\n")[0] for line in lines] == [
        f"event: {event['type']}" for event in events
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *[*call, "output_item.done"] * 2,
        "completed",
    ]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    whole = ResponsesWriter(echo_of({}), "resp_1", 0, "run").whole([answer])
    assert events[-1]["response"] == whole
    assert [item["type"] for item in whole["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip


def test_text_that_comes_in_pieces_is_one_item() -> None:
    pieces = [
        Piece(version=3),
        Piece(text="6"),
        Piece(),
        Piece(text="2"),
        Piece(finish_reason="length", prompt_tokens=5, sampled_tokens=2),
    ]
    writer = ResponsesWriter(echo_of({}), "resp_1", 0, "run")
    text = b"".join(event for each in pieces for event in writer.events(each)).decode()
    events = [json.loads(line.partition("\ndata: ")[2]) for line in text.split("\n\n")[:-1]]

    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["6", "2"]
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"] == ResponsesWriter(echo_of({}), "resp_1", 0, "run").whole(pieces)


def test_an_answer_that_breaks_off_is_raised_by_the_client() -> None:
    failure = Failure(status=503, message="the worker stops")
    policy = Policy(responses_request, Piece(text="half", failure=failure))
    with pytest.raises(openai.APIError, match="the worker stops"):
        asked(client_of(policy), True, input="2+2")


def test_options_of_frameworks_are_taken() -> None:
    policy = Policy(responses_request, piece({"content": "ok"}))
    response = client_of(policy).responses.create(
        model="policy", input="2+2", tools=[ADD], tool_choice="auto", parallel_tool_calls=False,
        max_output_tokens=9, temperature=1, top_p=1, store=False, metadata={"a": "b"}, user="me",
        include=["reasoning.encrypted_content"], reasoning={"summary": "auto", "effort": "low"},
        text={"format": {"type": "text"}, "verbosity": "low"}, truncation="disabled",
        background=False, prompt_cache_key="k", service_tier="auto", top_logprobs=0,
    )  # fmt: skip
    (call,) = policy.calls
    assert (call.max_tokens, call.parallel_tool_calls, call.structured) == (9, False, None)
    assert call.variables == {"reasoning_effort": "low"}
    assert (response.metadata, response.max_output_tokens) == ({"a": "b"}, 9)


@pytest.mark.parametrize(
    ("options", "structured"),
    [
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "add"}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"json_object": True}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
    ],
)
def test_what_is_enforced_is_enforced(options: Any, structured: dict[str, Any]) -> None:
    answer = piece({"tool_calls": [calling("{}")]})
    policy = Policy(responses_request, answer, sampling=SAMPLING | {"top_k": 20})
    client_of(policy).responses.create(model="m", input="2+2", tools=[ADD], **options)
    assert policy.calls[0].structured == structured


def test_items_become_the_messages_of_a_chat() -> None:
    given: list[Any] = [
        {"role": "developer", "content": "Add."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I"}]},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "4"},
        {"type": "function_call_output", "call_id": "b", "output": [
            {"type": "input_text", "text": "5"}, {"type": "input_text", "text": "6"},
        ]},
        {"role": "assistant", "content": "4"},
        {"role": "assistant", "content": "or 5"},
    ]  # fmt: skip
    texts = [{"type": "text", "text": "5"}, {"type": "text", "text": "6"}]
    assert chat_body({"input": given})["messages"] == [
        {"role": "developer", "content": "Add."},
        {"role": "user", "content": "2+2?"},
        {
            "role": "assistant",
            "content": "I",
            "reasoning": "",
            "tool_calls": [calling("{}", "a"), calling("{}", "b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "tool", "tool_call_id": "b", "content": texts},
        {"role": "assistant", "content": "4"},
        {"role": "assistant", "content": "or 5"},
    ]


IMAGE = {"type": "input_image", "image_url": "x"}
REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "image": ({"input": [{"role": "user", "content": [IMAGE]}]}, r"content\[0\]: a part of type"),
    "image of a tool": (
        {"input": [{"type": "function_call_output", "call_id": "a", "output": [IMAGE]}]},
        r"input\[0\].output\[0\]: a part of type 'input_image' cannot be used",
    ),
    "item": ({"input": [{"type": "web_search_call"}]}, r"input\[0\]: an item of type 'web_search_"),
    "reference": ({"input": [{"type": "item_reference", "id": "a"}]}, "'item_reference' cannot"),
    "no item": ({"input": ["a"]}, r"input\[0\]: must be an item"),
    "part": ({"input": [{"role": "user", "content": [{"type": []}]}]}, r"part of type \[\] cannot"),
    "tools": ({"tools": [5]}, r"tools\[0\]: a tool of type None"),
    "no tools": ({"tools": "add"}, "tools: must be a list of tools"),
    "input": ({"input": 5}, "input: must be a text, or a list of items"),
    "role": ({"input": [{"role": "tool", "content": ""}]}, r"input\[0\].role: must be one of"),
    "call": ({"input": [{"type": "function_call", "call_id": "a"}]}, r"\[0\].name: must be a text"),
    "tool": ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: a tool of type 'web_search'"),
    "schema": ({"tools": [ADD | {"parameters": {"type": "x"}}]}, r"tools\[0\].parameters: this is"),
    "choice": ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice: must be auto, none"),
    "background": ({"background": True}, "background: an answer is waited for here"),
    "truncation": ({"truncation": "auto"}, "truncation: a conversation is never cut here"),
    "logprobs": ({"include": ["message.output_text.logprobs"]}, "include: must be a list without"),
    "top logprobs": ({"top_logprobs": 3}, "top_logprobs: answers come without log-probabilities"),
    "prompt": ({"prompt": {"id": "x"}}, "prompt: no such option is known here"),
    "format": ({"text": {"format": {"type": "grammar"}}}, "text.format: its type must be text"),
    "forced format": ({"text": {"format": {"type": "json_object"}}}, "response_format: it changes"),
    "temperature": ({"temperature": 0.2}, "temperature: the run samples with 1.0"),
    "previous": ({"previous_response_id": "r"}, "previous_response_id: the policy's"),
    "conversation": ({"conversation": "c"}, "conversation: the policy's endpoint keeps no"),
    "instructions": ({"instructions": 5}, "instructions: must be a text"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_by_name(case: str) -> None:
    changed, message = REFUSED[case]
    policy = Policy(responses_request)
    body = {"model": "m", "input": "2+2"} | dict(changed)
    with pytest.raises(openai.BadRequestError, match=message):
        client_of(policy).post("/responses", body=body, cast_to=Response)


class Sessions:
    """Sessions that are over for a reason, or live, and whose conversations have gone on."""

    def __init__(self, reason: str = "") -> None:
        self.agent_sessions = self.kept_responses = self
        self._reason = reason

    async def over(self, *session: Any) -> str:
        return self._reason

    async def entries(self, session: SessionName) -> dict[str, bytes]:
        return conversation_entry("conv_1", KeptConversation(0, {}))

    async def keep(self, *arguments: Any, are_items: bool) -> str:
        return "elsewhere"


def kept(sessions: Any) -> Responses:
    turns: Any = None
    return Responses(sessions, turns)


async def test_items_for_a_conversation_that_has_gone_on_are_refused_and_not_lost() -> None:
    with pytest.raises(SessionProblem, match="were not added: send them again") as refused:
        await kept(Sessions()).add(SessionName("r", "a", 0), "conv_1", {"items": ASKED}, "")

    assert refused.value.status == 409


async def test_no_conversation_begins_or_grows_in_a_session_that_is_not_there() -> None:
    session = SessionName("r", "a", 0)

    with pytest.raises(SessionProblem, match="this session does not exist"):
        await kept(Sessions("gone")).begin(session, {}, "")
    with pytest.raises(SessionProblem, match="this session does not exist"):
        await kept(Sessions("gone")).add(session, "conv_1", {"items": ASKED}, "")
