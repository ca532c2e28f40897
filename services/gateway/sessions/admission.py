"""Decides whether a session can be opened now, for a leased group or for live traffic."""

from http import HTTPStatus

from services.contracts.config import RLConfig
from services.contracts.records import RunRecord, RunState
from services.http import Problem
from services.store import Store

RETRY_SECONDS = 1
USUAL_CONTEXT = 1 << 17
"""Tokens that a model takes if the run's config does not say."""
WAITS = {
    "admission": "as many groups are in flight as the next batches can train "
    "(rollout.max_staleness)",
    "bytes": "finished groups fill rollout.stream_bytes",
    "lineage": "no worker serves the learner's weights: `headrace why RUN` says what is missing",
    "state": "the run is not running yet",
    "name": "another request with this name is being answered",
}


async def serving_versions(store: Store, run: RunRecord) -> list[int]:
    """List the versions of the learner's lineage that workers serve. Raises Problem 429 if no
    worker serves one."""
    versions = [
        worker.version
        for worker in await store.workers.list(run.pool)
        if worker.serves(run.id)
        and worker.lineage == run.lineage
        and worker.version is not None
        and not worker.evaluation_only
    ]
    if run.state is not RunState.RUNNING or run.paused_by:
        state = RunState.PAUSED if run.paused_by else run.state
        raise later(f"the run is {state}" + (f" ({run.reason})" if run.reason else ""))
    if not versions:
        raise later("lineage")
    return versions


def most_bytes(config: RLConfig) -> int:
    """Estimate the most bytes of one finished group, until there are some (lease.lua)."""
    per_token = 9 + 4 * config.sampling.top_k
    return 4096 + config.algorithm.samples_per_prompt * config.sampling.max_tokens * per_token


def most_session_bytes(config: RLConfig) -> int:
    """Return the most bytes that the turns of one session take in Redis: four times the estimate of
    a finished group, and the token ids (4 bytes each) of 16 full contexts. Each conversation of an
    agent brings a whole prompt."""
    context = config.rollout.vllm.max_model_len or USUAL_CONTEXT
    return 4 * most_bytes(config) + 16 * 4 * context


def later(reason: str) -> Problem:
    """Return 429 with the reason and a `Retry-After`."""
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"no session can be opened now: {WAITS.get(reason, reason)}. Try again in a moment",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
