"""What FastAPI calls for each request of the gateway."""

from collections.abc import Iterator
from inspect import iscoroutinefunction

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings


def called(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for one in dependant.dependencies:
        yield from called(one)


def test_no_request_waits_for_a_thread_to_call_what_does_not_block() -> None:
    app = create_app(GatewaySettings(), "hr-key")
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    calls = {call for route in routes for call in called(route.dependant)}
    assert {call for call in calls if not iscoroutinefunction(call)} == set()
