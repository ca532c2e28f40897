"""Bodies of requests and answers of Anthropic's Messages API and OpenAI's Responses API, for the
OpenAPI document.

`messages_requests` and `responses_requests` check the requests: their errors name the API's
options.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.openai.bodies import OpenAIModels, OpenBody, example_of
from services.gateway.openai.errors import ANTHROPIC_TYPES

Beta = Annotated[
    str | None,
    Query(alias="beta", description="Sent by Anthropic's client for what it calls beta. Ignored."),
]
ASKED = [{"role": "user", "content": "2+2?"}]


@dataclass(frozen=True)
class ModelsAsked:
    """A request for the list of models. The parameters are those of Anthropic's API."""

    version: str | None = None
    limit: int = 1000
    after_id: str | None = None
    before_id: str | None = None

    def listed(self, names: dict[str, int]) -> "OpenAIModels | AnthropicModels":
        """Return models, by name with their creation in Unix seconds, in the API's form."""
        if self.version is None:
            return OpenAIModels.named(names)
        ids = [*names]
        begin = ids.index(self.after_id) + 1 if self.after_id in names else 0
        end = ids.index(self.before_id) if self.before_id in names else len(ids)
        begin = max(begin, end - self.limit) if self.before_id else begin
        page = ids[begin:end][: self.limit]
        more = begin > 0 if self.before_id else begin + len(page) < len(ids)
        return AnthropicModels.of({id: names[id] for id in page}, more)


async def _models_asked(
    version: Annotated[
        str | None, Header(alias="anthropic-version", description="Sent by Anthropic's clients.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most models of a page.")] = 1000,
    after_id: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    before_id: Annotated[str | None, Query(description="The first id of the page behind.")] = None,
) -> ModelsAsked:
    return ModelsAsked(version, limit, after_id, before_id)


ModelsAskedDep = Annotated[ModelsAsked, Depends(_models_asked)]


class AnthropicModel(BaseModel):
    """A model as Anthropic's API lists it."""

    id: str = Field(description="Its name.")
    type: Literal["model"] = Field("model", description="`model`.")
    display_name: str = Field(description="Its name.")
    created_at: datetime = Field(description="When its run was submitted.")
    lifecycle: Literal["active"] = Field("active", description="`active`.")


class AnthropicModels(BaseModel):
    """A page of models as Anthropic's API lists them."""

    data: list[AnthropicModel] = Field(description="The models.")
    has_more: bool = Field(description="Whether there is another page.")
    first_id: str | None = Field(description="The first one's id.")
    last_id: str | None = Field(description="The last one's id.")

    @classmethod
    def of(cls, names: dict[str, int], has_more: bool) -> "AnthropicModels":
        """Return a page of models by name, each with its creation in Unix seconds."""
        data = [
            AnthropicModel(id=id, display_name=id, created_at=datetime.fromtimestamp(at, UTC))
            for id, at in names.items()
        ]
        ids: list[str | None] = [*names] or [None]
        return cls(data=data, has_more=has_more, first_id=ids[0], last_id=ids[-1])


class CountRequest(OpenBody):
    """A request whose tokens are counted."""

    model_config = example_of({"model": "policy", "messages": ASKED})

    model: Any = Field(None, description="In a session it is ignored: there is one.")
    messages: Any = Field(
        None, description="The conversation so far, and new messages: texts, calls, their results."
    )
    system: Any = Field(None, description="A text, or blocks of text.")
    tools: Any = Field(None, description="Tools with an `input_schema` that the policy may call.")


class MessagesRequest(CountRequest):
    """A request of Anthropic's Messages API."""

    model_config = example_of({"model": "policy", "max_tokens": 100, "messages": ASKED})

    max_tokens: Any = Field(None, description="Longest answer.")
    stream: Any = Field(None, description="Whether the answer comes as server-sent events.")
    stop_sequences: Any = Field(None, description="Up to 4 texts at which the answer ends.")
    tool_choice: Any = Field(
        None, description="`auto`, `none`; in runs with `sampling.top_k` also `any` and `tool`."
    )
    temperature: Any = Field(None, description="In a session that of the run.")


class MessagesAnswer(BaseModel):
    """An answer as Anthropic's API gives it."""

    id: str = Field(description="Its name.")
    type: Literal["message"] = Field(description="`message`.")
    role: Literal["assistant"] = Field(description="`assistant`.")
    model: str = Field(description="The run.")
    content: list[dict[str, Any]] = Field(description="Blocks: `thinking`, `text`, `tool_use`.")
    stop_reason: str = Field(description="`end_turn`, `tool_use`, `max_tokens`, `stop_sequence`.")
    stop_sequence: str | None = Field(description="The text at which the answer ended.")
    usage: dict[str, int] = Field(description="Tokens of prompt and answer.")


class CountAnswer(BaseModel):
    """The length of a prompt."""

    input_tokens: int = Field(description="Tokens of the prompt.")


class AnthropicError(BaseModel):
    """An error in the format of Anthropic's API."""

    type: str = Field(
        description="`invalid_request_error`, `api_error`, or by the status: "
        + ", ".join(f"`{type}`" for type in ANTHROPIC_TYPES.values())
    )
    message: str = Field(description="What went wrong, and the way out.")


class AnthropicErrorDocument(BaseModel):
    """An error of a route of Anthropic's API."""

    type: Literal["error"] = Field(description="`error`.")
    error: AnthropicError = Field(description="What is wrong.")


def anthropic_errors(descriptions: dict[int | str, str]) -> dict[int | str, dict[str, Any]]:
    """Return the meaning of each status for the OpenAPI document."""
    described = descriptions | {
        "4XX": "What is wrong with the request",
        "5XX": "What is wrong here",
    }
    return {
        status: {"description": text, "model": AnthropicErrorDocument}
        for status, text in described.items()
    }


MESSAGES_ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, server-sent events",
        "model": MessagesAnswer,
    }
}


class ResponsesRequest(OpenBody):
    """A request of OpenAI's Responses API."""

    model_config = example_of({"model": "policy", "input": "2+2?"})

    model: Any = Field(None, description="In a session it is ignored: there is one.")
    input: Any = Field(
        None, description="A text, or items: messages, function calls and their outputs."
    )
    instructions: Any = Field(None, description="A text that comes before the conversation.")
    tools: Any = Field(None, description="Tools of type `function` that the policy may call.")
    stream: Any = Field(None, description="Whether the answer comes as server-sent events.")
    max_output_tokens: Any = Field(None, description="Longest answer.")
    temperature: Any = Field(None, description="In a session that of the run.")
    text: Any = Field(
        None, description="With `format`: `json_object` or `json_schema`, as `response_format`."
    )


class SessionResponsesRequest(ResponsesRequest):
    """A request of OpenAI's Responses API in a session, which keeps responses."""

    previous_response_id: Any = Field(None, description="A response of the session to continue.")
    conversation: Any = Field(None, description="A conversation of the session to continue.")
    store: Any = Field(None, description="False: the response cannot be named later.")


class ResponsesAnswer(BaseModel):
    """A response as OpenAI's API gives it, with all that it repeats of its request."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="Its name.")
    object: Literal["response"] = Field(description="`response`.")
    created_at: int = Field(description="Unix time.")
    status: str = Field(description="`completed` or `incomplete`.")
    model: str = Field(description="The run.")
    output: list[dict[str, Any]] = Field(description="Items: `reasoning`, `message`, and calls.")
    usage: dict[str, Any] = Field(description="Tokens of prompt and answer.")


class Items(BaseModel):
    """Items of a response or of a conversation."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[dict[str, Any]] = Field(description="All of them.")
    first_id: str = Field("", description="The first one's id.")
    last_id: str = Field("", description="The last one's id.")
    has_more: bool = Field(False, description="False: these are all.")

    @classmethod
    def all(cls, items: list[dict[str, Any]]) -> "Items":
        """Return these items as a list."""
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return cls(data=items, **ends)


class NewConversation(OpenBody):
    """A conversation that begins."""

    model_config = example_of({"metadata": {"topic": "refunds"}})

    items: Any = Field(None, description="What it begins with: items.")
    metadata: Any = Field(None, description="Texts by name, kept with it.")


class NewItems(OpenBody):
    """Items for a conversation."""

    model_config = example_of({"items": [{"role": "user", "content": "2+2?"}]})

    items: Any = Field(None, description="Items that are added to its end.")


class ConversationAnswer(BaseModel):
    """A conversation as OpenAI's API gives it."""

    id: str = Field(description="Its name.")
    object: Literal["conversation"] = Field(description="`conversation`.")
    created_at: int = Field(description="Unix time.")
    metadata: dict[str, Any] = Field(description="Texts by name.")


class Deleted(BaseModel):
    """What was deleted."""

    id: str = Field(description="Its name.")
    object: str = Field(description="`response` or `conversation.deleted`.")
    deleted: bool = Field(True, description="True.")


RESPONSES_ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The response; with `stream`, server-sent events",
        "model": ResponsesAnswer,
    }
}
