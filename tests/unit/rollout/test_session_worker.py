"""A worker's calls of agents: each is answered by one task at a time, and none is forgotten."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from rollout.rewards.client import ScoringRefused
from rollout.rewards.combine import AnswerText, SampleScore, earned_score
from rollout.run_worker import RunWorker
from rollout.sessions.call_source import AT_ONCE, CallSource
from rollout.sessions.ended_groups import EndedGroups
from rollout.sessions.live_sessions import LiveSessionTasks
from rollout.sessions.session_completions import transcript
from rollout.vllm.client.progress import TokenProgress
from rollout.work.failure_limit import MAX_ROWS, FailureLimit
from rollout.work.group_tasks import WorkStatus
from rollout.work.task_rows import TaskRow
from services.contracts.config import parse_config
from services.contracts.rows.dataset import Row
from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import Call, Reward, call_id
from services.store.agents.calls import Claimed
from services.store.agents.sessions import PlayedSession
from services.store.work.tasks import Lease
from services.volume import DamagedFile
from tests.unit.rollout.episodes import WordTokenizer, ids
from tests.unit.rollout.session_graphs import turn

CALL = Claimed(call_id("attempt", 0, "digest"), Call(kind="chat"))
SEQUENCES = 2


class Calls(CallSource):
    """A source of calls whose turns last until `done`."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.begun = 0
        self.claims: list[tuple[int, int]] = []
        """For each claim: how many calls, and how many it held."""
        self.released: list[str] = []
        self._calls, self._live, self._full = {}, None, False
        self._work: Any = SimpleNamespace(
            tasks=SimpleNamespace(paused=False), wake=asyncio.Event(), closing=False
        )
        self._store: Any = SimpleNamespace(agent_calls=self, agent_sessions=self)
        follower = SimpleNamespace(live="one", healthy=True)
        sequences = SimpleNamespace(at_once=SEQUENCES)
        self._context: Any = SimpleNamespace(
            run="run", worker="w", follower=follower, sequences=sequences
        )

    async def _turn(self, claimed: Claimed) -> None:
        self.begun += 1
        await self.done.wait()

    async def claim(
        self, run: str, worker: str, count: int, held: int, at_once: int
    ) -> list[Claimed]:
        self.claims.append((count, held))
        assert at_once == SEQUENCES
        return [CALL] if count else []

    async def asked(self, run: str, calls: list[str]) -> list[Claimed]:
        return [CALL] if CALL.id in calls else []

    async def release(self, run: str, worker: str, calls: list[str]) -> None:
        self.released += calls


def held() -> Any:
    """Another call that is being answered."""
    return SimpleNamespace(claimed=True)


async def test_a_call_that_is_claimed_while_it_is_answered_is_released_for_another_claim() -> None:
    worker = Calls()
    assert await worker.take() == ""
    # Its client was refused, and repeats it before the worker has finished.
    assert await worker.take() == ""
    (held,) = worker._calls.values()
    await asyncio.sleep(0)
    assert worker.begun == 1
    worker.done.set()
    await held.work
    assert worker.released == [CALL.id]

    assert await worker.take() == ""
    (held,) = worker._calls.values()
    await held.work
    assert worker.begun == 2
    assert worker.released == [CALL.id]


async def test_a_call_starts_when_it_is_announced_and_the_next_claim_includes_it() -> None:
    worker = Calls()
    await worker._begin_asked([CALL.id, "ended/0/meanwhile"])
    (held,) = worker._calls.values()
    assert not held.claimed
    # Only claimed calls are counted: the claim would leave the others to other workers.
    assert await worker.take() == ""
    assert worker.claims == [(AT_ONCE * SEQUENCES, 0)]
    assert (held.claimed, held.again) == (True, False)
    worker.done.set()
    await held.work
    assert (worker.begun, worker.released) == (1, [])


async def test_a_call_that_is_announced_while_it_is_answered_is_released_for_another_claim() -> (
    None
):
    worker = Calls()
    await worker._begin_asked([CALL.id])
    (held,) = worker._calls.values()
    await worker._begin_asked([CALL.id])
    worker.done.set()
    await held.work
    assert (worker.begun, worker.released) == (1, [CALL.id])


@pytest.mark.parametrize("why", ["paused", "full", "stopping"])
async def test_a_worker_that_cannot_start_a_call_leaves_it_to_the_next_claim(
    why: str,
) -> None:
    worker = Calls()
    worker._work.tasks.paused, worker._work.closing = why == "paused", why == "stopping"
    others = AT_ONCE * SEQUENCES if why == "full" else 0
    worker._calls = {str(number): held() for number in range(others)}
    await worker._begin_asked([CALL.id])
    assert len(worker._calls) == others
    assert worker._work.wake.is_set()


@pytest.mark.parametrize("others", [0, AT_ONCE * SEQUENCES - 1], ids=["with room", "without"])
async def test_a_worker_that_was_full_looks_for_more_calls_when_one_ends(others: int) -> None:
    worker = Calls()
    worker._calls = {str(number): held() for number in range(others)}
    assert await worker.take() == ""
    worker.done.set()
    await worker._calls[CALL.id].work
    # A worker that is not full hears of new calls.
    assert worker._work.wake.is_set() == bool(others)


async def test_a_full_worker_still_reports_its_held_calls() -> None:
    worker = Calls()
    most = AT_ONCE * SEQUENCES
    worker._calls = {str(number): held() for number in range(most)}
    assert await worker.take() == "full"
    assert worker.claims == [(0, most)]


async def test_a_turn_that_waits_for_redis_does_not_count_as_a_hanging_vllm() -> None:
    async def counters() -> tuple[int, int]:
        return 7, 0

    calls = Calls()
    calls._context.policy = SimpleNamespace(sampling=0, counters=counters)
    calls._context.follower.updating = False
    worker = RunWorker.__new__(RunWorker)
    worker._status, worker._progress = WorkStatus(), TokenProgress(limit=0.0)
    worker._context, worker._source = calls._context, calls
    assert await calls.take() == ""
    for _ in range(2):
        assert await worker._moving(5.0)
    # A turn in vLLM without progress is such a sign.
    calls._context.policy.sampling = 1
    assert not await worker._moving(5.0)
    calls.done.set()


class Finishing(EndedGroups):
    """Completes a group too late."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self._store: Any = SimpleNamespace(agent_sessions=self)
        self._context: Any = SimpleNamespace(run="run", follower=SimpleNamespace(live="one"))
        self._tasks: Any = SimpleNamespace()
        self._rows: Any = SimpleNamespace(of=lambda position: None)
        self._limit = FailureLimit()
        self._hand_in: Any = self._handed_in

    async def opened(self, run: str, attempt: str) -> Any:
        return SimpleNamespace(task="0:0:1:0", leased_at=0.0) if attempt == "attempt" else None

    async def _sampled(self, *of: object) -> Any:
        return object()

    async def _handed_in(self, *of: object) -> bool:
        return False

    async def close(self, run: str, attempt: str, state: str) -> None:
        self.closed.append(state)


async def test_a_group_that_comes_too_late_is_not_reported_as_completed() -> None:
    worker = Finishing()
    await worker.finish(Claimed(call_id("attempt", 0, "finish"), Call(kind="finish")))
    assert worker.closed == ["lapsed"]


async def test_a_group_fails_whatever_state_its_datasets_file_is_in() -> None:
    class Damaged:
        async def row(self, index: int) -> Row:
            raise DamagedFile("datasets/d/0.arrow has another checksum")

    class Failing(Finishing):
        async def _sampled(self, *of: object) -> Any:
            raise ScoringRefused("no such verifier")

    worker, failed = Failing(), list[str]()

    async def fail(attempt: str, row: TaskRow, error: Exception) -> None:
        failed.append(f"{attempt}: {error}")

    async def opened(run: str, attempt: str) -> Any:
        return SimpleNamespace(task="0:0:1:0", leased_at=0.0, client_row=None)

    row: Any = SimpleNamespace(dataset=SimpleNamespace(rows=Damaged()), index=0)
    worker._rows = cast(Any, SimpleNamespace(of=lambda position: row))
    worker._tasks.failed = fail
    worker.opened = opened  # type: ignore[method-assign]
    await worker.finish(Claimed(call_id("attempt", 0, "finish"), Call(kind="finish")))
    assert failed == ["attempt: no such verifier"]
    assert worker.closed == ["failed"]


async def test_a_finish_call_of_a_forgotten_group_is_closed() -> None:
    worker = Finishing()
    await worker.finish(Claimed(call_id("forgotten", 0, "finish"), Call(kind="finish")))
    assert worker.closed == ["lapsed"]


def test_a_transcript_begins_after_the_part_of_the_first_prompt_that_the_template_kept() -> None:
    turns = [
        turn(ids("4", "5"), ids("1")),
        turn(ids("9", "2"), ids("3"), parent=0, kept=1),
    ]
    assert transcript(turns, turns[0])[1] == list(ids("1"))
    assert transcript(turns, turns[1])[1] == [*ids("9", "2"), *ids("3")]


@pytest.mark.parametrize(
    ("scored", "read"), [("answer", "3"), ("transcript", "1+23<eos>")], ids=["answer", "transcript"]
)
async def test_verifiers_read_the_last_answer_or_its_whole_conversation(
    monkeypatch: pytest.MonkeyPatch, scored: str, read: str
) -> None:
    episode = {"type": "sessions", "scored": scored}
    config = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}
    turns = [
        turn(ids("4", "5"), ids("1"), text="1"),
        turn(ids("9"), ids("8"), text="8", parent=0, kept=3),  # a fork, which goes no further
        structs.replace(
            turn(ids("+", "2"), ids("3", "<eos>"), text="3", parent=0, kept=3),
            finish_reason="length",
        ),
        turn(ids("7"), ids("6"), text="6", side=True),
    ]
    asked: list[AnswerText] = []

    async def scores(*given: Any) -> list[SampleScore]:
        asked.extend(given[-1])
        return [earned_score(Reward(reward=1.0))]

    async def played(*of: object) -> list[PlayedSession]:
        return [PlayedSession(turns), PlayedSession(turns, Reward(reward=0.5))]

    async def row_of(index: int) -> Row:
        return Row(prompt="4=", answer="3")

    monkeypatch.setattr("rollout.sessions.ended_groups.scores_of", scores)
    worker = Finishing()
    worker._context.config = parse_config(config | {"rollout": {"episode": episode}})
    worker._context.tokenizer = WordTokenizer()
    worker._store.agent_sessions = SimpleNamespace(played=played)
    opened: Any = SimpleNamespace(samples=2, client_row=None)
    row: Any = SimpleNamespace(dataset=SimpleNamespace(rows=SimpleNamespace(row=row_of)), index=0)
    sampled = await EndedGroups._sampled(worker, CALL, opened, row)
    assert sampled is not None
    cut = AnswerText(read, truncated=True)
    assert asked == [cut], "the client gave the other one its reward"
    assert [one.reward for one in sampled.scores] == [1.0, 0.5]


class Live(LiveSessionTasks):
    """Completes sessions. All are taken but those named `bad…`."""

    def __init__(self, limit: FailureLimit) -> None:
        self.told: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.tries: dict[str, int] = {}
        self.taken, self.first = 0, dict[str, int]()
        nothing: Any = SimpleNamespace(of=lambda position: None)
        leases: Any = SimpleNamespace(
            ended=lambda attempt: None, drop=self._dropped, release=self._released
        )
        work: Any = SimpleNamespace(
            context=SimpleNamespace(run="run"),
            store=SimpleNamespace(live_sessions=self),
            leases=leases,
            tasks=nothing,
            rows=nothing,
            run_events=SimpleNamespace(once=self._once),
            limit=limit,
        )
        super().__init__(work)
        self._hand_in: Any = self._handed_in

    async def hand_in(self, id: str) -> None:
        live: Any = None
        await self._train(Lease(f"{id}.token", TaskPosition(0, 0, 1, 0)), live)

    async def refused(self, run: str, attempt: str) -> tuple[int, bool]:
        if attempt.startswith("bad-lapsed"):
            return 0, False
        self.tries[attempt] = self.tries.get(attempt, 0) + 1
        return self.tries[attempt], self.taken > self.first.setdefault(attempt, self.taken)

    async def _handed_in(self, lease: Lease, *of: object) -> bool:
        if lease.attempt.startswith("bad"):
            raise ScoringRefused("422 endpoint 'big' answers 400: too long")
        self.taken += 1
        return True

    async def _sampled(self, id: str) -> Any:
        if id == "closed":
            return None
        return SimpleNamespace(opened_at=0.0), None

    async def _dropped(self, attempt: str, reason: str, detail: str) -> bool:
        self.ended.append((attempt, detail))
        return True

    async def _released(self, attempts: list[str]) -> None:
        self.ended += [(attempt, "released") for attempt in attempts]

    async def _once(self, kind: str, message: str) -> None:
        self.told.append(message)


async def test_a_completed_live_session_resets_the_count_of_vllm_crashes() -> None:
    limit = FailureLimit(start_tries=2)
    for _ in range(3):
        limit.vllm_failed("it crashed")
        assert limit.reason is None
        await Live(limit).hand_in("la")
    assert limit.worked


async def test_a_refused_session_is_dropped_only_if_another_session_is_taken() -> None:
    live = Live(FailureLimit())
    for _ in range(9):
        await live.hand_in("bad")
    assert {how for _, how in live.ended} == {"released"}
    assert "waits to be handed in: 422 endpoint 'big' answers 400" in live.told[0]
    await live.hand_in("other")
    await live.hand_in("bad")
    assert live.ended[-1][0] == "bad.token"
    assert "endpoint 'big' answers 400" in live.ended[-1][1]
    # The other session has its own tries.
    await live.hand_in("bad2")
    assert live.ended[-1] == ("bad2.token", "released")


async def test_a_run_whose_sessions_are_all_refused_fails_with_the_reason() -> None:
    limit = FailureLimit()
    live = Live(limit)
    for number in range(MAX_ROWS):
        assert limit.reason is None
        await live.hand_in(f"bad{number}")
    assert limit.reason is not None
    assert "endpoint 'big' answers 400" in limit.reason


async def test_sessions_taken_before_the_first_refusal_do_not_count() -> None:
    limit = FailureLimit()
    live = Live(limit)
    await live.hand_in("good")
    for _ in range(5):
        await live.hand_in("bad0")
    for number in range(1, MAX_ROWS):
        assert limit.reason is None
        await live.hand_in(f"bad{number}")
    assert limit.reason is not None
    assert {how for _, how in live.ended} == {"released"}


async def test_repeatedly_refused_sessions_are_leased_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    clock: Any = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr("rollout.sessions.live_sessions.time", clock)
    live, pauses = Live(FailureLimit()), []
    for id in ("bad",) * 8 + ("good", "bad2"):
        for _ in range(3):  # leased together
            await live.hand_in(id)
        if id != "good":
            pauses.append(live._pause_until - now)
            now = live._pause_until
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1]


async def test_a_worker_that_has_lost_its_lease_reports_nothing_about_the_session() -> None:
    live = Live(FailureLimit())
    await live.hand_in("bad-lapsed")
    assert not live.told


async def test_a_closed_session_is_not_leased_again() -> None:
    live = Live(FailureLimit())
    await live.hand_in("closed")
    assert live.ended == [("closed.token", "a session: it is closed")]
