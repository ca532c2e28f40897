"""The dependencies that FastAPI calls for each request of the gateway."""

from collections.abc import Iterator
from inspect import iscoroutinefunction

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from services.gateway.app import create_app
from services.gateway.dependencies import missing_dataset
from services.gateway.settings import GatewaySettings


def called(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for dependency in dependant.dependencies:
        yield from called(dependency)


def test_no_request_waits_for_a_thread_to_call_what_does_not_block() -> None:
    app = create_app(GatewaySettings(), "hr-key")
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    calls = {call for route in routes for call in called(route.dependant)}
    assert {call for call in calls if not iscoroutinefunction(call)} == set()


def test_the_file_of_a_dataset_is_uploaded_first() -> None:
    for file in ("/data/train.jsonl", "train.csv", "org/set"):
        sentence = missing_dataset(file, [])
        assert sentence.endswith(f"{file!r}: upload a file first (`headrace datasets add FILE`)")
