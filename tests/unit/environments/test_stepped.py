"""Environments with reset and step over HTTP: their loop, their rewards, their errors."""

import asyncio
import threading
from typing import Any

import pytest

from services.environments.playing import EnvironmentFailed, NoEnvironment, PlayedEpisode
from services.environments.stepped import SteppedEnvironment, answer_of, http_client
from tests.unit.environments.servers import GROUP, Policy, completion, serving, session
from tests.upstream import Answer

FULL = (400, {"error": {"code": "context_length_exceeded", "message": "there is no room"}})
COUNTED: dict[str, Answer] = {
    "/reset": (200, {"observation": "0"}),
    "/step": (200, {"observation": "more", "reward": 0.25}),
    "/close": (404, {}),
}


class Counter:
    """Asks for numbers, and is done at 3."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, path: str, body: Any) -> Answer:
        self.calls.append((path, body))
        if path == "/reset":
            return 200, {"observation": "You are at 0."}
        if path == "/close":
            return 404, {}
        done = body["action"] == "3"
        return 200, {"observation": f"You said {body['action']}.", "reward": 0.5, "done": done}


async def play(environment: Any, policy: Any, turns: int = 8) -> PlayedEpisode:
    with serving(environment) as url, serving(policy) as gateway:
        stepped = SteppedEnvironment(url + "/", turns)
        async with stepped.serving():
            return await stepped.play(GROUP, session(gateway))


async def test_an_episode_ends_when_the_environment_is_done() -> None:
    counter, policy = Counter(), Policy("2", "3")
    found = await play(counter, policy)

    assert found.reward == {"reward": 1.0}
    begun = {"role": "user", "content": "Count.\n\nYou are at 0."}
    said = {"role": "assistant", "content": "2"}
    assert policy.asked == [[begun], [begun, said, {"role": "user", "content": "You said 2."}]]
    row = {"episode": "run-attempt-0", "row": GROUP}
    assert counter.calls == [
        ("/reset", row),
        ("/step", {"episode": "run-attempt-0", "action": "2"}),
        ("/step", {"episode": "run-attempt-0", "action": "3"}),
        ("/close", {"episode": "run-attempt-0"}),
    ]


@pytest.mark.parametrize(
    ("answers", "turns", "reward"),
    [(["1", "1"], 2, 1.0), (["1", FULL], 8, 0.5), (["1", completion("", "length")], 8, 0.5)],
    ids=["no more turns", "no more context", "no more tokens"],
)
async def test_an_episode_cut_short_has_earned_its_steps(
    answers: list[Any], turns: int, reward: float
) -> None:
    assert (await play(Counter(), Policy(*answers), turns)).reward == {"reward": reward}


async def test_components_are_summed_by_name() -> None:
    def environment(path: str, body: Any) -> Answer:
        if path == "/step":
            return 200, {"components": {"form": 0.5, "sum": -1}, "observation": [1]}
        return 200, {"observation": {"board": 1}, "reward": 0.25}

    policy = Policy("1", "2")
    found = await play(environment, policy, turns=2)
    assert found.reward == {"components": {"form": 1.0, "sum": -2.0, "reward": 0.25}}
    assert policy.asked[0][0]["content"] == 'Count.\n\n{"board": 1}'
    assert found.transcript.splitlines()[-1] == '{"role": "user", "content": "[1]"}'


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/reset", (500, "out of memory"), "/reset answered 500: out of memory"),
        ("/reset", (200, "[1]"), "no JSON object"),
        ("/reset", (200, "{}"), "answer to reset has no observation"),
        ("/step", (307, {}), "/step answered 307"),
        ("/step", (200, '{"observation": "", "reward": NaN}'), "reward is no finite number: nan"),
        ("/step", (200, {"observation": "", "reward": "1"}), "reward is no finite number: '1'"),
        ("/step", (200, {"observation": "", "components": [1]}), "components are no object"),
        ("/step", (200, {"observation": "x" * (5 << 20)}), "more than 4,194,304 bytes"),
        ("/step", (200, {"observation": "end", "done": True}), "gave no reward"),
    ],
    ids=["500", "list", "empty", "redirect", "nan", "text", "components", "large", "unrewarded"],
)
async def test_an_environment_that_breaks_gives_no_reward(
    path: str, answer: Answer, said: str
) -> None:
    environment = COUNTED | {path: answer}
    with pytest.raises(EnvironmentFailed, match=said):
        _ = (await play(lambda at, _: environment[at], Policy("1", "1"), turns=1)).reward


async def test_a_session_that_is_over_gives_no_reward() -> None:
    over = (409, {"error": {"code": "session_lapsed", "message": "the lease has lapsed"}})
    with pytest.raises(EnvironmentFailed, match="409: the lease has lapsed"):
        await play(Counter(), Policy(over))
    with pytest.raises(EnvironmentFailed, match="there is no room"):
        await play(Counter(), Policy(FULL))


async def test_a_call_is_repeated_while_the_gateway_is_away() -> None:
    assert (await play(Counter(), Policy((503, "starting"), "3"))).reward == {"reward": 0.5}


async def test_an_environment_that_does_not_answer_close_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.environments.stepped.CLOSE_SECONDS", 0.05)
    counter, over = Counter(), threading.Event()

    def environment(path: str, body: Any) -> Answer:
        if path == "/close":
            over.wait(100)
        return counter(path, body)

    try:
        async with asyncio.timeout(60):
            assert (await play(environment, Policy("3"))).reward == {"reward": 0.5}
    finally:
        over.set()


async def test_all_environments_play_at_once() -> None:
    at_once, all_there, here = 101, asyncio.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        await reader.readuntil(b"\r\n\r\n")
        here += 1
        if here == at_once:
            all_there.set()
        await all_there.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2 * at_once)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/reset"
    async with server, http_client() as http, asyncio.timeout(60):
        calls = (answer_of(http, "POST", url, {}) for _ in range(at_once))
        assert await asyncio.gather(*calls) == [{}] * at_once


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", "http://[::1"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(NoEnvironment, match="is no address"):
        SteppedEnvironment(url, 1)
