"""A real gateway, a real Redis, a seeded data folder, and Chromium in front of them."""

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from bench.page import write_runs
from services.launch import Stack, UpOptions
from services.runtime.api_key import REWARD_KEY, kept_key
from tests.browser.seeds import NOW, ROWS, Seeds
from tests.chromium import chromium, visiting
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload

Act = Callable[[Callable[[Seeds], Awaitable[None]]], None]


@pytest.fixture(scope="package")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that names a reward service."""
    data = tmp_path_factory.mktemp("scoring")
    with Stack(UpOptions(data=data, parts=frozenset({"reward"}), reward_port=0)) as stack:
        key = kept_key(data / REWARD_KEY)
        yield {"HEADRACE_REWARD_URL": stack.reward_url, "HEADRACE_REWARD_KEY": key}


@pytest.fixture(scope="package")
def gateway(
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: RedisServer,
    scoring: dict[str, str],
) -> Iterator[GatewayProcess]:
    """With 10,000 runs that ended before those of `Seeds.everything`."""
    with ThreadPoolExecutor(1) as thread:  # Playwright's own loop runs in this one
        thread.submit(write_runs, redis_server.url, newest=NOW - 1_000_000).result()
    data = tmp_path_factory.mktemp("gateway") / "data"
    process = GatewayProcess(data, redis_server.url, **scoring)
    with process.client() as api:
        api.get("/v1/runs", params={"limit": 1}, timeout=300).raise_for_status()
    yield process
    process.stop()


@pytest.fixture(scope="package")
def act(gateway: GatewayProcess, redis_server: RedisServer) -> Act:
    """Do something as a run's learner. The runs of `Seeds.everything` are there."""
    seeds = Seeds(gateway.data)
    with gateway.client() as api:
        assert upload(api, "gsm8k", ROWS.encode()).is_success
    seeds.act(redis_server.url, Seeds.everything)
    return lambda action: seeds.act(redis_server.url, action)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser, gateway: GatewayProcess, act: Act) -> Iterator[BrowserContext]:
    """A browser that is logged in."""
    with visiting(browser, gateway.url) as made:
        entered = made.request.post(
            "/v1/session", data={"key": gateway.key}, headers={"Origin": gateway.url}
        )
        assert entered.status == 204
        yield made


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()
