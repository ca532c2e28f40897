"""The report of a run: its sections, and the escaping of texts from outside."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import pytest
import yaml

from services.contracts.config import parse_config
from services.contracts.prices import Prices
from services.evaluations.comparison import Changed, Comparison
from services.report import Facts, as_html, chain_sections, sections
from services.report.charts import Curve, draw, short, ticks
from services.report.facts import differences, time_spent, whole_recipe
from services.report.parts import (
    Chart,
    Charts,
    Code,
    Figures,
    Paragraph,
    Part,
    ReportSection,
    Table,
)

RAW: dict[str, Any] = {
    "model": {"path": "small"},
    "data": {"dataset": "sums"},
    "rewards": [{"verifier": "math"}],
}
HOSTILE = '<script>alert("x")</script> [a](http://evil) `b` | \x1b[31m\u202e\n# c'


def config(**sections: Any) -> dict[str, Any]:
    return parse_config(RAW | sections).model_dump(mode="json")


def line(step: int, **metrics: float) -> dict[str, float]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {"step": step, "reward/mean": step / 10, **named}


def record(**fields: Any) -> dict[str, Any]:
    given = {"id": "aa11", "name": "grpo", "kind": "rl", "state": "succeeded", "reason": ""}
    times = {"started": 1000.0, "finished": 1090.0, "step": 2, "max_steps": 2}
    return given | times | {"config": config(), "warnings": [], "computation": {}} | fields


def answer(step: int, reward: float, completion: str = "2") -> dict[str, Any]:
    said = {"prompt": "1+1=", "completion": completion, "status": "correct", "tokens": 1, "row": 7}
    return {"step": step, "reward": reward, **said}


def times(step: int) -> dict[str, float]:
    parts = {"time__waiting_for_groups": 4.0, "time__training": 5.0, "time__publishing": 0.0}
    return line(step, time__step=10.0, **parts)


def facts(**fields: Any) -> Facts:
    given: dict[str, Any] = {
        "record": record(),
        "metrics": [
            {"evaluation/step": 0, "evaluation/accuracy": 0.25},
            times(1),
            times(2),
            {"evaluation/step": 2, "evaluation/accuracy": 0.75},
        ],
        "first": [answer(1, 0.0, "3"), answer(1, 1.0)],
        "last": [answer(2, 1.0)],
        "recipe": RAW | {"optimizer": {"lr": 1e-5}},
        "version": "1.2.3",
    }
    return Facts(**{**given, **fields})


def text_of(found: list[ReportSection]) -> str:
    """The page's words, with `|` between the cells of a table."""
    page = as_html("Run", found).partition("<body>")[2]
    page = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    cells = re.sub(r"<t[hd]>", "| ", page.replace("</td>", " ").replace("</th>", " "))
    lines = cells.replace("</tr>", "|\n").replace("<small>", ", ").replace("</dt>", ": ")
    return unescape(re.sub(r"<[^>]*>", "", lines))


def charts(found: list[ReportSection]) -> dict[str, Chart]:
    parts = [part for section in found for part in section.parts if isinstance(part, Charts)]
    return {chart.name: chart for part in parts for chart in part.charts}


def test_the_parts_of_the_time_are_those_of_the_metrics_and_the_rest() -> None:
    spent = time_spent(facts())
    assert spent["the learner waits for groups"] == 8.0
    assert spent["training"] == 10.0
    assert spent["anything else"] == 2.0
    assert "training | 10 s | 50.0%" in text_of(sections(facts()))
    assert time_spent(facts(metrics=[])) == {}
    # Older learners did not measure the parts.
    assert time_spent(facts(metrics=[line(1, time__step=1.0)])) == {}


def test_a_run_whose_rewards_were_all_zero_says_that_it_learned_nothing_and_why() -> None:
    zero = [
        {"step": step, "reward/mean": 0.0, "reward/all_zero": 1, "response/truncated": 0.75}
        for step in (1, 2)
    ]
    limit = config()["sampling"]["max_tokens"]
    assert (
        "It learned nothing: in all 2 steps every reward was 0. 75% of their answers were cut off "
        f"before they ended: sampling.max_tokens ({limit}) is too small for them. Check the "
        "verifier and its reference answers against the answers below"
    ) in text_of(sections(facts(metrics=zero)))

    easy = [{"step": step, "reward/mean": 1.0, "reward/std": 0.0} for step in (1, 2, 3)]
    said = text_of(sections(facts(metrics=[*easy, line(4, reward__std=0.5)])))
    assert "In 3 of 4 steps every reward was 1: those steps taught nothing." in said
    assert "taught nothing" not in text_of(sections(facts()))


def test_a_supervised_run_has_parts_of_its_own() -> None:
    laps = {"time__rows": 1.0, "time__validation": 2.0, "time__checkpointing": 0.0}
    spent = time_spent(facts(metrics=[line(1, time__step=8.0, time__training=4.0, **laps)]))
    assert spent == {
        "reading rows": 1.0,
        "training": 4.0,
        "validation": 2.0,
        "checkpoints": 0.0,
        "anything else": 1.0,
    }


def test_a_run_is_compared_with_its_recipe_key_by_key() -> None:
    run = config(optimizer={"lr": 2e-5}, training={"max_steps": 2})
    whole = whole_recipe(RAW | {"optimizer": {"lr": 1e-5}}, run)
    assert whole is not None
    assert differences(run, whole) == [
        ("optimizer.lr", 2e-5, 1e-5),
        ("training.max_steps", 2, None),
    ]
    held_out = config(evaluation={"dataset": "test", "rows": 7})
    assert differences(held_out, config()) == [
        ("evaluation.dataset", "test", "(not set)"),
        ("evaluation.rows", 7, "(not set)"),
    ]
    assert whole_recipe({"type": "sft"}, run) is None
    scratch = {"type": "sft", "model": {"source": "scratch"}, "data": {"dataset": "sums"}}
    made = parse_config(scratch).model_dump(mode="json")
    assert whole_recipe(scratch, made) == made
    assert whole_recipe({"nonsense": 1}, run) is None


def test_a_report_has_results_curves_time_answers_and_how_to_repeat_it() -> None:
    found = sections(facts())
    said = text_of(found)
    assert "result: 0.25 → 0.75, held-out accuracy" in said
    assert "trained: 2 of 2 steps, succeeded" in said
    assert "time: 1 min 30 s" in said
    assert "cost: no GPU, it computed on CPUs" in said
    assert "| reward/mean | 0.1 → 0.2 |" in said
    assert "| evaluation/accuracy | 0.25 → 0.75 |" in said
    assert "| optimizer.lr | 1e-06 | 1e-05 |" in said
    assert "| publishing weights | 0.0 s | 0.0% |" in said
    assert "| training | 10 s | 50.0% |" in said
    assert "In the first step (step 1), row 7: reward 1, correct, 1 token." in said
    assert "In the last step (step 2)" in said
    assert "headrace submit ./config.yaml" in said
    assert charts(found).keys() == {"reward", "accuracy"}
    assert isinstance(found[0].parts[0], Figures)


def test_a_report_says_what_the_run_continued_and_which_vllm_sampled() -> None:
    workers = [{"host": "a", "vllm_version": "0.32.0"}, {"host": "b", "vllm_version": "0.32.0"}]
    said = text_of(sections(facts(record=record(resume_from="bb22"), workers=workers)))
    assert "It continued run bb22" in said
    assert "headrace submit ./config.yaml --resume-from bb22" in said
    assert "| their vLLM | 0.32.0 |" in said
    assert "--resume-from" not in text_of(sections(facts()))


def test_a_supervised_run_says_what_it_learned_from_and_the_loss_of_each_dataset() -> None:
    mix = [{"dataset": "words", "repeats": 2}]
    raw = {"model": {"path": "small"}, "data": {"dataset": "sums", "mix": mix}}
    whole = parse_config(raw | {"type": "sft"}).model_dump(mode="json")
    row = {"train/loss": 1.5, "train/loss/sums": 1.0, "train/loss/words": 2.0, "data/padded": 0.1}
    row |= {"time/step": 2.0, "time/training": 1.0, "data/skipped_rows": 3.0}
    device = {"device": "8 × NVIDIA H100, PyTorch 2.9.0"}
    run = record(kind="sft", config=whole, computation=device)
    found = sections(facts(record=run, metrics=[{"step": 1, **row}], recipe=None))
    said = text_of(found)
    assert "| of the mixture, sums | each row once |" in said
    assert "| of the mixture, words | repeats 2 |" in said
    assert "cost: 0.20 GPU-hours, 8 GPUs: 8 of the learner" in said
    assert "| learner: device | 8 × NVIDIA H100, PyTorch 2.9.0 |" in said
    assert "| validated on | 0.02 of each dataset's rows |" in said
    assert list(charts(found)) == ["loss", "dataset-loss"]
    assert "| rows skipped, too long | 3 |" in said
    assert "waited" not in said
    assert "sampling.seed" not in said
    assert charts(found)["dataset-loss"].alt == "Loss by dataset: train/loss/sums, train/loss/words"


def test_each_held_out_set_has_its_own_metrics_and_row() -> None:
    def evaluated(step: int, name: str, accuracy: float, **more: Any) -> dict[str, Any]:
        found = {
            "id": f"{step}-{name}",
            "step": step,
            "name": name,
            "accuracy": accuracy,
            "rows": 8,
        }
        return {f"evaluation/{key}": value for key, value in (found | more).items()}

    hard = {"easy": {"rows": 3, "accuracy": 1.0, "accuracy_low": 0.9, "accuracy_high": 1.0}}
    rows = [evaluated(0, "test", 0.25), evaluated(0, "hard", 0.0)]
    rows += [evaluated(2, "test", 0.75), evaluated(2, "hard", 0.5, pass_at_2=0.6, categories=hard)]
    said = text_of(sections(facts(metrics=[line(1), *rows])))
    assert "| evaluation/accuracy | 0.25 → 0.75 |" in said
    assert "| hard | 2 | 8 | 0.500 | 2: 0.600 |" in said
    assert "| hard | easy | 3 | 1.000 [0.900, 1.000] |" in said


def test_a_second_run_has_a_column_and_dashed_curves() -> None:
    other = facts(record=record(id="bb22", name="second", config=config(optimizer={"lr": 3e-5})))
    found = sections(facts(), other)
    said = text_of(found)
    assert "| evaluation/accuracy | 0.25 → 0.75 | 0.25 → 0.75 |" in said
    assert "What differs from second (bb22):" in said
    assert "| optimizer.lr | 1e-06 | 3e-05 |" in said
    reward = charts(found)["reward"]
    assert [curve.dashed for curve in reward.curves] == [False, True]
    assert reward.alt == "Reward: reward/mean, reward/mean, second (bb22)"


@pytest.mark.parametrize("fields", [{}, {"first": [], "last": [], "metrics": [], "recipe": None}])
def test_a_run_without_metrics_or_answers_has_a_report(fields: Mapping[str, Any]) -> None:
    waiting = record(state="queued", started=None, finished=None, step=0, max_steps=None)
    said = text_of(sections(facts(record=waiting, **fields)))
    assert "It is not over: this is how it stands now." in said


HOSTILE_PARTS: list[Part] = [
    Paragraph(HOSTILE),
    Table([HOSTILE], [[HOSTILE]]),
    Code(HOSTILE + "<i>", HOSTILE),
    Code(HOSTILE),
    Figures([(HOSTILE, HOSTILE, HOSTILE)]),
    Charts([Chart("reward", HOSTILE, HOSTILE, [Curve(HOSTILE, [1, 2], [1, 2])])]),
]


def test_nothing_from_outside_is_markup_of_the_page() -> None:
    page = as_html(HOSTILE, [ReportSection(HOSTILE, HOSTILE_PARTS)])
    assert "<script" not in page
    assert "<i>" not in page
    assert 'alert("' not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert not re.findall(r"(?:src|href)=", page)
    assert "default-src 'none'" in page


def test_a_run_that_continues_another_counts_its_own_steps() -> None:
    continued = facts(
        record=record(resume_from="bb22", step=12, max_steps=20), metrics=[times(11), times(12)]
    )
    said = text_of(sections(continued))
    assert "It continues run bb22 from step 10." in said
    assert "trained: 2 steps, to 12 of 20" in said


def test_a_chain_has_one_report_with_each_steps_run() -> None:
    steps: list[dict[str, Any]] = [
        {"name": "sft", "run": "aa11", "kind": "sft", "state": "succeeded", "step": 2},
        {"name": "rl", "run": None, "kind": "rl", "state": "waiting", "step": 0},
    ]
    chain = {
        "state": "failed",
        "reason": "step sft: on request",
        "note": "Too few steps.",
        "steps": [{**step, "max_steps": 2} for step in steps],
    }
    found = chain_sections(chain, [("sft", facts())])
    said = text_of(found)
    assert said.index("Too few steps.") < said.index("State of the chain: failed: step sft:")
    assert (
        "| sft | aa11 | sft | succeeded | 2 of 2 | 1 min 30 s | held-out accuracy 0.25 → 0.75 |"
        in said
    )
    assert "| rl | – | rl | waiting | 0 of 2 | – | – |" in said
    titles = [section.title for section in found]
    assert titles[:3] == ["", "Step sft: grpo (aa11)", "Results"]
    assert titles[-1] == "How to repeat it"


def test_a_finished_chain_has_the_config_to_repeat_it() -> None:
    steps = [
        {"name": "sft", "models": {}, "max_steps": 2},
        {"name": "rl", "models": {"model.path": "step:sft@best"}, "max_steps": 2},
        {"name": "test", "models": {"model.path": "step:rl"}, "max_steps": 0},
    ]
    ran = {"run": "aa11", "kind": "rl", "state": "succeeded", "reason": "", "step": 0}
    chain = {"name": "sums", "state": "succeeded", "reason": "", "note": "Too few steps."}
    trained, evaluated = facts(), facts(record=record(step=0, max_steps=0))
    found = chain_sections(
        chain | {"steps": [step | ran for step in steps]},
        [("sft", trained), ("rl", trained), ("test", evaluated)],
    )

    assert found[-1].title == "How to repeat it"
    assert not [one.title for one in found[:-1] if one.title == "How to repeat it"]
    (code,) = [part for part in found[-1].parts if isinstance(part, Code)]
    again = yaml.safe_load(code.text)
    assert (again["name"], again["note"]) == ("sums", "Too few steps.")
    paths = {step["name"]: step["config"]["model"]["path"] for step in again["steps"]}
    assert paths == {"sft": "small", "rl": "step:sft@best", "test": "step:rl"}
    assert "| test | aa11 | rl | succeeded | – |" in text_of(found)
    # An evaluation alone has one point and no curve.
    titles = [section.title for section in found]
    assert "Curves" not in titles[titles.index("Step test: grpo (aa11)") :]


def test_a_run_with_a_name_of_its_own_is_compared_with_the_recipe_that_it_began_with() -> None:
    named = facts(record=record(name="mine", recipe="grpo"))
    assert "What differs from the recipe grpo and the defaults:" in text_of(sections(named))


def test_speed_is_compared_without_the_step_that_waited_for_vllm() -> None:
    seconds = [100.0, *[4.0] * 10, *[3.0] * 20, *[2.0] * 10]
    rows = [
        line(step, time__step=taken, throughput__tokens_per_second=1000 / taken)
        for step, taken in enumerate(seconds, 1)
    ]
    # One step of luck does not make the result.
    rows[-1]["reward/mean"] = 99.0
    said = text_of(sections(facts(metrics=rows)))
    assert "| throughput/tokens_per_second | 250 → 500 |" in said
    assert "| time/step | 4 → 2 |" in said
    assert "500 tokens per second" in said
    assert "| reward/mean | 0.55 → 3.65 |" in said
    assert "the median of the first 10 steps" in said


def test_a_gpu_that_learner_and_workers_use_in_turns_costs_once() -> None:
    workers = [{"host": "a", "devices": [{"uuid": "1", "name": "H100"}]}]
    apart = {"device": "1 × NVIDIA H100, PyTorch 2.9.0"}
    of_two = text_of(sections(facts(record=record(computation=apart), workers=workers)))
    of_one = text_of(
        sections(facts(record=record(computation=apart | {"gpu": "in turns"}), workers=workers))
    )
    assert "cost: 0.05 GPU-hours, 2 GPUs: 1 of the learner, 1 of workers" in of_two
    assert "cost: 0.03 GPU-hours, 1 GPU: learner and vLLM in turns" in of_one


def test_a_report_says_what_its_samples_have_cost_by_the_operators_prices() -> None:
    workers = [
        {"host": "a", "worker_class": "spot", "devices": [{"uuid": "1", "name": "NVIDIA L4"}]}
    ]
    run = record(computation={"device": "1 × NVIDIA H100, PyTorch 2.9.0"})
    rows = [
        {"step": step, "time/step": 10.0, "throughput/samples_per_second": 5.0} for step in (1, 2)
    ]
    prices = Prices.parse("3.60 USD,spot=0.36")
    said = text_of(sections(facts(record=run, metrics=rows, workers=workers, prices=prices)))
    # 90 s of 3.96 USD an hour, for 100 samples.
    assert "1 of workers. 0.10 USD, 0.99 for 1,000 trained samples" in said


def test_a_failed_run_begins_with_the_reason() -> None:
    failed = record(state="failed", reason="the GPU has no memory left", step=0)
    page = as_html("Run", sections(facts(record=failed, metrics=[], first=[], last=[])))
    assert page.index("It failed: the GPU has no memory left") < page.index("<dl>")
    assert "no step was trained" in page


def test_the_last_evaluation_is_compared_with_the_first_on_the_same_rows() -> None:
    rows = [Changed(n, 1.0, 0.0) for n in range(3)] + [Changed(9, 0.0, 1.0)]
    pair = Comparison("accuracy", 8, 0.5, 0.25, 0.25, -0.1, 0.5, "mcnemar", 0.625, rows)
    said = text_of(sections(facts(paired=[("test", 0, 2, pair)])))
    assert (
        "| test | 0 → 2 | 0.250 → 0.500 accuracy | +0.250 [-0.100, +0.500] | 3, 1 of 8 rows |"
    ) in said


@pytest.mark.parametrize("points", [1, 2, 24, 151, 5000])
def test_a_drawing_stays_small_and_in_its_frame(points: int) -> None:
    curve = Curve("a", list(range(points)), [(-1) ** n * n for n in range(points)])
    drawing = draw([curve, Curve("b", [3], [0.0], dashed=True)])
    assert len(drawing) < 12_000
    places = re.findall(r"(-?[\d.]+),(-?[\d.]+)", drawing)
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= 170 for x, y in places)
    assert ("band" in drawing) == (points > 150)
    assert drawing.count("<polyline") == 2


def test_ticks_are_round_and_short() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0]) or len(ticks(0, 1)) <= 6
    assert [short(v) for v in (0.30000000000000004, 12_000, 2.5e6, -3e9, 1e-6, 150)] == [
        "0.3", "12k", "2.5M", "-3G", "1e-06", "150"
    ]  # fmt: skip
