"""Groups of prompts that a client brings: sampled, scored by its own reference, trained once."""

import asyncio
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
