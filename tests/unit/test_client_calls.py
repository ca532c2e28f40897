"""What the client's methods send, and what they return of the answers, without a gateway."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import Client, NotFound, Run, RunFailed, Session, WaitTimeout
from headrace.models import OpenedSession, RunSummary
from services.contracts.verifiers import AnswerToScore, NewVerifier

Answers = dict[str, Any]
"""The answer to each request, by its method and its path with the query. A list answers one
request after another."""


class Sent(list[tuple[str, Any]]):
    """The requests that were sent: the method and the path, and the body."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._answers = answers

    def answer(self, request: httpx.Request) -> httpx.Response:
        target = f"{request.method} {request.url.raw_path.decode()}"
        self.append((target, json.loads(request.content) if request.content else None))
        answer = self._answers[target]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, str):
            return httpx.Response(200, text=answer)
        return httpx.Response(200, json=answer)


@pytest.fixture
def gateway() -> Callable[[Answers], tuple[Client, Sent]]:
    def start(answers: Answers) -> tuple[Client, Sent]:
        client, sent = Client("http://127.0.0.1:1", "k"), Sent(answers)
        transport = httpx.MockTransport(sent.answer)
        client._http = httpx.Client(transport=transport, base_url=client.url)
        return client, sent

    return start


Gateway = Callable[[Answers], tuple[Client, Sent]]


def chain(state: str, reason: str = "") -> dict[str, Any]:
    return {
        "id": "chain-1", "name": "both", "note": "", "pool": "default", "state": state,
        "reason": reason, "created": 1.0, "finished": None, "at": 0, "steps": [],
    }  # fmt: skip


def evaluation(id: str, state: str) -> dict[str, Any]:
    return {
        "id": id, "run": "0a", "name": "sums", "dataset": "sums", "step": 0, "version": "a:0",
        "samples": 1, "rows": 3, "state": state, "asked": 1.0,
    }  # fmt: skip


def test_a_chain_is_submitted_with_what_was_given_and_listed(gateway: Gateway) -> None:
    page = "/v1/chains?cursor=2"
    client, sent = gateway({
        "POST /v1/chains": chain("running"),
        "GET /v1/chains": {"chains": [chain("running")], "next": "2"},
        f"GET {page}": {"chains": [chain("failed")], "next": None},
        "POST /v1/chains/chain-1/cancel?now=true": chain("cancelled"),
    })  # fmt: skip
    steps: list[dict[str, Any]] = [
        {"name": "sft", "recipe": "demo_sft"},
        {"name": "rl", "config": {}},
    ]
    assert client.chains.submit(steps, name="both", tags=("a",)).id == "chain-1"
    ((_, body),) = sent
    assert body == {"steps": steps, "name": "both", "tags": ["a"]}
    assert [each.state for each in client.chains.list()] == ["running", "failed"]
    assert client.chains.cancel("chain-1", now=True).state == "cancelled"


def test_a_chain_is_awaited_until_it_is_over_and_a_failed_one_raises_its_reason(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.synchronous.waiting.time.sleep", lambda _: None)
    one = "GET /v1/chains/chain-1"
    client, sent = gateway({one: [chain("running"), chain("running"), chain("succeeded")]})
    assert client.chains.wait("chain-1").state == "succeeded"
    assert len(sent) == 3
    client, _ = gateway({one: [chain("running"), chain("failed", "step rl failed")]})
    with pytest.raises(RunFailed, match=r"chain both \(chain-1\) failed: step rl failed"):
        client.chains.wait("chain-1")
    client, _ = gateway({one: chain("running")})
    with pytest.raises(WaitTimeout, match=r"chain both \(chain-1\) is running after 0 s"):
        client.chains.wait("chain-1", timeout=0)


def test_answers_and_comparisons_are_of_the_newest_evaluation_that_is_done(
    gateway: Gateway,
) -> None:
    listed = [evaluation("2-sums", "open"), evaluation("1-sums", "done")]
    row: dict[str, Any] = {
        "row": 4,
        "category": None,
        "prompt": "1+1",
        "reference": "2",
        "samples": [],
    }
    answers = {"evaluation": listed[1], "rows": [row], "total": 1, "next": None}
    place = "/v1/runs/0a/evaluations"
    client, sent = gateway({
        f"GET {place}": {"run": "0a", "evaluations": listed, "next": None},
        f"GET {place}/1-sums/answers?verdict=wrong": answers,
        f"GET {place}/2-sums/answers": answers,
        "GET /v1/runs/0b/evaluations": {"run": "0b", "evaluations": [], "next": None},
    })  # fmt: skip
    assert [each.row for each in client.evaluations.answers("0a", verdict="wrong")] == [4]
    assert [each.row for each in client.evaluations.answers("0a", "2-sums")] == [4]
    assert [target for target, _ in sent][-1] == f"GET {place}/2-sums/answers"
    with pytest.raises(NotFound, match="run 0b has no evaluation yet"):
        client.evaluations.compare("0b", "0a")


def test_a_report_is_a_text_that_is_written_to_a_file_or_into_a_folder(
    gateway: Gateway, tmp_path: Path
) -> None:
    client, _ = gateway({"GET /v1/runs/0a/report?against=0b": '<p class="x">é'})
    record = RunSummary(
        id="0a", name="first", pool="p", kind="rl", state="running", created=1.0, reason="", step=3
    )  # fmt: skip
    report = Run(client, record).report(against="0b")
    assert report == '<p class="x">é'
    assert report.save(tmp_path / "new" / "first.html") == tmp_path / "new" / "first.html"
    assert report.save(str(tmp_path / "kept")) == tmp_path / "kept" / "report.html"
    assert (tmp_path / "kept" / "report.html").read_text(encoding="utf-8") == report
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;é"' in report._repr_html_()


def test_a_verifier_is_added_from_its_file_and_scores_by_what_was_given(
    gateway: Gateway, tmp_path: Path
) -> None:
    file = tmp_path / "short.py"
    file.write_text("def short(item): ...\n")
    made = {"name": "short", "version": 2, "object": "short", "description": "", "tests": []}
    about = {"name": "short", "description": "", "params": {}, "available": True, "notice": ""}
    scored = {"id": "x", "status": "correct", "reward": 1.0, "prompt": "", "answer": "42"}
    client, sent = gateway({
        "POST /v1/verifiers": made,
        "POST /v1/verifiers/short%402/score": scored,
        "DELETE /v1/verifiers/short": None,
        "GET /v1/verifiers": {"verifiers": [], "next": "b"},
        "GET /v1/verifiers?cursor=b": {"verifiers": [about], "next": None},
    })  # fmt: skip
    assert client.verifiers.add(file, name="short").version == 2
    assert client.verifiers.score("short@2", "It is 42.", answer="42").reward == 1.0
    client.verifiers.delete("short")
    assert [each.name for each in client.verifiers.list()] == ["short"]
    assert sent[:3] == [
        (
            "POST /v1/verifiers",
            {
                "file": "short.py",
                "source": "def short(item): ...\n",
                "name": "short",
                "object": None,
            },
        ),
        (
            "POST /v1/verifiers/short%402/score",
            {"completion": "It is 42.", "row": 0, "answer": "42", "params": {}},
        ),
        ("DELETE /v1/verifiers/short", None),
    ]
    # The gateway reads them.
    assert NewVerifier.model_validate(sent[0][1]).file == "short.py"
    assert AnswerToScore.model_validate(sent[1][1]).answer == "42"


def test_a_turn_of_a_session_has_its_messages_and_its_options(gateway: Gateway) -> None:
    answer = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "r",
        "choices": [{"message": {"content": "4"}}], "usage": {},
    }  # fmt: skip
    place = "POST /v1/sessions/s-1/v1/chat/completions"
    client, sent = gateway({place: answer})
    opened = OpenedSession(
        id="s-1", base_url="http://g", key="k", idle_seconds=1.0, reward_deadline=2.0
    )
    session = Session(client, opened)
    assert session.chat("2+2", seed=3).choices[0]["message"]["content"] == "4"
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2"}]
    session.chat(turns)
    assert sent == [
        (place, {"messages": [{"role": "user", "content": "2+2"}], "seed": 3}),
        (place, {"messages": turns}),
    ]
