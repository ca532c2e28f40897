"""OpenAI's Responses API of one session of an agent, and the conversations that it keeps."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from services.gateway.dependencies import Deps
from services.gateway.dialects.bodies import (
    RESPONSES_ANSWERED,
    ConversationAnswer,
    Deleted,
    Items,
    NewConversation,
    NewItems,
    ResponsesAnswer,
    SessionResponsesRequest,
)
from services.gateway.idempotency import HEADER
from services.gateway.openai.errors import openai_errors
from services.gateway.routes.sessions.session_calls import ERRORS, Session

router = APIRouter(
    prefix="/v1/sessions/{session}/v1", tags=["sessions"], responses=openai_errors(ERRORS)
)

ResponseId = Annotated[str, Path(description="The response's id.", max_length=100)]
ConversationId = Annotated[str, Path(description="The conversation's id.", max_length=100)]
Order = Annotated[Literal["asc", "desc"], Query(description="`asc` for the oldest item first.")]
Limit = Annotated[
    int | None,
    Query(alias="limit", ge=1, le=100, description="Ignored: all items are answered at once."),
]


@router.post(
    "/responses",
    operation_id="session_responses_create",
    summary="A turn of the session, by OpenAI's Responses API",
    responses=RESPONSES_ANSWERED,
    response_model=None,
)
async def create(
    deps: Deps, session: Session, request: SessionResponsesRequest, http: Request
) -> Response:
    """OpenAI's Responses. A request continues the response or the conversation that it names, or
    the conversation of the session that its items begin with, whichever API the earlier turns came
    by. It is answered by one turn."""
    key = http.headers.get(HEADER, "")
    return await deps.responses.create(session, request.given(), key, http.is_disconnected)


@router.get(
    "/responses/{response}",
    operation_id="session_responses_get",
    summary="A response that the session keeps",
)
async def get(deps: Deps, session: Session, response: ResponseId) -> ResponsesAnswer:
    """The response as it was answered, for an hour after the session's last call."""
    return ResponsesAnswer(**await deps.responses.get(session, response))


@router.delete(
    "/responses/{response}",
    operation_id="session_responses_delete",
    summary="Delete a response",
)
async def delete(deps: Deps, session: Session, response: ResponseId) -> Deleted:
    """It can no longer be read or continued. Its turn is trained nevertheless."""
    await deps.responses.delete(session, response)
    return Deleted(id=response, object="response")


@router.get(
    "/responses/{response}/input_items",
    operation_id="session_responses_input",
    summary="The items of a response's request",
)
async def input_items(
    deps: Deps,
    session: Session,
    response: ResponseId,
    order: Order = "desc",
    _limit: Limit = None,
) -> Items:
    """What the request of the response brought, without the conversation that it continued."""
    return _ordered(await deps.responses.input_of(session, response), order)


@router.post(
    "/conversations",
    operation_id="session_conversations_create",
    summary="Begin a conversation that the session keeps",
)
async def begin(
    deps: Deps, session: Session, request: NewConversation, http: Request
) -> ConversationAnswer:
    """A request of the Responses API continues it by its id, and adds its items and answer."""
    key = http.headers.get(HEADER, "")
    return ConversationAnswer(**await deps.responses.begin(session, request.given(), key))


@router.get(
    "/conversations/{conversation}",
    operation_id="session_conversations_get",
    summary="A conversation that the session keeps",
)
async def conversation(
    deps: Deps, session: Session, conversation: ConversationId
) -> ConversationAnswer:
    """Its metadata. Its items have an address of their own."""
    return ConversationAnswer(**await deps.responses.conversation(session, conversation))


@router.delete(
    "/conversations/{conversation}",
    operation_id="session_conversations_delete",
    summary="Delete a conversation",
)
async def end(deps: Deps, session: Session, conversation: ConversationId) -> Deleted:
    """Its responses stay, and are trained."""
    await deps.responses.end(session, conversation)
    return Deleted(id=conversation, object="conversation.deleted")


@router.get(
    "/conversations/{conversation}/items",
    operation_id="session_conversations_items",
    summary="The items of a conversation",
)
async def items(
    deps: Deps,
    session: Session,
    conversation: ConversationId,
    order: Order = "desc",
    _limit: Limit = None,
) -> Items:
    """All messages, calls and outputs of the conversation."""
    return _ordered(await deps.responses.items(session, conversation), order)


@router.post(
    "/conversations/{conversation}/items",
    operation_id="session_conversations_add",
    summary="Add items to a conversation",
)
async def add(
    deps: Deps, session: Session, conversation: ConversationId, request: NewItems, http: Request
) -> Items:
    """The next request continues the conversation with them. A repeated request with its
    `Idempotency-Key` adds them once. They count as bytes of the session's turns."""
    key = http.headers.get(HEADER, "")
    return Items.all(await deps.responses.add(session, conversation, request.given(), key))


def _ordered(items: list[dict[str, Any]], order: str) -> Items:
    return Items.all(items if order == "asc" else items[::-1])
