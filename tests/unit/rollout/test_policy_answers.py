"""Answers of the policy as an endpoint give way to training, resume after an update, and end when
the requested version is replaced."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from rollout.policy import answering
from rollout.policy.answering import AFTER_TRAINING, AS_TRAINING, Answering
from rollout.policy.call_loop import by_choice
from rollout.vllm.client.policy_client import RequestRefused
from rollout.vllm_plugin.wire import LOWEST, Delta, Parsed, token_scores
from rollout.work.prompt_sampler import assistant_message
from services.contracts.config import parse_config
from services.contracts.policy_calls import Piece, PolicyCall, TokenScore
from services.contracts.sessions import Call
from tests.unit.rollout.episodes import EOS, WordTokenizer, ids

CONFIG = parse_config(
    {
        "model": {"path": "m"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "exact"}],
        "sampling": {"max_tokens": 8, "temperature": 0.7},
    }
)


class Policy:
    """A policy with one scripted answer for each request. None: it never answers."""

    def __init__(self, *answers: list[Delta] | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[int], dict[str, Any], int]] = []
        self.models: list[str] = []

    async def stream(
        self, token_ids: list[int], sampling: dict[str, Any], priority: int, model: str
    ) -> AsyncGenerator[Delta, None]:
        self.asked.append((token_ids, sampling, priority))
        self.models.append(model)
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        for delta in answer or []:
            yield delta


def together(pieces: list[Piece]) -> Piece:
    (whole,) = by_choice(pieces)
    return whole


def said_by(
    policy: Policy,
    version: int | None = None,
    options: dict[str, Any] | None = None,
    adapter: str = "",
    **call: Any,
) -> list[Piece]:
    live = SimpleNamespace(tag="a:3", version=3)

    async def proven(tags: list[str]) -> None:
        pass

    context: Any = SimpleNamespace(
        config=CONFIG,
        policy=policy,
        follower=SimpleNamespace(live=live, until_proven=proven),
        tokenizer=WordTokenizer(),
        eos=[EOS],
        context=12,
        vocabulary=None,
        worker="w",
        adapter=adapter,
        template_note=None,
    )
    kind: dict[str, Any] = {"kind": "completions", "prompt": "1+1", **call}
    asked = PolicyCall(call=Call(**kind), version=version, max_tokens=100, **options or {})
    found: list[Piece] = []
    asyncio.run(Answering(context).answer(asked, found.append))
    return found


def test_an_answer_comes_in_pieces_and_ends_with_its_length() -> None:
    policy = Policy([Delta("2", ids("2")), Delta("+", ids("+"), "stop", [("a:3", 0, 2)])])
    pieces = said_by(policy)
    assert together(pieces) == Piece(
        version=3, text="2+", finish_reason="stop", prompt_tokens=3, sampled_tokens=2
    )
    ((prompt, params, priority),) = policy.asked
    assert (prompt, priority) == (ids("1", "+", "1"), AFTER_TRAINING)
    assert (params["max_tokens"], params["temperature"]) == (8, 0.7)
    assert params["stop_token_ids"] == [EOS]


def test_the_last_piece_has_the_stop_text_that_ended_the_answer() -> None:
    policy = Policy([Delta("2", ids("2", "+"), "stop", [("a:3", 0, 2)], "+")])
    assert together(said_by(policy, stop=["+"])).stop == "+"


def test_a_call_of_an_adapter_names_its_folder_and_no_version_ends_it() -> None:
    policy = Policy([Delta("2", ids("2"), "stop", [("a:9", 0, 1)])])
    assert together(said_by(policy, version=3, adapter="/data/step-3")).finish_reason == "stop"
    assert policy.models == ["/data/step-3"]


def test_the_form_of_an_answer_goes_to_vllm() -> None:
    policy = Policy([Delta("2", ids("2"), "stop")])
    said_by(policy, structured={"json_object": True})
    assert policy.asked[0][1]["structured_outputs"] == {"json_object": True}


def test_a_prompt_is_counted_without_sampling() -> None:
    policy = Policy()
    last = said_by(policy, options={"count": True})[-1]
    assert (last.finish_reason, last.prompt_tokens, last.sampled_tokens) == ("stop", 3, 0)
    assert policy.asked == []


def test_a_call_behind_training_is_answered_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "PATIENCE_SECONDS", 0.01)
    policy = Policy(None, [Delta("2", ids("2"), "stop")])
    assert together(said_by(policy)).text == "2"
    assert [priority for _, _, priority in policy.asked] == [AFTER_TRAINING, AS_TRAINING]


def test_an_answer_that_an_update_aborts_is_resumed() -> None:
    policy = Policy(
        [Delta("2", ids("2")), Delta(finish_reason="abort")],
        [Delta("3", ids("3"), "stop")],
    )
    whole = together(said_by(policy))
    assert (whole.text, whole.finish_reason, whole.sampled_tokens) == ("23", "stop", 2)
    prompt, params, _ = policy.asked[1]
    assert prompt == ids("1", "+", "1", "2")
    assert params["max_tokens"] == 7


def test_an_answer_ends_when_its_version_is_replaced() -> None:
    begun = together(said_by(Policy(), version=2))
    assert begun.failure is not None
    assert (begun.failure.status, begun.failure.code) == (404, "version_gone")
    policy = Policy([Delta("2", ids("2"), "stop", [("a:3", 0, 1), ("a:4", 1, 2)])])
    ended = together(said_by(policy, version=3))
    assert ended.failure is not None
    assert "from version 3 to 4" in ended.failure.message


async def test_an_answer_that_the_parser_refuses_is_returned_as_text() -> None:
    asked = []

    async def refuses(parsed: Parsed) -> dict[str, Any]:
        asked.append(parsed)
        raise RequestRefused("vLLM does not parse an answer: no tool call ends")

    context: Any = SimpleNamespace(
        config=SimpleNamespace(
            served=SimpleNamespace(parses_tools=True, parses_reasoning=False),
            data=SimpleNamespace(chat_template_kwargs={"enable_thinking": False}),
        ),
        policy=SimpleNamespace(message=refuses),
        tokenizer=WordTokenizer(),
        eos=[EOS],
    )
    message = await assistant_message(context, [*ids("2", "+"), EOS], [], [])
    assert message == {"role": "assistant", "content": "2+"}
    assert [parsed.token_ids for parsed in asked] == [ids("2", "+")]
    # A reasoning parser finds no reasoning here.
    assert asked[0].variables == {"enable_thinking": False}


def test_a_prompt_that_leaves_no_token_for_an_answer_is_refused() -> None:
    refused = together(said_by(Policy(), prompt="1" * 12))
    assert refused.failure is not None
    assert refused.failure.code == "context_length_exceeded"


def test_each_prompt_has_as_many_answers_as_were_asked_for_with_seeds_of_their_own() -> None:
    policy = Policy(*([Delta(text, ids(text), "stop")] for text in "2345"))
    pieces = said_by(policy, options={"prompts": ["1", [7]], "n": 2}, seed=10)

    choices = sorted(by_choice(pieces), key=lambda piece: piece.choice)

    assert [piece.text for piece in choices] == ["2", "3", "4", "5"]
    assert [prompt for prompt, _, _ in policy.asked] == [ids("1")] * 2 + [[7]] * 2
    assert [params["seed"] for _, params, _ in policy.asked] == [10, 11, 10, 11]
    assert [piece.prompt_tokens for piece in choices] == [1, 0, 1, 0]
    assert [piece.last for piece in pieces].count(True) == 1
    assert pieces[-1].last


def test_an_echo_comes_with_the_log_probabilities_of_the_prompt_and_without_an_answer() -> None:
    known = [TokenScore("", None), TokenScore("+", -1.0, [("+", -1.0)]), TokenScore("1", -2.0)]
    policy = Policy(
        [Delta(prompt_scores=known[:2]), Delta(finish_reason="abort")],
        [
            Delta(prompt_scores=known[:2]),
            Delta(prompt_scores=known[2:]),
            Delta("9", ids("9"), "length", scores=[TokenScore("9", -3.0)]),
        ],
    )
    whole = together(said_by(policy, options={"echo": True, "scores": 1, "answerless": True}))

    assert (whole.text, whole.finish_reason, whole.sampled_tokens) == ("1+1", "length", 0)
    assert whole.scores == [TokenScore("1", None), *known[1:]]
    assert [(p["max_tokens"], p["logprobs"], p["prompt_logprobs"]) for _, p, _ in policy.asked] == [
        (1, 1, 1)
    ] * 2


def test_log_probabilities_of_the_prompt_are_asked_for_once() -> None:
    known = [TokenScore("", None), TokenScore("+", -1.0), TokenScore("1", -2.0)]
    policy = Policy(
        [
            Delta(prompt_scores=known),
            Delta("2", ids("2"), scores=[TokenScore("2", -1.0)]),
            Delta(finish_reason="abort"),
        ],
        [Delta("3", ids("3"), "stop", scores=[TokenScore("3", -1.5)])],
    )
    whole = together(said_by(policy, options={"echo": True, "scores": 0}))

    assert (whole.text, [score.text for score in whole.scores]) == ("1+123", [*"1+123"])
    assert "prompt_logprobs" not in policy.asked[1][1]


def test_scores_name_the_likeliest_tokens_first_and_a_prompts_first_token_has_none() -> None:
    def token(text: str, logprob: float) -> Any:
        return SimpleNamespace(decoded_token=text, logprob=logprob)

    place = {5: token("b", -3.0), 4: token("a", -0.1), 6: token("c", float("-inf"))}

    assert token_scores([1, 5], [None, place], 2) == [
        TokenScore("", None),
        TokenScore("b", -3.0, [("a", -0.1), ("b", -3.0)]),
    ]
    assert token_scores([6], [place], 0) == [TokenScore("c", LOWEST)]
    assert token_scores([6], (), None) == []
