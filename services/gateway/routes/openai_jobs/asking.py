"""Asking a model under the same address as the fine-tuning API: clients have one `base_url`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.gateway.dependencies import Deps
from services.gateway.dialects.bodies import RESPONSES_ANSWERED
from services.gateway.dialects.responses_requests import responses_request
from services.gateway.openai.answers import openai_request
from services.gateway.openai.errors import openai_errors
from services.gateway.routes.policy import (
    ANSWERED,
    ERRORS,
    PolicyChatRequest,
    PolicyCompletionsRequest,
    PolicyResponsesRequest,
    answer,
)

router = APIRouter(prefix="/openai/v1", tags=["fine-tuning"], responses=openai_errors(ERRORS))


@router.post(
    "/chat/completions",
    operation_id="fine_tuned_chat_completions_create",
    summary="Ask a fine-tuned model",
    responses=ANSWERED,
    response_model=None,
)
async def chat(deps: Deps, http: Request, request: PolicyChatRequest) -> Response:
    """As `POST /v1/chat/completions`."""
    return await answer(deps, http, openai_request("chat", request.given()))


@router.post(
    "/completions",
    operation_id="fine_tuned_completions_create",
    summary="Have a fine-tuned model continue a text",
    responses=ANSWERED,
    response_model=None,
)
async def completions(deps: Deps, http: Request, request: PolicyCompletionsRequest) -> Response:
    """As `POST /v1/completions`."""
    return await answer(deps, http, openai_request("completions", request.given()))


@router.post(
    "/responses",
    operation_id="fine_tuned_responses_create",
    summary="Ask a fine-tuned model, by the Responses API",
    responses=RESPONSES_ANSWERED,
    response_model=None,
)
async def responses(deps: Deps, http: Request, request: PolicyResponsesRequest) -> Response:
    """As `POST /v1/responses`."""
    return await answer(deps, http, responses_request(request.given()))
