"""Completes groups whose sessions have ended: from their turns to rewards, and to the learner."""

import time
from contextlib import suppress

from redis.exceptions import RedisError

from rollout.aio import retry
from rollout.rewards.combine import AnswerText, earned_score
from rollout.sessions.session_completions import (
    answer_text,
    completion,
    last_turn,
    shared_prompt,
    transcript,
    unplayed,
)
from rollout.text.answer_text import prefill, text_of
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.resume import CUT_OFF
from rollout.work.failure_limit import RunCannotWork
from rollout.work.group import Sampled
from rollout.work.hand_in import HandIn
from rollout.work.run_work import RunWork
from rollout.work.scoring import scores_of
from rollout.work.task_rows import MissingDataset, RowsAway, TaskRow
from services.contracts.config.episodes import Sessions
from services.contracts.groups.sampled_answer import reference_text
from services.contracts.rows.rendering import compose
from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import Turn
from services.runtime.logs import get_logger
from services.store.agents.calls import Claimed
from services.store.agents.sessions import Opened, PlayedSession
from services.store.work.tasks import Lease
from services.volume import DamagedFile, GatewayAway

log = get_logger(__name__)


class EndedGroups:
    def __init__(self, work: RunWork) -> None:
        self._context, self._store, self._rows = work.context, work.store, work.rows
        self._leases, self._tasks = work.leases, work.tasks
        self._run_events, self._limit = work.run_events, work.limit
        self._hand_in = HandIn(work.leases, work.run_events)

    async def finish(self, claimed: Claimed) -> None:
        sessions, run = self._store.agent_sessions, self._context.run
        opened, live = await sessions.opened(run, claimed.attempt), self._context.follower.live
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
            if opened.client_row is not None and not isinstance(error, RunCannotWork):
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
            row = opened.client_row or await of.dataset.rows.row(of.index)
            answers = [answer for _, answer in scored]
            reference = reference_text(row.answer)
            asked = compose(row, config.data)
            verdicts = await scores_of(context, config.components, asked, row, of.index, answers)
            for (at, _), verdict in zip(scored, verdicts, strict=True):
                scores[at] = verdict
        key = None if opened.client_row is None else ""
        prompt_name = None if opened.client_row is None else opened.name
        return Sampled(prompt, made, scores, ended, time.time(), key, prompt_name, reference)

    def _read(self, session: PlayedSession, last: Turn) -> AnswerText:
        episode, tokenizer = self._context.config.rollout.episode, self._context.tokenizer
        cut_off = last.finish_reason in CUT_OFF
        if isinstance(episode, Sessions) and episode.scored == "transcript":
            first, tokens = transcript(session.turns, last)
            return AnswerText(text_of(tokenizer, tokens), prefill(tokenizer, first), cut_off)
        begun = prefill(tokenizer, last.prompt, last.message)
        return AnswerText(answer_text(last), begun, cut_off)
