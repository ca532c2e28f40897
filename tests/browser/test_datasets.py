"""Uploading a dataset, talking with a policy, and trying a verifier."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Act
from tests.browser.seeds import run
from tests.integration.gateway.servers import RedisServer
from tests.integration.gateway.test_policy import Worker


def test_an_upload_shows_columns_first_and_rows_after(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    rows = [{"task": f"{n} + 1", "result": str(n + 1), "level": "easy"} for n in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    page.goto("/datasets")
    page.get_by_label("Files").set_input_files(file)
    expect(page.get_by_role("columnheader", name="level")).to_be_visible()
    page.get_by_label("Prompt").select_option("task")
    page.get_by_label("Answer").select_option("result")
    page.get_by_label("Name").fill("sums")
    page.get_by_role("button", name="Upload").click()

    result = page.get_by_label("Upload", exact=True).get_by_role("status")
    expect(result).to_contain_text("sums has 31 rows")
    expect(result).to_contain_text("1 rows repeat")
    expect(result).to_contain_text("level")
    page.get_by_role("link", name="sums").last.click()
    expect(page.locator(".answers li").first).to_contain_text("0 + 1")
    like = page.get_by_label("What the rows are like")
    expect(like).to_contain_text("1 rows (3.2 %) repeat the prompt and answer of an earlier row")
    expect(like.get_by_label("Prompts by length").locator("li")).to_have_text(re.compile("31$"))
    like.get_by_role("link", name="30", exact=True).click()
    expect(page.locator(".answers li").first).to_contain_text("row 30")
    page.go_back()
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".answers li").first).to_contain_text("20 + 1")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Datasets")
    expect(page.get_by_role("link", name="sums")).to_have_count(0)


def test_the_columns_of_csv_are_shown_before_it_is_sent(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "sums.csv"
    file.write_text('task;result\n"1; ""one""\nand 1";2\n2 + 2;4\n')
    page.goto("/datasets")
    page.get_by_label("Files").set_input_files(file)
    cells = page.get_by_label("Upload", exact=True).locator("tbody td")
    expect(cells).to_have_text(['1; "one" and 1', "2", "2 + 2", "4"])
    expect(page.get_by_label("Prompt").locator("option")).to_have_text(
        ["guessed", "task", "result"]
    )
    expect(page.get_by_text("no column looks like the prompt")).to_be_visible()
    expect(page.get_by_text("the cells are separated by semicolons")).to_be_visible()
    page.get_by_label("Prompt").select_option("task")
    expect(page.get_by_text('the first row asks 1; "one" and 1')).to_be_visible()


def test_an_upload_that_cannot_be_read_says_why(page: Page, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    page.goto("/datasets")
    page.get_by_label("Files").set_input_files(tmp_path / "bad.jsonl")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("line 2")
    page.get_by_label("Bad rows").check()
    page.get_by_role("button", name="Upload").click()
    result = page.get_by_label("Upload", exact=True).get_by_role("status")
    expect(result).to_contain_text("bad has 1 rows, 1 left out")
    expect(result).to_contain_text("line 2")

    page.reload()
    page.get_by_label("Or the hub").fill("openai/gsm8k/main/train")
    page.get_by_role("button", name="Fetch").click()
    reason = "cannot be reached for openai/gsm8k"
    expect(page.get_by_role("alert")).to_contain_text(reason)


def test_a_policy_answers_and_a_worker_that_stops_is_named(
    page: Page, redis_server: RedisServer, act: Act
) -> None:
    record = run("7a1c7a1c", "talked-with", 0, overrides={"data": {"template": "{prompt}="}})
    act(lambda seeds: seeds.begin(record))
    worker = Worker(redis_server.url, "7a1c7a1c")
    worker.start()
    try:
        policy = page.get_by_label("Policy")

        def later(route: Route) -> None:
            policy.press_sequentially("7a1c")
            route.continue_()

        page.route("**/v1/models", later, times=1)
        page.goto("/try")
        expect(page.locator("#models option").first).to_be_attached()
        policy.press_sequentially("7a1c")
        policy.press("Enter")
        talk = page.get_by_label("Talk with 7a1c7a1c", exact=True)
        page.get_by_label("Ask as the run does: {prompt}=").check()
        page.get_by_label("Message").fill("57+26")
        page.get_by_label("Message").press("Enter")
        expect(talk.locator("li.user")).to_have_text(re.compile("57\\+26=$"))
        page.get_by_label("Ask as the run does: {prompt}=").uncheck()
        talk.get_by_role("button", name="Begin anew").click()
        for said, expected in (("quick", "done"), ("broken", "the worker stops")):
            page.get_by_label("Message").fill(said)
            page.get_by_label("Message").press("Enter")
            expect(talk).to_contain_text(expected)
            talk.get_by_role("button", name="Begin anew").click()
    finally:
        worker.ended.set()
        worker.join()


def test_a_verifier_says_what_a_typed_answer_earns_and_why(page: Page) -> None:
    page.goto("/try?what=verifier&verifier=math&dataset=gsm8k&row=3")
    expect(page.get_by_text("A robe takes 5 bolts")).to_be_visible()
    verdict = page.get_by_label("Verdict")
    for answer, status in (("So it is \\boxed{5}", "correct"), ("\\boxed{6}", "wrong")):
        page.get_by_label("Answer").fill(answer)
        page.get_by_role("button", name="Score").click()
        expect(verdict).to_contain_text(status)
    expect(verdict).to_contain_text("compared with 5")
