"""Files of a hub's dataset: which revision, over a connection that breaks, and checked."""

import hashlib
import io
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from services.datasets import DatasetError
from services.datasets.hub_files import HubFile, hub_reference
from services.gateway.submission import hub_data
from services.gateway.submission.hub_data import with_hub_datasets
from services.gateway.submission.hub_datasets import CONVERTED, Hub
from services.http import Problem

CONTENT = bytes(range(256)) * 1000
FILE = HubFile("main/train/0000.parquet", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
LISTED = {"rfilename": FILE.path, "size": FILE.size, "lfs": {"sha256": FILE.sha256}}
Answer = Callable[[httpx.Request], httpx.Response]


def hub(answer: Answer, **environment: str) -> Hub:
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Hub(client, {"HF_ENDPOINT": "http://hub", "HF_TOKEN": "t"} | environment)


@pytest.mark.parametrize(
    ("name", "there", "asked"),
    [
        ("a/b", CONVERTED, [CONVERTED]),
        ("a/b", "main", [CONVERTED, "main"]),
        ("a/b@v1", "v1", ["v1"]),
    ],
)
async def test_the_parquet_of_the_hub_is_taken_unless_a_revision_is_named(
    name: str, there: str, asked: list[str]
) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer t"
        revision = request.url.raw_path.decode().partition("/revision/")[2].partition("?")[0]
        seen.append(revision.replace("%2F", "/"))
        if seen[-1] != there:
            return httpx.Response(404)
        return httpx.Response(200, json={"sha": "abc", "siblings": [LISTED]})

    revision, split = await hub(answer).split(hub_reference(name))

    assert (seen, revision, split.files) == (asked, "abc", [FILE])


class Breaking(httpx.AsyncByteStream):
    """A body that breaks off."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield CONTENT[:70_000]
        raise httpx.ReadError("broken")


async def test_a_broken_download_goes_on_and_is_checked() -> None:
    ranges: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        ranges.append(request.headers.get("Range"))
        if ranges[-1] is None:
            return httpx.Response(200, stream=Breaking())
        start = int(ranges[-1].removeprefix("bytes=").removesuffix("-"))
        return httpx.Response(206, content=CONTENT[start:])

    target = io.BytesIO()
    await hub(answer).fetch("a/b", "abc", FILE, target)
    assert target.getvalue() == CONTENT
    assert len(ranges) == 2

    other = HubFile(FILE.path, FILE.size, "0" * 64)
    with pytest.raises(DatasetError, match="differs from the hub's file"):
        await hub(answer).fetch("a/b", "abc", other, io.BytesIO())


async def test_a_hub_that_is_away_or_refuses_is_named_with_the_way_out() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route", request=request)

    reference = hub_reference("a/b")
    with pytest.raises(Problem, match=r"cannot be reached for a/b .*ConnectError.*HF_ENDPOINT"):
        await hub(away).split(reference)
    with pytest.raises(DatasetError, match="the hub has no dataset 'a/b', or keeps it closed"):
        await hub(lambda _: httpx.Response(401)).split(reference)
    with pytest.raises(DatasetError, match="HF_HUB_OFFLINE is set"):
        await hub(away, HF_HUB_OFFLINE="1").split(reference)
    with pytest.raises(Problem, match="it answers 403"):
        await hub(lambda _: httpx.Response(403)).fetch("a/b", "abc", FILE, io.BytesIO())


async def test_a_preview_fetches_nothing_and_a_submission_says_what_it_has_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Any] = []

    async def listed() -> list[Any]:
        return records

    deps: Any = SimpleNamespace(store=SimpleNamespace(datasets=SimpleNamespace(list=listed)))
    raw = {"type": "rl", "data": {"dataset": "hf://a/b"}}
    problems: list[tuple[str, str]] = []

    assert await with_hub_datasets(deps, raw, problems, [], may_fetch=False) == raw
    assert [key for key, _ in problems] == ["data.dataset"]
    assert "`headrace datasets add hf://a/b`" in problems[0][1]
    record = SimpleNamespace(id="1", name="b", rows=1234, source="hf://a/b@abc/default/train")

    async def fetch(*_: object) -> Any:
        records.append(record)
        return record

    monkeypatch.setattr(hub_data, "create_from_hub", fetch)
    warnings: list[str] = []
    for may_fetch in (True, False):
        taken = await with_hub_datasets(deps, raw, [], warnings, may_fetch=may_fetch)
        assert taken["data"]["dataset"] == "1"
    assert warnings == [
        "data.dataset: hf://a/b was fetched from the hub now, as the dataset 'b' of 1,234 rows"
    ]
