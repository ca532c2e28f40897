"""Groups of prompts that a client brings: sampled, scored by its own reference, trained once."""

import asyncio
import os
import signal
from typing import Any

import httpx
import openai
import pytest

from tests.integration.installation.conftest import Installation
from tests.integration.installation.test_agents import CONFIG, client_of, lease, payload
from tests.integration.launch.conditions import eventually

# No row of the dataset has this prompt.
NO_ROLE = {"prompt": [{"content": "1"}]}
OWN = {"prompt": "77+88", "answer": "165", "columns": {"why": "mine"}}


def test_prompts_of_a_client_are_trained_in_place_of_tasks(installation: Installation) -> None:
    run = installation.submit(**CONFIG)
    url, key = installation.stack.gateway_url, installation.stack.api_key
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for wrong in (
            {},
            {"prompt": ""},
            {"prompt": "1", "reward": 1},
            {"prompt": 3},
            NO_ROLE,
            {**OWN, "name": "x" * 101},
        ):
            assert http.post(f"/v1/runs/{run}/groups", json=wrong).status_code == 422
        # One that fails again and again costs no task: its place is leased again.
        failing = OWN | {"name": "failing"}
        for _ in range(4):
            group = lease(http, run, failing)
            for session in group["sessions"]:
                http.post(f"/v1/sessions/{session['id']}/end").raise_for_status()

            def failed(path: str = f"/v1/sessions/{group['sessions'][0]['id']}/reward") -> bool:
                late = http.post(path, json={"reward": 1}).json()
                return bool(late["error"]["code"] == "session_failed")

            eventually(failed)
            assert group["task"] == 0
        groups = [lease(http, run, OWN | {"name": name}) for name in ("first", "second")]
        # The request is sent again, as where its answer was lost: the same group, with new keys.
        lost, groups[0] = groups[0], lease(http, run, OWN | {"name": "first"})
        assert lost["attempt"] == groups[0]["attempt"]
        with client_of(lost["sessions"][0]) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        other = http.post(f"/v1/runs/{run}/groups", json={"prompt": "1+1", "name": "first"})
        assert (other.status_code, "another prompt" in other.text) == (409, True)
        for number, group in enumerate(groups):
            assert group["prompt"] == "77+88="
            assert (group["answer"], group["columns"]) == ("165", {"why": "mine"})
            for session in group["sessions"]:
                with client_of(session) as client:
                    messages: Any = [{"role": "user", "content": group["prompt"]}]
                    client.chat.completions.create(model="m", messages=messages, max_tokens=4)
                http.post(f"/v1/sessions/{session['id']}/end").raise_for_status()
            if number == 0:
                # It waits for the second one: until then its payload is there.
                made = asyncio.run(payload(installation.stack.redis_url, run, group["task"]))
                # The verifiers had a reference to compare with.
                assert len(made.header.rewards) == 2
                assert None not in made.header.rewards
                assert made.header.own == "first"
                again = http.post(f"/v1/runs/{run}/groups", json=OWN | {"name": "first"})
                assert again.status_code == 410, again.text
    record, _ = installation.ended(run)
    assert record["state"] == "succeeded", record["reason"]
    samples = installation.api.get(f"/v1/runs/{run}/samples")["samples"]
    assert {one["own"] for one in samples} == {"first", "second"}
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (2, 0, 0)
    assert (audit["problems"], audit["dropped"]) == ([], {})


LIVE: dict[str, Any] = {
    "algorithm": {"prompts_per_step": 2},
    "training": {"max_steps": 2, "checkpoint_every": 1},
    "sampling": {"max_tokens": 40},
    "rollout": {
        "episode": {"idle_seconds": 120},
        "max_staleness": 0,
        "vllm": {"max_model_len": 64},
    },
}


def opened(http: httpx.Client, run: str, **body: Any) -> dict[str, Any]:
    """A session, once there is a worker."""
    found: dict[str, Any] = {}

    def there() -> bool:
        response = http.post(f"/v1/runs/{run}/sessions", json=body)
        assert response.status_code in (201, 429), response.text
        found.update(response.json())
        return response.status_code == 201

    eventually(there)
    return found


def talk(session: dict[str, Any], text: str) -> None:
    with client_of(session) as client:
        messages: Any = [{"role": "user", "content": text}]
        client.chat.completions.create(model="m", messages=messages, max_tokens=4)


def end(http: httpx.Client, session: dict[str, Any]) -> None:
    assert http.post(f"/v1/sessions/{session['id']}/end").json()["ended"]


def test_a_run_without_a_dataset_learns_from_sessions_of_applications(
    installation: Installation,
) -> None:
    run = installation.submit("live", model={"path": installation.model}, **LIVE)
    url, key = installation.stack.gateway_url, installation.stack.api_key
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        first = opened(http, run, prompt_key="sums", name="first")
        for wrong in ({"name": "x" * 201}, {"prompt": "1"}, {"prompt_key": 3}):
            assert http.post(f"/v1/runs/{run}/sessions", json=wrong).status_code == 422
        refused = http.post(f"/v1/runs/{run}/groups/lease")
        assert (refused.status_code, "POST /v1/runs/RUN/sessions" in refused.text) == (409, True)
        # The answer to the first request was lost: the same session, with a new key.
        again = opened(http, run, prompt_key="sums", name="first")
        assert again["id"] == first["id"]
        sessions = [again, *(opened(http, run, prompt_key="sums") for _ in range(5))]
        for number, session in enumerate(sessions):
            talk(session, f"{number}+1=")
            end(http, session)
        traffic = {"open": 0, "waiting": 6, "ready": 0, "opened": 6, "discarded": 0}
        assert installation.api.get(f"/v1/runs/{run}/why")["traffic"] == traffic
        # A worker that dies holds nothing of them; rewards come late, and more than once.
        os.kill(installation.stack.processes["rollout-0"], signal.SIGKILL)
        broke = {"reward": None, "error": "nobody looked"}
        for number, session in enumerate(sessions):
            for reward in ({"reward": number % 2} if number else broke, {"reward": 7}):
                given = http.post(f"/v1/sessions/{session['id']}/reward", json=reward)
                assert given.json()["reward"] == (number % 2 if number else None)
        # The first step takes two of the five, and the others are too old for the second.
        path = f"/v1/runs/{run}/audit"
        eventually(lambda: installation.api.get(path)["dropped"] == {"too_slow": 3})
        for session in [opened(http, run, prompt_key="sums") for _ in range(2)]:
            talk(session, "7+1=")
            http.post(f"/v1/sessions/{session['id']}/reward", json={"reward": 1})
            end(http, session)
    record, _ = installation.ended(run)
    assert record["state"] == "succeeded", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (4, 0, 0)
    assert audit["problems"] == []
    first_row, second_row = installation.api.get(f"/v1/runs/{run}/metrics")["metrics"]
    assert (first_row["baseline/known_keys"], second_row["baseline/known_keys"]) == (0.0, 1.0)
    # The worker may choose any two of the five. The mean of two rewards and of
    # their own mean is that mean.
    mean = pytest.approx(first_row["reward/mean"])
    assert (first_row["baseline/mean"], second_row["baseline/mean"]) == (mean, mean)
    assert (first_row["session/discarded"], second_row["session/discarded"]) == (1, 0)
