"""`python -m tests.browser.measure`: bench.page with the page in Chromium."""

import sys
import time
from statistics import median

import httpx

from bench.page import DRAWN, METRICS, ROUNDS, run
from bench.runner import Figures
from tests.chromium import chromium


def views(client: httpx.Client, ids: list[str]) -> Figures:
    """Milliseconds of the page in Chromium, with an empty cache each time: from the request of the
    document until `what` is there."""
    compared = "&".join(f"runs={id}" for id in ids[:DRAWN])
    shown = {
        "first load of the list, ms": ("/", "tbody tr"),
        f"{DRAWN} runs x {METRICS} charts, ms": (f"/compare?{compared}", ".uplot canvas"),
    }
    key = client.headers["Authorization"].removeprefix("Bearer ")
    url = str(client.base_url)
    seconds: dict[str, list[float]] = {name: [] for name in shown}
    with chromium() as browser:
        for _ in range(ROUNDS):
            for name, (view, what) in shown.items():
                context = browser.new_context(base_url=url)
                context.request.post("/v1/session", data={"key": key}, headers={"Origin": url})
                page = context.new_page()
                began = time.perf_counter()
                page.goto(view, wait_until="commit")
                page.locator(what).first.wait_for()
                seconds[name].append(time.perf_counter() - began)
                context.close()
    return {name: 1000 * median(each) for name, each in seconds.items()}


if __name__ == "__main__":
    sys.exit(run(views=views).report())
