"""The verifier `grader`: OpenAI's grader objects.

It asks the models, and has a worker process compute the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from reward.errors import brief
from reward.remote_endpoints import Endpoint, EndpointError, client
from reward.verifiers.base import Item, RemoteVerifier, Verdict, Verifier, failed
from reward.verifiers.graders.evaluation import called, check_row, names_of
from reward.verifiers.graders.model_graders import ask_model, cosine
from reward.verifiers.graders.outcome import GraderError, Outcome
from reward.verifiers.graders.shapes import (
    GraderParams,
    LabelModel,
    Leaf,
    PythonGrader,
    ScoreModel,
    TextSimilarity,
    leaves,
)
from reward.verifiers.graders.templates import MissingError
from reward.verifiers.graders.worker_verifier import NAME, unpacked, verdict_of
from reward.verifiers.programs.sandboxed import SandboxedCodeVerifier
from reward.verifiers.remote.judge import chosen
from services.contracts.graders import GraderRun
from services.contracts.scores import ScoreStatus
from services.contracts.thoughts import answer_of

_STARVED = 3
"""A grader that waits for a CPU may take this multiple of its `timeout`."""

InWorker = Callable[[Item, float, bool], Awaitable[Verdict]]
"""Scores an item in a worker process: the item, its deadline in seconds, whether it is slow."""


class GraderVerifier(RemoteVerifier[GraderParams]):
    """Scores with a grader. The reward is the grader's score."""

    name = "grader"
    description = (
        "Scores with a grader of OpenAI's API: string_check, text_similarity, score_model, "
        "label_model, python, or multi of these."
    )
    Params = GraderParams

    def __init__(self, judges: Mapping[str, Endpoint], embeddings: Endpoint | None) -> None:
        self._judges, self._embeddings = judges, embeddings
        self._in_worker: InWorker
        self._code: Verifier[Any] | RemoteVerifier[Any]
        self._http: httpx.AsyncClient

    def connect(self, in_worker: InWorker, code: Verifier[Any] | RemoteVerifier[Any]) -> None:
        """Name the workers, and the verifier `code`, whose sandbox runs Python graders."""
        self._in_worker, self._code = in_worker, code

    async def open(self) -> None:
        self._http = client()

    async def close(self) -> None:
        await self._http.aclose()

    def deadline(self, params: GraderParams) -> float | None:
        """Implements `RemoteVerifier.deadline`. Each part has a deadline of its own."""
        return None

    def check(self, params: GraderParams) -> None:
        for path, leaf in leaves(params.grader):
            try:
                self._check(leaf)
            except ValueError as error:
                raise ValueError(f"{called(leaf, path)} ({leaf.type}): {error}") from None

    def _check(self, leaf: Leaf) -> None:
        match leaf:
            case ScoreModel() | LabelModel():
                chosen(self._judges, leaf.model.partition("/")[0], "judge", "--judges")
            case TextSimilarity(evaluation_metric="cosine"):
                if self._embeddings is None:
                    raise ValueError(
                        "cosine needs an embedding model: start the reward service with "
                        "--embeddings NAME=URL, or take another evaluation_metric"
                    )
            case PythonGrader():
                if not self._code.available:
                    raise ValueError(f"no program can run here: {self._code.notice}")

    async def check_reference(self, item: Item, params: GraderParams) -> None:
        check_row(params, item)

    async def score(self, item: Item, params: GraderParams) -> Verdict:
        if answer_of(item.completion, item.prefill) is None:
            return failed(ScoreStatus.NO_ANSWER)
        return verdict_of(params.grader, await self.run(item, params), params.on_timeout)

    async def run(self, item: Item, params: GraderParams) -> Outcome:
        """Return the outcome of a grader for one answer."""
        names = names_of(item)
        asked = [
            (path, self._asked(leaf, path, names, params))
            for path, leaf in leaves(params.grader)
            if self._is_asked(leaf)
        ]
        outcomes = dict(
            zip(
                (path for path, _ in asked),
                await asyncio.gather(*(outcome for _, outcome in asked)),
                strict=True,
            )
        )
        given = {path: part.score for path, part in outcomes.items() if part.score is not None}
        broken = next((part for part in outcomes.values() if part.score is None), None)
        outcome = broken or await self._computed(item, params, given)
        for part in outcomes.values():
            outcome.flags |= part.flags
            outcome.detail = part.detail if part.flags and broken is None else outcome.detail
            if part is not outcome:
                for model, count in part.tokens.items():
                    outcome.tokens[model] = outcome.tokens.get(model, 0) + count
        return outcome

    def _is_asked(self, leaf: Leaf) -> bool:
        match leaf:
            case ScoreModel() | LabelModel() | TextSimilarity(evaluation_metric="cosine"):
                return True
            case PythonGrader():
                return isinstance(self._code, SandboxedCodeVerifier)
        return False

    async def _asked(
        self, leaf: Leaf, path: str, names: dict[str, Any], params: GraderParams
    ) -> Outcome:
        """Return the outcome of a part that is asked for elsewhere."""
        try:
            # The other service has deadlines of its own for programs.
            limit = None if isinstance(leaf, PythonGrader) else params.timeout
            async with asyncio.timeout(limit):
                return await self._ask(leaf, names, params)
        except MissingError as error:
            message = f"{called(leaf, path)}: {error}"
            return Outcome(0.0, message, flags={"sample_parse_error": message})
        except TimeoutError:
            late = f"no reply after {params.timeout:g} s"
            return _failed(GraderError("model_grader_server_error", late), leaf, path)
        except GraderError as error:
            return _failed(error, leaf, path)

    async def _ask(self, leaf: Leaf, names: dict[str, Any], params: GraderParams) -> Outcome:
        match leaf:
            case ScoreModel() | LabelModel():
                endpoint = chosen(self._judges, leaf.model.partition("/")[0], "judge", "--judges")
                return await ask_model(leaf, names, self._http, endpoint, params.attempts)
            case TextSimilarity():
                assert self._embeddings is not None
                return await cosine(leaf, names, self._http, self._embeddings, params.attempts)
        assert isinstance(self._code, SandboxedCodeVerifier)
        options = params.model_dump(include={"timeout", "time_limit", "memory_mb"})
        body = {
            "params": {"grader": leaf.model_dump(), **options},
            "item": names["item"],
            "sample": names["sample"]["output_text"],
        }
        try:
            ran = GraderRun.model_validate(await self._code.ask("/v1/graders/run", body))
        except (EndpointError, ValueError) as error:
            raise GraderError("python_grader_server_error", brief(error), "sandbox") from None
        return Outcome(ran.score, ran.detail, flags=ran.flags, kind=ran.kind, is_late=ran.is_late)

    async def _computed(self, item: Item, params: GraderParams, given: dict[str, float]) -> Outcome:
        parts = [*leaves(params.grader)]
        raw = params.model_dump() | {"given": given}
        wire = Item(
            NAME,
            item.prompt,
            item.completion,
            item.answer,
            raw,
            item.columns,
            item.prefill,
            item.truncated,
        )
        slow = any(isinstance(leaf, PythonGrader) for path, leaf in parts if path not in given)
        return unpacked(await self._in_worker(wire, _STARVED * params.timeout, slow))


def _failed(error: GraderError, leaf: Leaf, path: str) -> Outcome:
    detail = f"{called(leaf, path)}: {error}"
    return Outcome(None, detail, {}, {error.flag: detail}, error.kind, error.is_late)
