"""Diagnoses why the learner has too few groups, although workers are alive."""

from headrace.config_keys import agents_lease
from services.contracts.config.data import DAY
from services.contracts.records import RunRecord
from services.contracts.why import LiveTraffic, Situation
from services.diagnosis.verdict import Verdict
from services.diagnosis.workers import lagging, not_ready, nothing_sampled, unable


def missing_groups(now: Situation) -> Verdict:
    """Return why living workers have not delivered."""
    flow, run = now.flow, now.run
    here = [worker for worker in now.alive if worker.run == run.id and not worker.evaluation_only]
    if (cause := unable(now)) is not None:
        return cause
    if all(worker.evaluation_only for worker in now.alive):
        return "no_worker", (
            "no worker samples to train on: HEADRACE_EVALUATION_ONLY is set for "
            f"{', '.join(worker.id for worker in now.alive)}. Start one without it: `python -m "
            "rollout`"
        )
    if not here or all(worker.state == "starting" for worker in here):
        return not_ready(now)
    if flow.lapsed:
        return "rollout", (
            f"{flow.lapsed} leases have lapsed, and their tasks are leased again as soon as a "
            "worker has room and admission"
        )
    by_agents = agents_lease(run.config)
    oldest, names = now.oldest, [worker.id for worker in now.alive]
    # Agents send no heartbeats, unlike workers.
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
        behind = lagging(here, run.version)
        if behind is None and now.traffic is not None:
            return "rollout", traffic_words(now.traffic, run)
        if behind is None and by_agents:
            return "rollout", (
                f"no agent plays: `headrace agents {run.id} -- COMMAND` does, or any program that "
                "leases groups (docs/agents.md)"
            )
        return behind or nothing_sampled(here)
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


def traffic_words(traffic: LiveTraffic, run: RunRecord) -> str:
    """Describe the live sessions of applications, and what happens to them."""
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
    """Describe what agents do with their leased groups."""
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
