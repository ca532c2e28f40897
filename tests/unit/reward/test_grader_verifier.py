"""The verifier `grader`: the models that it asks, and what it hands to workers."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from reward.remote_endpoints import Endpoint
from reward.sandbox.running_program import ProgramEnding
from reward.verifiers.base import Item, Verdict
from reward.verifiers.graders.grader_verifier import GraderVerifier
from reward.verifiers.graders.outcome import GraderError
from reward.verifiers.graders.python_grader import result
from reward.verifiers.graders.shapes import GraderParams
from reward.verifiers.graders.worker_verifier import WorkerGrader, WorkerParams
from reward.verifiers.programs.code import CodeVerifier
from services.contracts.scores import ScoreStatus
from tests.unit.reward.graders import SAME, item, multi

SCORE = {
    "type": "score_model",
    "name": "quality",
    "model": "strict/big",
    "range": [0, 10],
    "input": [
        {"role": "developer", "content": "Grade from 0 to 10."},
        {"role": "user", "content": [{"type": "input_text", "text": "{{ sample.output_text }}"}]},
    ],
    "sampling_params": {"temperature": 0.5, "seed": 1, "max_completions_tokens": 20},
}
LABEL = {
    "type": "label_model",
    "name": "tone",
    "model": "strict",
    "labels": ["kind", "rude"],
    "passing_labels": ["kind"],
    "input": [{"role": "user", "content": "{{ sample.output_json.text }}"}],
}
COSINE = {
    "type": "text_similarity",
    "name": "near",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "evaluation_metric": "cosine",
}


async def in_worker(wire: Item, seconds: float, slow: bool) -> Verdict:
    return WorkerGrader().score(wire, WorkerParams.model_validate(wire.params))


@asynccontextmanager
async def verifier(answer: Callable[[httpx.Request], httpx.Response]) -> AsyncIterator[Any]:
    endpoint = Endpoint("strict", "http://judge/v1", "secret")
    grader = GraderVerifier({"strict": endpoint}, Endpoint("vectors", "http://vectors/v1"))
    grader.connect(in_worker, CodeVerifier())
    grader._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    yield grader
    await grader.close()


def reply(body: Any, status: int = 200) -> httpx.Response:
    # The reply is read as a stream.
    return httpx.Response(status, stream=httpx.ByteStream(json.dumps(body).encode()))


def chat(content: Any, **message: Any) -> httpx.Response:
    choices = [{"message": {"content": content, **message}}]
    return reply({"choices": choices, "usage": {"total_tokens": 7}})


def params(grader: dict[str, Any], **options: Any) -> GraderParams:
    return GraderParams.model_validate({"grader": grader, "attempts": 2, **options})


async def test_a_score_model_is_asked_with_its_messages_and_its_score_is_the_reward() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return chat(json.dumps({"steps": [], "result": 8.5}))

    async with verifier(answer) as grader:
        verdict = await grader.score(item("a poem"), params(SCORE))
        outcome = await grader.run(item("a poem"), params(SCORE))

    assert (verdict.status, verdict.reward) == (ScoreStatus.SCORED, 8.5)
    assert outcome.tokens == {"strict/big": 7}
    body = json.loads(asked[0].content)
    assert asked[0].headers["authorization"] == "Bearer secret"
    assert body["messages"] == [
        {"role": "system", "content": "Grade from 0 to 10."},
        {"role": "user", "content": "a poem"},
    ]
    assert (body["model"], body["seed"], body["max_completion_tokens"]) == ("big", 1, 20)
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["steps", "result"]


@pytest.mark.parametrize(
    ("answer", "flag", "reason"),
    [
        (lambda: chat("11"), "model_grader_parse_error", "gives no number from 0 to 10: '11'"),
        (lambda: chat("nan"), "model_grader_parse_error", "gives no number"),
        (lambda: chat('{"result": true}'), "model_grader_parse_error", "gives no number"),
        (lambda: chat("good"), "model_grader_parse_error", "gives no number"),
        (lambda: chat(None), "model_grader_parse_error", "gives no number"),
        (lambda: chat("", refusal="No."), "model_grader_refusal_error", "the model refuses: 'No.'"),
        (lambda: reply([]), "model_grader_parse_error", "answers no chat completion"),
        (lambda: reply("gone", 404), "model_grader_server_error", 'answers 404: "gone"'),
    ],
)
async def test_a_reply_without_a_score_is_an_error_and_not_a_0(
    answer: Callable[[], httpx.Response], flag: str, reason: str
) -> None:
    async with verifier(lambda request: answer()) as grader:
        outcome = await grader.run(item("62"), params(multi("a + b", a=SCORE, b=SAME)))
        verdict = await grader.score(item("62"), params(SCORE))

    assert outcome.score is None
    assert reason in outcome.flags[flag]
    assert (verdict.status, verdict.reward) == (ScoreStatus.ERROR, None)
    assert "grader 'quality'" in verdict.detail


@pytest.mark.parametrize(
    ("content", "status"), [("rude", "wrong"), ('{"result": "kind"}', "correct"), ("?", "error")]
)
async def test_a_label_model_pays_for_labels_that_pass(content: str, status: str) -> None:
    async with verifier(lambda request: chat(content)) as grader:
        verdict = await grader.score(item('{"text": "hi"}'), params(LABEL))

    assert verdict.status == status


async def test_a_model_is_not_asked_about_an_answer_without_the_field_of_its_template() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError

    async with verifier(answer) as grader:
        outcome = await grader.run(item("no json"), params(multi("a + 1", a=LABEL)))

    assert outcome.score == 1
    assert "the answer is not JSON" in outcome.flags["sample_parse_error"]


async def test_cosine_compares_embeddings_beside_graders_that_compute() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content) == {"model": "vectors", "input": ["62", "62"]}
        return reply({"data": [{"embedding": [1, 1]}, {"embedding": [1, 0]}]})

    async with verifier(answer) as grader:
        outcome = await grader.run(item("62"), params(multi("same + near", same=SAME, near=COSINE)))

    assert outcome.score == pytest.approx(1 + 0.5**0.5)


def test_a_grader_whose_parts_are_not_there_is_refused_by_name() -> None:
    bare = GraderVerifier({}, None)
    code = CodeVerifier()
    code.available, code.notice = False, "no namespaces"
    bare.connect(in_worker, code)
    python = {"type": "python", "name": "p", "source": "def grade(a, b): return 1"}

    for grader, reason in (
        (SCORE, "'x' .score_model.: this service has no judge; start it with --judges"),
        (COSINE, "'x' .text_similarity.: cosine needs an embedding model"),
        (python, "'x' .python.: no program can run here: no namespaces"),
    ):
        with pytest.raises(ValueError, match=reason):
            bare.check(params(multi("x", x=grader)))
    bare.check(params(SAME))


async def test_an_unfinished_thought_is_no_answer() -> None:
    async with verifier(lambda request: chat("")) as grader:
        verdict = await grader.score(item("<think>62"), params({**SAME, "operation": "ne"}))

    assert (verdict.status, verdict.reward) == (ScoreStatus.NO_ANSWER, 0.0)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b'["value", NaN, ""]', "grade returned nan"),
        (b'["type", "bool", "True"]', "grade returned True, a bool"),
        (b'["raised", "line 2 (x): NameError: x", ""]', r"line 2 \(x\): NameError: x"),
        (b'["raised", "\\ud800", ""]', r"\?"),
        (b'["value", "1", ""]', "1"),
        (b"", r"ended before grade returned \(exit code 3: boom\)"),
        (b"[1]", "ended before grade returned"),
    ],
)
def test_what_a_python_grader_reports_is_read_with_care(output: bytes, reason: str) -> None:
    with pytest.raises(GraderError, match=reason) as failed:
        result(ProgramEnding("", 3, output, b"x\nboom", b""))

    assert failed.value.flag == "python_grader_runtime_error"
    assert result(ProgramEnding("", 0, b'["value", 0.5, ""]', b"", b"")) == 0.5
    with pytest.raises(GraderError, match="hit its time_limit") as late:
        result(ProgramEnding("time_limit", None, b"", b"", b""))
    assert (late.value.kind, late.value.is_late) == ("time_limit", True)
