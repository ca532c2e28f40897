"""The worker loop of a run whose episodes agents lead: it takes calls instead of leasing tasks.

A call is held until a deadline, which is extended while vLLM samples tokens. A turn is in Redis
before it is answered, so a worker that dies loses only turns that no client has read; another
worker plays them.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.aio import retry
from rollout.rewards.combine import AnswerText, earned_score
from rollout.run_worker import RunWorker
from rollout.sessions.live_sessions import LiveSessionTasks
from rollout.sessions.recent_turns import RecentTurns
from rollout.sessions.session_completions import (
    answer_text,
    completion,
    last_turn,
    shared_prompt,
    transcript,
    unplayed,
)
from rollout.sessions.turn_player import Refused, TurnPlayer
from rollout.text.answer_text import prefill, text_of
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.resume import CUT_OFF, mixed
from rollout.work.failure_limit import RunCannotWork
from rollout.work.group import Sampled
from rollout.work.hand_in import HandIn
from rollout.work.prompt_sampler import task_seed
from rollout.work.scoring import scores_of
from rollout.work.task_rows import MissingDataset, RowsAway, TaskRow
from services.contracts.config.episodes import Sessions
from services.contracts.groups.sampled_answer import reference_text
from services.contracts.records import WorkerRecord
from services.contracts.rows.rendering import compose
from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import Turn
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.runtime.tasks import end
from services.store.agents.calls import Claimed
from services.store.agents.sessions import Opened, Played
from services.store.work.prompts import Lease
from services.volume import DamagedFile, GatewayAway

log = get_logger(__name__)

NEWS_SECONDS = 5.0
AT_ONCE = 2
"""Calls held for each sequence that vLLM runs at once: the next calls already wait in vLLM."""


@dataclass
class _HeldCall:
    work: asyncio.Task[None]
    generating: bool
    claimed: bool
    """False for a call that was started when its request was announced. The next claim includes
    it."""
    again: bool = False
    """Whether it was announced or claimed again meanwhile: it lapsed, or it was refused and its
    client repeats it."""


class SessionWorker(RunWorker):
    """Plays turns, and completes ended groups, until the run ends."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        episode = self._context.config.rollout.episode
        assert isinstance(episode, Sessions)
        self._idle = episode.idle_seconds
        self._player = TurnPlayer(self._context)
        self._turns = RecentTurns(self._store.agent_sessions)
        self._hand_in = HandIn(self._leases, self._run_events)
        self._calls: dict[str, _HeldCall] = {}
        self._full = False
        """Whether the last claim filled the worker, so that more calls may wait."""
        self._live: LiveSessionTasks | None = None
        if self._context.config.data.live:
            self._live = LiveSessionTasks(
                self._context,
                self._store,
                self._leases,
                self._tasks,
                self._rows,
                self._run_events,
                self._limit,
                self._reserve,
            )

    def describe(self, record: WorkerRecord) -> None:
        """See RunWorker. The groups in flight include the calls that are being answered."""
        super().describe(record)
        record.groups_in_flight = len(self._calls) + len(self._leases)
        sampled = sum(held.generating for held in self._calls.values())
        record.scoring = record.groups_in_flight - sampled

    async def release_groups(self) -> None:
        """Stop all turns in vLLM: wrong weights may have sampled their tokens."""
        await self._give_up([id for id, held in self._calls.items() if held.generating])
        await self._evaluator.release_all()

    # --- calls --------------------------------------------------------------------------------

    async def _take(self) -> str:
        """See RunWorker. Claims calls, and leases sessions of applications that are ready."""
        live, refusal = self.follower.live, self._refusal()
        if live is None or refusal:
            return refusal
        at_once = self._context.sequences.at_once
        held = sum(call.claimed for call in self._calls.values())
        count = max(0, AT_ONCE * at_once - held)
        run, worker = self._context.run, self._context.worker
        # The claim is also a sign of life and lists what this worker holds, so it is sent even if
        # no call fits.
        claimed = await self._store.agent_calls.claim(run, worker, count, held, at_once)
        self._full = len(claimed) == count
        for call in claimed:
            if known := self._calls.get(call.id):
                known.claimed, known.again = True, known.claimed
            else:
                self._begin(call, claimed=True)
        if self._live is not None:
            return await self._live.take(live)
        if not count:
            return "full"
        # This worker leases no task, so only this answer makes it check whether the run has ended.
        return "" if claimed else "state"

    def _refusal(self) -> str:
        """Return why no call can be started; '' if one can."""
        if self.follower.live is None or not self.follower.healthy:
            return "weights"
        return "unavailable" if self._tasks.paused else ""

    def _begin(self, call: Claimed, claimed: bool) -> None:
        work = asyncio.create_task(self._work_on(call), name=f"call {call.id}")
        self._calls[call.id] = _HeldCall(work, call.call.kind != "finish", claimed)

    async def _begin_asked(self, calls: list[str]) -> None:
        """Start `calls`, which this worker may take first. The next claim includes them all:
        claiming each call would cost Redis one synced write per call."""
        count = AT_ONCE * self._context.sequences.at_once - len(self._calls)
        if self._closing or self._refusal() or count < len(calls):
            self._wake.set()
            return
        for call in await self._store.agent_calls.asked(self._context.run, calls):
            if held := self._calls.get(call.id):
                held.again = True
            elif not self._closing:
                self._begin(call, claimed=False)

    async def _work_on(self, claimed: Claimed) -> None:
        bind_contextvars(attempt=claimed.attempt, session=claimed.index)
        calls, run = self._store.agent_calls, self._context.run
        try:
            with panics_as(RuntimeError):
                if claimed.call.kind == "finish":
                    await self._finish(claimed)
                else:
                    await self._turn(claimed)
        except (VLLMUnavailable, RedisError, GatewayAway, RowsAway) as error:
            await self._tasks.away(error)
            await retry("a call", lambda: calls.release(run, self._context.worker, [claimed.id]))
        except Exception as error:
            # The stored call cannot be answered; its lease lapses.
            log.exception("a call cannot be worked on")
            self._status.error = str(error)
        finally:
            held = self._calls.pop(claimed.id, None)
            if self._full:
                self._wake.set()
        if held and held.again:
            # A call that is not answered by now is claimed again.
            await retry("a call", lambda: calls.release(run, self._context.worker, [claimed.id]))

    async def _turn(self, claimed: Claimed) -> None:
        calls, run, worker = self._store.agent_calls, self._context.run, self._context.worker
        session = (run, claimed.attempt, claimed.index)
        earlier = await self._turns.of(session, claimed.call.path)
        if earlier is None:
            failure = {"status": 409, "message": "this session's turns are gone"}
            await calls.fail(run, worker, claimed, failure)
            return
        try:
            played = await self._player.play(claimed.call, earlier, await self._seed(claimed))
        except Refused as refused:
            failure = {
                "status": 400,
                "message": str(refused),
                "code": refused.code,
                "param": refused.param,
            }
            await retry("a turn", lambda: calls.fail(run, worker, claimed, failure))
            return
        except (VLLMUnavailable, RedisError):
            raise
        except Exception as error:
            log.exception("a turn failed")
            self._status.error = str(error)
            failure = {"status": 500, "message": f"the turn could not be sampled: {error}"[:500]}
            await retry("a turn", lambda: calls.fail(run, worker, claimed, failure))
            return
        recorded = partial(calls.answer, run, worker, claimed, *played)
        number = await retry("a turn", recorded)
        if number is None:
            log.info("a turn came too late and is discarded")
        elif number >= 0:
            self._turns.remember(session, number, played[0])

    async def _seed(self, claimed: Claimed) -> int | None:
        """Return the call's seed, if the run has one. Each request has another seed."""
        if self._context.config.sampling.seed is None:
            return None
        opened = await self._store.agent_sessions.opened(self._context.run, claimed.attempt)
        task = TaskPosition.parse(opened.task).position if opened else 0
        seed = task_seed(self._context.config.sampling.seed, task)
        return None if seed is None else mixed(seed, claimed.index, int(claimed.digest[:15], 16))

    # --- ended groups -------------------------------------------------------------------------

    async def _finish(self, claimed: Claimed) -> None:
        """Complete a group whose sessions have ended."""
        sessions, run = self._store.agent_sessions, self._context.run
        opened, live = await sessions.opened(run, claimed.attempt), self.follower.live
        if opened is None:
            # Redis has dropped the sessions. Without closing them the call would be claimed again
            # forever.
            await retry("a group", lambda: sessions.close(run, claimed.attempt, "lapsed"))
            return
        if live is None:
            return
        lease = Lease(claimed.attempt, TaskPosition.parse(opened.task))
        row = self._rows.of(lease.position)
        try:
            sampled = await self._sampled(claimed, opened, row)
            # The store closes sessions with their task. Sessions that are still open were lost
            # before.
            state = "lapsed"
            if sampled is not None:
                await self._hand_in(lease, live, opened.leased_at, row, sampled)
                self._limit.group_finished()
        except (VLLMUnavailable, RedisError, GatewayAway, RowsAway):
            raise
        except Exception as error:
            if opened.own is not None and not isinstance(error, RunCannotWork):
                await self._own_failed(claimed.attempt, error)
            else:
                await self._count_rows(row)
                await self._tasks.failed(claimed.attempt, row, error)
            state = "failed"
        await retry("a group", lambda: sessions.close(run, claimed.attempt, state))

    async def _count_rows(self, row: TaskRow) -> None:
        """Read a row, so that the number of the dataset's rows is known. A run fails when all its
        rows, or many, have failed; sessions that are rewarded by agents never read one."""
        with suppress(MissingDataset, IndexError, DamagedFile, OSError):
            await row.dataset.rows.row(row.index)

    async def _own_failed(self, attempt: str, error: Exception) -> None:
        """End a failed group of a client's own prompt. The failure counts against no row: the task
        whose place it took is leased again."""
        log.warning("a client's prompt failed", error=str(error))
        await self._leases.release([attempt])
        await self._run_events.once(
            "own prompt", f"the group of a client's own prompt is not trained: {error}"
        )

    async def _sampled(self, claimed: Claimed, opened: Opened, of: TaskRow) -> Sampled | None:
        """Return the group's completions with rewards from clients or verifiers; None if its
        sessions are closed."""
        context, config = self._context, self._context.config
        sessions = self._store.agent_sessions
        played = await sessions.played(context.run, claimed.attempt, opened.samples)
        if played is None:
            return None
        prompt = shared_prompt(played)
        made = [completion(session, prompt, config.sampling.cuts) for session in played]
        last = [last_turn(session.turns) for session in played]
        ended = time.time()
        scores = [
            earned_score(session.reward) if session.reward else unplayed() for session in played
        ]
        scored = [
            (at, self._read(session, turn))
            for at, (turn, session) in enumerate(zip(last, played, strict=True))
            if turn is not None and session.reward is None
        ]
        reference = ""
        if scored:
            row = opened.own or await of.dataset.rows.row(of.index)
            answers = [answer for _, answer in scored]
            reference = reference_text(row.answer)
            asked = compose(row, config.data)
            verdicts = await scores_of(context, config.components, asked, row, of.index, answers)
            for (at, _), verdict in zip(scored, verdicts, strict=True):
                scores[at] = verdict
        key = None if opened.own is None else ""
        prompt_name = None if opened.own is None else opened.name
        return Sampled(prompt, made, scores, ended, time.time(), key, prompt_name, reference)

    def _read(self, session: Played, last: Turn) -> AnswerText:
        """Return the text that verifiers read of a session, whose last turn is `last`."""
        episode, tokenizer = self._context.config.rollout.episode, self._context.tokenizer
        cut_off = last.finish_reason in CUT_OFF
        if isinstance(episode, Sessions) and episode.scored == "transcript":
            first, tokens = transcript(session.turns, last)
            return AnswerText(text_of(tokenizer, tokens), prefill(tokenizer, first), cut_off)
        begun = prefill(tokenizer, last.prompt, last.message)
        return AnswerText(answer_text(last), begun, cut_off)

    # --- while calls are held -----------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return bool(self._calls) or len(self._leases) > 0

    async def _renew_held(self, moving: bool) -> None:
        await self._leases.renew(moving)
        keep = [id for id, held in self._calls.items() if moving or not held.generating]
        if not keep:
            return
        run, worker = self._context.run, self._context.worker
        for id in await self._store.agent_calls.renew(run, worker, self._idle, keep):
            if held := self._calls.get(id):
                held.work.cancel()

    def _listening(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._listen(), name="listen")]

    async def _listen(self) -> None:
        """Start calls as soon as they are announced. The worker loop also polls, less often."""
        calls, run = self._store.agent_calls, self._context.run
        last_entry = "$"
        while True:
            try:
                if last_entry == "$":
                    last_entry = await calls.newest("asked", run)
                last_entry, asked = await calls.news("asked", run, last_entry, NEWS_SECONDS)
                if any(not first for _, first in asked):
                    self._wake.set()
                if first_here := [call for call, first in asked if first == self._context.worker]:
                    await self._begin_asked(first_here)
            except (RedisError, OSError):
                await asyncio.sleep(1)

    async def _release_all(self) -> None:
        await super()._release_all()
        await self._give_up(list(self._calls))

    async def _give_up(self, calls: list[str]) -> None:
        held = [self._calls[id].work for id in calls if id in self._calls]
        await end(held)
        if calls:
            run, worker = self._context.run, self._context.worker
            await self._store.agent_calls.release(run, worker, calls)
