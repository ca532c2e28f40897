"""The answers that a run was trained on: found, and read token by token."""

import re

from playwright.sync_api import Page, expect


def test_answers_are_found_by_status_step_and_text(page: Page) -> None:
    page.goto("/runs/11ve11ve/rollouts")
    expect(page.locator(".answers > li").first).to_contain_text("step 120, group 240")
    page.get_by_label("Step").fill("101")
    page.get_by_label("Step").press("Enter")
    expect(page.locator(".answers > li")).to_have_count(2)
    page.get_by_label("Status").select_option("wrong")
    expect(page.get_by_text("correct", exact=True).locator("visible=true")).to_have_count(0)
    page.get_by_label("Text of the answer").fill("boxed{4}")
    expect(page).to_have_url(re.compile(r"step=101&status=wrong&text=boxed"))
    for answer in page.locator(".side pre").all_text_contents():
        assert "boxed{4}" in answer
    page.get_by_label("Status").select_option("error")
    expect(page.get_by_text("No trained answers fit.")).to_be_visible()
    page.goto("/runs/5f75f75f/rollouts")
    expect(page.get_by_text("A supervised run samples no answers: headrace watch")).to_be_visible()


def test_a_group_shows_each_token_with_its_numbers_and_its_colour(page: Page) -> None:
    page.goto("/runs/11ve11ve/rollouts?step=101&status=wrong")
    page.locator(".answers > li a").first.click()
    tokens = page.locator(".tokens").first
    expect(tokens.locator("[class^=up], [class^=down]").first).to_be_visible()
    page.get_by_label("Tokens by").select_option("advantage")
    wrong = page.locator(".answers > li", has_text="reward 0").first
    right = page.locator(".answers > li", has_text="reward 1").first
    for answer, colour in ((wrong, "down"), (right, "up")):
        classes = answer.locator(".tokens span").evaluate_all("all => all.map(t => t.className)")
        assert all(each.startswith(colour) for each in classes)
    wrong.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(wrong.locator(".tokenfacts")).to_contain_text(
        re.compile(r"token 0 .* version 99 · sampler -.* · learner -.* · gap .* · entropy ")
    )
    with page.expect_download() as parquet:
        page.get_by_role("link", name="Parquet of the step").click()
    assert parquet.value.suggested_filename == "11ve11ve-step-101.parquet"
    page.get_by_role("link", name="← Answers").click()
    expect(page).to_have_url(re.compile(r"step=101&status=wrong"))
