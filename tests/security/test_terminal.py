"""Every command escapes foreign text, so it cannot control the terminal."""

import asyncio
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.console import EscapingConsole
from headrace.terminal import one_line, visible
from services.contracts.records import RunState, WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload
from tests.integration.store.scene import record
from tests.kept_rollouts import answer, keep

EVIL = "a\x1b]0;owned\x07\x1b[2J\r\nerror: forged\x9b31m\u202etxt\u2066\u2028\x7f\U000e0041b"
STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[2K|\x1b\[1A|\r(?=\x1b\[2K)")
"""Codes that rich writes itself: colours, and movements of its live display."""
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0041]")


def test_every_control_character_is_written_as_json_writes_it() -> None:
    assert visible("\x1b[31m\u202e\x9b\n\t") == "\\u001b[31m\\u202e\\u009b\n\t"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    for fine in (
        "na\u00efve",
        "\u65e5\u672c",
        "\u0633\u200c\u0645",
        "\U0001f469\u200d\U0001f4bb",
        "\u22121 \u2264 x",
    ):
        assert visible(fine) == fine


def test_the_console_writes_its_own_styles_and_nobody_elses() -> None:
    file = io.StringIO()
    console = EscapingConsole(file=file, force_terminal=True, highlight=False)
    console.print("[red]ours[/]", EVIL, markup=True)
    text = file.getvalue()
    assert "\x1b[31mours" in text
    assert not UNSAFE.search(STYLE.sub("", text).replace("\n", ""))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in whose store every name is hostile."""
    folder = tmp_path_factory.mktemp("gateway")
    server = RedisServer(folder)
    server.start()
    process = GatewayProcess(folder / "data", server.url)
    asyncio.run(fill(Store.from_url(server.url)))
    with httpx.Client(base_url=process.url, headers=process.headers) as api:
        assert api.post("/v1/keys", json={"name": EVIL}).status_code == 201
        upload(api, "rows", json.dumps({"prompt": EVIL, "answer": EVIL}).encode())
    keep(process.data / "runs" / "evil", [ANSWER])
    logs = process.data / "logs"
    logs.mkdir()
    (logs / "gateway.log").write_text(f"{EVIL}\n")
    yield process
    process.stop()
    server.stop()


async def fill(store: Store) -> None:
    await store.runs.submit(record("evil", name=EVIL, warnings=[EVIL]))
    await store.runs.submit(record("waiting", name=EVIL, pool="other"))
    await store.events.add("evil", "warning", {"message": EVIL})
    await store.events.add("evil", "worker", {"worker": EVIL, "state": EVIL, "detail": EVIL})
    await store.runs.set_state("evil", RunState.FAILED, EVIL)
    worker = WorkerRecord(id=EVIL, pool="other", host=EVIL, pid=1, state="unhealthy", error=EVIL)
    await store.workers.heartbeat(worker)
    await store.close()


ANSWER = answer(
    1,
    prompt=EVIL,
    completion=EVIL,
    status=EVIL,
    components={EVIL: 1.0, "b": 0.0},
    reasons={EVIL: EVIL},
    finish_reason=EVIL,
)

COMMANDS = (
    "runs",
    "watch evil",
    "why evil",
    "rollouts evil",
    "rollouts evil --group 0",
    "rollouts evil --group 0 --tokens",
    "why waiting",
    "audit evil",
    "samples evil",
    "workers",
    "keys list",
    "datasets list",
    "datasets show rows",
    "logs gateway",
    "cancel waiting",
    "cancel evil",
    "resume evil",
    "export evil",
    "runs --json",
    "samples evil --json",
    "workers --json",
    "watch evil --json",
    "logs gateway --json",
    "resume evil --json",
)
SCRIPT = """
import sys
from headrace.cli import main
for line in sys.argv[1:]:
    print(f"== {line}", flush=True)
    sys.argv = ["headrace", *line.split()]
    try:
        main.main()
    except SystemExit:
        pass
"""


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_every_command_shows_hostile_names_escaped(
    gateway: GatewayProcess, on_a_terminal: bool, tmp_path: Path
) -> None:
    commands = [*COMMANDS, f"report evil --out {tmp_path}"]
    environment = {
        **os.environ,
        "HEADRACE_GATEWAY_URL": gateway.url,
        "HEADRACE_DATA": str(gateway.data),
        "COLUMNS": "200",
        "TERM": "xterm",
    }
    ours, theirs = pty.openpty() if on_a_terminal else os.pipe()
    command = [sys.executable, "-c", SCRIPT, *commands]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = read_all(ours)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    parts = said.split("== ")[1:]
    assert [part.splitlines()[0].strip() for part in parts] == commands
    for part in parts:
        text = STYLE.sub("", part).replace("\r\n", "\n")
        assert not UNSAFE.search(text), repr(text)
        # Contents keep their lines, names do not.
        if not text.startswith(("datasets show", "logs")):
            assert not re.search(r"^error: forged", text, re.MULTILINE), text
    written = (tmp_path / "report.html").read_text()
    assert "\\u001b" in written
    assert not UNSAFE.search(written.replace("\n", ""))
    for shown in ("runs", "workers", "keys list", "watch evil", "why evil"):
        (part,) = (one for one in parts if one.splitlines()[0].strip() == shown)
        assert "\\u001b" in part.replace("\n", ""), part


def read_all(file: int) -> str:
    content = b""
    while True:
        try:
            more = os.read(file, 1 << 16)
        except OSError:  # EIO: the terminal has no program any more.
            more = b""
        if not more:
            os.close(file)
            return content.decode()
        content += more
