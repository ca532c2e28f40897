"""What holds a run up, from how it stands. Pure: values in, one cause and its sentence out.

Asked in this order: is it over, does it wait for its turn, is there a learner, is there work for
the learner, and, where there is none, who owes it. What the last step measured is believed only
while steps go on and a worker can sample: else the states of workers and draws decide.
"""

from collections.abc import Iterator

from services.contracts.events import Event
from services.contracts.records import SILENT, RunState, WorkerRecord
from services.contracts.why import ALL_ZERO, Cause, Remark, Situation, Why

STILL_SECONDS = 15.0
STILL_STEPS = 3.0
"""No step for both of these, the second in lengths of the last step: the run stands still."""
REMARKS = 8

UNABLE = ("starting", "unhealthy", "stopping")
"""States of a worker that samples nothing."""

Verdict = tuple[Cause, str]


def diagnose(given: Situation) -> Why:
    """The whole answer."""
    cause, words = _verdict(given)
    run, step = given.run, _last(given, "step", "progress")
    return Why(
        run=run.id,
        name=run.name,
        state=run.state,
        step=run.step,
        max_steps=run.max_steps,
        cause=cause,
        words=words,
        last_step_seconds_ago=round(given.now - step.taken, 1) if step else None,
        flow=given.flow,
        oldest=given.oldest,
        evaluation=given.evaluation,
        learner=given.learner,
        workers=given.workers,
        heard={worker.id: round(age, 1) for worker, age in _ages(given)},
        remarks=sorted(_remarks(given), key=lambda remark: remark.seconds_ago)[:REMARKS],
    )


def _verdict(given: Situation) -> Verdict:
    run = given.run
    if run.state.final:
        how = f"it {run.state}" if run.state is not RunState.CANCELLED else "it was cancelled"
        return "over", f"{how}{f': {run.reason}' if run.reason else ''}"
    if run.state is RunState.QUEUED:
        return _queued(given)
    if given.learner is None:
        return "no_learner", (
            f"no learner serves pool {run.pool!r}. One that was just started, or is being started "
            "again, takes some seconds; else start one: `headrace up`, or "
            f"`torchrun … -m learner --pool {run.pool}`"
        )
    if run.cancel_requested:
        return "cancelling", "it was asked to end, and does so after its present step"
    if run.state is RunState.PAUSED:
        return "paused", f"it is paused: {run.reason or 'nobody said why'}"
    since = _age(given, _last(given, "state"))
    if run.state is RunState.STARTING:
        return "starting", (
            f"the learner loads the model and publishes the first weights{_for(since)}"
        )
    if run.kind != "rl":
        return _midtraining(given)
    return _running(given)


def _queued(given: Situation) -> Verdict:
    run, active = given.run, given.active
    if not given.queued and (active is None or active.id != run.id):
        return "queued", (
            "it stands in no queue: the gateway died while it was submitted. Cancel it and "
            "submit it again"
        )
    before = len(given.ahead)
    others = f", and {before} more in the queue" if before and active else ""
    if given.learner is None:
        behind = f"; {active.name} ({active.id}) would go first{others}" if active else ""
        behind = "" if active and active.id == run.id else behind
        return "no_learner", f"it is queued, and no learner serves pool {run.pool!r}{behind}"
    if active is not None and active.id != run.id:
        return "queued", (
            f"it waits for {active.name} ({active.id}), which is {active.state} at step "
            f"{active.step} of {active.max_steps or '?'}{others}"
        )
    if before:
        return "queued", f"it waits for {', '.join(given.ahead[:3])}, first in the queue"
    return "queued", "it is next: the learner takes it up within a second"


def _midtraining(given: Situation) -> Verdict:
    step = _last(given, "step", "progress")
    age = _age(given, step or _last(given, "state"))
    what = f"step {given.run.step} of {given.run.max_steps or '?'}"
    if age is not None and age > 4 * STILL_SECONDS:
        return "learner", f"the learner has finished no step{_for(age)}, after {what}"
    return "none", f"the learner trains: {what}"


def _running(given: Situation) -> Verdict:
    run, flow = given.run, given.flow
    batch = int(run.config["algorithm"]["prompts_per_step"])
    alive = [worker for worker in given.workers if worker.state != SILENT]
    starved = flow.planned == 0 and flow.waiting < batch and given.evaluation is None
    more = run.max_steps is None or run.step < run.max_steps
    unable = _unable(given, alive) if more else None
    if starved and unable and not alive:
        return "no_worker", f"the learner waits for groups: {unable[1]}"
    step = _last(given, "step")
    age = _age(given, step or _last(given, "state")) or 0.0
    usual = float(step.data.get("time/step") or 0.0) if step else 0.0
    started = _age(given, _last(given, "state"))
    # The last step says nothing of what goes on after a learner has started since.
    this_start = started is None or age < started
    if step is not None and this_start and age < max(STILL_SECONDS, STILL_STEPS * usual):
        if unable is None:
            return _measured(step)
        held_up = "the learner waits for groups" if starved else "nothing is sampled"
        return unable[0], f"{held_up}: {unable[1]}"
    if given.evaluation is not None:
        return _evaluating(given, alive)
    if not more:
        return "learner", f"the learner ends the run: its last checkpoint is written{_for(age)}"
    if given.planned_step is not None:
        return "learner", f"the learner trains step {given.planned_step}{_for(age)}"
    if not starved and flow.held and run.config["rollout"].get("late_groups") == "wait":
        late = (
            f"{flow.waiting} groups wait, enough for step {run.step + 1}, and the learner waits "
            "for others that would be too stale for the next one (rollout.late_groups)"
            f"{_for(age)}"
        )
        cause, words = _owed(given, alive)
        return cause, f"{late}: {words}"
    if not starved:
        return "learner", (
            f"{flow.waiting} groups wait, enough for step {run.step + 1}, and the learner has "
            f"not taken them{_for(age)}: it publishes, or writes a checkpoint"
        )
    there = f"{flow.waiting} of {batch} are there"
    there += f", {flow.left_out} were left out for want of a signal" if flow.left_out else ""
    lacking = f"the learner waits for groups ({there}){_for(age)}"
    cause, words = _owed(given, alive)
    return cause, f"{lacking}: {words}"


def _measured(step: Event) -> Verdict:
    """What the last step says of both sides."""
    row = step.data
    took = f"step {row.get('step', '?')} took {float(row.get('time/step', 0.0)):.1f} s"
    if row.get("bottleneck") == "rollout":
        waited = float(row.get("time/waiting_for_groups", 0.0))
        left_out = float(row.get("reward/groups_left_out", 0.0))
        without = f", {left_out:.0%} of all groups were left out" if left_out else ""
        return "rollout", (
            f"the learner waits for groups: {took}, {waited:.1f} s of it without enough of them"
            f"{without}. More workers help, or a higher rollout.max_staleness"
        )
    if row.get("bottleneck") == "learner":
        waited = float(row.get("time/workers_waiting_for_admission", 0.0))
        return "learner", (
            f"workers wait for the learner: {took}, and workers waited {waited:.1f} s for "
            "admission. More ranks help, or a higher rollout.max_staleness"
        )
    return "none", f"nothing holds it up: {took}, and neither side waited for the other"


def _evaluating(given: Situation, alive: list[WorkerRecord]) -> Verdict:
    one = given.evaluation
    assert one is not None
    done = f"an evaluation is open: {one.answered} of {one.rows} rows are answered"
    if not alive:
        return "no_worker", f"{done}, and {_nobody(given)}"
    by = f" by version {one.version}" if one.version else ""
    return "evaluation", f"{done}{by}, {one.held} are being worked on; training goes on after it"


def _owed(given: Situation, alive: list[WorkerRecord]) -> Verdict:
    """Why workers that are alive have not delivered."""
    flow, run = given.flow, given.run
    here = [worker for worker in alive if worker.run == run.id]
    if (unable := _unable(given, alive)) is not None:
        return unable
    if not here or all(worker.state == "starting" for worker in here):
        return _not_ready(given, alive)
    if flow.lapsed:
        return "rollout", (
            f"{flow.lapsed} leases have lapsed, and their draws go out again as soon as a worker "
            "has room and admission"
        )
    oldest = given.oldest
    left = oldest.lease_seconds_left if oldest else None
    if oldest and oldest.worker and left is not None and oldest.worker not in [w.id for w in alive]:
        return "rollout", (
            f"draw {oldest.draw} is held by {oldest.worker}, which is silent; its lease lapses in "
            f"{max(0.0, left):.0f} s"
        )
    if flow.held == 0:
        behind = [w for w in here if w.version is None or w.version < run.version]
        if behind:
            at = behind[0].version
            why = f": {behind[0].error}" if behind[0].error else ""
            return "weights", (
                f"{behind[0].id} has {'no version' if at is None else f'version {at}'} and needs "
                f"{run.version}{why}"
            )
        states = ", ".join(f"{w.id} is {w.state}{f' ({w.error})' if w.error else ''}" for w in here)
        return "rollout", f"nothing is being sampled: {states}"
    scoring = sum(worker.scoring for worker in here)
    if 2 * scoring > flow.held:
        return "reward", (
            f"{scoring} of {flow.held} groups in flight wait for their scores. Is the reward "
            "service up, and are its verifiers quick enough?"
        )
    rate = sum(worker.tokens_per_second for worker in here)
    return "rollout", f"{flow.held} groups are being sampled, at {rate:,.0f} tokens/s in all"


def _unable(given: Situation, alive: list[WorkerRecord]) -> Verdict | None:
    """Why no worker can sample; None where one can."""
    if not alive:
        return "no_worker", _nobody(given)
    if any(worker.state not in UNABLE for worker in alive):
        return None
    broken = [worker for worker in alive if worker.state == "unhealthy"]
    if len(broken) == len(alive):
        return "vllm", f"no worker is healthy. {broken[0].id}: {broken[0].error}"
    return _not_ready(given, alive)


def _not_ready(given: Situation, alive: list[WorkerRecord]) -> Verdict:
    names = [f"{worker.id} is {worker.state}" for worker in alive]
    return "vllm", f"no worker has its vLLM ready yet ({', '.join(names + _silent(given))})"


def _nobody(given: Situation) -> str:
    silent = _silent(given)
    return "no worker is alive" + (f" ({', '.join(silent)})" if silent else "")


def _silent(given: Situation) -> list[str]:
    return [
        f"{worker.id} was heard of {age:.0f} s ago"
        for worker, age in _ages(given)
        if worker.state == SILENT
    ]


def _ages(given: Situation) -> list[tuple[WorkerRecord, float]]:
    """Workers and the seconds since they were heard of."""
    return [(worker, given.now - worker.heartbeat) for worker in given.workers]


def _last(given: Situation, *kinds: str) -> Event | None:
    return next((event for event in reversed(given.events) if event.kind in kinds), None)


def _age(given: Situation, event: Event | None) -> float | None:
    return given.now - event.taken if event else None


def _for(seconds: float | None) -> str:
    return f", for {seconds:.0f} s now" if seconds is not None else ""


def _remarks(given: Situation) -> Iterator[Remark]:
    step = _last(given, "step")
    if step is not None and step.data.get("reward/all_zero"):
        said = f"every reward of step {step.data.get('step', '?')} {ALL_ZERO}"
        yield Remark(seconds_ago=round(given.now - step.taken, 1), source="run", text=said)
    for event in given.events:
        text = event.data.get("message") if event.kind == "warning" else None
        if event.kind == "state" and event.data.get("reason"):
            text = f"{event.data['state']}: {event.data['reason']}"
        if text:
            ago = round(given.now - event.taken, 1)
            yield Remark(seconds_ago=ago, source="run", text=str(text))
    for worker, age in _ages(given):
        if worker.error:
            yield Remark(seconds_ago=round(age, 1), source=worker.id, text=worker.error)
