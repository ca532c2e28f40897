"""The role that each operation needs."""

from pathlib import Path

import pytest

from services.contracts.records import Role
from services.gateway.authentication import Caller, refusal_of
from services.gateway.roles import needed_role

ADMIN = {
    *("keys_list", "keys_create", "keys_delete", "files_put"),
    *("verifiers_create", "verifiers_delete"),
}
READING_POSTS = {
    *("runs_preview", "logins_create", "verifiers_score"),
    *("graders_run", "graders_validate"),
}


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
