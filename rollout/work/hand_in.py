"""Takes a scored group to the learner: filters it, or completes its task."""

import asyncio
import contextlib
import random
import time
from typing import Any

from redis.exceptions import RedisError

from rollout.run_events import RunEvents
from rollout.work.filtering import filter_reason
from rollout.work.group import Sampled
from rollout.work.group_assembly import Origin, oldest_tag, to_group
from rollout.work.leases import Leases
from rollout.work.run_context import RunContext
from rollout.work.task_rows import TaskRow
from services.contracts.config.data import DatasetFilter
from services.contracts.groups.payload import Owner
from services.contracts.groups.sampled_answer import SampledAnswer, cut, extremes
from services.contracts.groups.trajectory import encode
from services.contracts.weights import WeightManifest, parse_version_tag
from services.payloads import Payloads
from services.runtime.logs import get_logger
from services.store.work.tasks import Lease, Passed

log = get_logger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.5, 15.0
"""Seconds until a payload that could not be written is written again: the first wait and the
longest."""
JUDGED_SECONDS, JUDGED_AT_ONCE = 1.0, 8
"""The run keeps the best and the worst answer of the first JUDGED_AT_ONCE groups, then of one group
in each JUDGED_SECONDS."""


class HandIn:
    def __init__(self, leases: Leases, run_events: RunEvents) -> None:
        self._leases = leases
        self._run_events = run_events
        self._judged = 0
        self._next_judged = 0.0
        """When answers are kept again (`time.monotonic`)."""

    async def __call__(
        self, lease: Lease, live: WeightManifest, leased_at: float, row: TaskRow, sampled: Sampled
    ) -> bool:
        """Complete the task of `lease` with its group, or end it if the group is filtered.

        Returns False if the lease was lost; nothing has changed then. Raises VerifierBroke if no
        completion has a reward, and what `to_group` and `Teacher.logprobs` raise.
        """
        context = row.dataset.context
        algorithm, filter = context.config.algorithm, context.config.data.filter
        passed = None
        if context.config.data.curriculum is not None:
            passed = Passed(row.key, sampled.pass_rate())
        lengths = [len(completion.token_ids) for completion in sampled.completions]
        prompt_length = len(sampled.prompt_tokens)
        context.sequences.finished(prompt_length, sum(lengths), len(lengths))
        if self._judged < JUDGED_AT_ONCE or time.monotonic() >= self._next_judged:
            self._judged += 1
            self._next_judged = time.monotonic() + JUDGED_SECONDS
            await self._run_events.judged(judged_answers(context, lease.task, row, sampled))
        reward, trained = sampled.mean_reward(), sampled.trained(algorithm)
        if filter is not None:
            await self._filter_prompt(lease, row, reward, filter)
        if algorithm.dynamic_sampling is not None:
            reason = filter_reason(algorithm.dynamic_sampling, trained.rewards, sampled.rewards)
            if reason:
                return await self._leases.end(
                    lease.attempt,
                    self._leases.tasks.filter_group,
                    f"{row}: {reason}",
                    reward,
                    row.dataset.name,
                    passed,
                )
        origin = Origin(
            run=context.run,
            task=lease.task,
            attempt=lease.attempt,
            worker=context.worker,
            row=row.index,
            lineage=live.lineage,
            leased_at=leased_at,
            dataset=row.dataset.name,
            prompt_key=row.prompt_key if sampled.prompt_key is None else sampled.prompt_key,
        )
        group = to_group(context, origin, trained, reward if algorithm.best_of else None)
        if context.teacher is not None:
            truncated = algorithm.shaping.mask_truncated
            group.teacher_logprobs = await context.teacher.logprobs(group, truncated)
            group.header.scored_at = time.time()
        if broken := next((s for s in sampled.scores if s.reward is None), None):
            await self._run_events.once(
                "some without a reward",
                f"the loss ignores samples without a reward; their share is reward/missing: "
                f"{broken.detail}",
            )
        await context.follower.until_proven(group.header.tags)
        oldest = oldest_tag(group.header.tags, live.tag, context.follower.forks)
        lineage, version = parse_version_tag(oldest)
        trained_lengths = group.trained_lengths(algorithm.shaping.mask_truncated)
        # With routing replay a group has 206 MB. Leases are renewed meanwhile.
        payload = await asyncio.to_thread(encode, group)
        owner = Owner(context.run, lease.task, lease.attempt)
        stored = await self._stored(context.payloads, owner, payload)
        taken = await self._leases.complete(
            lease.attempt, version, lineage, stored, trained_lengths, passed
        )
        if not taken:
            with contextlib.suppress(RedisError, OSError):
                await context.payloads.discard(stored)
        return taken

    async def _stored(self, payloads: Payloads, owner: Owner, payload: memoryview) -> bytes:
        """Return the bytes that Redis stores for a finished group: the whole payload, or a
        reference. Waits while the place for payloads is unwritable; the lease is held meanwhile."""
        wait = FIRST_WAIT
        while True:
            try:
                return await payloads.stored(owner, payload)
            except OSError as error:
                reason = error.strerror or str(error)
                log.warning("a payload is not written", error=str(error))
                await self._run_events.once(
                    f"payload {reason}",
                    f"cannot write the group of task {owner.task}, which waits: {reason}",
                )
                await asyncio.sleep(wait * random.uniform(0.8, 1.2))
                wait = min(2 * wait, LONGEST_WAIT)

    async def _filter_prompt(
        self, lease: Lease, row: TaskRow, reward: float, filter: DatasetFilter
    ) -> None:
        outside = filter.outside(reward)
        if await self._leases.ask(
            self._leases.tasks.filter_prompt,
            lease.attempt,
            row.key,
            outside=outside is not None,
            passes=filter.passes,
            max_share=filter.max_share,
        ):
            await self._run_events.once(
                "filtered_prompt",
                f"dataset row {row.place} is filtered, as is any other like it, up to "
                f"{filter.max_share:.0%} of the dataset: its mean reward {reward:g} is {outside}, "
                f"{filter.passes} times in a row",
            )


def judged_answers(
    context: RunContext, task: int, row: TaskRow, sampled: Sampled
) -> list[SampledAnswer]:
    """Return the best and the worst answer of a group, or the first one if no verifier gave a
    reward."""

    def text(ids: Any) -> str:
        # With special tokens and blanks as they were sampled.
        return context.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    prompt = cut(text(sampled.prompt_tokens))
    judged = []
    for i in extremes(sampled.rewards) or [0]:
        completion, score = sampled.completions[i], sampled.scores[i]
        versions = {parse_version_tag(span.version)[1] for span in completion.spans}
        judged.append(
            SampledAnswer(
                step=0,
                task=task,
                row=row.index,
                dataset=row.dataset.name,
                own=sampled.own,
                prompt=prompt,
                completion=cut(text(completion.token_ids)),
                reference=sampled.reference,
                tokens=len(completion.token_ids),
                reward=score.reward,
                status=score.status,
                components=score.components,
                reasons=score.reasons,
                advantage=None,
                finish_reason=completion.finish_reason,
                versions=sorted(versions),
            )
        )
    return judged
