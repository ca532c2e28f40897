"""The page of a whole installation, from a dataset to its deletion, by clicks alone."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.chromium import chromium, visiting
from tests.integration.installation.conftest import Installation

MINUTE = 60_000.0
"""Milliseconds: a busy machine takes its time to train a step."""
ONCE, AGAIN = "clicked-once", "clicked-again"
SUMS = [{"prompt": f"{n}+2", "answer": str(n + 2)} for n in range(60)]


def chosen(page: Page, view: str) -> None:
    """Go to a view by its link."""
    page.get_by_label("Views").get_by_role("link", name=view).click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def with_key(page: Page, key: str, value: str) -> None:
    """Give a key of the config a value; add its field if the recipe does not name the key."""
    field = page.get_by_label(key, exact=True)
    if not field.count():
        page.get_by_label("Add a key").fill(key)
        page.get_by_role("button", name=re.compile(f"^{re.escape(key)} ")).first.click()
    field.fill(value)


def of_the_run(page: Page) -> str:
    """Return the id of the run that is shown."""
    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f]{8}"))
    return page.url.rsplit("/runs/", 1)[1][:8]


def sure(page: Page, button: str) -> None:
    """Press a button and accept its question."""
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=button, exact=True).click()


def walk(page: Page, installation: Installation, file: Path) -> None:
    page.goto("/")
    page.get_by_label("Key").fill(installation.stack.api_key)
    page.get_by_role("button", name="Log in").click()

    chosen(page, "Datasets")
    page.get_by_label("Files").set_input_files(file)
    expect(page.get_by_label("Upload", exact=True)).to_contain_text("0+2")
    page.get_by_label("Name").fill("by-hand")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("by-hand has 60 rows")).to_be_visible()

    chosen(page, "Try")
    page.get_by_role("link", name="a verifier").click()
    page.get_by_label("Dataset").select_option("by-hand")
    page.get_by_label("Row", exact=True).fill("3")
    page.get_by_label("Row", exact=True).blur()
    expect(page.get_by_text("3+2")).to_be_visible()
    page.get_by_label("Answer").fill("\\boxed{5}")
    page.get_by_role("button", name="Score").click()
    expect(page.get_by_label("Verdict")).to_contain_text("correct")

    chosen(page, "Submit")
    page.get_by_label("Recipe").select_option("demo_grpo")
    page.get_by_label("Name").fill(ONCE)
    for key, value in {
        "model.path": installation.model,
        "data.dataset": "by-hand",
        "algorithm.prompts_per_step": "4",
        "algorithm.samples_per_prompt": "4",
        "training.max_steps": "5000",
        "evaluation": "null",
    }.items():
        with_key(page, key, value)
    expect(page.get_by_text("it would be queued")).to_be_visible()
    page.get_by_role("button", name="Submit").click()

    now = page.get_by_label("Now")
    first = of_the_run(page)
    expect(now).to_contain_text(re.compile("trains step ([2-9]|[0-9]{2})"), timeout=MINUTE)
    expect(page.get_by_role("img", name=re.compile("^reward.mean: newest 0"))).to_be_visible()

    expect(page.get_by_label("What the run is")).to_contain_text("evaluation null")

    page.get_by_role("link", name="rollouts").click()
    page.get_by_role("link", name=re.compile("^step ")).first.click()
    tokens = page.get_by_label("Answer 0", exact=True)
    tokens.locator("span").first.hover()
    expect(page.get_by_text("token 0 ").first).to_contain_text("learner -")

    chosen(page, "Try")
    expect(page.get_by_label("Policy")).to_have_value(first)
    page.get_by_label("Tokens").fill("4")
    page.get_by_label("Message").fill("7+2")
    page.get_by_role("button", name="Send").click()
    talk = page.get_by_label(f"Talk with {first}", exact=True)
    expect(talk.locator("li.assistant")).to_be_visible()
    expect(talk).to_contain_text(f"{first}@")

    chosen(page, "Runs")
    page.get_by_role("link", name=ONCE, exact=True).click()
    sure(page, "Cancel")
    expect(page.get_by_role("link", name="Run again with a change")).to_be_visible(timeout=MINUTE)
    page.get_by_role("link", name="Run again with a change").click()
    page.get_by_label("Name").fill(AGAIN)
    with_key(page, "optimizer.lr", "0.002")
    with_key(page, "training.max_steps", "1")
    expect(page.get_by_text("it would be queued")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(AGAIN)
    expect(now).to_contain_text("succeeded after 1 step", timeout=MINUTE)

    chosen(page, "Runs")
    for name in (ONCE, AGAIN):
        page.get_by_label(f"Compare {name}", exact=True).check()
    page.get_by_role("link", name="Compare", exact=True).last.click()
    expect(page.get_by_role("img", name=re.compile("^reward.mean: newest 0.*, 0"))).to_be_visible()
    page.get_by_role("link", name="config").click()
    expect(page.get_by_role("row", name=re.compile(r"^optimizer\.lr .* 0\.002$"))).to_be_visible()

    for name in (AGAIN, ONCE):
        chosen(page, "Runs")
        page.get_by_role("link", name=name, exact=True).click()
        sure(page, "Delete")
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    chosen(page, "Datasets")
    page.get_by_role("link", name="by-hand", exact=True).click()
    sure(page, "Delete")
    expect(page.get_by_role("link", name="by-hand", exact=True)).to_have_count(0)


def test_a_dataset_becomes_a_run_that_is_watched_asked_compared_and_deleted_by_clicks_alone(
    installation: Installation, tmp_path: Path
) -> None:
    file = tmp_path / "by-hand.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in SUMS))
    with chromium() as browser, visiting(browser, installation.stack.gateway_url) as context:
        try:
            walk(context.new_page(), installation, file)
        finally:
            # Other tests wait for the learner that these runs would keep.
            running = installation.api.get("/v1/runs?state=running")["runs"]
            for run in running:
                if run["name"] in (ONCE, AGAIN):
                    installation.api.post(f"/v1/runs/{run['id']}/cancel")
