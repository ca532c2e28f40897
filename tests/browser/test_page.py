"""Every view: nothing serious for axe, in light, dark and on a phone; files; hostile texts."""

import gzip
import re

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from deploy import guide
from services.contracts.events import EventKind
from services.contracts.records import RunState, WorkerRecord
from services.rollouts.token_texts import NAME, write_token_texts
from tests.browser.conftest import Act
from tests.browser.seeds import Seeds, write
from tests.integration.gateway.servers import GatewayProcess
from tests.integration.store.scene import record
from tests.kept_rollouts import answer, keep

VIEWS = (
    *(
        "/",
        "/runs/11ve11ve",
        "/runs/11ve11ve/rollouts",
        "/runs/11ve11ve/rollouts?group=120/240",
        "/runs/11ve11ve/config?edit=1",
    ),
    "/runs/11ve11ve/checkpoints",
    *("/runs/11ve11ve/events", "/runs/11ve11ve/workers", "/runs/fa11ed00", "/workers"),
    *("/compare?runs=5eed0000&runs=5eed0001", "/compare?runs=5eed0000&runs=5eed0001&tab=config"),
    *("/submit?set=optimizer.lr=3e-6", "/submit?from=5eed0001"),
    *("/datasets", "/datasets/gsm8k", "/try", "/try?what=verifier"),
)
EVIL = "<img src=x onerror=\"document.title='taken'\">'\"><script>document.title='taken'</script>"


GO = """async (to) => {
    history.pushState(null, "", to);
    dispatchEvent(new PopStateEvent("popstate"));
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
}"""
"""Goes to a view as a link does, and waits until it is drawn."""
AXE = """async (options) => (await axe.run(document, options)).violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => [id, nodes[0].html])"""
COLOURS = {"runOnly": ["color-contrast"]}
"""Dark differs from light in its colours alone."""


def test_axe_finds_nothing_serious_on_any_view_and_none_is_wider_than_a_phone(
    context: BrowserContext,
) -> None:
    page = context.new_page()
    page.goto("/")
    page.evaluate(Axe().axe_script)
    for view in VIEWS:
        page.evaluate(GO, view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert page.evaluate(AXE, {}) == [], view
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(AXE, COLOURS) == [], f"{view}, dark"
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        page.set_viewport_size({"width": 1360, "height": 900})


def test_axe_finds_nothing_serious_in_the_guide(context: BrowserContext) -> None:
    if not guide.SITE.is_dir():
        guide.build()
    page = context.new_page()
    for view in ("/guide/", "/guide/agents/"):
        page.goto(view)
        page.evaluate(Axe().axe_script)
        assert page.evaluate(AXE, {}) == [], view


def test_files_are_compressed_kept_for_ever_and_small(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url, headers={"Accept-Encoding": "gzip"}) as http:
        index = http.get("/runs/any?tab=x")
        assert index.headers["cache-control"] == "no-cache"
        assert "default-src 'self'" in index.headers["content-security-policy"]
        names = re.findall(r'"(/page/[^"]+)"', index.text)
        sizes = {}
        for name in names:
            with http.stream("GET", name) as file:
                sizes[name] = len(b"".join(file.iter_raw()))
                assert file.headers["content-encoding"] == "gzip"
                assert "immutable" in file.headers["cache-control"]
            tag = {"If-None-Match": file.headers["etag"]}
            assert http.get(name, headers=tag).status_code == 304
        plain = http.get(names[0], headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(gzip.compress(plain.content)) < 2 * sizes[names[0]]
        assert http.get("/page/app.py").status_code == 404
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) <= 90_000
    assert sum(sizes.values()) + len(index.content) <= 150_000


def test_a_used_login_link_says_so(browser: Browser, gateway: GatewayProcess) -> None:
    with gateway.client() as api:
        link = f"{gateway.url}/#login={api.post('/v1/login').json()['token']}"
    first = browser.new_page()
    first.goto(link)
    expect(first.get_by_role("heading", name="Runs")).to_be_visible()
    assert "login" not in first.url
    second = browser.new_context().new_page()
    second.goto(link)
    expect(second.get_by_role("alert")).to_contain_text("This login link was used already")
    second.get_by_label("Key").fill(gateway.key)
    second.get_by_role("button", name="Log in").click()
    expect(second.get_by_role("heading", name="Runs")).to_be_visible()
    first.close()
    second.context.close()


def test_a_key_that_only_reads_is_offered_no_change(
    browser: Browser, gateway: GatewayProcess, act: Act
) -> None:
    with gateway.client() as api:
        key = api.post("/v1/keys", json={"name": "reader", "role": "read"}).json()["key"]
    page = browser.new_page(base_url=gateway.url)
    page.goto("/")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="gsm8k-live").click()
    expect(page.get_by_role("link", name="report")).to_be_visible()
    for name in ("Edit", "Cancel", "Submit"):
        assert page.get_by_text(name, exact=True).count() == 0
    page.get_by_role("link", name="checkpoints").click()
    expect(page.get_by_role("link", name="Download step 100")).to_be_visible()
    assert page.get_by_role("button", name="Pin").count() == 0
    page.goto("/try?what=verifier")
    expect(page.get_by_text("A key that only reads cannot score")).to_be_visible()
    expect(page.get_by_role("button", name="Score")).to_be_disabled()
    page.close()


async def hostile_run(seeds: Seeds) -> None:
    """A run and a worker that say the same in all their texts."""
    store = seeds.store
    await store.runs.submit(record("evil", name=EVIL, state=RunState.QUEUED, reason=EVIL))
    worker = WorkerRecord(id=EVIL, pool="default", host=EVIL, pid=1, state="unhealthy", run=EVIL)
    await store.workers.heartbeat(worker.model_copy(update={"error": EVIL}))
    kinds: tuple[EventKind, ...] = ("warning", "worker", "state", "checkpoint", "evaluation")
    for kind in kinds:
        told = dict.fromkeys(("message", "worker", "state", "detail", "reason", "directory"), EVIL)
        await store.events.add("evil", kind, {**told, "name": EVIL, "step": 1})
    await store.runs.fail("evil", EVIL)
    names = ("prompt", "reference", "status", "dataset", "own", "completion", "finish_reason")
    texts = dict.fromkeys((*names, "worker"), EVIL)
    parts = {"components": {EVIL: 1.0, "a": 0.0}, "reasons": {EVIL: EVIL}}
    folder = keep(seeds.data / "runs/evil", [answer(1) | texts | parts])
    write_token_texts(folder / NAME, [EVIL.encode()] * 6)
    write(seeds.data, "evil", [{"step": 1, EVIL: 1.0, f"dataset/share/{EVIL}": 1.0}])


def test_names_events_metrics_and_answers_are_shown_as_they_are_written(
    page: Page, act: Act
) -> None:
    act(hostile_run)
    tabs = [f"/runs/evil/{tab}" for tab in ("charts", "rollouts", "rollouts?group=1/0", "events")]
    for view in ("/?q=evil", "/workers", *tabs):
        page.goto(view)
        expect(page.get_by_text("<img src=x").first).to_be_visible()
        assert page.locator("img").count() == 0
        assert page.title() != "taken"
