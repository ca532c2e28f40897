"""`/metrics` for Prometheus: runs by state, the newest metrics of live runs, workers.

Names are those of docs/metrics.md with `headrace_` before them and `_` for what Prometheus does
not take. Names that users choose are labels, so that no two become one. Everything is read when
asked for: the gateway counts nothing itself.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from services.contracts.records import PoolLoad, RunRecord, RunState, RunSummary, WorkerRecord
from services.gateway.dependencies import Deps

router = APIRouter(tags=["operation"])

NAMED = (
    ("reward/component/", "component", "reward_component"),
    *(
        (f"dataset/{key}/", "dataset", f"dataset_{key}")
        for key in ("share", "reward", "pass_rate", "tokens", "truncated", "filtered")
    ),
    # Without the name they are metrics of their own.
    *((f"{stage}/loss/", "dataset", f"dataset_{stage}_loss") for stage in ("train", "validation")),
)
"""Metrics that end with a name of the user's, the label that this is, and the family's name."""

WORKER_GAUGES = {
    "groups_in_flight": "Groups whose leases it holds",
    "policy_calls": "Calls of the policy as an endpoint that it answers now",
    "policy_answers": "Calls of the policy as an endpoint that it has answered in its run",
    "policy_tokens": "Tokens that it has sampled for these",
    "tokens_per_second": "Sampled tokens per second",
    "tokens_total": "Sampled tokens since its vLLM started",
    "admission_wait_seconds": "Time with a free slot and no admission in its present run",
    "update_seconds": "From the end of the optimizer step until its version was live",
    "pause_seconds": "How long the last weight update paused generation",
    "canary_gap": "Mean difference in nats to the learner on fixed sequences",
    "canary_seconds": "How long the last score of these sequences took",
    "restarts": "How often it, or its vLLM, was started again",
    "version": "Live policy version",
    "heartbeat": "Unix time of the last heartbeat",
}

POOL_GAUGES = {
    "queued": "Runs that wait for their turn",
    "groups_in_flight": "Groups that workers hold",
    "groups_wanted": "Groups that workers may hold, by admission",
}


@dataclass(eq=False)
class Scrape(Collector):
    """The values of one scrape. `reachable`: Redis answered."""

    reachable: bool
    runs: Sequence[RunSummary]
    live: list[RunRecord]
    """Runs that are not over. Queued ones may be missing: they have no metrics."""
    workers: list[WorkerRecord]
    pools: list[PoolLoad]

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        yield _family("redis_up", "1 where Redis answers", [], [([], self.reachable)])
        if self.reachable:
            yield from self._runs()
            yield from self._workers()
            yield from self._pools()

    def _runs(self) -> Iterator[Metric]:
        states = Counter(run.state for run in self.runs)
        of_state = [([state], states[state]) for state in RunState]
        yield _family("runs", "Runs by state", ["state"], of_state)
        # A queued run does not stand still: it waits for its turn.
        steps = [([run.id, run.name], run.step) for run in self.live if run.state != "queued"]
        yield _family("run_step", "Batches trained", ["run", "name"], steps)
        for beginning, label, family in NAMED:
            of_name = [
                ([run.id, run.name, name.removeprefix(beginning)], value)
                for run in self.live
                for name, value in run.metrics.items()
                if name.startswith(beginning)
            ]
            text = f"{beginning}NAME at the newest step, by {label}"
            yield _family(family, text, ["run", "name", label], of_name)
        labelled = tuple(beginning for beginning, _, _ in NAMED)
        names = {name for run in self.live for name in run.metrics if not name.startswith(labelled)}
        for name in sorted(names):
            values = [
                ([run.id, run.name], run.metrics[name]) for run in self.live if name in run.metrics
            ]
            family = re.sub(r"[^a-zA-Z0-9_]", "_", name)
            yield _family(family, f"{name} at the newest step", ["run", "name"], values)

    def _workers(self) -> Iterator[Metric]:
        counts = Counter((worker.pool, worker.state) for worker in self.workers)
        of_state = [(kind, count) for kind, count in sorted(counts.items())]
        yield _family("workers", "Rollout workers by state", ["pool", "state"], of_state)
        for field, text in WORKER_GAUGES.items():
            values = [
                ([worker.id, worker.pool, worker.host], value)
                for worker in self.workers
                if (value := getattr(worker, field)) is not None
            ]
            yield _family(f"worker_{field}", text, ["worker", "pool", "host"], values)

    def _pools(self) -> Iterator[Metric]:
        for field, text in POOL_GAUGES.items():
            values = [([pool.pool], getattr(pool, field)) for pool in self.pools]
            yield _family(f"pool_{field}", text, ["pool"], values)


def _family(
    name: str, text: str, labels: list[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    """Return one metric family from the label values and the number of each sample."""
    family = GaugeMetricFamily(f"headrace_{name}", text, labels=labels)
    for labelled, value in values:
        family.add_metric(labelled, value)
    return family


@router.get(
    "/metrics",
    operation_id="prometheus_get",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
)
async def metrics(deps: Deps) -> Response:
    """Runs by state, the newest metrics of live runs, workers; in Prometheus' text format."""
    try:
        runs = await deps.index.all()
        live = [run for run in runs if not run.state.final]
        # A queued run has no metrics.
        began = [run.id for run in live if run.state is not RunState.QUEUED]
        records = [run for id in began if (run := await deps.store.runs.get(id)) is not None]
        workers = await deps.store.workers.list()
        names = {run.pool for run in live} | {worker.pool for worker in workers}
        pools = [await deps.store.insight.load(name) for name in sorted(names)]
        scrape = Scrape(True, runs, records, workers, pools)
    except RedisError:
        scrape = Scrape(False, [], [], [], [])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
