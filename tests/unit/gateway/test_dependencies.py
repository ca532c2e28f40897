"""The dependencies that FastAPI calls for each request of the gateway."""

from collections.abc import Iterator
from inspect import iscoroutinefunction

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from services.contracts.records import RunState, RunSummary
from services.gateway.app import create_app
from services.gateway.dependencies import _meant_id, missing_dataset
from services.gateway.settings import GatewaySettings
from services.http import Problem


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


def run(id: str, name: str, state: str = "failed", resume_from: str | None = None) -> RunSummary:
    return RunSummary(
        id=id, name=name, pool="p", kind="rl", state=RunState(state), created=0.0,
        resume_from=resume_from,
    )  # fmt: skip


def test_a_name_means_the_only_run_that_has_it() -> None:
    runs = [run("b1", "grpo", "queued"), run("a1", "grpo"), run("a2", "mine")]
    assert _meant_id("run", "mine", runs) == "a2"
    assert _meant_id("run", "b", runs) == "b1"
    time = "1970-01-01 00:00:00 UTC"
    for reference, what, listed in (
        ("grpo", "are called", f"b1 (queued, {time}), a1 (failed, {time})"),
        ("a", "have ids that begin with", f"a1 (failed, {time}), a2 (failed, {time})"),
    ):
        with pytest.raises(Problem) as raised:
            _meant_id("run", reference, runs)
        assert raised.value.status == 409
        assert raised.value.detail.startswith(
            f"2 runs {what} {reference!r}: name one by its id: {listed}"
        )


def test_a_resumed_run_answers_to_the_name_of_the_run_that_it_continues() -> None:
    runs = [run("c", "grpo", resume_from="b"), run("b", "grpo", resume_from="a")]
    assert _meant_id("run", "grpo", [*runs, run("a", "grpo")]) == "c"
    # Two runs that continue the same one are two again.
    with pytest.raises(Problem, match="2 runs are called"):
        _meant_id("run", "grpo", [run("d", "grpo", resume_from="b"), *runs])


def test_the_file_of_a_dataset_is_uploaded_first() -> None:
    for file in ("/data/train.jsonl", "train.csv", "org/set"):
        sentence = missing_dataset(file, [])
        assert sentence.endswith(f"{file!r}: upload a file first (`headrace datasets add FILE`)")
