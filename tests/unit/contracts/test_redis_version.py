"""A warning asks the operator to update servers with known faults."""

import pytest

from services.contracts.redis.redis_version import Version, lua_flaw


@pytest.mark.parametrize(
    ("server", "version"),
    [
        ("Redis", (6, 2, 20)), ("Redis", (7, 2, 11)), ("Redis", (7, 4, 6)), ("Redis", (8, 0, 4)),
        ("Redis", (8, 2, 2)), ("Redis", (8, 4, 0)), ("Redis", (9, 0, 0)),
        ("Valkey", (7, 2, 11)), ("Valkey", (8, 1, 4)), ("Valkey", (9, 1, 2)),
    ],
)  # fmt: skip
def test_a_mended_server_is_not_complained_about(server: str, version: Version) -> None:
    assert lua_flaw(server, version) is None


@pytest.mark.parametrize(
    ("server", "version"),
    [
        ("Redis", (6, 2, 14)), ("Redis", (7, 0, 15)), ("Redis", (7, 2, 10)), ("Redis", (8, 2, 1)),
        ("Valkey", (8, 1, 3)), ("Valkey", (8, 0, 5)),
    ],
)  # fmt: skip
def test_a_flawed_server_is_named_with_the_risk_and_the_way_out(
    server: str, version: Version
) -> None:
    told = lua_flaw(server, version) or ""
    assert told.startswith(f"{server} {'.'.join(map(str, version))} has known flaws")
    assert "CVE-2025-49844" in told
    assert "can run code as its user" in told
    assert "7.2.11" in told
