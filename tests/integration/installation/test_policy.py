"""The policy as an endpoint: the official OpenAI client asks a run that is being trained, through
gateway, Redis and a worker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.integration.installation.conftest import Installation
from tests.integration.installation.test_agents import CONFIG
from tests.integration.launch.conditions import eventually

ASKED: list[Any] = [{"role": "user", "content": "1+1="}]


@pytest.fixture(scope="module")
def run(installation: Installation) -> Iterator[str]:
    """A run whose policy stays at version 0: no agent plays its sessions."""
    run = installation.submit(**CONFIG)
    yield run
    installation.api.post(f"/v1/runs/{run}/cancel")
    installation.ended(run)


@pytest.fixture(scope="module")
def client(installation: Installation, run: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{installation.stack.gateway_url}/v1",
        api_key=installation.stack.api_key,
        timeout=60,
        max_retries=0,
    ) as client:
        eventually(lambda: run in [model.id for model in client.models.list()])
        yield client


def test_the_official_client_asks_the_policy(client: openai.OpenAI, run: str) -> None:
    assert [model.id for model in client.models.list()] == [run, f"{run}@0"]
    for model in (run, f"{run}@0", f"{run}@latest", run[:6]):
        answer = client.chat.completions.create(model=model, messages=ASKED, max_tokens=3, seed=5)
        assert answer.model == f"{run}@0"
        assert answer.usage is not None
        assert 0 < answer.usage.completion_tokens <= 3
        assert answer.choices[0].message.role == "assistant"
    text = client.completions.create(model=run, prompt=[3, 4, 5], max_tokens=3, seed=5)
    assert text.usage is not None
    assert text.usage.prompt_tokens == 3


def test_a_stream_is_the_same_answer_in_parts(client: openai.OpenAI, run: str) -> None:
    options: Any = {"model": run, "seed": 11, "max_tokens": 20}
    whole = client.chat.completions.create(messages=ASKED, **options)
    stream = client.chat.completions.create(
        messages=ASKED, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    text = "".join(delta.content or "" for delta in deltas)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    parts = client.completions.create(prompt="1+1=", stream=True, **options)
    assert [part.choices[0].finish_reason for part in parts][-1] in ("stop", "length")


def test_anthropics_client_gets_the_same_answer_as_openais(
    client: openai.OpenAI, installation: Installation, run: str
) -> None:
    whole = client.chat.completions.create(model=run, messages=ASKED, max_tokens=20, seed=11)
    url, key = installation.stack.gateway_url, installation.stack.api_key
    options: dict[str, Any] = {"model": run, "messages": ASKED}
    sampled = options | {"max_tokens": 20, "extra_body": {"seed": 11}}
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as other:
        message = other.messages.create(**sampled)
        with other.messages.stream(**sampled) as stream:
            streamed = stream.get_final_message()
        counted = other.beta.messages.count_tokens(**options)
        with pytest.raises(anthropic.NotFoundError, match="there is no run 'nobody'") as unknown:
            other.messages.create(**sampled | {"model": "nobody"})
        image = [{"type": "image", "source": {"type": "url", "url": "x"}}]
        with pytest.raises(anthropic.BadRequestError, match="of type 'image' cannot be used"):
            other.messages.create(**sampled | {"messages": [{"role": "user", "content": image}]})
        assert whole.usage is not None
        for answer in (message, streamed):
            assert [block.to_dict() for block in answer.content] == [
                {"type": "text", "text": whole.choices[0].message.content}
            ]
            assert (answer.model, answer.role) == (f"{run}@0", "assistant")
            assert answer.usage.output_tokens == whole.usage.completion_tokens
        assert counted.input_tokens == whole.usage.prompt_tokens
        document: Any = unknown.value.body
        assert (document["type"], document["error"]["type"]) == ("error", "not_found_error")
    with (
        anthropic.Anthropic(base_url=url, auth_token="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="does not know this API key"),
    ):
        stranger.messages.create(**sampled)


def test_what_cannot_be_asked_is_refused_with_the_way_out(
    client: openai.OpenAI, installation: Installation, run: str
) -> None:
    def ask(**options: Any) -> None:
        client.chat.completions.create(**{"model": run, "messages": ASKED} | options)

    with pytest.raises(openai.NotFoundError, match="there is no run 'nobody'") as unknown:
        ask(model="nobody")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match=f"now {run}@0"):
        ask(model=f"{run}@7")
    supervised = installation.model.removeprefix("run:")
    with pytest.raises(openai.InternalServerError, match="headrace up --serving 1"):
        ask(model=supervised)
    with pytest.raises(openai.BadRequestError, match="n: a request has 1 to"):
        ask(n=1000)
    with pytest.raises(openai.BadRequestError, match="HEADRACE_POLICY_MAX_TOKENS"):
        ask(max_tokens=1_000_000)
    with pytest.raises(openai.BadRequestError, match="tools: this run has no parser"):
        ask(tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}])
    long: list[Any] = [{"role": "user", "content": "1+" * 5000}]
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as full:
        ask(messages=long)
    assert full.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError, match="leave the oldest messages out") as large:
        ask(messages=[{"role": "user", "content": "1" * (1 << 21)}])
    assert large.value.status_code == 413
    with pytest.raises(openai.AuthenticationError, match="does not know this API key"):
        client.with_options(api_key="wrong").models.list()


def test_headrace_chat_asks_the_workers_with_the_runs_template(
    installation: Installation, client: openai.OpenAI, run: str
) -> None:
    def chat(*arguments: str) -> subprocess.CompletedProcess[str]:
        data, url = str(installation.stack.data), installation.stack.gateway_url
        command = [sys.executable, "-m", "headrace", "chat", *arguments]
        environment = os.environ | {"HEADRACE_DATA": data, "HEADRACE_GATEWAY_URL": url}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=100
        )

    shown = chat(run, "1+1", "--max-tokens", "3", "--json")
    assert "--no-template sends them as typed" in shown.stderr
    answer = json.loads(shown.stdout)
    assert (answer["model"], answer["prompt"]) == (f"{run}@0", "1+1")
    typed = chat(f"{run}@0", "1+1", "--no-template", "--max-tokens", "3")
    assert typed.returncode == 0, typed.stderr
    assert "prompts are sent without the run's data.template" in typed.stderr
    asked = [json.loads(line)["prompt"] for line in installation.requests.read_text().splitlines()]
    # The template of the demo's runs is "{prompt}=".
    assert len(asked[-2]) == len(asked[-1]) + 1
    gone = chat(f"{run}@5", "1+1")
    assert gone.returncode == 1
    assert f"now {run}@0" in gone.stderr


def test_calls_of_the_policy_are_never_trained(
    client: openai.OpenAI, installation: Installation, run: str
) -> None:
    client.chat.completions.create(model=run, messages=ASKED, max_tokens=2)
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert audit["trained"] == 0
    assert audit["problems"] == []

    # Workers of other tests of this installation may not be forgotten yet.
    def serving() -> dict[str, Any]:
        workers = installation.api.get("/v1/workers")["workers"]
        return next(one for one in workers if one["run"] == run and one["version"] is not None)

    assert serving()["groups_in_flight"] == 0
    eventually(lambda: serving()["policy_answers"] > 0)
