"""The list of runs and a run's view, while things change."""

import re

from playwright.sync_api import BrowserContext, Dialog, Page, Response, Route, expect

from services.contracts.chains import ChainRecord, ChainStep
from services.contracts.devices import GPUDevice, GPULoad
from services.contracts.evaluation import EvaluationRecord
from services.contracts.logs import WrittenLine
from services.contracts.records import WorkerRecord
from services.evaluations import folder_of, part_path, write_part, write_result
from tests.browser.conftest import Act
from tests.browser.seeds import NOW, Seeds, run, step
from tests.evaluating import answered
from tests.integration.gateway.servers import GatewayProcess

LIVE = "11ve11ve"


def trained(seeds: Seeds, number: int) -> dict[str, object]:
    """A row of a step that the live run has just trained."""
    return step(number, seeds.random)


def test_eight_tabs_on_a_live_run_all_follow_it(context: BrowserContext, act: Act) -> None:
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"/runs/{LIVE}")
    for tab in tabs:
        expect(tab.get_by_role("heading", level=1)).to_have_text("gsm8k-live")

    async def train(seeds: Seeds) -> None:
        await seeds.train(LIVE, [trained(seeds, 121)])

    act(train)

    for tab in tabs:
        expect(tab.get_by_label("Now")).to_contain_text("step 121 of 200")
    tabs[0].close()  # the tab that reads the stream
    act(lambda seeds: seeds.train(LIVE, [trained(seeds, 122)]))
    expect(tabs[7].get_by_label("Now")).to_contain_text("step 122 of 200")


def test_a_step_keeps_zoom_focus_selected_text_and_scroll(page: Page, act: Act) -> None:
    page.goto(f"/runs/{LIVE}?from=20&to=60")
    expect(page.locator(".uplot").first).to_be_visible()
    page.get_by_role("link", name="config").focus()
    act(lambda seeds: seeds.train(LIVE, [trained(seeds, 130)]))
    expect(page.get_by_label("Now")).to_contain_text("step 130 of 200")
    assert "from=20&to=60" in page.url
    assert page.evaluate("document.activeElement.textContent") == "config"

    page.goto(f"/runs/{LIVE}/rollouts")
    answer = page.locator(".answers pre:not(.quiet)").nth(3)
    answer.select_text()
    text, scrolled = answer.text_content(), page.evaluate("scrollTo(0, 200), scrollY")
    act(lambda seeds: seeds.train(LIVE, [trained(seeds, 131)]))
    expect(page.get_by_label("Now")).to_contain_text("step 131 of 200")
    assert page.evaluate("getSelection().toString()") == text
    assert page.evaluate("scrollY") == scrolled


def test_back_returns_titles_change_and_a_new_run_does_not_take_the_page(
    page: Page, act: Act
) -> None:
    page.goto("/")
    assert page.title() == "Runs · Headrace"
    page.get_by_role("link", name="gsm8k-sft").click()
    expect(page).to_have_title("gsm8k-sft · running · Headrace")
    page.get_by_role("link", name="config").click()
    expect(page).to_have_url(re.compile(r"/runs/5f75f75f/config$"))

    act(lambda seeds: seeds.begin(run("ne3e5700", "newest-of-all", 0, pool="new")))

    page.go_back()
    expect(page).to_have_url(re.compile(r"/runs/5f75f75f$"))
    page.go_back()
    expect(page.get_by_role("link", name="newest-of-all")).to_be_visible()
    assert page.title() == "Runs · Headrace"
    page.go_forward()
    expect(page.get_by_role("heading", level=1)).to_have_text("gsm8k-sft")


def evaluated(
    gateway: GatewayProcess,
    run: str,
    name: str,
    step: int = 2,
    statuses: tuple[str, ...] = ("correct",),
) -> None:
    """A finished evaluation of a run, with the status of each row's answer."""
    record = EvaluationRecord(
        id=f"{step:06d}-{name}",
        run=run,
        name=name,
        dataset=name,
        step=step,
        version=f"a:{step}",
        samples=1,
        rows=len(statuses),
        answered=len(statuses),
        state="done",
        finished=NOW,
        reason="",
        asked=NOW,
        metrics={"accuracy": 0.5, "reward": 0.5},
    )
    rows = [answered(row, status) for row, status in enumerate(statuses)]
    write_part(part_path(folder_of(gateway.data, run, record.id), 1), rows)
    write_result(gateway.data, record)


def test_a_run_never_shows_the_evaluations_of_the_run_before(
    page: Page, gateway: GatewayProcess
) -> None:
    evaluated(gateway, "5eed0000", "set-of-the-first")
    evaluated(gateway, "5eed0001", "set-of-the-second")
    page.goto("/runs/5eed0000/evaluations")
    expect(page.get_by_role("cell", name="set-of-the-first")).to_be_visible()
    held: list[Route] = []
    page.route("**/5eed0001/evaluations", lambda route: held.append(route))

    with page.expect_request("**/5eed0001/evaluations"):
        page.evaluate("history.pushState(null, '', '/runs/5eed0001/evaluations')")
        page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")

    expect(page.get_by_role("heading", level=1)).to_contain_text("3e-6")
    expect(page.get_by_role("cell", name="set-of-the-first")).to_have_count(0)
    held[0].continue_()
    expect(page.get_by_role("cell", name="set-of-the-second")).to_be_visible()


def test_rows_over_steps_show_which_turned_right_and_which_wrong(
    page: Page, gateway: GatewayProcess
) -> None:
    evaluated(gateway, "5eed0002", "held-out", 20, ("wrong", "correct", "wrong", "correct"))
    evaluated(gateway, "5eed0002", "held-out", 40, ("correct", "wrong", "correct", "correct"))
    page.goto("/runs/5eed0002/evaluations")
    page.get_by_role("button", name="40").click()
    page.get_by_role("button", name="Rows over steps").click()
    grid = page.get_by_label("Rows over steps")
    expect(grid).to_contain_text("From step 20 to step 40 2 rows got better and 1 worse")
    expect(grid.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Show").select_option("worse")
    expect(grid.locator("tbody tr")).to_have_text(["row 110"])
    page.get_by_role("button", name="Answers of row 1").click()
    expect(page.locator(".answers > li")).to_have_count(1)
    expect(page.locator(".answers > li")).to_contain_text("wrong 1")


def test_a_live_supervised_run_shows_its_loss_first(page: Page) -> None:
    page.goto("/runs/5f75f75f")
    expect(page.locator("figure.chart .title").first).to_have_text("train/loss")
    expect(page.locator("section.group h2").first).to_contain_text("Loss")


def test_a_long_run_is_drawn_from_series_and_not_from_its_metrics(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_response("**/v1/series?**") as answer:
        page.goto("/runs/1a9a9a9a")
    expect(page.locator(".uplot").first).to_be_visible()
    assert len(answer.value.body()) < 1_000_000
    assert not [url for url in asked if "/metrics" in url]


def test_resume_and_delete_promise_only_what_the_run_has(page: Page) -> None:
    page.goto("/runs/fa11ed00")
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    asked: list[str] = []

    def read(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", read)
    page.get_by_role("button", name="Delete").click()
    assert "no checkpoint" in asked[0]


def test_a_failed_run_has_its_reason_its_answers_its_config_and_a_way_to_try_again(
    page: Page,
) -> None:
    page.goto("/runs/fa11ed00")
    expect(page.get_by_label("Now")).to_contain_text("all rewards were 0")
    expect(page.locator(".answers")).to_contain_text("I do not know")
    page.get_by_role("link", name="config").click()
    expect(page.locator("table.config")).to_contain_text("optimizer.lr")
    again = page.get_by_role("link", name="Run again with a change")
    assert again.get_attribute("href") == "/submit?from=fa11ed00"


def test_the_report_is_a_tab_and_a_file(page: Page) -> None:
    page.goto("/runs/5eed0000")
    page.get_by_label("Parts of the run").get_by_role("link", name="report").click()
    report = page.frame_locator("iframe")
    expect(report.get_by_role("heading", name="Results")).to_be_visible(timeout=60_000)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.endswith("-lr-1e-6-report.html")
    assert "<h2>Results</h2>" in download.value.path().read_text()


def test_a_run_says_how_far_the_start_of_vllm_is(page: Page, act: Act) -> None:
    async def start(seeds: Seeds) -> None:
        await seeds.store.runs.submit(run("57a27ed0", "just-started", 5, pool="slow"))
        token = await seeds.store.runs.acquire("57a27ed0", "57a27ed0")
        await seeds.store.runs.set_state("57a27ed0", "starting", "", fencing_token=token)
        worker = WorkerRecord(id="slow-1", pool="slow", host="slow", pid=1, state="starting")
        worker.starting_seconds, worker.usual_start_seconds = 40, 110
        await seeds.store.workers.heartbeat(worker)

    act(start)

    page.goto("/runs/57a27ed0")
    expect(page.get_by_label("Now")).to_contain_text("vLLM starts, 40 of about 110 s")


async def chain(seeds: Seeds) -> None:
    """A chain of two runs, older than all other runs but `long-run`."""
    steps = [ChainStep(name=name, config={}, runs=[f"c4a1000{i}"]) for i, name in enumerate("ab")]
    record = ChainRecord(
        id="chain-c4a1c4a1", name="two-steps", pool="chain", created=NOW - 300_000, steps=steps
    )
    await seeds.store.chains.add(record)
    for i in range(2):
        name = f"two-steps-{'ab'[i]}"
        await seeds.begin(run(f"c4a1000{i}", name, 300_000 - i, chain=record.id, pool="chain"))
        await seeds.store.runs.finish(f"c4a1000{i}", "chain", "succeeded", "")


def test_a_chain_stands_where_its_runs_stand_in_time(page: Page, act: Act) -> None:
    act(chain)
    page.goto("/?state=succeeded")
    rows = page.locator("tbody tr")
    expect(rows.locator("b", has_text="two-steps")).to_be_visible()
    names = rows.locator("td:nth-child(2)").all_text_contents()
    at = next(i for i, name in enumerate(names) if name.startswith("chain"))
    assert names[at + 1 :] == ["two-steps-b", "two-steps-a", "long-run"]
    page.goto("/chains/chain-c4a1c4a1")
    expect(page.get_by_role("heading", level=1)).to_have_text("two-steps-b")
    expect(page.get_by_label("Chain")).to_contain_text("two-steps")


def test_ten_thousand_runs_are_loaded_page_by_page_and_searched_by_the_gateway(page: Page) -> None:
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto("/")
    rows = page.locator("tbody tr:not(.chain)")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Older runs").click()
    expect(rows).to_have_count(100)
    page.get_by_label("Search runs").fill("run-7777")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("run-7777")
    page.get_by_label("Search runs").fill("run-77")
    page.get_by_label("State").select_option("failed")
    expect(rows).to_have_count(50)
    page.get_by_label("State").select_option("running")
    expect(page.get_by_text("No run matches.")).to_be_visible()

    lists = [answer for answer in answers if "/v1/runs?" in answer.url]
    assert max(len(answer.json()["runs"]) for answer in lists) == 50
    # The page, its script and its style; what it asks for at the first load is small, too.
    files = [answer.url for answer in answers if "/v1/" not in answer.url]
    assert len(files) == 3
    assert len(answers) <= 25


def test_names_of_a_sweep_differ_in_what_is_shown(page: Page) -> None:
    page.goto("/?q=sweep")
    sweep = page.locator("tbody td.main")
    tails = sweep.locator(".tail")
    expect(tails).to_have_text(["lr-1e-5", "lr-3e-6", "lr-1e-6"], timeout=5000)
    for i in range(3):
        box = tails.nth(i).bounding_box()
        cell = sweep.nth(i).bounding_box()
        assert box is not None
        assert cell is not None
        assert box["x"] + box["width"] <= cell["x"] + cell["width"]


def test_a_keyboard_alone_finds_a_run_and_reads_its_config(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("link", name="gsm8k-live")).to_be_visible()
    page.get_by_label("Search runs").focus()
    page.keyboard.type("gsm8k-live")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.url.endswith("?q=gsm8k-live")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "gsm8k-live":
            break
    page.keyboard.press("Enter")
    expect(page).to_have_title("gsm8k-live · running · Headrace")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "config":
            break
    page.keyboard.press("Enter")
    expect(page.locator("table.config")).to_be_visible()


def test_a_live_run_is_renamed_tagged_paused_and_given_more_steps(
    page: Page, gateway: GatewayProcess
) -> None:
    page.goto("/runs/11ve11ve")
    page.get_by_role("button", name="Edit").click()
    form = page.get_by_label("Edit the run")
    form.get_by_label("Tags").fill("baseline, kept")
    form.get_by_label("Notes").fill("The one to beat")
    form.get_by_label("Steps", exact=True).fill("300")
    form.get_by_role("button", name="Save").click()

    expect(form).to_have_count(0)
    expect(page.get_by_label("What the run is")).to_contain_text("The one to beat")
    expect(page.get_by_label("Changes since the submission")).to_contain_text("200 → 300")
    page.get_by_role("button", name="Pause").click()
    now = page.get_by_label("Now", exact=True)
    expect(now).to_contain_text("pauses after its present step")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(now).not_to_contain_text("pauses")
    with gateway.client() as api:
        changed = api.get("/v1/runs/11ve11ve").json()
        api.patch("/v1/runs/11ve11ve", json={"max_steps": 200, "tags": []})
    assert changed["tags"] == ["baseline", "kept"]
    assert changed["config"]["training"]["max_steps"] == 300


def test_a_run_that_is_deleted_while_it_is_shown_is_gone(
    page: Page, act: Act, gateway: GatewayProcess
) -> None:
    async def end(seeds: Seeds) -> None:
        await seeds.begin(run("de1e7ed0", "short-lived", 5, pool="gone"))
        await seeds.store.runs.finish("de1e7ed0", "gone", "succeeded", "")

    act(end)
    page.goto("/runs/de1e7ed0")
    expect(page.get_by_role("heading", level=1)).to_have_text("short-lived")
    with gateway.client() as api:
        assert api.delete("/v1/runs/de1e7ed0").status_code == 204
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")


def test_a_fork_is_checked_with_its_changes_alone(page: Page, gateway: GatewayProcess) -> None:
    page.goto(f"/runs/{LIVE}/checkpoints")
    page.get_by_role("link", name="Fork at step 100").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fork a run")
    with page.expect_response(f"**/v1/runs/{LIVE}/fork?dry_run=true") as checked:
        page.goto(f"{page.url}&set=optimizer.lr=1e-5&pool=forks")
    sent = checked.value.request.post_data_json
    changed = {"optimizer": {"lr": 1e-5}}
    assert sent == {"step": 100, "config": changed, "pool": "forks", "priority": 0}
    elsewhere = page.get_by_label("The same elsewhere")
    expect(elsewhere).to_contain_text(f"headrace fork {LIVE}@100")
    elsewhere.get_by_role("button", name="Python").click()
    expect(elsewhere).to_contain_text(f'client.runs.get("{LIVE}").fork(')
    # The seeds' checkpoint has no state to go on from.
    expect(page.get_by_label("Dry run")).to_contain_text("gsm8k-live (11ve11ve) has no checkpoint")
    expect(page.get_by_role("button", name="Fork", exact=True)).to_be_disabled()


def test_a_checkpoint_is_pinned_and_downloaded(page: Page) -> None:
    page.goto(f"/runs/{LIVE}/checkpoints")
    page.get_by_role("button", name="Pin step 100").click()
    expect(page.get_by_role("row", name=f"{LIVE}@100")).to_contain_text("pinned")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download step 120").click()
    assert download.value.suggested_filename == f"{LIVE}-step-000120-a.tar"


async def two_gpus(seeds: Seeds) -> None:
    """A worker that serves two models on two GPUs, and whose last load failed."""
    gpus = [GPUDevice(uuid=f"GPU-{i}", name="NVIDIA H100", memory=80 << 30) for i in (0, 1)]
    loads = [GPULoad(uuid=gpu.uuid, used=61 << 30, busy=0.9) for gpu in gpus]
    worker = WorkerRecord(id="two", pool="two", host="two", pid=1, state="unhealthy", gpus=2)
    told = {"devices": gpus, "gpu_loads": loads, "error": "the canary differs"}
    told |= {"worker_class": "spot", "models": [f"{LIVE}@100"], "loading": "5eed0000@200"}
    await seeds.store.workers.heartbeat(worker.model_copy(update=told))


def test_events_and_workers_read_as_sentences_with_units(page: Page, act: Act) -> None:
    page.goto(f"/runs/{LIVE}/events")
    expect(page.get_by_text("wandb has the metrics: https://wandb.example")).to_be_visible()
    act(two_gpus)
    page.goto("/workers")
    row = page.get_by_role("row", name="two")
    expect(row).to_contain_text("2 × H100122 of 160 GiB90 %")
    expect(row).to_contain_text(re.compile(r"^two spot.*serves \S+@100loads \S+@200"))
    expect(page.get_by_text("the canary differs")).to_be_visible()

    async def with_gpus(seeds: Seeds) -> None:
        how = {"device": "6 × NVIDIA H100, PyTorch 2.13"}
        await seeds.begin(run("c057c057", "costly", 7200, pool="two", computation=how))

    act(with_gpus)
    page.goto("/runs/c057c057")
    expect(page.get_by_title("8 GPUs: the learner's")).to_contain_text("GPU-hours")


def test_a_run_tells_what_its_gpus_cost(page: Page) -> None:
    cost = {"per_hour": 20.0, "per_1000_samples": 0.3, "currency": "USD"}

    def priced(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "cost": cost})

    page.route(f"**/v1/runs/{LIVE}/why", priced)
    page.goto(f"/runs/{LIVE}/config")
    price = page.get_by_title("20 USD an hour for the GPUs that work on it now")
    expect(price).to_contain_text(re.compile(r"^about [\d.e-]+ USD, and [\d.]+ USD to its end$"))


def test_the_log_of_a_failed_run_shows_the_last_words_of_each_process_and_comes_live(
    page: Page, act: Act
) -> None:
    def line(text: str, process: str, level: str = "info", time: float = 0) -> WrittenLine:
        at = NOW - 6000 + time
        fields = {"time": at, "process": process, "host": "node7", "level": level, "text": text}
        return WrittenLine.model_validate(fields | {"run": "fa11ed00"})

    hostile = "<img src=x onerror=alert(1)>\nCUDA out of memory"

    async def log(seeds: Seeds) -> None:
        lines = [
            line("run starts", "learner/0"),
            line("Loading weights", "vllm/gpu-1", time=1),
            line(hostile, "vllm/gpu-1", "error", time=2),
            line("vLLM ended with SIGKILL", "rollout/gpu-1", "error", time=3),
        ]
        await seeds.store.process_logs.add(lines)

    act(log)
    page.goto("/runs/fa11ed00")
    expect(page.get_by_label("Last errors").locator("li")).to_have_count(2)
    expect(page.get_by_label("Last errors")).to_contain_text("vLLM ended with SIGKILL")
    page.get_by_role("link", name="events and logs").click()
    rows = page.locator(".tab .events li")
    expect(rows.filter(has_text="CUDA out of memory")).to_have_text(re.compile("<img src=x"))
    assert page.locator(".events img").count() == 0

    page.get_by_label("Process").select_option("vllm")
    expect(rows).to_have_count(2)
    page.get_by_label("Level").select_option("error")
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    page.get_by_label("Level").select_option("")
    act(lambda seeds: seeds.store.process_logs.add([line("last words", "vllm/gpu-1", time=9)]))
    expect(rows.first).to_contain_text("last words")
    page.get_by_role("searchbox", name="Find in what is shown").fill("loading")
    expect(rows).to_have_count(1)
