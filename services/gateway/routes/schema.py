"""`/v1/schema`: the run config as JSON Schema."""

import functools
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import RootModel

from services.gateway.config_components import config_schema
from services.http import UNCHANGED, unless_unchanged

router = APIRouter(tags=["recipes"])


class JsonSchema(RootModel[dict[str, Any]]):
    """A JSON Schema (draft 2020-12)."""


@functools.cache
def _schema() -> JsonSchema:
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return JsonSchema({"$schema": dialect, **config_schema()})


@router.get(
    "/v1/schema",
    operation_id="schema_get",
    summary="Show the run config as JSON Schema",
    response_model=JsonSchema,
    responses=UNCHANGED,
)
async def show(request: Request) -> Response:
    """Every key of a run's config with its type, its default and what it does; for forms and
    editors. `rl` and `sft` are its two forms."""
    return unless_unchanged(request, _schema())
