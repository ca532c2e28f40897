"""`headrace why`: what holds a run up, in words first."""

from typing import Any

from services.cli.options import AsJson, GatewayURL, Run, connect
from services.cli.output import duration, escape, out, print_json, state, table, worker_state
from services.cli.runs.chains import find, present_run, show_chain

FINE = ("none", "over")


def why(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Say why RUN is slow or stuck: the bottleneck, the oldest prompt in flight, the workers. For
    a chain, show its steps and the present run."""
    api = connect(gateway)
    named = find(api, run)
    record = named.record
    if named.kind == "chain":
        if not as_json:
            show_chain(record)
            out.print()
        record = api.get(f"/v1/runs/{present_run(record)}")
    run = record["id"]
    found = api.get(f"/v1/runs/{run}/why")
    if as_json:
        print_json(found)
        return
    style = "green" if found["cause"] in FINE else "yellow"
    cause = f"[bold {style}]{found['cause'].replace('_', ' ')}[/]"
    out.print(f"{cause}: {escape(found['words'])}", soft_wrap=True)
    steps = f"step {found['step']} of {'?' if found['max_steps'] is None else found['max_steps']}"
    if (ago := found["last_step_seconds_ago"]) is not None:
        steps += f", the last one {duration(ago)} ago"
    out.print(f"\n{escape(found['name'])} ({found['run']}): {state(found['state'])}, {steps}")
    if found["cause"] != "over":
        _progress(found, record["kind"] == "rl")
    if found["remarks"]:
        out.print("\n[bold]warnings and errors[/]")
        for one in found["remarks"]:
            said = f"{one['source']}: {one['text']}"
            out.print(f"  {duration(one['seconds_ago'])} ago  {escape(said)}", soft_wrap=True)


def _progress(found: dict[str, Any], samples: bool) -> None:
    """Print what its processes do. `samples`: whether workers sample for it."""
    if samples:
        _tasks(found)
    if learner := found["learner"]:
        held = learner["held_seconds"]
        since = f", for {duration(held)}" if held is not None else ""
        pid = f" (pid {learner['pid']})" if learner["pid"] else ""
        out.print(
            f"learner: on {escape(learner['host'])}{pid}{since}; heard of "
            f"{duration(learner['prolonged_seconds_ago'])} ago"
        )
    else:
        out.print("learner: [red]none is alive[/]")
    for part, words in found["computation"].items():
        out.print(f"  {escape(part.replace('_', ' '))}: {escape(words)}", soft_wrap=True)
    if samples:
        _workers(found)


def _tasks(found: dict[str, Any]) -> None:
    counts = {place: count for place, count in found["flow"].items() if count}
    filtered = counts.pop("filtered", 0)
    flow = ", ".join(f"{count} {place}" for place, count in counts.items())
    out.print(f"tasks in flight: {flow or 'none'}")
    if filtered:
        out.print(f"groups filtered while the present batch was collected: {filtered}")
    if oldest := found["oldest"]:
        out.print(f"oldest in flight: {escape(_described(oldest))}", soft_wrap=True)
    if evaluation := found["evaluation"]:
        by = ", ".join(evaluation["workers"]) or "no worker yet"
        waiting = f"; {evaluation['waiting']} more wait" if evaluation["waiting"] else ""
        out.print(
            escape(
                f"evaluation of step {evaluation['step']} on {evaluation['name']}: "
                f"{evaluation['answered']} of {evaluation['rows']} rows answered, "
                f"{evaluation['held']} being worked on by {by}{waiting}"
            ),
            soft_wrap=True,
        )


def _workers(found: dict[str, Any]) -> None:
    out.print()
    table(
        ("WORKER", "STATE", "VERSION", "IN FLIGHT", "SCORING", "TOKENS/S", "RESTARTS", "SEEN"),
        [
            (
                escape(one["id"]),
                worker_state(one["state"]),
                "" if one["version"] is None else str(one["version"]),
                str(one["groups_in_flight"] + one["evaluation_rows"]),
                str(one["scoring"]),
                f"{one['tokens_per_second']:,.0f}",
                str(one["restarts"]),
                f"{duration(found['heard'][one['id']])} ago",
            )
            for one in found["workers"]
        ],
        "no workers: `headrace up` starts one; more with `headrace scale rollout=2`",
    )


def _described(oldest: dict[str, Any]) -> str:
    """The task that has been in flight longest."""
    where = oldest["place"] + (f" by {oldest['worker']}" if oldest["worker"] else "")
    if oldest["step"] is not None:
        where += f", step {oldest['step']}"
    since = f", for {duration(oldest['seconds'])}" if oldest["seconds"] is not None else ""
    text = f"task {oldest['task']}, {where}{since}"
    if oldest["failures"]:
        failures = ", ".join(f"{cause} {n}×" for cause, n in oldest["failures"].items())
        text += f"; failed before: {failures}"
    return text
