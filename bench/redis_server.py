"""A Redis of its own for a measurement, as an installation starts it: AOF, fsync before replies."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from services.launch.options import free_ports
from services.launch.redis import find_server, servers_here, write_config
from services.process import die_with


@contextmanager
def durable_redis(folder: Path) -> Iterator[str]:
    """The URL of an empty Redis that answers, for the length of the block; its data is in `folder`.

    Raises LaunchError where this machine has no usable redis-server, redis.ConnectionError where
    it does not come up within 10 s.
    """
    (port,) = free_ports("127.0.0.1", 1)
    server = subprocess.Popen(
        [find_server(servers_here()), write_config(folder, port)],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    url = f"redis://127.0.0.1:{port}/0"
    patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
    try:
        with redis.Redis.from_url(url, retry=patient) as client:
            client.ping()
        yield url
    finally:
        server.kill()
        server.wait()
