"""Turns requests of the OpenAI API into calls that workers take. Pure. Raises SessionProblem.

An option that changes what tokens are sampled from is refused by name, unless it has the run's
value: training would compute other probabilities than sampling did.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from services.contracts.config.data import check_variables
from services.contracts.sessions import Call
from services.gateway.openai.bodies import Kind
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.json_schemas import schema_problem

UNUSED = frozenset(
    {
        "model", "user", "metadata", "store", "stream", "stream_options", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    }
)  # fmt: skip
"""Options that change no token; `stream` and its options are the route's."""
MAX_STOPS = 4
MAX_SCHEMA = 64 << 10
"""Characters of a JSON schema, which gateway and vLLM read while other requests wait."""
MAX_TOOLS = 256 << 10
"""Characters of a request's tools."""
MAX_MESSAGES = 16_384
"""Most messages of a request: reading and hashing them delays other requests."""
ROLES = ("system", "developer", "user", "assistant", "tool")
WHOLE = "training accounts for whole samples of the policy alone: leave it out"
UNKNOWN = (
    "no such option is known here. It might change what tokens are sampled from, so it is not "
    "ignored: leave it out"
)
ONE = "a request has one answer here: send it again with another `seed` for another one"
NO_LOGPROBS = "answers come without log-probabilities here: leave it out"
MASKED = (
    "it changes what tokens are sampled from, and training accounts for that in a run with "
    "sampling.top_k and a temperature alone, which records what each token was chosen from: submit "
    "such a run, or leave it out"
)
NO_CHOICE = "must be auto, none, required, or an object that names a function of `tools`"

UNFORCED = ("auto", "none")
Allowed = Callable[[Any], bool]
NEUTRAL: dict[str, Allowed] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "min_p": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "tool_choice": lambda value: value in UNFORCED,
    "modalities": lambda value: value == ["text"],
    "response_format": lambda value: value == {"type": "text"},
}
"""Options that are taken with the value that changes nothing."""
REASONS = {
    "n": ONE,
    "best_of": ONE,
    "logprobs": NO_LOGPROBS,
    "top_logprobs": NO_LOGPROBS,
}
"""Reasons for keys with a fixed value. The default reason: only whole samples can be trained."""
OF_THE_RUN = ("temperature", "top_p", "top_k")
VARIABLES, EFFORT = "chat_template_kwargs", "reasoning_effort"
TAKEN = frozenset(
    {
        "messages", "tools", "parallel_tool_calls", "prompt", "stop", "seed", "max_tokens",
        "max_completion_tokens",
    }
)  # fmt: skip


def refused(param: str, message: str, code: str | None = None) -> SessionProblem:
    """Return 400 for one option."""
    return SessionProblem(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param, code)


def call_of(kind: Kind, body: Mapping[str, Any], sampling: Mapping[str, Any]) -> Call:
    """Return the call of a request, as the first of its conversation. `sampling`: the run's, with
    its `chat_template_kwargs`."""
    return (chat_call if kind == "chat" else completions_call)(body, sampling)


def chat_call(body: Mapping[str, Any], sampling: Mapping[str, Any]) -> Call:
    """Return the call of a request for chat completions."""
    choice = body.get("tool_choice")
    call = _call("chat", {k: body[k] for k in body if k != "tool_choice"}, sampling)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise refused("messages", "must be a list of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise refused("messages", f"has {len(messages):,} messages: send at most {MAX_MESSAGES:,}")
    call.messages = [_message(message, at) for at, message in enumerate(messages)]
    call.tools = [] if choice == "none" else _tools(body.get("tools") or [])
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise refused("parallel_tool_calls", "must be true or false")
    call.parallel_tool_calls = parallel is not False
    if choice is not None and choice not in UNFORCED:
        if call.structured is not None:
            raise refused("tool_choice", "a call has no response_format: leave one of them out")
        call.structured = {"tool_choice": _forced(choice, call.tools, sampling)}
    return call


def completions_call(body: Mapping[str, Any], sampling: Mapping[str, Any]) -> Call:
    """Return the call of a request to complete a text or token ids."""
    call = _call("completions", body, sampling)
    prompt = body.get("prompt")
    text = isinstance(prompt, str) and prompt
    ids = isinstance(prompt, list) and prompt and all(map(_is_id, prompt))
    if not (text or ids):
        raise refused("prompt", "must be one text, or one list of token ids")
    assert isinstance(prompt, str | list)
    call.prompt = prompt
    return call


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def choices_of(body: Mapping[str, Any]) -> int:
    """Return the number of answers to a request that can be used; otherwise any number."""
    prompt, n = body.get("prompt"), body.get("n")
    is_list = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    return (n if type(n) is int else 1) * (len(prompt) if is_list and prompt else 1)


def with_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with its number of tokens."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _check_portable(name: str, value: Any) -> None:
    """Refuse integers and nesting that MessagePack cannot hold: calls travel to workers as
    MessagePack."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise refused(name[:100], "it holds an integer beyond 64 bits") from None
    except RecursionError:
        raise refused(name[:100], "it is nested too deeply") from None


def _call(kind: Kind, body: Mapping[str, Any], sampling: Mapping[str, Any]) -> Call:
    structured, variables = None, dict[str, Any]()
    for name, value in body.items():
        _check_portable(name, value)
        if value is None or name in UNUSED or name in TAKEN:
            continue
        if name == "response_format":
            structured = _structured(value, sampling)
        elif name in OF_THE_RUN:
            run = sampling.get(name)
            if isinstance(value, bool) or value != run:
                raise refused(name, f"the run samples with {run}: leave it out, or send {run}")
        elif name in (VARIABLES, EFFORT):
            variables |= _variables(name, value, sampling.get(VARIABLES) or {})
        elif name not in NEUTRAL:
            raise refused(name[:100], UNKNOWN)
        elif not NEUTRAL[name](value):
            raise refused(name, REASONS.get(name, WHOLE))
    newer = "max_completion_tokens"
    limit = "max_tokens" if body.get(newer) is None else newer
    max_tokens = body.get(limit)
    if max_tokens is not None and (type(max_tokens) is not int or not 0 < max_tokens < 1 << 31):
        raise refused(limit, "must be a whole number above 0 and below 2^31")
    seed = body.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 62):
        raise refused("seed", "must be a whole number from 0 to 2^62")
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(text, str) and text for text in stops)
    ):
        raise refused("stop", f"must be a text, or up to {MAX_STOPS} texts")
    if variables and kind != "chat":
        raise refused(VARIABLES, "a text has no chat template: leave it out")
    return Call(
        kind=kind,
        stop=stops,
        seed=seed,
        max_tokens=max_tokens,
        structured=structured,
        variables=variables,
    )


def _variables(param: str, value: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template that differ from the run's. A worker refuses those
    that the template does not mention."""
    variables = {EFFORT: value} if param == EFFORT else value
    if not isinstance(variables, dict):
        raise refused(param, "must be an object of the chat template's variables")
    try:
        check_variables(variables)
    except ValueError as error:
        raise refused(param, str(error)) from None
    # Python's true equals 1, and JSON's does not.
    return {
        name: variable
        for name, variable in variables.items()
        if name not in run or json.dumps(run[name]) != json.dumps(variable)
    }


def _structured(format: Any, sampling: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return vLLM's constraint for an OpenAI `response_format`, None for plain text. Raises
    SessionProblem for a wrong format or schema, in a run without `top_k`, and with temperature 0.

    A run with `top_k` records the candidates that the constraint left for each token, and the
    learner computes probabilities over them. Any other run would train with probabilities over the
    whole vocabulary."""
    if format == {"type": "text"}:
        return None
    kind = format.get("type") if isinstance(format, dict) else None
    if kind not in ("json_object", "json_schema"):
        raise refused("response_format", "its type must be text, json_object or json_schema")
    _check_masked("response_format", sampling)
    if kind == "json_object":
        return {"json_object": True}
    of = format.get("json_schema")
    schema = of.get("schema") if isinstance(of, dict) else None
    if not isinstance(schema, dict):
        raise refused("response_format", "json_schema needs a `schema`, an object")
    check_schema("response_format", schema)
    return {"json": schema}


def _forced(choice: Any, tools: Sequence[dict[str, Any]], sampling: Mapping[str, Any]) -> Any:
    """Return vLLM's `tool_choice` for a request whose answer must be a call."""
    named = isinstance(choice, dict) and choice.get("type") == "function"
    function = choice.get("function") if named else None
    name = function.get("name") if isinstance(function, dict) else None
    if choice != "required" and not isinstance(name, str):
        raise refused("tool_choice", NO_CHOICE)
    known = {tool["function"]["name"] for tool in tools}
    if not known or (name is not None and name not in known):
        missing = "a tool" if name is None else f"the tool {name!r}"[:200]
        raise refused("tool_choice", f"asks for {missing}, which `tools` does not have")
    _check_masked("tool_choice", sampling)
    return choice if name is None else {"type": "function", "function": {"name": name}}


def _check_masked(param: str, sampling: Mapping[str, Any]) -> None:
    if not sampling.get("top_k") or sampling.get("temperature") == 0:
        raise refused(param, MASKED)


def check_schema(param: str, schema: dict[str, Any]) -> None:
    """Refuse what is no JSON schema, or too long a one."""
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise refused(param, f"a schema has at most {MAX_SCHEMA:,} characters")
    if problem := schema_problem(schema):
        raise refused(param, f"this is no JSON schema: {problem}")


def _message(message: Any, at: int) -> dict[str, Any]:
    """Check one message. Return it in the form that the chat template and the session's history
    rely on."""
    where = f"messages[{at}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise refused(where, f"must be an object with a role: {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "refusal"):
                raise refused(f"{where}.content", "only parts of type text can be trained")
            if not isinstance(part.get(kind), str):
                raise refused(f"{where}.content", f"a part of type {kind} has a `{kind}`")
    elif content is not None and not isinstance(content, str):
        raise refused(f"{where}.content", "must be a text, or parts of type text")
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None and not isinstance(message[name], str):
            raise refused(f"{where}.{name}", "must be a text")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        raise refused(f"{where}.tool_calls", "must be a list of calls with an id and a function")
    return {str(name): value for name, value in message.items() if value is not None}


def _is_tool_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(call.get("id"), str)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise refused("tools", "must be a list of functions")
    if len(json.dumps(tools)) > MAX_TOOLS:
        raise refused("tools", f"all of them together have at most {MAX_TOOLS:,} characters")
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not (
            isinstance(function, dict)
            and tool.get("type") == "function"
            and isinstance(function.get("name"), str)
            and isinstance(function.get("parameters") or {}, dict)
        ):
            raise refused(f"tools[{at}]", "must be a function with a name and parameters")
        check_schema(f"tools[{at}].function.parameters", function.get("parameters") or {})
    # `strict` of a tool is enforced only for a forced call. Other calls are sampled as free text.
    return tools
