"""Redis URLs are parsed, errors name the problem, and no password is ever shown."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.redaction import redacted
from services.contracts.redis.redis_address import RedisAddress, parse, with_password
from services.settings import Settings, complaints


def test_host_port_login_and_database_of_one_server_are_read() -> None:
    assert parse("redis://127.0.0.1:6379/0") == RedisAddress("server", (("127.0.0.1", 6379),))
    assert parse("redis://box") == RedisAddress("server", (("box", 6379),))
    assert parse("redis://[::1]:7000/3") == RedisAddress("server", (("::1", 7000),), db=3)
    full = parse("redis://me:p%40ss%2F@box:7000/2")
    assert (full.username, full.password, full.db) == ("me", "p@ss/", 2)
    assert parse("redis://:secret@box").password == "secret"
    assert parse("redis://box?db=4").db == 4


def test_tls_with_its_options(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    found = parse(f"rediss://box/0?ssl_ca_certs={ca}&ssl_check_hostname=false")
    assert found.tls
    assert found.tls_options == {"ssl_ca_certs": str(ca), "ssl_check_hostname": False}


def test_path_login_and_database_of_a_socket_are_read() -> None:
    assert parse("unix:///run/redis.sock?db=1") == RedisAddress(
        "socket", path="/run/redis.sock", db=1
    )
    assert parse("unix://me:secret@/run/redis.sock").password == "secret"
    assert parse("unix:///run/redis.sock?password=secret").password == "secret"


def test_sentinels_and_what_they_call_the_master() -> None:
    found = parse("redis+sentinel://:secret@a:26379,b/mymaster/2?sentinel_password=other")
    assert found.hosts == (("a", 26379), ("b", 26379))
    assert (found.service, found.db) == ("mymaster", 2)
    assert (found.password, found.sentinel_password) == ("secret", "other")
    assert parse("rediss+sentinel://a/mymaster").tls


def test_every_node_that_a_cluster_url_names_is_read() -> None:
    found = parse("redis+cluster://me:secret@a:7000,b:7001,c")
    assert (found.kind, found.hosts) == ("cluster", (("a", 7000), ("b", 7001), ("c", 6379)))
    assert parse("rediss+cluster://a").tls


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://box", "must begin with redis://, rediss://, unix://"),
        ("box:6379", "must begin with"),
        ("redis://a,b", "several are redis+cluster:// or redis+sentinel://"),
        ("redis://box:70000", "has a host or a port that cannot be read"),
        ("redis://box/zero", "has a database that is not one number"),
        ("redis://box/0?db=1", "has a database that is not one number"),
        ("redis+sentinel://a:26379", "needs the name that the Sentinels have for the master"),
        ("redis+cluster://a/0", "a cluster has one database"),
        ("unix://run/redis.sock", "takes the socket's whole path: unix:///run/redis.sock"),
        ("redis://box?ssl_ca_certs=/ca.pem", "'ssl_ca_certs', which is not known"),
        ("redis://box?timeout=1", "the option 'timeout', which is not known here: db"),
        ("rediss://box?ssl_ca_certs=/nowhere.pem", "ssl_ca_certs: there is no file /nowhere.pem"),
        ("rediss://box?ssl_cert_reqs=maybe", "ssl_cert_reqs is one of required, optional, none"),
        ("rediss://box?ssl_check_hostname=1", "ssl_check_hostname is true or false"),
    ],
)  # fmt: skip
def test_an_invalid_url_is_named(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret/x@box:6379",
        "redis://:s3cret#x@box",
        "redis://:x?s3cret@box",
        "redis://me:x@y?s3cret=1@box",
        "redis+sentinel://:s3cret@a",
        "redis+cluster://u:s3cret@a/0",
        "unix://run?password=s3cret",
        "redis://:s3cret@box/0?password=s3cret",
    ],
)
def test_an_error_never_shows_a_password(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(redis_url=url)
    (line,) = complaints(refused.value)
    assert line.startswith("--redis-url (HEADRACE_REDIS_URL): ")
    assert "s3cret" not in line
    assert "s3cret" not in redacted(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://box:6379/0", "redis://box:6379/0"),
        ("redis://:a@box", "redis://:***@box"),
        ("rediss://me:a@b@box/0", "rediss://me:***@box/0"),
        ("redis+cluster://me:a@a:1,b:2", "redis+cluster://me:***@a:1,b:2"),
        (
            "redis+sentinel://:a@a,b/m?sentinel_password=c&sentinel_username=d",
            "redis+sentinel://:***@a,b/m?sentinel_password=***&sentinel_username=d",
        ),
        ("unix:///s?password=a@b&db=1", "unix:///s?password=***&db=1"),
    ],
)
def test_a_shown_url_hides_its_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_no_password_in_its_representation() -> None:
    both: Any = parse("redis+sentinel://:aaa@a/m?sentinel_password=bbb")
    assert "aaa" not in repr(both)
    assert "bbb" not in repr(both)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://box:6379/0", "redis://:p%40ss%2F@box:6379/0"),
        ("rediss://me:old@box", "rediss://me:p%40ss%2F@box"),
        ("unix:///run/r.sock?db=1&password=old", "unix://:p%40ss%2F@/run/r.sock?db=1"),
        (
            "redis+sentinel://a,b/main?sentinel_password=theirs",
            "redis+sentinel://:p%40ss%2F@a,b/main?sentinel_password=theirs",
        ),
    ],
)
def test_a_password_from_elsewhere_takes_the_place_of_one_in_the_url(
    url: str, expected: str
) -> None:
    assert with_password(url, "p@ss/") == expected
    assert parse(expected).password == "p@ss/"
