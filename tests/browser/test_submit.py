"""Submitting from a form, and runs side by side."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from services.contracts.config import parse_config
from tests.integration.gateway.servers import GatewayProcess

FROM = "5eed0001"


def test_a_run_is_submitted_again_with_one_key_changed(page: Page, gateway: GatewayProcess) -> None:
    with page.expect_response("**/v1/runs?dry_run=true") as checked:
        page.goto(f"/submit?from={FROM}")
    with gateway.client() as api:
        before = api.get(f"/v1/runs/{FROM}").json()["config"]
    sent = checked.value.request.post_data_json["config"]
    # The form sends little, which means the whole config of that run.
    assert set(sent) == {"model", "data", "optimizer"}
    before["data"]["dataset"] = checked.value.json()["config"]["data"]["dataset"]  # now its id
    assert checked.value.json()["config"] == before

    page.get_by_label("Add a key").fill("weight_decay")
    page.get_by_role("button", name=re.compile("^optimizer.weight_decay")).click()
    page.get_by_label("optimizer.weight_decay", exact=True).fill("0.1")
    dry_run = page.get_by_label("Dry run")
    expect(dry_run).to_contain_text("it would be queued")
    assert "set=optimizer.weight_decay%3D0.1" in page.url
    expect(page.get_by_label("The same elsewhere")).to_contain_text(
        "--set optimizer.weight_decay=0.1"
    )
    elsewhere = page.get_by_label("The same elsewhere")
    elsewhere.get_by_role("button", name="Python").click()
    program = elsewhere.locator("pre").inner_text().replace('"KEY"', repr(gateway.key))
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f]{8}$"))
    page.get_by_role("link", name="config").click()
    # The config has its id.
    expect(page.get_by_role("row", name="data.dataset gsm8k", exact=True)).to_be_visible()
    page.go_back()

    names: dict[str, Any] = {}
    exec(program, names)
    assert names["run"].id != page.url[-8:]
    before["optimizer"]["weight_decay"] = 0.1
    for id in (page.url[-8:], names["run"].id):
        with gateway.client() as api:
            made = api.get(f"/v1/runs/{id}").json()
            api.post(f"/v1/runs/{id}/cancel")
        assert parse_config(made["config"]) == parse_config(before)
        assert made["recipe"] == "grpo"


def test_a_wrong_value_is_named_at_its_key(page: Page) -> None:
    page.goto("/submit?recipe=grpo&set=data.dataset=gsm8k&set=model.path=/none&set=optimizer.lr=-1")
    problem = page.locator(".field", has_text="optimizer.lr").locator("p.problem")
    expect(problem).to_contain_text("must be more than 0")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()


def test_compared_runs_share_charts_and_show_where_their_configs_differ(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/?state=succeeded")
    for rate in ("1e-6", "1e-5"):
        page.get_by_label(re.compile(f"^Compare .*{rate}$")).check()
    asked.clear()
    page.get_by_role("link", name="Compare", exact=True).last.click()
    expect(page.locator(".legend li")).to_have_count(2)
    expect(page.locator(".uplot").first).to_be_visible()
    # One request feeds all charts, and charts out of sight wait until they are scrolled to.
    assert len([url for url in asked if "/v1/series?" in url]) == 1
    assert 0 < page.locator(".uplot").count() < page.locator("figure.chart").count() / 2
    page.locator("figure.chart").last.scroll_into_view_if_needed()
    expect(page.locator("figure.chart .uplot").last).to_be_visible()
    page.get_by_role("link", name="config").click()
    expect(page.locator("table.config tbody tr")).to_have_count(1)
    expect(page.locator("table.config tbody tr")).to_contain_text("optimizer.lr")
