"""The page shows the words of users, datasets, policies and workers as text, never as markup."""

import asyncio
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from services.contracts.events import EventKind
from services.contracts.records import RunState, WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.gateway.test_samples import answer, written
from tests.integration.store.scene import record

WEB = Path(__file__).parents[2] / "services/gateway/web"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=\"document.title='taken'\">'\"><script>document.title='taken'</script>"


def test_no_script_of_the_page_makes_markup_of_text() -> None:
    makes_markup = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(|srcdoc|javascript:"
    )
    found = {path.name: makes_markup.findall(path.read_text()) for path in WEB.glob("*.js")}
    assert len(found) > 5
    assert {name: what for name, what in found.items() if what} == {}


async def hostile_run(store: Store) -> None:
    """A run and a worker that say the same in all their texts."""
    await store.runs.submit(record("evil", name=EVIL, state=RunState.QUEUED, reason=EVIL))
    worker = WorkerRecord(id=EVIL, pool="default", host=EVIL, pid=1, state="unhealthy", run=EVIL)
    await store.workers.heartbeat(worker.model_copy(update={"error": EVIL}))
    kinds: tuple[EventKind, ...] = ("warning", "worker", "state", "checkpoint", "evaluation")
    for kind in kinds:
        told = dict.fromkeys(("message", "worker", "state", "detail", "reason", "directory"), EVIL)
        await store.events.add("evil", kind, {**told, "name": EVIL, "step": 1})
    metrics = {f"dataset/share/{EVIL}": 1.0, "step": 1, EVIL: 1.0}
    await store.events.add("evil", "step", metrics)
    await store.runs.fail("evil", EVIL)
    await store.close()


def browsed(url: str, folder: Path) -> str:
    """The page as a browser shows it, whose cookies are in `folder`."""
    return subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={folder}", "--virtual-time-budget=12000"),
            url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_used_login_link_says_so_and_the_curl_commands_of_the_page_work(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    with httpx.Client(base_url=gateway.url, headers=gateway.headers) as api:
        link = f"{gateway.url}/#login={api.post('/v1/login').json()['token']}"
    used = "This login link was used already"
    first = browsed(link, tmp_path / "first")
    assert used not in first
    assert used in browsed(link, tmp_path / "second")

    commands = html.unescape(first.partition('<code id="curl">')[2].partition("</code>")[0])
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    key = gateway.headers["Authorization"].removeprefix("Bearer ")
    pasted = commands.replace("Bearer KEY", f"Bearer {key}")
    done = subprocess.run(["bash", "-c", pasted], cwd=tmp_path, capture_output=True, check=True)
    uploaded, submitted = done.stdout.decode().replace("}{", "}\n{").splitlines()
    assert json.loads(uploaded)["rows"] == 1
    # PATH is no model of this gateway.
    assert json.loads(submitted)["problems"][0]["path"] == "model.path"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_browser_shows_hostile_names_events_and_answers_as_they_are_written(
    redis_server: RedisServer, gateway: GatewayProcess, tmp_path: Path
) -> None:
    asyncio.run(hostile_run(Store.from_url(redis_server.url)))
    texts = dict.fromkeys(("prompt", "completion", "reference", "status", "dataset"), EVIL)
    row = answer(1, 1.0, **texts, components={EVIL: 1.0, "a": 0.0}, reasons={EVIL: EVIL})
    written(gateway, "evil", [row | {"finish_reason": EVIL, "own": EVIL}])
    with httpx.Client(base_url=gateway.url, headers=gateway.headers) as api:
        token = api.post("/v1/login").json()["token"]

    shown = browsed(f"{gateway.url}/#login={token}", tmp_path)

    assert "<title>Headrace</title>" in shown
    assert "<img" not in shown
    assert shown.count("&lt;img src=x onerror=") > 10
