"""What a key may do: its role, the part of the API that it reaches, and its project."""

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from services.contracts.records import Role
from services.gateway.callers import Caller, refusal_of, with_headers
from services.gateway.roles import needed_role
from services.http import Problem

ADMIN = {
    *("keys_list", "keys_create", "keys_delete", "files_put"),
    *("verifiers_create", "verifiers_delete"),
}
READING_POSTS = {"runs_preview", "uploads_preview", "logins_create", "graders_validate"}
"""They make nothing. `graders_run` and `verifiers_score` are not here: a judge may cost money."""


def test_each_operation_needs_the_lowest_role_that_fits_it() -> None:
    lines = (Path(__file__).parent / "operations.txt").read_text().splitlines()
    for id, method, path in (line.split() for line in lines):
        reads = method == "GET" or id in READING_POSTS
        expected = "admin" if id in ADMIN else "read" if reads else "submit"
        assert needed_role(method, path) == expected, id
        assert needed_role(method, f"{path}/") == expected, id


@pytest.mark.parametrize(
    ("role", "method", "path", "needed"),
    [
        ("read", "GET", "/v1/runs", None),
        ("read", "HEAD", "/v1/files/datasets/x", None),
        ("read", "POST", "/v1/runs", "submit"),
        ("read", "PATCH", "/v1/runs/x", "submit"),
        ("submit", "DELETE", "/v1/runs/x", None),
        ("submit", "GET", "/v1/keys", "admin"),
        ("submit", "GET", "/v1/keysets", None),
        ("admin", "DELETE", "/v1/keys/x", None),
    ],
)
def test_a_refusal_names_the_role_that_is_needed(
    role: Role, method: str, path: str, needed: str | None
) -> None:
    refused = refusal_of(Caller("bob", role, ""), method, path)

    assert (refused is None) == (needed is None)
    if refused is not None:
        assert refused.status == 403
        assert f"a key with the role {needed}; the key 'bob' has the role {role}" in refused.detail


PROJECT_KEY = Caller("tuning", "submit", "", "openai", "support")


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        *((path, True) for path in ("/openai/v1/files", "/v1/models", "/v1/chat/completions")),
        *((path, True) for path in ("/v1/responses", "/v1/messages/count_tokens")),
        *((path, False) for path in ("/v1/runs", "/v1/files/x", "/v1/login", "/metrics")),
        *((path, False) for path in ("/v1/sessions/x/v1/chat/completions", "/v1/evaluations")),
    ],
)
def test_a_key_of_the_openai_surface_reaches_nothing_else(path: str, reached: bool) -> None:
    refused = refusal_of(PROJECT_KEY, "GET", path)

    assert (refused is None) == reached
    if refused is not None:
        assert refused.status == 403
        assert "the key 'tuning' is limited to /openai/v1/" in refused.detail


def test_a_header_chooses_the_project_of_a_key_without_one() -> None:
    headers = Headers({"OpenAI-Project": "support", "OpenAI-Organization": "org-1"})
    anyone = Caller("bob", "admin", "")

    chosen = with_headers(anyone, "/openai/v1/files", headers)

    assert (chosen.project, chosen.organization) == ("support", "org-1")
    assert with_headers(anyone, "/v1/runs", headers) == anyone
    assert with_headers(PROJECT_KEY, "/v1/models", Headers()) == PROJECT_KEY
    assert [chosen.sees(project) for project in ("support", "other", None)] == [True, False, False]
    assert all(anyone.sees(project) for project in ("support", None))


def test_a_header_of_another_project_or_with_control_characters_is_refused() -> None:
    with pytest.raises(Problem, match="is of project 'support', not 'other'") as refused:
        with_headers(PROJECT_KEY, "/openai/v1/files", Headers({"OpenAI-Project": "other"}))
    assert refused.value.status == 401
    with pytest.raises(Problem, match="OpenAI-Organization: must have 1 to 64 letters") as refused:
        with_headers(PROJECT_KEY, "/v1/models", Headers({"OpenAI-Organization": "a\x1b[2J"}))
    assert refused.value.status == 400
