"""`python -m tests.browser.pictures`: the pictures of the page in docs/images/, from the seeds."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from playwright.sync_api import ViewportSize

from tests.browser.seeds import ROWS, Seeds
from tests.chromium import chromium, visiting
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload

FOLDER = Path(__file__).parents[2] / "docs/images"
WIDE, PHONE = ViewportSize(width=1360, height=900), ViewportSize(width=390, height=844)


class Picture(NamedTuple):
    """A picture: a view, what must be there, the colours and the size."""

    name: str
    view: str
    shows: str
    colours: str = "light"
    size: ViewportSize = WIDE


RUN = "/runs/11ve11ve"
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
PICTURES = (
    Picture("runs", "/", "svg.spark polyline", size=ViewportSize(width=1360, height=420)),
    Picture("page", RUN, ".uplot canvas"),
    Picture("page-dark", RUN, ".uplot canvas", "dark"),
    Picture("page-phone", RUN, ".uplot canvas", size=PHONE),
    Picture("rollouts", f"{RUN}/rollouts?group=120/240", ".tokens span"),
)


async def at_work(seeds: Seeds) -> None:
    """The runs of all tests, with the learners that train them."""
    await seeds.everything()
    for pool in ("default", "sft"):
        await seeds.store.pools.lock(pool, "learner", 600)


def take(gateway: GatewayProcess, folder: Path) -> None:
    """Write all pictures into `folder`."""
    folder.mkdir(exist_ok=True)
    with chromium() as browser, visiting(browser, gateway.url) as context:
        origin = {"Origin": gateway.url}
        context.request.post("/v1/session", data={"key": gateway.key}, headers=origin)
        page = context.new_page()
        for name, view, shows, colours, size in PICTURES:
            page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
            page.set_viewport_size(size)
            page.goto(view)
            page.locator(shows).first.wait_for()
            page.evaluate(DRAWN)
            page.screenshot(path=folder / f"{name}.png", animations="disabled")


def main() -> None:
    with TemporaryDirectory() as scratch:
        server = RedisServer(Path(scratch))
        server.start()
        gateway = GatewayProcess(Path(scratch) / "gateway/data", server.url)
        try:
            with gateway.client() as api:
                upload(api, "gsm8k", ROWS.encode()).raise_for_status()
            Seeds(gateway.data).act(server.url, at_work)
            take(gateway, FOLDER)
        finally:
            gateway.stop()
            server.stop()


if __name__ == "__main__":
    main()
