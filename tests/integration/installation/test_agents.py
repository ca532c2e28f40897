"""An agent that speaks the OpenAI API is trained: the official client, over HTTP, through Redis and
a worker, to a learner that trains what was sampled."""

import asyncio
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from redis.asyncio import Redis

from services.contracts.config import RLConfig, parse_config
from services.contracts.groups.trajectory import TrajectoryGroup, decode
from services.contracts.sessions import parse_session_id
from services.gateway.sessions.admission import most_session_bytes
from services.runtime.api_key import digest
from services.store import Store
from services.store.keys import sessions_key
from tests.integration.installation.conftest import Installation
from tests.integration.launch.conditions import eventually

CONFIG: dict[str, Any] = {
    "data": {"dataset": "sums", "chat_template": "auto"},
    "algorithm": {"prompts_per_step": 2, "samples_per_prompt": 2},
    "training": {"max_steps": 1},
    "sampling": {"max_tokens": 40},
    "rollout": {
        "episode": {
            "type": "sessions",
            "idle_seconds": 120,
            "max_turns": 6,
            "side_calls": {"models": ["small"]},
        }
    },
}


def lease(http: httpx.Client, run: str, own: dict[str, Any] | None = None) -> dict[str, Any]:
    """A group, for the `own` prompt if there is one, once there is a worker."""
    call = "groups/lease" if own is None else "groups"
    found: dict[str, Any] = {}

    def leased() -> bool:
        response = http.post(f"/v1/runs/{run}/{call}", json=own)
        assert response.status_code in (201, 429), response.text
        assert response.status_code == 201 or response.headers["Retry-After"]
        found.update(response.json())
        return response.status_code == 201

    eventually(leased, 250.0)  # a real vLLM may have to start
    return found


def client_of(session: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(base_url=session["base_url"], api_key=session["key"], timeout=120)


def play(group: dict[str, Any], session: dict[str, Any]) -> str:
    """Two turns; the second is streamed. Returns its text."""
    with client_of(session) as client:
        model = client.models.list().data[0].id
        messages: list[Any] = [{"role": "user", "content": group["prompt"]}]
        first = client.chat.completions.create(model=model, messages=messages, max_tokens=8)
        again = client.chat.completions.create(model=model, messages=messages, max_tokens=8)
        assert again.choices[0] == first.choices[0]
        messages += [first.choices[0].message, {"role": "user", "content": "2+2="}]
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=6, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def play_anthropic(group: dict[str, Any], session: dict[str, Any]) -> None:
    """Repeat the turns of `play` by Anthropic's API: they get the recorded answers."""
    options: dict[str, Any] = {"base_url": session["base_url"].removesuffix("/v1"), "timeout": 120}
    asked: list[Any] = [{"role": "user", "content": [{"type": "text", "text": group["prompt"]}]}]
    with anthropic.Anthropic(api_key=session["key"], **options) as client:
        first = client.messages.create(model="policy", messages=asked, max_tokens=8)
        assert client.messages.count_tokens(model="policy", messages=asked).input_tokens > 0
    with client_of(session) as other:
        plain: list[Any] = [{"role": "user", "content": group["prompt"]}]
        same = other.chat.completions.create(model="policy", messages=plain, max_tokens=8)
    (block,) = first.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text == same.choices[0].message.content
    turns = [*asked, {"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": "2+2="})
    with (
        anthropic.Anthropic(auth_token=session["key"], **options) as client,
        client.messages.stream(model="policy", messages=turns, max_tokens=6) as stream,
    ):
        assert stream.get_final_message().usage.output_tokens > 0


def play_responses(group: dict[str, Any], session: dict[str, Any]) -> None:
    """Repeat the turns of `play` by the Responses API: by what the session keeps, and by items."""
    text = {"type": "input_text", "text": group["prompt"]}
    asked: list[Any] = [{"role": "user", "content": [text]}]
    with client_of(session) as client:
        responses = client.responses
        options: dict[str, Any] = {"model": "policy", "max_output_tokens": 8}
        first = responses.create(input=asked, metadata={"a": "b"}, **options)
        plain: list[Any] = [{"role": "user", "content": group["prompt"]}]
        same = client.chat.completions.create(model="policy", messages=plain, max_tokens=8)
        assert first.output_text == same.choices[0].message.content
        assert responses.create(input=group["prompt"], **options).id == first.id
        assert responses.retrieve(first.id) == first
        assert [item.type for item in responses.input_items.list(first.id)] == ["message"]
        options["max_output_tokens"] = 6
        *_, last = responses.create(
            input="2+2=", previous_response_id=first.id, store=False, stream=True, **options
        )
        second = last.response
        with pytest.raises(openai.NotFoundError, match=r"no response 'resp_.*store: false"):
            responses.retrieve(second.id)
        back: list[Any] = [*asked, *first.output, {"role": "user", "content": "2+2="}]
        assert responses.create(input=back, **options).output_text == second.output_text
        back[1] = {"type": "item_reference", "id": back[1].id}
        again = responses.create(input=back, **options)
        assert again.output_text == second.output_text
        assert [item.type for item in responses.input_items.list(again.id)] == ["message"] * 3

        talk = client.conversations.create(items=asked, metadata={"topic": "sums"})
        assert client.conversations.retrieve(talk.id) == talk
        answered: Any = first.output
        client.conversations.items.create(talk.id, items=answered)
        key = {"Idempotency-Key": "one"}
        for _ in range(2):  # the client may send it again
            answer = responses.create(
                input="2+2=", conversation=talk.id, extra_headers=key, **options
            )
            assert answer.output_text == second.output_text
        items: Any = client.conversations.items.list(talk.id, order="asc")
        assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
        assert client.conversations.delete(talk.id).deleted
        with pytest.raises(openai.BadRequestError, match="no conversation 'conv_"):
            responses.create(input="2+2=", conversation=talk.id, **options)
        responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="no response") as gone:
            responses.create(input="2+2=", previous_response_id=first.id, **options)
        assert gone.value.code == "previous_response_not_found"


def use_up(group: dict[str, Any], session: dict[str, Any]) -> None:
    """After `play`: a message that leaves no tokens. The answer was cut off, as OpenAI's are."""
    with client_of(session) as client:
        asked: list[Any] = [{"role": "user", "content": group["prompt"]}]
        first = client.chat.completions.create(model="policy", messages=asked, max_tokens=8)
        asked += [first.choices[0].message, {"role": "user", "content": "9" * 100}]
        for _ in range(2):
            (choice,) = client.chat.completions.create(model="policy", messages=asked).choices
            assert (choice.finish_reason, choice.message.content) == ("length", "")


def branch(group: dict[str, Any], session: dict[str, Any]) -> None:
    """After `play`: a call that is not trained, two forks at once, and another conversation."""
    with client_of(session) as client, ThreadPoolExecutor(2) as calls:

        def ask(messages: list[Any], model: str = "policy") -> Any:
            return client.chat.completions.create(model=model, messages=messages, max_tokens=8)

        asked: list[Any] = [{"role": "user", "content": group["prompt"]}]
        ask([{"role": "user", "content": "Title?"}], "small")
        said = [*asked, ask(asked).choices[0].message]
        forks = [[*said, {"role": "user", "content": text}] for text in ("3+3=", "4+4=")]
        list(calls.map(ask, forks))
        compacted = [{"role": "user", "content": f"{group['prompt']} In short: 2"}]
        ask(compacted)
        assert ask(compacted).choices[0].message.content is not None
        # No turn is left: an agent ends as it would where its tokens are used up.
        (choice,) = ask([*asked, {"role": "user", "content": "more"}]).choices
        assert (choice.finish_reason, choice.message.content) == ("length", "")


async def payload(redis_url: str, run: str, task: int) -> TrajectoryGroup:
    store = Store.from_url(redis_url)
    try:
        while True:
            (kept,) = await store.trajectories.payloads(run, [task])
            if kept is not None:
                return decode(kept)
            await asyncio.sleep(0.05)
    finally:
        await store.close()


def after_which_ids(group: TrajectoryGroup, sample: int) -> list[list[int]]:
    """The ids before each stretch of tokens that is trained, in all conversations of a sample."""
    start = int(group.lengths[:sample].sum())
    piece = slice(start, start + int(group.lengths[sample]))
    tokens, mask = group.tokens[piece], group.loss_mask[piece]
    found = []
    prompt = group.prompt_tokens
    for one in group.conversations_of(sample):
        whole = [*prompt[: one.prompt].tolist(), *tokens[one.places].tolist()]
        trained = mask[one.places] & one.new
        starts = np.flatnonzero(trained & ~np.append(False, trained[:-1]))
        found += [whole[: one.prompt + at] for at in starts]
    return found


def refusals(http: httpx.Client, session: dict[str, Any], other: dict[str, Any]) -> None:
    """A session refuses these calls, each with a reason."""
    with client_of(session) as client:
        asked: list[Any] = [{"role": "user", "content": "1+1="}]
        tool: Any = {"type": "function", "function": {"name": "add", "parameters": {}}}
        with pytest.raises(openai.BadRequestError, match="temperature: the run samples with 1"):
            client.chat.completions.create(model="m", messages=asked, temperature=0.2)
        with pytest.raises(openai.BadRequestError, match=" tools: this run has no parser"):
            client.chat.completions.create(model="m", messages=asked, tools=[tool])
        # A hundred thousand tokens: each character is one.
        long: list[Any] = [{"role": "user", "content": "1+" * 50_000}]
        with pytest.raises(openai.BadRequestError, match="prompt is too long") as full:
            client.chat.completions.create(model="m", messages=long)
        assert full.value.code == "context_length_exceeded"
        assert [model.id for model in client.models.list()] == [session["id"].split("-")[0]]
    with (
        openai.OpenAI(base_url=other["base_url"], api_key=session["key"]) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    authorization = {"Authorization": f"Bearer {session['key']}"}
    for path in ("/v1/runs", f"/v1/sessions/{other['id']}/end"):
        assert http.request("POST", path, headers=authorization).status_code == 401
    run = session["id"].split("-")[0]
    for unknown, status, said in (
        ("other-abc-0", 404, "there is no run 'other'"),
        (f"{run}-abc-0", 409, "does not exist, or ended more than an hour ago"),
        ("other", 404, "there is no session 'other'"),
    ):
        path = f"/v1/sessions/{unknown}/v1/chat/completions"
        error = http.post(path, json={"messages": asked})
        assert error.status_code == status
        assert said in error.json()["error"]["message"]
    kind = {"Content-Type": "application/json"}
    for body, status in ((b'{"reward": NaN}', 422), (b'{"reward": "1"}', 400), (b"[", 400)):
        base = f"/v1/sessions/{session['id']}"
        refused = http.post(f"{base}/reward", content=body, headers=kind)
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert refused.status_code in (400, status)


def unread(session: dict[str, Any]) -> socket.socket:
    """A connection with a request whose answer nobody reads."""
    base = httpx.URL(session["base_url"])
    body = {"messages": [{"role": "user", "content": "Title?"}], "model": "small", "stream": True}
    request = httpx.Request(
        "POST",
        f"{base}/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {session['key']}"},
    )
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    found = socket.create_connection((base.host, base.port))
    head = f"POST {base.path}/chat/completions HTTP/1.1"
    found.sendall("\r\n".join([head, *lines, "", ""]).encode() + request.content)
    return found


async def kept_of(redis_url: str, session: dict[str, Any]) -> list[bytes]:
    """Return Redis' values for a session."""
    run, attempt, _ = parse_session_id(session["id"])
    async with Redis.from_url(redis_url) as redis:
        found: Any = await redis.hgetall(sessions_key(run, attempt))
    return [*found, *found.values()]


def test_an_agent_is_trained_on_the_ids_that_were_sampled(installation: Installation) -> None:
    run = installation.submit(**CONFIG)
    url, key = installation.stack.gateway_url, installation.stack.api_key
    with (
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
        ThreadPoolExecutor(2) as agents,
    ):
        # The run survives an agent that dies at once in all sessions of the first group.
        for session in lease(http, run)["sessions"]:
            http.post(f"/v1/sessions/{session['id']}/end").raise_for_status()
        group = lease(http, run)
        sessions = group["sessions"]
        refusals(http, *sessions)
        connection = unread(sessions[0])
        list(agents.map(lambda session: play(group, session), sessions))
        list(agents.map(lambda session: play_anthropic(group, session), sessions))
        list(agents.map(lambda session: play_responses(group, session), sessions))
        use_up(group, sessions[0])
        branch(group, sessions[1])
        for index, session in enumerate(sessions):
            base = f"/v1/sessions/{session['id']}"
            for reward in (index, 7):  # the first one counts
                given = http.post(f"{base}/reward", json={"reward": reward})
                assert given.json()["reward"] == index
            assert http.post(f"{base}/end").json()["turns"] >= 1
            assert http.post(f"{base}/end").status_code == 200
        connection.close()
        kept = asyncio.run(kept_of(installation.stack.redis_url, sessions[0]))
        assert digest(sessions[0]["key"]).encode() in kept
        assert not any(sessions[0]["key"].encode() in each for each in kept)
        config = parse_config(installation.api.get(f"/v1/runs/{run}")["config"])
        assert isinstance(config, RLConfig)
        assert str(most_session_bytes(config)).encode() in kept
        trained = asyncio.run(payload(installation.stack.redis_url, run, group["task"]))

        assert trained.header.rewards == [0.0, 1.0]
        lines = installation.requests.read_text().splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines]
        assert trained.turns is not None
        assert trained.turns.tolist() == [3, 5]
        assert trained.header.finish_reasons == ["length", "length"]
        stretches = [after_which_ids(trained, sample) for sample in range(2)]
        # vLLM's requests match to the id: each turn once, and no side call.
        assert all(asked in prompts for asked in stretches[0] + stretches[1])
        assert [len(found) for found in stretches] == [2, 5]
        asked: list[Any] = [{"role": "user", "content": "1+1="}]
        with client_of(sessions[0]) as client:
            with pytest.raises(openai.ConflictError, match="ended"):
                client.chat.completions.create(model="m", messages=asked)
            with pytest.raises(openai.ConflictError, match="ended, and its group is completed"):
                client.models.list()

        group = lease(http, run)
        first, second = group["sessions"]
        played = agents.submit(play, group, first)
        eventually(
            lambda: (
                installation.api.get("/v1/workers")["workers"][0]["groups_in_flight"] > 0
                or played.done()
            ),
        )
        os.kill(installation.stack.processes["rollout-0"], signal.SIGKILL)
        played.result()
        play(group, second)
        # Scored by the run's verifier: no client says what these have earned.
        for session in (first, second):
            assert http.post(f"/v1/sessions/{session['id']}/end").status_code == 200
    record, _ = installation.ended(run)
    assert record["state"] == "succeeded", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (2, 0, 0)
    assert audit["problems"] == []
