"""The sections of a run's report, from its facts. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from services.contracts.pass_at import in_short
from services.contracts.records import RunState
from services.contracts.wording import counted
from services.report.facts import (
    Difference,
    Facts,
    Row,
    differences,
    time_spent,
    whole_recipe,
)
from services.report.learning import nothing_learned
from services.report.parts import Code, Paragraph, Part, Picture, ReportSection, Table
from services.report.plots import Curve, draw
from services.runtime.terminal import one_line

PLOTS = (
    ("reward", "Reward", "reward", ("reward/mean",), ("reward/component/",)),
    ("dataset-reward", "Reward by dataset", "reward", (), ("dataset/reward/",)),
    ("dataset-pass-rate", "Correct answers by dataset", "share", (), ("dataset/pass_rate/",)),
    ("dataset-length", "Length of answers by dataset", "tokens", (), ("dataset/tokens/",)),
    ("dataset-share", "Share of each batch by dataset", "share", (), ("dataset/share/",)),
    ("dataset-filtered", "Filtered groups by dataset", "share", (), ("dataset/filtered/",)),
    ("pass-at-k", "Training prompts solved", "probability", (), ("reward/pass_at_",)),
    ("accuracy", "Held-out accuracy", "share", ("evaluation/accuracy",),
     ("evaluation/pass_at_", "evaluation/accuracy (")),
    ("held-out-reward", "Held-out reward", "reward", ("evaluation/reward",),
     ("evaluation/reward (",)),
    ("length", "Length of answers", "tokens", ("response/tokens_mean",), ()),
    ("turns", "Turns of a session", "turns", ("session/turns",), ()),
    ("forks", "Turns that began a branch", "share", ("session/fork_rate",), ()),
    ("tool-tokens", "Tokens of a session that were not sampled", "tokens",
     ("session/tool_tokens",), ()),
    ("truncated", "Truncated answers", "share", ("response/truncated",), ()),
    ("entropy", "Entropy", "nats per token", ("train/entropy",), ()),
    ("kl", "KL to the reference and to the sampler", "nats per token",
     ("train/kl", "mismatch/sampler_kl"), ()),
    ("staleness", "Staleness", "versions", ("staleness/mean", "staleness/max"), ()),
    ("loss", "Loss", "loss", ("train/loss", "validation/loss"), ()),
    ("dataset-loss", "Loss by dataset", "loss", (), ("train/loss/", "validation/loss/")),
    ("preferences", "Chosen answers preferred", "share",
     ("train/accuracy", "validation/accuracy"), ()),
    ("teacher", "KL to the teacher", "nats per token", ("train/teacher_kl",), ()),
    ("bits-per-byte", "Bits per byte", "bits", ("validation/bits_per_byte",), ()),
    ("gradient", "Norm of the gradient", "norm", ("train/grad_norm",), ()),
    ("throughput", "Throughput", "tokens per second", ("throughput/tokens_per_second",), ()),
)  # fmt: skip
"""File, title, unit, names of metrics, and prefixes of names (docs/metrics.md)."""
COMPARED = (
    "reward/mean", "evaluation/accuracy", "evaluation/reward", "validation/loss",
    "validation/bits_per_byte", "train/loss", "train/entropy", "train/kl", "response/tokens_mean",
    "throughput/tokens_per_second", "time/step",
)  # fmt: skip
HEADLINES = (
    "evaluation/accuracy", "evaluation/reward", "reward/mean", "validation/loss", "train/loss",
)  # fmt: skip
"""The table of a chain shows the first metric that a run has."""
LONGEST = 1500
"""Characters of an answer. The report drops the rest."""
REPEAT = "How to repeat it"


def sections(facts: Facts, other: Facts | None = None) -> list[ReportSection]:
    """Make the sections of a run, compared with the run `other` if there is one."""
    facts, other = facts.by_set(), other.by_set() if other else None
    drawn = [
        ReportSection("Result", list(_result(facts, other))),
        ReportSection("Evaluations", list(_evaluations(facts))),
        ReportSection("Data and model", list(_data(facts))),
        ReportSection("Configuration", list(_configuration(facts, other))),
        ReportSection("Curves", list(_curves(facts, other))),
        ReportSection("Where the time went", list(_time(facts))),
        ReportSection("Answers before and after", list(_answers(facts))),
        ReportSection("What became of every task", list(_tasks(facts))),
        ReportSection("Machines and versions", list(_machines(facts))),
        ReportSection(REPEAT, list(_repeat(facts))),
    ]
    return [section for section in drawn if section.parts]


def _result(facts: Facts, other: Facts | None) -> Iterator[Part]:
    record = facts.record
    reason = f": {record['reason']}" if record["reason"] else ""
    of = f" of {record['max_steps']:,}" if record["max_steps"] else ""
    yield Paragraph(f"State: {record['state']}{reason}.")
    before = _steps_before(facts)
    if before:
        yield Paragraph(f"It continues run {record['resume_from']} from step {before:,}.")
    trained = f"{record['step']:,}{of} steps" if of else counted(record["step"], "step")
    if before:
        trained = f"{counted(record['step'] - before, 'step')}, to step {record['step']:,}{of}"
    yield Paragraph(f"It trained {trained}{_lasted(facts)}.")
    if sentences := nothing_learned(facts):
        yield Paragraph(" ".join(sentences))
    if not RunState(record["state"]).final:
        yield Paragraph("It is not over: this is how it stands now.")
    rows = []
    for name in COMPARED:
        values = facts.series(name)[1]
        theirs = other.series(name)[1] if other else []
        if values or theirs:
            rows.append([name, _ends(values), *([_ends(theirs)] if other else [])])
    if rows:
        header = ["metric: first → last", facts.title, *([other.title] if other else [])]
        yield Table(header, rows)


def headline(facts: Facts) -> str:
    """The first of HEADLINES that the run has, from its first value to its last."""
    facts = facts.by_set()
    for name in HEADLINES:
        values = facts.series(name)[1]
        if len(values) > 1:
            return f"{name}: {_ends(values)}"
        if values:
            return f"{name}: {values[0]:.4g}"
    return "–"


def _steps_before(facts: Facts) -> int:
    """The number of steps before this run, in the run whose checkpoint it began with."""
    steps = [row["step"] for row in facts.metrics if "step" in row]
    return max(0, int(min(steps)) - 1) if steps and facts.record.get("resume_from") else 0


def _lasted(facts: Facts) -> str:
    return f" in {duration(seconds)}" if (seconds := facts.seconds) else ""


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _evaluations(facts: Facts) -> Iterator[Part]:
    """A table of the newest evaluation of each held-out set, and one of the categories."""
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


def _ends(values: Sequence[float]) -> str:
    return f"{values[0]:.4g} → {values[-1]:.4g}" if values else "–"


def _data(facts: Facts) -> Iterator[Part]:
    config = facts.record["config"]
    model, data = config.get("model", {}), config.get("data", {})
    rows = [["kind of run", facts.record["kind"]]]
    rows += [["model", str(model.get("path") or model.get("source"))]]
    if data.get("source") == "sessions":
        rows += [["data", "live traffic: sessions that applications open"]]
    else:
        rows += [["dataset", _about(facts.dataset) if facts.dataset else str(data["dataset"])]]
    used = facts.record.get("dataset_rows") or ()
    for i, component in enumerate([data, *data["mix"]] if data.get("mix") else ()):
        # Only the learner knows the rows that a supervised run takes from each dataset.
        taken = [f"{counted(used[i], 'row')}"] if used else []
        taken += [
            f"{key} {component[key]:g}" for key in ("repeats", "weight") if component.get(key)
        ]
        name = component.get("name") or component["dataset"]
        rows.append([f"of the mixture, {name}", ", ".join(taken) or "each row once"])
    rows += [["reward", _reward(reward)] for reward in config.get("rewards") or ()]
    for component in data.get("mix") or ():
        rows += [
            [f"reward of {component.get('name')}", _reward(r)]
            for r in component.get("rewards") or ()
        ]
    if held_out := config.get("evaluation"):
        sets = [held_out, *(held_out.get("more") or ())]
        rows += [["held-out dataset", str(dataset.get("dataset"))] for dataset in sets]
    if validation := config.get("validation"):
        share = f"{validation['share']:.3g} of each dataset's rows"
        sets = [
            dataset["dataset"] if isinstance(dataset, dict) else dataset
            for dataset in validation["datasets"]
        ]
        rows += [["validated on", dataset] for dataset in sets or [share]]
    if skipped := facts.series("data/skipped_rows")[1]:
        rows.append(["rows skipped, too long", f"{sum(skipped):,.0f}"])
    for name, label in (("cropped", "tokens cropped"), ("padded", "room padded")):
        if shares := facts.series(f"data/{name}")[1]:
            rows.append([f"{label}, mean of the steps", f"{sum(shares) / len(shares):.2%}"])
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
        yield Paragraph(f"Warning: {warning}")


def _differing(differences: Sequence[Difference], ours: str, theirs: str) -> Table:
    rows = [[key, _value(run), _value(other)] for key, run, other in differences]
    return Table(["key", ours, theirs], rows)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _curves(facts: Facts, other: Facts | None) -> Iterator[Part]:
    if facts.record["max_steps"] == 0:
        # An evaluation has one point, and the tables have its figures.
        return
    for file, title, unit, names, beginnings in PLOTS:
        runs = [(facts, "", False), *([(other, f", {other.title}", True)] if other else [])]
        curves = [
            Curve(one_line(f"{name}{suffix}"), *run.series(name), dashed)
            for run, suffix, dashed in runs
            for name in [
                *names,
                *in_short(n for n in run.names if n.startswith(beginnings or "\0")),
            ]
            if run.series(name)[0]
        ]
        if curves:
            yield Picture(
                file, f"{title}: {', '.join(c.label for c in curves)}", draw(title, unit, curves)
            )


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


def _tasks(facts: Facts) -> Iterator[Part]:
    if (audit := facts.audit) is None or not audit["tasks"]:
        return
    rows = [["tasks", audit["tasks"]], ["trained", audit["trained"]]]
    rows += [[f"dropped: {reason}", count] for reason, count in audit["dropped"].items()]
    rows += [[name.replace("_", " "), audit[name]] for name in ("in_flight", "lost", "duplicated")]
    rows += [["staleness seen, at most", audit["max_staleness_seen"]]]
    yield Table(["", "number"], [[name, f"{count:,}"] for name, count in rows])


def _machines(facts: Facts) -> Iterator[Part]:
    # A GPU that several workers share counts once.
    devices = {gpu["uuid"]: gpu["name"] for w in facts.workers for gpu in w.get("devices") or ()}
    gpus = [f"{count} × {name}" for name, count in sorted(Counter(devices.values()).items())]
    rows = [["Headrace", facts.version]]
    if facts.workers:
        hosts = sorted({str(worker["host"]) for worker in facts.workers})
        rows.append(["hosts of the pool's workers now", ", ".join(hosts)])
        rows.append(["their GPUs", ", ".join(gpus) or "none: they compute on CPUs"])
    if versions := {v for worker in facts.workers if (v := worker.get("vllm_version"))}:
        rows.append(["their vLLM", ", ".join(sorted(versions))])
    if devices and facts.seconds:
        hours = facts.seconds / 3600 * len(devices)
        rows.append(["GPU-hours of the workers", f"{hours:.2f}"])
    how = facts.record.get("computation") or {}
    found_gpus = re.match(r"(\d+) × (?!rank)", how.get("device", ""))
    if found_gpus and facts.seconds:
        hours = facts.seconds / 3600 * int(found_gpus[1])
        rows.append(["GPU-hours of the learner", f"{hours:.2f}"])
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
    yield Code(yaml.safe_dump(dict(facts.record["config"]), sort_keys=False, allow_unicode=True))


def order_of(record: Row) -> str:
    """Say which parts of a run are equal when it is repeated."""
    if record["kind"] == "sft":
        return "The order of the rows follows from training.seed."
    return (
        "The order of the prompts follows from training.seed; answers repeat only with "
        "sampling.seed and rollout.max_staleness 0."
    )
