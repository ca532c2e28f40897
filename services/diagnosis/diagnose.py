"""Diagnoses why a run is slow or stuck: one cause and its sentence. Pure.

The questions in order: is the run over, does it wait for its turn, is there a learner, has the
learner work, and if not, who should deliver it. The last step's figures count only while steps go
on and a worker can sample; otherwise the states of workers and tasks decide.
"""

from collections.abc import Iterator

from headrace.config_keys import agents_lease
from headrace.wording import on_request
from services.contracts.events import Event
from services.contracts.prices import Prices, SamplePrice, gpus_at_work
from services.contracts.records import RunState
from services.contracts.why import Remark, Situation, Why, all_zero
from services.diagnosis.groups import missing_groups, traffic_words
from services.diagnosis.phase import pool_starts
from services.diagnosis.queue import queued
from services.diagnosis.verdict import Verdict, so_long
from services.diagnosis.workers import more_workers, unable

STILL_SECONDS = 15.0
STILL_STEPS = 3.0
"""A run stands still after both times without a finished step. The second is in lengths of the last
step."""
REMARKS = 8
MORE_AGENTS = (
    "Quicker agents help, or more of them at once (`headrace agents --parallel`), as long as vLLM "
    "is not busy all the time"
)


def diagnose(now: Situation, prices: Prices | None = None) -> Why:
    cause, words = _verdict(now)
    run, step = now.run, now.last("step", "progress")
    return Why(
        run=run.id,
        name=run.name,
        state=run.state,
        step=run.step,
        max_steps=run.max_steps,
        cause=cause,
        words=words,
        last_step_seconds_ago=round(now.age(step) or 0.0, 1) if step else None,
        flow=now.flow,
        oldest=now.oldest,
        evaluation=now.evaluation,
        traffic=now.traffic,
        learner=now.learner,
        computation=run.computation,
        workers=now.workers,
        heard={worker.id: round(now.heard(worker), 1) for worker in now.workers},
        remarks=sorted(_remarks(now), key=lambda remark: remark.seconds_ago)[:REMARKS],
        cost=None if prices is None else _cost(now, prices),
    )


def _cost(now: Situation, prices: Prices) -> SamplePrice | None:
    step, run = now.last("step"), now.run
    if step is None or run.state is not RunState.RUNNING:
        return None
    ours = [worker for worker in now.alive if worker.run == run.id]
    gpus = gpus_at_work(
        run.computation, [(w.worker_class, {d.uuid: d.name for d in w.devices}) for w in ours]
    )
    return prices.of_samples(gpus, float(step.data.get("throughput/samples_per_second") or 0.0))


def _verdict(now: Situation) -> Verdict:
    run = now.run
    if run.state.final:
        ended = "it was cancelled" if run.state is RunState.CANCELLED else f"it {run.state}"
        return "over", f"{ended}{f': {run.reason}' if run.reason else ''}"
    if run.state is RunState.QUEUED:
        return queued(now)
    if now.learner is None:
        return "no_learner", (
            f"no learner serves pool {run.pool!r}. One that was just started, or is being started "
            "again, takes some seconds; else start one: `headrace up`, or "
            f"`python -m learner --pool {run.pool}`"
        )
    if run.state is RunState.CANCELLING:
        return "cancelling", "it was asked to end, and does so after its present step"
    if run.state is RunState.PAUSED:
        way_out = f". `headrace resume {run.id}` lets it go on" if run.paused_by else ""
        return "paused", f"it is paused: {run.reason or 'nobody said why'}{way_out}"
    if run.state is RunState.STARTING:
        age = so_long(now.age(now.last("state")))
        starts = pool_starts(now.alive) if run.kind == "rl" else None
        meanwhile = f"; meanwhile {starts}" if starts else ""
        return "starting", (
            f"the learner loads the model and publishes the first weights{age}{meanwhile}"
        )
    if run.paused_by:
        request = on_request(run.paused_by)
        return "paused", f"it pauses after its present step, {request}; workers finish their groups"
    return _running(now) if run.kind == "rl" else _supervised(now)


def _supervised(now: Situation) -> Verdict:
    age = now.age(now.last("step", "progress") or now.last("state"))
    step = f"step {now.run.step} of {now.run.max_steps or '?'}"
    if age is not None and age > 4 * STILL_SECONDS:
        return "learner", f"the learner has finished no step{so_long(age)}, after {step}"
    return "none", f"the learner trains: {step}"


def _running(now: Situation) -> Verdict:
    run, flow = now.run, now.flow
    batch = int(run.config["algorithm"]["prompts_per_step"])
    starved = flow.planned == 0 and flow.waiting < batch
    all_done = run.max_steps is not None and run.step >= run.max_steps
    cannot = None if all_done else unable(now)
    if starved and cannot and not now.alive:
        return "no_worker", f"the learner waits for groups: {cannot[1]}"
    age = now.age(now.last("step") or now.last("state")) or 0.0
    if (step := _going_on(now, age)) is not None:
        if cannot is None:
            return _measured(step, now)
        what = "the learner waits for groups" if starved else "nothing is sampled"
        return cannot[0], f"{what}: {cannot[1]}"
    if now.evaluation is not None and (all_done or _only_evaluation(now)):
        return _evaluating(now, all_done)
    if all_done:
        return "learner", f"the learner ends the run: its last checkpoint is written{so_long(age)}"
    if now.planned_step is not None:
        return "learner", f"the learner trains step {now.planned_step}{so_long(age)}"
    return _standing_still(now, batch, starved, age)


def _going_on(now: Situation, age: float) -> Event | None:
    """Return the last step if steps go on. `age` is the seconds since it."""
    step, state = now.last("step"), now.last("state")
    # After a restart, the last step of the previous learner says nothing about the present.
    if step is None or (state is not None and now.events.index(step) < now.events.index(state)):
        return None
    usual = float(step.data.get("time/step") or 0.0)
    return step if age < max(STILL_SECONDS, STILL_STEPS * usual) else None


def _standing_still(now: Situation, batch: int, starved: bool, age: float) -> Verdict:
    """Return why no batch is planned. `starved`: fewer groups wait than a batch has."""
    run, flow = now.run, now.flow
    enough = f"{flow.waiting} groups wait, enough for step {run.step + 1}, and the learner"
    if starved:
        there = f"{flow.waiting} of {batch} are there"
        there += f", {flow.filtered} were filtered for equal rewards" if flow.filtered else ""
        waits = f"the learner waits for groups ({there})"
    elif flow.held and run.config["rollout"].get("stragglers") == "wait":
        waits = (
            f"{enough} waits for others that would be too stale for the next one "
            "(rollout.stragglers)"
        )
    else:
        return "learner", f"{enough} has not taken them{so_long(age)}: it publishes, or checkpoints"
    cause, words = missing_groups(now)
    return cause, f"{waits}{so_long(age)}: {words}"


def _measured(step: Event, now: Situation) -> Verdict:
    """Return what the last step's figures say about learner and workers."""
    row = step.data
    took = f"step {row.get('step', '?')} took {float(row.get('time/step', 0.0)):.1f} s"
    if row.get("bottleneck") == "rollout":
        waited = float(row.get("time/waiting_for_groups", 0.0))
        if now.traffic is not None:
            return "rollout", (
                f"the learner waits for sessions with a reward: {took}, {waited:.1f} s of it "
                f"without enough of them. {traffic_words(now.traffic, now.run)}"
            )
        share = float(row.get("reward/groups_filtered", 0.0))
        filtered = f", {share:.0%} of all groups were filtered" if share else ""
        more = MORE_AGENTS if agents_lease(now.run.config) else more_workers(now.alive)
        return "rollout", (
            f"the learner waits for groups: {took}, {waited:.1f} s of it without enough of them"
            f"{filtered}. {more}"
        )
    if row.get("bottleneck") == "learner":
        waited = float(row.get("time/workers_waiting_for_admission", 0.0))
        return "learner", (
            f"workers wait for the learner: {took}, and workers waited {waited:.1f} s for "
            "admission. More ranks help, or a higher rollout.max_staleness"
        )
    return "none", f"nothing holds it up: {took}, and neither side waited for the other"


def _only_evaluation(now: Situation) -> bool:
    """Return whether no worker follows new versions, because all take part in the evaluation."""
    open = now.evaluation
    return open is not None and {worker.id for worker in now.alive} <= {*open.workers}


def _evaluating(now: Situation, all_done: bool) -> Verdict:
    open = now.evaluation
    assert open is not None
    done = (
        f"the evaluation of step {open.step} on {open.name} is open: {open.answered} of "
        f"{open.rows} rows are answered"
    )
    if (cannot := unable(now)) is not None:
        return cannot[0], f"{done}, and {cannot[1]}"
    then = "the run ends after it" if all_done else "training gets newer groups after it"
    if open.waiting:
        then = f"{open.waiting} more evaluations wait; {then}"
    return (
        "evaluation",
        f"{done} by version {open.version}, {open.held} are being worked on; {then}",
    )


def _remarks(now: Situation) -> Iterator[Remark]:
    step, lasting = now.last("step"), ""
    if step is not None and step.data.get("reward/all_zero"):
        lasting = text = all_zero(step.data)
        yield Remark(seconds_ago=round(now.age(step) or 0.0, 1), source="run", text=text)
    for event in now.events:
        text = str(event.data.get("message") or "") if event.kind == "warning" else ""
        ends = (now.run.state, RunState.CANCELLING) if now.run.state.final else ()
        # How a run ended is the verdict.
        is_end = event.data.get("state") in ends
        if event.kind == "state" and event.data.get("reason") and not is_end:
            text = f"{event.data['state']}: {event.data['reason']}"
        if text and text != lasting:
            ago = round(now.age(event) or 0.0, 1)
            yield Remark(seconds_ago=ago, source="run", text=text)
    for worker in now.workers:
        # A worker that works on another run reports that run's errors.
        if worker.error and worker.run in (None, now.run.id):
            ago = round(now.heard(worker), 1)
            yield Remark(seconds_ago=ago, source=worker.id, text=worker.error)
