"""Each process that runs tests has ports of its own."""

import subprocess
import sys

from tests.ports import own_ports

OTHER = "from tests.ports import own_ports; print(*own_ports('127.0.0.1', 3)); input()"


def test_two_test_runs_at_once_are_given_different_ports() -> None:
    mine = own_ports("127.0.0.1", 3)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        other.communicate("\n")
    assert len(theirs) == 3
    assert not theirs & {*mine, *own_ports("127.0.0.1", 100)}
