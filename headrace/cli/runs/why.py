"""`headrace why`: what holds a run up, in words first."""

from typing import Any

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import escape, out, print_json, state, table, worker_state
from headrace.cli.runs.chains import find, present_run, show_chain
from headrace.wording import counted, duration

FINE = ("none", "over")


def why(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Say why RUN is slow or stuck.

    It names the bottleneck, the oldest prompt in flight, and the workers. For a chain it shows the
    steps and the present run.

    Example:
    headrace why RUN
    """
    api = connect(gateway)
    named = find(api, run)
    record = named.record
    if named.kind == "chain":
        if not as_json:
            show_chain(record)
            out.print()
        record = api.get(f"/v1/runs/{present_run(record)}")
    run = record["id"]
    diagnosis = api.get(f"/v1/runs/{run}/why")
    if as_json:
        print_json(diagnosis)
        return
    style = "green" if diagnosis["cause"] in FINE else "yellow"
    cause = f"[bold {style}]{diagnosis['cause'].replace('_', ' ')}[/]"
    out.print(f"{cause}: {escape(diagnosis['words'])}", soft_wrap=True)
    max_steps = "?" if diagnosis["max_steps"] is None else diagnosis["max_steps"]
    steps = f"step {diagnosis['step']} of {max_steps}"
    if (ago := diagnosis["last_step_seconds_ago"]) is not None:
        steps += f", the last one {duration(ago)} ago"
    out.print(
        f"\n{escape(diagnosis['name'])} ({diagnosis['run']}): {state(diagnosis['state'])}, {steps}"
    )
    if cost := diagnosis.get("cost"):
        gpus = ", ".join(f"{count} × {kind}" for kind, count in cost["gpus"].items())
        out.print(
            f"cost: {cost['per_1000_samples']:.3g} {escape(cost['currency'])}".rstrip()
            + f" for 1,000 trained samples; {cost['per_hour']:.2f} an hour for {escape(gpus)}",
            soft_wrap=True,
        )
    if diagnosis["cause"] != "over":
        _progress(diagnosis, record["kind"] == "rl")
    if diagnosis["remarks"]:
        out.print("\n[bold]warnings and errors[/]")
        for remark in diagnosis["remarks"]:
            text = f"{remark['source']}: {remark['text']}"
            out.print(f"  {duration(remark['seconds_ago'])} ago  {escape(text)}", soft_wrap=True)


def _progress(diagnosis: dict[str, Any], samples: bool) -> None:
    """Print the work of the run's processes. `samples`: whether workers sample for it."""
    if samples:
        _tasks(diagnosis)
    if learner := diagnosis["learner"]:
        held = learner["held_seconds"]
        since = f", for {duration(held)}" if held is not None else ""
        pid = f" (pid {learner['pid']})" if learner["pid"] else ""
        out.print(
            f"learner: on {escape(learner['host'])}{pid}{since}; heard of "
            f"{duration(learner['prolonged_seconds_ago'])} ago"
        )
    else:
        out.print("learner: [red]none is alive[/]")
    for part, words in diagnosis["computation"].items():
        out.print(f"  {escape(part.replace('_', ' '))}: {escape(words)}", soft_wrap=True)
    if samples:
        _workers(diagnosis)


def _tasks(diagnosis: dict[str, Any]) -> None:
    counts = {place: count for place, count in diagnosis["flow"].items() if count}
    filtered = counts.pop("filtered", 0)
    flow = ", ".join(f"{count} {place}" for place, count in counts.items())
    out.print(f"tasks in flight: {flow or 'none'}")
    if filtered:
        out.print(f"groups filtered while the present batch was collected: {filtered}")
    if oldest := diagnosis["oldest"]:
        out.print(f"oldest in flight: {escape(_described(oldest))}", soft_wrap=True)
    if evaluation := diagnosis["evaluation"]:
        by = ", ".join(evaluation["workers"]) or "no worker yet"
        waiting = f"; {evaluation['waiting']} more wait" if evaluation["waiting"] else ""
        out.print(
            escape(
                f"evaluation of step {evaluation['step']} on {evaluation['name']}: "
                f"{evaluation['answered']} of {counted(evaluation['rows'], 'row')} answered, "
                f"{evaluation['held']} being worked on by {by}{waiting}"
            ),
            soft_wrap=True,
        )


def _workers(diagnosis: dict[str, Any]) -> None:
    out.print()
    table(
        ("WORKER", "STATE", "VERSION", "IN FLIGHT", "SCORING", "TOKENS/S", "RESTARTS", "SEEN"),
        [
            (
                escape(worker["id"]),
                worker_state(worker["state"]),
                "" if worker["version"] is None else str(worker["version"]),
                str(worker["groups_in_flight"] + worker["evaluation_rows"]),
                str(worker["scoring"]),
                f"{worker['tokens_per_second']:,.0f}",
                str(worker["restarts"]),
                f"{duration(diagnosis['heard'][worker['id']])} ago",
            )
            for worker in diagnosis["workers"]
        ],
        "no workers: `headrace up` starts one; more with `headrace scale rollout=2`",
    )


def _described(oldest: dict[str, Any]) -> str:
    """Describe the task that has been in flight longest."""
    where = oldest["place"] + (f" by {oldest['worker']}" if oldest["worker"] else "")
    if oldest["step"] is not None:
        where += f", step {oldest['step']}"
    since = f", for {duration(oldest['seconds'])}" if oldest["seconds"] is not None else ""
    text = f"task {oldest['task']}, {where}{since}"
    if oldest["failures"]:
        failures = ", ".join(f"{cause} {n}×" for cause, n in oldest["failures"].items())
        text += f"; failed before: {failures}"
    return text
