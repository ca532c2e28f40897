"""`headrace rollouts`: answers that a run was trained on, in groups, down to their tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import CliError, err, escape, out, print_below, print_json, table
from headrace.cli.runs.chains import run_of
from headrace.cli.runs.samples import number, origin, show_reasons
from headrace.terminal import one_line
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

PAGE = 200


def rollouts(
    run: Run,
    step: Annotated[int | None, typer.Option(min=1, help="Only of this step.")] = None,
    group: Annotated[
        int | None, typer.Option(min=0, help="Show this group whole; the list names groups.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With --group: each token and its log-probabilities.")
    ] = False,
    text: Annotated[str | None, typer.Option(help="Only completions with this text.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only with at least this.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only with at most this.")] = None,
    status: Annotated[
        str | None, typer.Option(help="correct, wrong, …; or truncated, or untrained.")
    ] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Only of this dataset row.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only of this dataset of a mixture.")] = None,
    min_tokens: Annotated[int | None, typer.Option(min=0, help="Only at least as long.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Only at most as long.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Answers, at most.")] = 20,
    save: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write all of --step as Parquet here."),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """List answers that RUN was trained on, or show a group.

    The newest answers come first. With --group, show one prompt with all its answers, and with
    --tokens each token with its log-probabilities. A run keeps the share `rollout.keep_share` of
    its groups. For a chain, show those of the present run.

    Example:
    headrace rollouts RUN --min-reward 1 --text therefore
    headrace rollouts RUN --group 371 --tokens
    """
    api = connect(gateway)
    record = run_of(api, run)
    path = f"/v1/runs/{record['id']}/rollouts"
    if save is not None:
        _save(api, path, step, save)
        return
    if tokens and group is None:
        raise CliError("--tokens shows the tokens of one group: name it with --group")
    wanted = {
        "step": step,
        "group": group,
        "text": text,
        "min_reward": min_reward,
        "max_reward": max_reward,
        "status": status,
        "row": row,
        "dataset": dataset,
        "min_tokens": min_tokens,
        "max_tokens": max_tokens,
    }
    answers, damaged, none_because = _listed(api, path, wanted, limit)
    for name in damaged:
        message = f"{name} of the run's rollouts is damaged; its answers are missing here"
        err.print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)
    if group is not None:
        _show_groups(api, path, answers, tokens, as_json)
    elif as_json:
        print_json(answers)
    else:
        _table(answers, none_because)


def _listed(
    api: "Gateway", path: str, wanted: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], list[str], str]:
    """Return up to `limit` answers, the files that are damaged, and why there are no answers."""
    answers: list[dict[str, Any]] = []
    none_because = ""
    damaged: dict[str, None] = {}
    cursor = None
    while len(answers) < limit:
        page = api.get(path, **wanted, limit=min(limit - len(answers), PAGE), cursor=cursor)
        answers += page["rollouts"]
        damaged |= dict.fromkeys(page["damaged"])
        none_because = none_because or page["none_because"] or ""
        cursor = page["next"]
        if cursor is None:
            break
    return answers, [*damaged], none_because


def _save(api: "Gateway", path: str, step: int | None, file: Path) -> None:
    if step is None:
        raise CliError("--out writes the answers of one step: name it with --step")
    size = api.save(f"{path}/{step}", file)
    out.print(f"{escape(str(file))}: {size:,} bytes", soft_wrap=True)


def _table(answers: list[dict[str, Any]], none_because: str) -> None:
    rows = [
        (
            str(answer["step"]),
            f"{answer['group']}/{answer['sample']}",
            escape(answer["dataset"] + str(answer["row"])),
            number(answer["reward"]),
            number(answer["advantage"]),
            escape(answer["status"]),
            str(answer["length"]),
            escape(answer["finish_reason"]),
            escape(" ".join(answer["completion"].split())[:60]),
        )
        for answer in answers
    ]
    columns = ("step", "group/answer", "row", "reward", "advantage", "status", "tokens", "end")
    table((*columns, "completion"), rows, none_because)


def _show_groups(
    api: "Gateway", path: str, answers: list[dict[str, Any]], tokens: bool, as_json: bool
) -> None:
    """Show each group that has one of the answers."""
    places = dict.fromkeys((answer["step"], answer["group"]) for answer in answers)
    if not places:
        raise CliError("no such group is kept: `headrace rollouts RUN` lists those that are")
    groups = [api.get(f"{path}/{step}/{number}") for step, number in places]
    if as_json:
        print_json(groups[0] if len(groups) == 1 else groups)
        return
    for group in groups:
        show_group(group, tokens)


def show_group(group: dict[str, Any], tokens: bool) -> None:
    """Print one group."""
    head = f"step {group['step']}  group {group['group']}  {origin(group)}"
    out.print(Text(one_line(head), "bold"), soft_wrap=True)
    for name in ("prompt", "reference"):
        if group[name]:
            out.print(Text(f"  {name}", "dim"))
            print_below(group[name])
    for sample in group["samples"]:
        _show_sample(sample, tokens)
    out.print()


def _show_sample(sample: dict[str, Any], tokens: bool) -> None:
    versions = sorted({span["version"] for span in sample["versions"]} - {None})
    facts = [
        f"advantage {number(sample['advantage'])}",
        f"{counted(sample['length'], 'token')}, {sample['finish_reason']}",
        f"version {', '.join(map(str, versions)) or '–'}",
        *([] if sample["trained"] else ["not in the loss"]),
    ]
    if sample["turns"]:
        facts.append(counted(sample["turns"], "turn"))
    begin = f"  answer {sample['sample']}  reward {number(sample['reward'])} {sample['status']}"
    out.print(
        Text.assemble((one_line(begin), "bold"), "  ", one_line("  ".join(facts))), soft_wrap=True
    )
    if len(sample["components"]) > 1:
        parts = (f"{name} {number(value)}" for name, value in sample["components"].items())
        out.print(Text("  " + "  ".join(map(one_line, parts))), soft_wrap=True)
    show_reasons(sample)
    if tokens:
        _show_tokens(sample)
    else:
        print_below(sample["completion"])


def _show_tokens(sample: dict[str, Any]) -> None:
    """Print a line for each token. `gap` is the learner's log-probability minus the sampler's."""
    version_of = [
        span["version"] for span in sample["versions"] for _ in range(span["start"], span["end"])
    ]
    texts = sample["tokens"] or [str(id) for id in sample["token_ids"]]
    missing = [None] * len(texts)
    learner, entropy = sample["learner_logprobs"] or missing, sample["entropy"] or missing
    out.print(Text("    token  sampler  learner      gap  entropy  version  text", "dim"))
    for place, text in enumerate(texts):
        pair = sample["sampler_logprobs"][place], learner[place]
        gap = None if None in pair else pair[1] - pair[0]
        cells = (f"{number(value):>7}" for value in (*pair, gap, entropy[place]))
        version = "–" if version_of[place] is None else str(version_of[place])
        line = f"    {place:>5}  {'  '.join(cells)}  {version:>7}  "
        out.print(Text.assemble(line, one_line(repr(text)[1:-1])), soft_wrap=True)
