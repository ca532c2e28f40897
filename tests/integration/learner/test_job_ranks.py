"""Ranks of a job, as srun starts them, on hosts that do not fit together."""

import os
import socket

from services.settings import EXIT_SETTINGS
from tests.integration.learner.conftest import Place
from tests.integration.learner.forked import Learner
from tests.ports import own_ports


def test_ranks_that_do_not_fit_together_say_why_and_train_nothing(place: Place) -> None:
    (port,) = own_ports("127.0.0.1", 1)
    other = place.data.with_name("other")
    other.mkdir()
    logs = [place.data / f"rank-{rank}.log" for rank in range(2)]
    ranks = [
        Learner(
            ("learner",),
            os.environ
            | {
                "HEADRACE_REDIS_URL": place.redis_url,
                "HEADRACE_DATA": str(data),
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            logs[rank],
        )
        for rank, data in enumerate((place.data, other))
    ]
    place.started += ranks
    assert [rank.wait() for rank in ranks] == [EXIT_SETTINGS] * 2
    host = socket.gethostname()
    for log in logs:
        text = log.read_text()
        assert (
            f"error: HEADRACE_DATA {other} on {host} is not the folder that rank 0 has on {host}: "
            "all hosts of a learner need to share one data folder\n"
        ) in text
        assert "learner ready" not in text
        assert "Traceback" not in text
