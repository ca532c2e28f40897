"""Groups of prompts that a client brings: sampled, scored by its own reference, trained once."""

import asyncio
from typing import Any

import httpx

from tests.integration.installation.conftest import Installation
from tests.integration.installation.test_agents import CONFIG, client_of, lease, payload

# No row of the dataset has this prompt.
NO_ROLE = {"prompt": [{"content": "1"}]}
OWN = {"prompt": "77+88", "answer": "165", "columns": {"why": "mine"}}


def test_prompts_of_a_client_are_trained_in_place_of_tasks(installation: Installation) -> None:
    run = installation.submit(**CONFIG)
    url, key = installation.stack.gateway_url, installation.stack.api_key
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for wrong in ({}, {"prompt": ""}, {"prompt": "1", "reward": 1}, {"prompt": 3}, NO_ROLE):
            assert http.post(f"/v1/runs/{run}/groups", json=wrong).status_code == 422
        for number, group in enumerate([lease(http, run, OWN) for _ in range(2)]):
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
    record, _ = installation.ended(run)
    assert record["state"] == "succeeded", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (2, 0, 0)
    assert audit["problems"] == []
