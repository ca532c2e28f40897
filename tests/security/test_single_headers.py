"""Every service refuses a request that repeats a header: one reader would take the first, another
the last."""

import asyncio

import httpx
import pytest
from starlette.responses import Response

from services.http.single_headers import ONCE, SingleHeaders


def answered(headers: list[tuple[str, str]]) -> httpx.Response:
    """The answer of a service behind the check."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(SingleHeaders(Response("hello")))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            client.headers.clear()
            return await client.post("/", headers=headers, content=b"")

    return asyncio.run(ask())


@pytest.mark.parametrize("name", sorted(name.decode() for name in ONCE))
def test_a_header_that_decides_anything_may_not_be_repeated(name: str) -> None:
    response = answered([(name.title(), "1"), (name.upper(), "1")])

    assert response.status_code == 400
    assert response.json()["detail"] == (
        f"the request has the header {name} more than once: send it once"
    )


def test_a_list_may_be_given_in_several_headers() -> None:
    several = [("Accept", "a/b"), ("Accept", "c/d"), ("X-Forwarded-For", "1"), ("Host", "x")]

    assert answered(several).text == "hello"
