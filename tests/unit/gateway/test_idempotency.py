"""The requests that take an Idempotency-Key."""

from pathlib import Path

import pytest

from services.gateway.app import create_app
from services.gateway.idempotency import HEADER, is_covered
from services.gateway.settings import GatewaySettings

OTHERWISE = {
    *("datasets_create", "uploads_preview", "runs_preview", "logins_create", "sessions_create"),
    *("groups_create", "groups_lease", "groups_release", "sessions_end", "sessions_reward"),
    *("chat_completions_create", "completions_create"),
    *("fine_tuned_chat_completions_create", "fine_tuned_completions_create"),
    *("fine_tuned_responses_create", "fine_tuned_models_delete"),
    *("fine_tuned_permissions_create", "fine_tuned_permissions_delete"),
    *("session_chat_completions_create", "session_completions_create"),
    *("verifiers_score", "graders_run", "graders_validate"),
    *("fine_tuning_jobs_cancel", "fine_tuning_jobs_pause", "fine_tuning_jobs_resume"),
    *("fine_tuning_files_delete", "fine_tuning_uploads_complete", "fine_tuning_uploads_cancel"),
    *("messages_create", "messages_count", "session_messages_create", "session_messages_count"),
    *("responses_create", "session_responses_create", "session_responses_delete"),
    *("session_conversations_create", "session_conversations_delete", "session_conversations_add"),
}
BY_ID = {
    *("fine_tuning_files_create", "fine_tuning_uploads_create", "fine_tuning_parts_create"),
    "fine_tuning_jobs_create",
}
"""The key gives the id of the thing that they make."""


def test_every_write_takes_an_idempotency_key_but_those_that_repeat_by_other_means() -> None:
    lines = (Path(__file__).parent / "operations.txt").read_text().splitlines()
    document = create_app(GatewaySettings(), "hr-key").openapi()
    for id, method, path in (line.split() for line in lines):
        writes = method in ("POST", "PATCH", "DELETE") and id not in OTHERWISE | BY_ID
        assert is_covered(method, path) == writes, id
        operation = document["paths"][path][method.lower()]
        named = [parameter["name"] for parameter in operation.get("parameters", [])]
        assert (HEADER in named) == (writes or id in BY_ID), id


@pytest.mark.parametrize("path", ["/", "/v1/session", "/v1/datasets/", "/v1/runs/x/groups/y"])
def test_other_paths_take_none(path: str) -> None:
    assert not is_covered("POST", path)
