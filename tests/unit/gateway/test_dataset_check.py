"""The check of verifiers and references at a submission, if the reward service does not do it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from services.contracts.records import DatasetRecord
from services.gateway.dataset_check import check_datasets, check_verifiers
from services.gateway.dependencies import Dependencies
from services.settings import Settings

RAW = {"rewards": [{"verifier": "math"}]}


def warnings_of(answer: httpx.Response | httpx.TransportError, raw: dict[str, Any]) -> list[str]:
    """The warnings of a submission whose check ends with `answer`."""

    def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    async def check() -> list[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answered)) as http:
            settings = Settings(reward_url="http://reward", data=Path("/nowhere"))
            deps = SimpleNamespace(settings=settings, http=http, volume=Path("/nowhere"))
            return await check_verifiers(cast(Dependencies, deps), raw, {}, [])

    return asyncio.run(check())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.ConnectError(""), "is away"),
        (httpx.ConnectTimeout(""), "is away"),
        (httpx.ReadTimeout(""), "took more than 10 s"),
        (httpx.Response(503), "answered 503"),
        (httpx.Response(200, text="<html>"), "answered with something else than a check"),
    ],
    ids=["away", "unreachable", "slow", "busy", "not the reward service"],
)
def test_a_check_that_was_not_done_is_a_warning_of_the_run(
    answer: httpx.Response | httpx.TransportError, reason: str
) -> None:
    (warning,) = warnings_of(answer, RAW)
    assert warning.startswith("rewards: the verifiers and reference answers were not checked")
    assert reason in warning


def test_a_check_that_was_done_and_one_that_is_not_needed_are_no_warnings() -> None:
    assert warnings_of(httpx.Response(200, json={"problems": []}), RAW) == []
    assert warnings_of(httpx.ReadTimeout(""), {"rewards": []}) == []


@pytest.mark.parametrize("mix", [5, True, "abc", {"a": 1}])
async def test_a_mixture_that_is_no_list_is_left_to_the_check_of_its_type(mix: Any) -> None:
    async def find(name: str) -> DatasetRecord:
        return DatasetRecord(id="1", name=name, rows=1, created=0.0, segments=[])

    deps: Any = SimpleNamespace(store=SimpleNamespace(datasets=SimpleNamespace(find=find)))
    raw, found = await check_datasets(deps, {"data": {"dataset": "d", "mix": mix}}, [])
    assert raw["data"] == {"dataset": "1", "mix": mix}
    assert list(found) == ["data.dataset"]
