"""The sections of a run's report, from its facts: what a colleague asks first comes first. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import yaml

from headrace.metric_rows import in_short
from headrace.wording import counted
from services.contracts.records import RunState
from services.report.curves import curves
from services.report.facts import Difference, Facts, Row, differences, time_spent, whole_recipe
from services.report.learning import nothing_learned
from services.report.parts import (
    Code,
    Figures,
    Paragraph,
    Part,
    ReportSection,
    Table,
)

COMPARED = (
    "evaluation/accuracy", "evaluation/reward", "reward/mean", "validation/loss",
    "validation/accuracy", "validation/bits_per_byte", "train/loss", "train/accuracy",
    "train/entropy", "train/kl", "response/tokens_mean", "throughput/tokens_per_second",
    "time/step",
)  # fmt: skip
HEADLINES = {
    "evaluation/accuracy": "held-out accuracy", "evaluation/reward": "held-out reward",
    "validation/accuracy": "preferred on held-out pairs", "validation/loss": "held-out loss",
    "reward/mean": "reward", "train/loss": "loss",
}  # fmt: skip
"""The first metric that a run has is its result."""
SPEED = ("throughput/", "time/")
"""The first step waits for vLLM, and compiles: it says nothing of the speed."""
TYPICAL = 10
"""Steps whose median stands for the beginning of a run, or for its end."""
LONGEST = 1500
"""Characters of an answer. The report drops the rest."""
REPEAT = "How to repeat it"


def sections(facts: Facts, other: Facts | None = None) -> list[ReportSection]:
    """Make the sections of a run, compared with the run `other` if there is one."""
    facts, other = facts.by_set(), other.by_set() if other else None
    drawn = [
        ReportSection("", list(_summary(facts))),
        ReportSection("Results", list(_results(facts, other))),
        ReportSection("Curves", list(curves(facts, other))),
        ReportSection("Answers before and after", list(_answers(facts))),
        ReportSection("Configuration", list(_configuration(facts, other))),
        ReportSection("Data and model", list(_data(facts)), "small"),
        ReportSection("Where the time went", list(_time(facts)), "small"),
        ReportSection("Machines and versions", list(_machines(facts)), "small"),
        ReportSection(REPEAT, list(_repeat(facts))),
    ]
    return [section for section in drawn if section.parts]


def _summary(facts: Facts) -> Iterator[Part]:
    record, config = facts.record, facts.record["config"]
    is_failed, recipe = record["state"] == "failed", record.get("recipe") or ""
    if is_failed:
        yield Paragraph(f"It failed: {record['reason'] or 'no reason is known'}", is_alarm=True)
    if sentences := nothing_learned(facts):
        yield Paragraph(" ".join(sentences), is_alarm=True)
    label, result, interval = headline(facts)
    model = str(config.get("model", {}).get("path") or config.get("model", {}).get("source"))
    method = f"{record['kind']}{recipe and f', recipe {recipe}'}"
    tokens = facts.series("throughput/tokens_per_second")[1]
    speed = f"{ends('throughput/', tokens)[1]:,.0f} tokens per second" if tokens else ""
    ended = "" if is_failed or not record["reason"] else record["reason"]
    yield Figures(
        [
            ("result", result, f"{label}{interval}"),
            ("model", model.rstrip("/").rsplit("/", 1)[-1], method),
            ("data", *_dataset(facts)),
            ("trained", _trained(facts), f"{record['state']}{ended and ': '}{ended}"),
            ("time", duration(facts.seconds) if facts.seconds else "–", speed),
            ("cost", *_cost(facts)),
        ]
    )
    if before := _steps_before(facts):
        how = "was forked from" if record.get("is_fork") else "continues"
        at = "at" if record.get("is_fork") else "from"
        yield Paragraph(f"It {how} run {record['resume_from']} {at} step {before:,}.")
    if not RunState(record["state"]).final:
        yield Paragraph("It is not over: this is how it stands now.")


def headline(facts: Facts) -> tuple[str, str, str]:
    """Return what the result of a run is, its first and last value, and the interval of the last
    one at 95 %."""
    facts = facts.by_set()
    for name, words in HEADLINES.items():
        if not (values := facts.series(name)[1]):
            continue
        low, high = (facts.series(f"{name}_{end}")[1][-1:] for end in ("low", "high"))
        interval = f", 95 % [{low[0]:.3f}, {high[0]:.3f}]" if low and high else ""
        return words, _change(name, values), interval
    return "no step was trained", "–", ""


def _change(name: str, values: Sequence[float]) -> str:
    """Return the first and the last value of a metric. For the noisy metrics of steps they are
    medians of up to TYPICAL steps."""
    first, last = ends(name, values)
    return f"{last:.4g}" if len(values) == 1 else f"{first:.4g} → {last:.4g}"


def ends(name: str, values: Sequence[float]) -> tuple[float, float]:
    if name.startswith(("evaluation/", "validation/")):
        return values[0], values[-1]
    if name.startswith(SPEED) and len(values) > 1:
        values = values[1:]
    steps = max(1, min(TYPICAL, len(values) // 2))
    return median(values[:steps]), median(values[-steps:])


def _dataset(facts: Facts) -> tuple[str, str]:
    data = facts.record["config"].get("data", {})
    if data.get("source") == "sessions":
        return "live sessions", ""
    name = facts.dataset["name"] if facts.dataset else str(data.get("dataset"))
    more = len(data.get("mix") or ())
    rows = counted(facts.dataset["rows"], "row") if facts.dataset else ""
    return f"{name} and {more} more" if more else name, rows


def _trained(facts: Facts) -> str:
    step, most, before = facts.record["step"], facts.record["max_steps"], _steps_before(facts)
    if most == 0:
        return "nothing: it evaluates"
    if before:
        return f"{counted(step - before, 'step')}, to {step:,}" + (f" of {most:,}" if most else "")
    return f"{step:,} of {most:,} steps" if most else counted(step, "step")


def _cost(facts: Facts) -> tuple[str, str]:
    learner, workers, in_turns = facts.gpus
    if not facts.seconds or not learner + workers:
        return ("no GPU", "it computed on CPUs") if facts.seconds else ("–", "")
    total = max(learner, workers) if in_turns else learner + workers
    users = [f"{n} of {who}" for n, who in ((learner, "the learner"), (workers, "workers")) if n]
    remark = "learner and vLLM in turns" if in_turns else ", ".join(users)
    hours = f"{total * facts.seconds / 3600:.2f} GPU-hours"
    words = f"{counted(total, 'GPU')}: {remark}"
    if (price := facts.sample_price) is not None:
        spent = price.per_hour * facts.seconds / 3600
        words += f". {spent:,.2f} {price.currency}".rstrip()
        words += f", {price.per_1000_samples:.3g} for 1,000 trained samples"
    return hours, words


def _steps_before(facts: Facts) -> int:
    """The number of steps before this run, in the run whose checkpoint it began with."""
    steps = [row["step"] for row in facts.metrics if "step" in row]
    return max(0, int(min(steps)) - 1) if steps and facts.record.get("resume_from") else 0


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _results(facts: Facts, other: Facts | None) -> Iterator[Part]:
    rows = []
    for name in COMPARED:
        columns = [run.series(name)[1] for run in (facts, other) if run is not None]
        if any(columns):
            cells = [_change(name, values) if values else "–" for values in columns]
            rows.append([name, *cells])
    if rows:
        yield Table(["metric", facts.title, *([other.title] if other else [])], rows)
        yield Paragraph(
            f"Evaluations and validations: first → last. Others: the median of the first {TYPICAL} "
            f"steps → that of the last {TYPICAL}, or of the halves of a shorter run. Speed counts "
            "from step 2 on: step 1 waits until vLLM has started."
        )
    yield from _evaluations(facts)


def _evaluations(facts: Facts) -> Iterator[Part]:
    """Tables of the newest evaluation of each held-out set, of its first and last evaluation on
    the same rows, and of the categories."""
    newest = {row["evaluation/name"]: row for row in facts.metrics if "evaluation/name" in row}
    rows, categories = [], []
    for name, row in newest.items():
        figures = {
            key.removesuffix(f" ({name})").removeprefix("evaluation/"): value
            for key, value in row.items()
        }
        rows.append([name, str(figures.get("step")), *_measured(figures)])
        for category, of in (figures.get("categories") or {}).items():
            categories.append([name, category, *_measured(of)])
    figures_of = ["rows", "accuracy or reward, 95 %", "pass@k", "tokens, p95", "truncated"]
    if rows:
        yield Table(["held-out set", "step", *figures_of], rows)
    if facts.paired:
        yield Table(
            ["the same rows", "steps", "first → last", "difference, 95 %", "better, worse", "p"],
            [
                [
                    name,
                    f"{first:,} → {last:,}",
                    f"{pair.other:.3f} → {pair.value:.3f} {pair.metric}",
                    f"{pair.difference:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}]",
                    f"{pair.better:,}, {pair.worse:,} of {counted(pair.rows, 'row')}",
                    f"{pair.p:.2g}",
                ]
                for name, first, last, pair in facts.paired
            ],
        )
    if categories:
        yield Table(["held-out set", "category", *figures_of], categories)


def _measured(figures: Mapping[str, Any]) -> list[str]:
    """The cells of one evaluation: rows, accuracy (or reward) with interval, pass@k, lengths."""
    main = "accuracy" if "accuracy" in figures else "reward"
    low, high = figures.get(f"{main}_low"), figures.get(f"{main}_high")
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    passed = [
        f"{key.removeprefix('pass_at_')}: {figures[key]:.3f}"
        for key in in_short(figures)
        if key.startswith("pass_at_")
    ]
    mean, p95, cut = (figures.get(key) for key in ("tokens_mean", "tokens_p95", "truncated"))
    return [
        f"{figures.get('rows', 0):.0f}",
        f"{figures.get(main, 0.0):.3f}{interval}",
        ", ".join(passed) or "–",
        "–" if mean is None else f"{mean:.0f}, {p95:.0f}",
        "–" if cut is None else f"{cut:.1%}",
    ]


def _data(facts: Facts) -> Iterator[Part]:
    config = facts.record["config"]
    model, data = config.get("model", {}), config.get("data", {})
    rows = [["model", str(model.get("path") or model.get("source"))]]
    rows.append(["dataset", _about(facts.dataset) if facts.dataset else _dataset(facts)[0]])
    used = facts.record.get("dataset_rows") or ()
    for i, component in enumerate([data, *data["mix"]] if data.get("mix") else ()):
        # Only the learner knows the rows that a supervised run takes from each dataset.
        taken = [counted(used[i], "row")] if used else []
        taken += [
            f"{key} {component[key]:g}" for key in ("repeats", "weight") if component.get(key)
        ]
        name = component.get("name") or component["dataset"]
        rows.append([f"of the mixture, {name}", ", ".join(taken) or "each row once"])
    rewards = [config, *(data.get("mix") or ())]
    rows += [["reward", _reward(r)] for of in rewards for r in of.get("rewards") or ()]
    if held_out := config.get("evaluation"):
        sets = [held_out, *(held_out.get("more") or ())]
        rows += [["held-out dataset", str(dataset.get("dataset"))] for dataset in sets]
    if validation := config.get("validation"):
        named = [d["dataset"] if isinstance(d, dict) else d for d in validation["datasets"]]
        share = f"{validation['share']:.3g} of each dataset's rows"
        rows += [["validated on", dataset] for dataset in named or [share]]
    if skipped := facts.series("data/skipped_rows")[1]:
        rows.append(["rows skipped, too long", f"{sum(skipped):,.0f}"])
    yield Table(["", ""], rows)


def _reward(reward: Row) -> str:
    named = reward.get("name") or reward["verifier"]
    return f"{named}: {reward['verifier']}, weight {reward['weight']:g}"


def _about(dataset: Row) -> str:
    source = f", from {dataset['source']}" if dataset.get("source") else ""
    return f"{dataset['name']} ({dataset['id']}): {counted(dataset['rows'], 'row')}{source}"


def _configuration(facts: Facts, other: Facts | None) -> Iterator[Part]:
    config = facts.record["config"]
    if facts.recipe is not None and (whole := whole_recipe(facts.recipe, config)) is not None:
        differing, name = differences(config, whole), facts.recipe_name
        if differing:
            yield Paragraph(f"What differs from the recipe {name} and the defaults:")
            yield _differing(differing, "this run", "recipe")
        else:
            yield Paragraph(f"Exactly the recipe {name} with its defaults.")
    else:
        yield Paragraph("The run began with no recipe. Its whole config is at the end.")
    if other is not None and other.record["kind"] != facts.record["kind"]:
        yield Paragraph(f"{other.title} is a run of another kind: configs are not compared.")
    elif other is not None:
        differing = differences(config, other.record["config"])
        yield Paragraph(
            f"What differs from {other.title}:" if differing else "The configs are equal."
        )
        if differing:
            yield _differing(differing, facts.title, other.title)
    for warning in facts.record.get("warnings") or ():
        yield Paragraph(f"Warning: {warning}", is_alarm=True)


def _differing(differences: Sequence[Difference], ours: str, theirs: str) -> Table:
    rows = [[key, _value(run), _value(other)] for key, run, other in differences]
    return Table(["key", ours, theirs], rows)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(facts: Facts) -> Iterator[Part]:
    if spent := time_spent(facts):
        total = sum(spent.values())
        rows = [[part, duration(s), f"{s / total:.1%}"] for part, s in spent.items()]
        yield Table(["part of the steps", "time", "share"], rows)
        if waits := facts.series("time/workers_waiting_for_admission")[1]:
            yield Paragraph(
                f"Meanwhile each rollout worker waited {duration(sum(waits))} for admission: it "
                "had room, and enough groups were in flight."
            )


def _answers(facts: Facts) -> Iterator[Part]:
    for answers, when in ((facts.first, "the first step"), (facts.last, "the last step")):
        if answers:
            shown = sorted(answers, key=lambda sample: -(sample["reward"] or 0.0))
            for sample in {id(sample): sample for sample in (shown[0], shown[-1])}.values():
                reward = "none" if sample["reward"] is None else f"{sample['reward']:.3g}"
                yield Paragraph(
                    f"In {when} (step {sample['step']}), {_place(sample)}: reward {reward}, "
                    f"{sample['status']}, {counted(sample['tokens'], 'token')}."
                )
                yield Code(_cut(sample["prompt"]))
                yield Code(_cut(sample["completion"]))
                for name, reason in sample.get("reasons", {}).items():
                    yield Paragraph(f"{name}: {reason}")


def _place(answer: Row) -> str:
    of = f" of {answer['dataset']}" if answer.get("dataset") else ""
    return f"row {answer['row']}{of}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… ({len(text):,} characters)"


def _machines(facts: Facts) -> Iterator[Part]:
    gpus = [f"{count} × {name}" for name, count in sorted(Counter(facts.devices.values()).items())]
    rows = [["Headrace", facts.version]]
    if facts.workers:
        hosts = sorted({str(worker["host"]) for worker in facts.workers})
        rows.append(["hosts of the pool's workers now", ", ".join(hosts)])
        rows.append(["their GPUs", ", ".join(gpus) or "none: they compute on CPUs"])
    if versions := {v for worker in facts.workers if (v := worker.get("vllm_version"))}:
        rows.append(["their vLLM", ", ".join(sorted(versions))])
    how = facts.record.get("computation") or {}
    rows += [[f"learner: {part}", text] for part, text in how.items()]
    if peaks := facts.series("memory/peak_bytes")[1]:
        rows.append(["most memory of the learner's first rank", f"{max(peaks) / 2**30:.2f} GiB"])
    yield Table(["", ""], rows)


def _repeat(facts: Facts) -> Iterator[Part]:
    before = facts.record.get("resume_from")
    option = f" --resume-from {before}" if before else ""
    if before:
        yield Paragraph(f"It continued run {before}, from that run's checkpoint.")
    yield Paragraph(
        f"Save this as config.yaml and submit it with `headrace submit ./config.yaml{option}`. "
        + order_of(facts.record)
    )
    config = yaml.safe_dump(dict(facts.record["config"]), sort_keys=False, allow_unicode=True)
    yield Code(config, "config.yaml")


def order_of(record: Row) -> str:
    """Say which parts of a run are equal when it is repeated."""
    if record["kind"] == "sft":
        return "The order of the rows follows from training.seed."
    return (
        "The order of the prompts follows from training.seed; answers repeat only with "
        "sampling.seed and rollout.max_staleness 0."
    )
