"""Why a run is slow or stuck: one cause and its sentence. Pure.

The questions come in this order: is the run over, does it wait for its turn, is there a learner,
has the learner work, and if not, who should deliver it. The figures of the last step count only
while steps go on and a worker can sample; else the states of workers and tasks decide.
"""

from collections.abc import Iterator

from services.contracts.agents import agents_lease
from services.contracts.config.data import DAY
from services.contracts.events import Event
from services.contracts.records import Queue, RunRecord, RunState, RunSummary, WorkerRecord
from services.contracts.why import ALL_ZERO, Cause, LiveTraffic, Remark, Situation, Why

STILL_SECONDS = 15.0
STILL_STEPS = 3.0
"""A run stands still if no step has ended for both of these; the second in lengths of the last
step."""
REMARKS = 8
GIB = 1 << 30

UNABLE = ("starting", "unhealthy", "drained", "stopping")
"""States of a worker that samples nothing."""
MORE_AGENTS = (
    "Quicker agents help, or more of them at once (`headrace agents --parallel`), as long as vLLM "
    "is not busy all the time"
)

Verdict = tuple[Cause, str]


def diagnose(now: Situation) -> Why:
    """The whole answer."""
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
    )


def _verdict(now: Situation) -> Verdict:
    run = now.run
    if run.state.final:
        ended = "it was cancelled" if run.state is RunState.CANCELLED else f"it {run.state}"
        return "over", f"{ended}{f': {run.reason}' if run.reason else ''}"
    if run.state is RunState.QUEUED:
        return _queued(now)
    if now.learner is None:
        return "no_learner", (
            f"no learner serves pool {run.pool!r}. One that was just started, or is being started "
            "again, takes some seconds; else start one: `headrace up`, or "
            f"`python -m learner --pool {run.pool}`"
        )
    if run.state is RunState.CANCELLING:
        return "cancelling", "it was asked to end, and does so after its present step"
    if run.state is RunState.PAUSED:
        return "paused", f"it is paused: {run.reason or 'nobody said why'}"
    if run.state is RunState.STARTING:
        age = _for(now.age(now.last("state")))
        return "starting", f"the learner loads the model and publishes the first weights{age}"
    return _running(now) if run.kind == "rl" else _supervised(now)


def _queued(now: Situation) -> Verdict:
    waiting = [*now.ahead, now.run.id] if now.queued else now.ahead
    return queued_verdict(now.run, Queue(now.active, waiting, now.learner is not None))


def queued_verdict(run: RunSummary, queue: Queue) -> Verdict:
    """Why a queued run has not started."""
    active, queued = queue.active, run.id in queue.waiting
    ahead = queue.waiting[: queue.waiting.index(run.id)] if queued else []
    is_active = active is not None and active.id == run.id
    if not queued and not is_active:
        return "queued", (
            "it stands in no queue: the gateway died while it was submitted. Cancel it and "
            "submit it again"
        )
    others = f", and {len(ahead)} more in the queue" if ahead and active else ""
    if not queue.learner:
        first = "" if active is None or is_active else f"{active.name} ({active.id})"
        behind = f"; {first} would go first{others}" if first else ""
        return "no_learner", f"it is queued, and no learner serves pool {run.pool!r}{behind}"
    if active is not None and not is_active:
        # A run that only evaluates has no steps.
        at = "" if active.max_steps == 0 else f" at step {active.step} of {active.max_steps or '?'}"
        return "queued", (
            f"it waits for {active.name} ({active.id}), which is {active.state}{at}{others}"
        )
    if ahead:
        return "queued", f"it waits for {', '.join(ahead[:3])}, first in the queue"
    return "queued", "it is next: the learner takes it up within a second"


def _supervised(now: Situation) -> Verdict:
    age = now.age(now.last("step", "progress") or now.last("state"))
    step = f"step {now.run.step} of {now.run.max_steps or '?'}"
    if age is not None and age > 4 * STILL_SECONDS:
        return "learner", f"the learner has finished no step{_for(age)}, after {step}"
    return "none", f"the learner trains: {step}"


def _running(now: Situation) -> Verdict:
    run, flow = now.run, now.flow
    batch = int(run.config["algorithm"]["prompts_per_step"])
    starved = flow.planned == 0 and flow.waiting < batch
    all_done = run.max_steps is not None and run.step >= run.max_steps
    unable = None if all_done else _unable(now)
    if starved and unable and not now.alive:
        return "no_worker", f"the learner waits for groups: {unable[1]}"
    step = now.last("step")
    state = now.last("state")
    age = now.age(step or now.last("state")) or 0.0
    usual = float(step.data.get("time/step") or 0.0) if step else 0.0
    # After a restart the last step of the learner before says nothing of what goes on now.
    this_start = step and (state is None or now.events.index(step) > now.events.index(state))
    if step is not None and this_start and age < max(STILL_SECONDS, STILL_STEPS * usual):
        if unable is None:
            return _measured(step, now)
        what = "the learner waits for groups" if starved else "nothing is sampled"
        return unable[0], f"{what}: {unable[1]}"
    if now.evaluation is not None and (all_done or _only_evaluation(now)):
        return _evaluating(now, all_done)
    if all_done:
        return "learner", f"the learner ends the run: its last checkpoint is written{_for(age)}"
    if now.planned_step is not None:
        return "learner", f"the learner trains step {now.planned_step}{_for(age)}"
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
        return "learner", f"{enough} has not taken them{_for(age)}: it publishes, or checkpoints"
    cause, words = _missing_groups(now)
    return cause, f"{waits}{_for(age)}: {words}"


def _measured(step: Event, now: Situation) -> Verdict:
    """What the last step's figures say of both sides."""
    row = step.data
    took = f"step {row.get('step', '?')} took {float(row.get('time/step', 0.0)):.1f} s"
    if row.get("bottleneck") == "rollout":
        waited = float(row.get("time/waiting_for_groups", 0.0))
        if now.traffic is not None:
            return "rollout", (
                f"the learner waits for sessions with a reward: {took}, {waited:.1f} s of it "
                f"without enough of them. {_traffic(now.traffic, now.run)}"
            )
        share = float(row.get("reward/groups_filtered", 0.0))
        filtered = f", {share:.0%} of all groups were filtered" if share else ""
        more = MORE_AGENTS if agents_lease(now.run.config) else _more_workers(now.alive)
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


def _more_workers(alive: list[WorkerRecord]) -> str:
    """Whether another worker would help, and on which host. Of GPUs only the operator knows."""
    full = []
    for worker in alive:
        if (load := worker.host_load) is None:
            return "More workers help, or a higher rollout.max_staleness"
        figures = (
            f"{worker.host}: {load.idle_cores:.1f} of {load.cores} cores idle, "
            f"{load.free_memory / GIB:.1f} GiB free, and a worker uses {load.memory / GIB:.1f}"
        )
        if load.idle_cores >= 1 and load.free_memory > load.memory:
            return (
                f"Another worker helps, there is room for it ({figures}); or a higher "
                "rollout.max_staleness"
            )
        full.append(figures)
    return (
        f"No host has room for another worker ({'; '.join(full)}): a worker on another machine "
        "helps, or a higher rollout.max_staleness"
    )


def _only_evaluation(now: Situation) -> bool:
    """Whether no worker follows new versions, because all take part in the evaluation."""
    one = now.evaluation
    return one is not None and {worker.id for worker in now.alive} <= {*one.workers}


def _evaluating(now: Situation, all_done: bool) -> Verdict:
    one = now.evaluation
    assert one is not None
    done = (
        f"the evaluation of step {one.step} on {one.name} is open: {one.answered} of {one.rows} "
        "rows are answered"
    )
    if (unable := _unable(now)) is not None:
        return unable[0], f"{done}, and {unable[1]}"
    then = "the run ends after it" if all_done else "training gets newer groups after it"
    if one.waiting:
        then = f"{one.waiting} more evaluations wait; {then}"
    return (
        "evaluation",
        f"{done} by version {one.version}, {one.held} are being worked on; {then}",
    )


def _missing_groups(now: Situation) -> Verdict:
    """Why workers that are alive have not delivered."""
    flow, run = now.flow, now.run
    here = [one for one in now.alive if one.run == run.id and not one.evaluation_only]
    if (unable := _unable(now)) is not None:
        return unable
    if all(worker.evaluation_only for worker in now.alive):
        return "no_worker", (
            "no worker samples to train on: HEADRACE_EVALUATION_ONLY is set for "
            f"{', '.join(worker.id for worker in now.alive)}. Start one without it: `python -m "
            "rollout`"
        )
    if not here or all(worker.state == "starting" for worker in here):
        return _not_ready(now)
    if flow.lapsed:
        return "rollout", (
            f"{flow.lapsed} leases have lapsed, and their tasks are leased again as soon as a "
            "worker has room and admission"
        )
    by_agents = agents_lease(run.config)
    oldest, names = now.oldest, [worker.id for worker in now.alive]
    # Agents are no workers, which are heard of.
    if (
        oldest
        and oldest.lease_seconds_left is not None
        and oldest.worker not in names
        and not by_agents
    ):
        return "rollout", (
            f"task {oldest.task} is held by {oldest.worker}, which is silent; its lease lapses in "
            f"{max(0.0, oldest.lease_seconds_left):.0f} s"
        )
    if flow.held == 0:
        lagging = _lagging(here, run.version)
        if lagging is None and now.traffic is not None:
            return "rollout", _traffic(now.traffic, run)
        if lagging is None and by_agents:
            return "rollout", (
                f"no agent plays: `headrace agents {run.id} -- COMMAND` does, or any program that "
                "leases groups (docs/agents.md)"
            )
        return lagging or _nothing_sampled(here)
    scoring = sum(worker.scoring for worker in here)
    if 2 * scoring > flow.held:
        return "reward", (
            f"{scoring} of {flow.held} groups in flight wait for their scores. Is the reward "
            "service up, and are its verifiers quick enough?"
        )
    if by_agents:
        return "rollout", _played(now)
    rate = sum(worker.tokens_per_second for worker in here)
    return "rollout", f"{flow.held} groups are being sampled, at {rate:,.0f} tokens/s in all"


def _lagging(workers: list[WorkerRecord], version: int) -> Verdict | None:
    """Which worker has not the newest weights."""
    for one in workers:
        if one.version is None or one.version < version:
            has = "no version" if one.version is None else f"version {one.version}"
            why = f": {one.error}" if one.error else ""
            return "weights", f"{one.id} has {has} and needs {version}{why}"
    return None


def _traffic(traffic: LiveTraffic, run: RunRecord) -> str:
    """What applications have brought, and what becomes of it."""
    if not traffic.opened:
        return "no application has opened a session: POST /v1/runs/RUN/sessions (docs/agents.md)"
    eta, data = run.config["rollout"]["max_staleness"], run.config["data"]
    seconds = data.get("reward_deadline") or DAY
    return (
        f"{traffic.open} sessions are open, {traffic.waiting} have ended and wait for a reward, "
        f"{traffic.ready} are ready; {traffic.discarded} of {traffic.opened} were discarded. A "
        f"reward may come {seconds:.0f} s after a session's end (data.reward_deadline), and is of "
        f"use while no more than {eta} steps are trained after the session's first answer "
        "(rollout.max_staleness)"
    )


def _played(now: Situation) -> str:
    """What agents do with the groups that they have leased."""
    words = (
        f"agents have {now.flow.held} groups. One is done when each of its sessions has ended "
        "(POST /v1/sessions/SID/end)"
    )
    oldest = now.oldest
    if oldest and oldest.place == "generating" and oldest.lease_seconds_left is not None:
        words += (
            f"; that of task {oldest.task} is lost in {max(0.0, oldest.lease_seconds_left):.0f} s "
            "unless a call comes (rollout.episode.idle_seconds)"
        )
    return words


def _nothing_sampled(workers: list[WorkerRecord]) -> Verdict:
    states = [f"{one.id} is {one.state}{f' ({one.error})' if one.error else ''}" for one in workers]
    return "rollout", f"nothing is being sampled: {', '.join(states)}"


def _unable(now: Situation) -> Verdict | None:
    """Why no worker can sample; None if one can."""
    if not now.alive:
        return "no_worker", _nobody(now)
    if any(worker.state not in UNABLE for worker in now.alive):
        return None
    if all(worker.state in ("unhealthy", "drained") for worker in now.alive):
        return "vllm", f"no worker is healthy. {now.alive[0].id}: {now.alive[0].error}"
    return _not_ready(now)


def _not_ready(now: Situation) -> Verdict:
    names = [f"{worker.id} is {worker.state}" for worker in now.alive]
    return "vllm", f"no worker has its vLLM ready yet ({', '.join(names + _silent(now))})"


def _nobody(now: Situation) -> str:
    silent = _silent(now)
    return "no worker is alive" + (f" ({', '.join(silent)})" if silent else "")


def _silent(now: Situation) -> list[str]:
    silent = [worker for worker in now.workers if worker not in now.alive]
    return [f"{worker.id} was heard of {now.heard(worker):.0f} s ago" for worker in silent]


def _for(seconds: float | None) -> str:
    return f", for {seconds:.0f} s now" if seconds is not None else ""


def _remarks(now: Situation) -> Iterator[Remark]:
    step, lasting = now.last("step"), ""
    if step is not None and step.data.get("reward/all_zero"):
        lasting = text = f"every reward of step {step.data.get('step', '?')} {ALL_ZERO}"
        yield Remark(seconds_ago=round(now.age(step) or 0.0, 1), source="run", text=text)
    for event in now.events:
        text = str(event.data.get("message") or "") if event.kind == "warning" else ""
        if event.kind == "state" and event.data.get("reason"):
            text = f"{event.data['state']}: {event.data['reason']}"
        if text and text != lasting:
            ago = round(now.age(event) or 0.0, 1)
            yield Remark(seconds_ago=ago, source="run", text=text)
    for worker in now.workers:
        if worker.error:
            ago = round(now.heard(worker), 1)
            yield Remark(seconds_ago=ago, source=worker.id, text=worker.error)
