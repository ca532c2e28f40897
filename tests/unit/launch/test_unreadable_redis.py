"""Redis' messages about files that it cannot read."""

from pathlib import Path

import pytest

from services.launch import LaunchError
from services.launch.unreadable_redis import explained, unreadable


def test_unreadable_files_of_redis_are_reported_with_the_cause_first_and_the_command(
    tmp_path: Path,
) -> None:
    log = (
        "redis exited with code 1 at each of its 5 starts. The last lines of x:\n"
        "    9:M 1 Nov 2026 05:55:08.918 * Server initialized\n"
        "    9:M 1 Nov 2026 05:55:08.930 # Bad file format reading the append only file a.aof: "
        "make a backup of your AOF file, then use ./valkey-check-aof --fix <filename>"
    )
    with pytest.raises(LaunchError) as raised, explained(tmp_path):
        raise LaunchError(log)
    lines = str(raised.value).splitlines()
    assert lines[:2] == [
        f"Redis cannot read its files in {tmp_path / 'redis'}",
        "  Bad file format reading the append only file a.aof",
    ]
    assert lines[-2].endswith(f" recover --data {tmp_path}")


@pytest.mark.parametrize(
    "line",
    [
        "# Bad file format reading the append only file: make a backup of your AOF file",
        "# Wrong RDB checksum expected: (725d0f8d1377459c) but got (1ac1082df6f8c79)",
        "# Internal error in RDB reading offset 0, function at rdb.c:2845 -> Unknown RDB encoding",
        "# Short read or OOM loading DB. Unrecoverable error, aborting now.",
        "# Unable to obtain the AOF file appendonly.aof.2.base.rdb length. stat: No such file",
        "*** FATAL AOF MANIFEST FILE ERROR ***",
    ],
)
def test_every_message_of_redis_about_damaged_files_is_understood(line: str) -> None:
    assert unreadable(f"redis exited with code 1\n    12:M 28 Nov 2026 {line}\n    the last line")


def test_files_of_a_newer_server_are_not_called_damaged() -> None:
    newer = "# Can't handle RDB format version 80\n# Internal error in RDB reading offset 0"
    assert not unreadable(newer)
