"""The first API key: made once, found by its own installation, shown to no other."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from services.runtime.api_key import BadKeyFile, first_key, is_loopback, key_for, read_key
from services.settings import Settings


def settings(data: Path, **given: Any) -> Settings:
    return Settings(_env_file=None, data=data, **given)


def test_gateways_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        Thread(target=lambda: found.append(first_key(settings(tmp_path / "data"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["api-key"]


def test_a_key_that_was_set_is_taken_and_written_nowhere(tmp_path: Path) -> None:
    assert first_key(settings(tmp_path, api_key="mine")) == "mine"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words\n", b"\xff\xfe", b"h\n", "ключ".encode()]
)
def test_a_file_without_a_key_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "api-key"
    file.write_bytes(content)
    with pytest.raises(BadKeyFile, match=str(file)):
        read_key(file)


@pytest.mark.parametrize(
    ("gateway", "shown"),
    [
        (None, True),
        ("http://box:8000/", True),
        ("http://127.0.0.1:9000", True),
        ("http://localhost:9000", True),
        ("http://elsewhere:8000", False),
        ("http://127.0.0.1.elsewhere.com", False),
    ],
)
def test_the_key_of_the_data_folder_goes_to_its_own_gateway_only(
    tmp_path: Path, gateway: str | None, shown: bool
) -> None:
    (tmp_path / "api-key").write_text("hr-own-0123456789\n")
    own = settings(tmp_path, gateway_url="http://box:8000")
    assert key_for(own, gateway) == ("hr-own-0123456789" if shown else None)
    given = settings(tmp_path, gateway_url="http://box:8000", api_key="hr-given")
    assert key_for(given, gateway) == "hr-given"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_a_listener_on_loopback_is_reached_by_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "box", "localhost.com"])
def test_a_listener_on_other_addresses_is_reached_by_others(host: str) -> None:
    assert not is_loopback(host)
