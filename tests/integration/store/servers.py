"""Redis servers as an operator runs them: with a password, behind TLS, watched by a Sentinel, three
masters of a cluster. All are on loopback; each dies with the test's process."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import redis

from headrace.death_signal import die_with
from services.launch.redis import bundled_server
from tests.ports import own_ports

SLOTS = 16384
DURABLE = (
    *("--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always"),
    *("--maxmemory-policy", "noeviction", "--save", ""),
)


class Server:
    """A redis-server whose port stays the same over restarts."""

    def __init__(self, folder: Path, port: int = 0, *options: str) -> None:
        self.folder = folder
        self.port = port or own_ports("127.0.0.1", 1)[0]
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start the server; `wait` returns once it answers."""
        self._process = subprocess.Popen(
            [
                bundled_server(),
                *(*self._options, "--port", str(self.port), "--dir", str(self.folder)),
            ],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),
        )

    def client(self, **options: object) -> redis.Redis:
        """Return a client that retries while the server starts."""
        patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2000)
        return redis.Redis(port=self.port, retry=patient, **options)  # type: ignore[arg-type]

    def wait(self, **options: object) -> None:
        """Wait until the server answers."""
        with self.client(**options) as client:
            client.ping()

    def kill(self) -> None:
        """Kill the server like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def start_cluster(folder: Path, count: int = 3) -> list[Server]:
    """Start `count` masters that share the slots. Wait for `cluster_agrees` before using them."""
    options = (*DURABLE, "--cluster-enabled", "yes", "--cluster-node-timeout", "15000")
    # Ports for the nodes' own traffic.
    ports = own_ports("127.0.0.1", count)
    servers = [
        Server(folder / str(number), 0, *options, "--cluster-port", str(port))
        for number, port in enumerate(ports)
    ]
    bounds = [SLOTS * number // count for number in range(count + 1)]
    for number, server in enumerate(servers):
        with server.client() as client:
            client.execute_command(
                "CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1])
            )
            if number:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port, ports[0])
    return servers


async def cluster_agrees(servers: list[Server]) -> bool:
    """Return whether every node knows every other and all slots are covered."""

    def agrees(server: Server) -> bool:
        with server.client() as client:
            info = client.execute_command("CLUSTER", "INFO")
        text = info.decode() if isinstance(info, bytes) else str(info)
        return all(
            wanted in text.replace("'", "").replace(": ", ":")
            for wanted in ("cluster_state:ok", f"cluster_size:{len(servers)}")
        )

    return all([await asyncio.to_thread(agrees, server) for server in servers])


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make a CA, and a certificate by it for 127.0.0.1: (CA, certificate, key)."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, key = folder / "ca.pem", folder / "ca.key"
    cert, cert_key = folder / "server.pem", folder / "server.key"
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    quiet = {"check": True, "capture_output": True, "cwd": folder}
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes")
    subprocess.run(
        [*new, "-x509", "-days", "2", "-subj", "/CN=test CA", "-keyout", key, "-out", ca],
        **quiet,  # type: ignore[call-overload]
    )
    subprocess.run(
        [*new, "-subj", "/CN=redis", "-keyout", cert_key, "-out", folder / "server.csr"],
        **quiet,  # type: ignore[call-overload]
    )
    subprocess.run(
        [
            *("openssl", "x509", "-req", "-days", "2", "-in", folder / "server.csr"),
            *("-CA", ca, "-CAkey", key, "-CAcreateserial", "-extfile", folder / "san"),
            *("-out", cert),
        ],
        **quiet,  # type: ignore[call-overload]
    )
    return ca, cert, cert_key


@asynccontextmanager
async def tls_in_front_of(port: int, cert: Path, key: Path) -> AsyncIterator[int]:
    """Yield a port that speaks TLS and forwards to `port`, like a Redis built with TLS, or the
    proxy of a cloud's Redis."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, behind[1]), carry(behind[0], writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
