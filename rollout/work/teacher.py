"""Scores groups by a teacher that is a vLLM server; the reward service sends the requests.

A group is scored after it is sampled, while its lease is held. The teacher's log-probabilities
travel with the group. Before the first group the teacher's tokens are compared with the policy's.
"""

import asyncio
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rollout.aio import together
from rollout.rewards.client import RewardClient
from rollout.run_events import RunEvents
from rollout.vllm.model_files import TokenizerLike
from rollout.work.failure_limit import RunCannotWork
from services.contracts.config.objective.teacher import Teacher as TeacherConfig
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.teaching import TeacherScoreRequest, TeacherTextRequest

AT_ONCE = 64
"""Sequences that a worker has in scoring at once. Each is a request of its own, so that only failed
ones are sent again."""
SHOWN = 60
"""Characters of a token that an error message shows."""


class TeacherScorer:
    def __init__(
        self,
        config: TeacherConfig,
        client: RewardClient,
        tokenizer: TokenizerLike,
        run_events: RunEvents,
    ) -> None:
        assert config.endpoint is not None
        self._name, self._model = config.endpoint, config.model
        self._client = client
        self._tokenizer = tokenizer
        self._run_events = run_events
        self._checked = False
        self._refused: RunCannotWork | None = None
        self._checking = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def logprobs(
        self, group: TrajectoryGroup, mask_truncated: bool
    ) -> npt.NDArray[np.float32]:
        """Return [sum(lengths)] the teacher's log-probability of each token of the group, and 0 for
        samples that are not trained.

        Waits while the teacher is unreachable. Raises ScoringRefused, and RunCannotWork for a
        teacher with other tokens than the policy.
        """
        await self._check_tokens()
        logprobs = np.zeros(len(group.tokens), dtype=np.float32)

        async def score(prompt: list[int], places: npt.NDArray[np.int64]) -> None:
            logprobs[places] = await self._scored(prompt, group.tokens[places].tolist())

        await together(score(*sequence) for sequence in _sequences(group, mask_truncated))
        return logprobs

    async def _scored(self, prompt: list[int], completion: list[int]) -> list[float]:
        request = TeacherScoreRequest.model_construct(
            teacher=self._name, model=self._model, prompt=prompt, completion=completion
        )
        async with self._turns:
            return await self._client.taught(request, self._tell)

    async def _check_tokens(self) -> None:
        """Raise RunCannotWork unless the teacher decodes all ids to the same text as the policy."""
        async with self._checking:
            if self._refused:
                raise self._refused
            if self._checked:
                return
            ids = sorted(set(self._tokenizer.get_vocab().values()))
            if await self._differ(ids):
                self._refused = await self._difference(ids)
                raise self._refused
            self._checked = True

    async def _difference(self, ids: list[int]) -> RunCannotWork:
        """Ask the teacher about halves of `ids` until one id is left that differs, and return the
        error that names it."""
        while len(ids) > 1:
            first = ids[: len(ids) // 2]
            ids = first if await self._differ(first) else ids[len(first) :]
        ours, teachers = self._text(ids), await self._teachers_text(ids)
        return RunCannotWork(
            f"algorithm.teacher.endpoint {self._name}: the teacher has another tokenizer than the "
            f"policy, so it cannot score its tokens: {ids[0]} is {teachers[:SHOWN]!r} there and "
            f"{ours[:SHOWN]!r} here"
        )

    async def _differ(self, ids: list[int]) -> bool:
        # Compared without whitespace: servers place it differently around the same tokens.
        ours, teachers = self._text(ids), await self._teachers_text(ids)
        return "".join(ours.split()) != "".join(teachers.split())

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    async def _teachers_text(self, ids: list[int]) -> str:
        request = TeacherTextRequest(teacher=self._name, model=self._model, tokens=ids)
        return await self._client.teachers_text(request, self._tell)

    async def _tell(self, reason: str) -> None:
        """Add an event, once, that says why the run's groups wait."""
        await self._run_events.once("teacher away", f"groups wait for the teacher: {reason}")


def _sequences(
    group: TrajectoryGroup, mask_truncated: bool
) -> Iterator[tuple[list[int], npt.NDArray[np.int64]]]:
    """Yield the prompt of each trained conversation, and the places of its tokens in the group."""
    for sample, trains in enumerate(group.in_loss(mask_truncated)):
        start = int(group.lengths[:sample].sum())
        for conversation in group.conversations_of(sample) if trains else ():
            begins, places = group.prompt_tokens[: conversation.prompt], start + conversation.places
            if not len(begins):
                # A branch without a shared prefix: its first token was not sampled.
                begins, places = group.tokens[places[:1]], places[1:]
            if len(places):
                yield begins.tolist(), places
