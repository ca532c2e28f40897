"""The verifier `model` at a vLLM server: its request, and the reward for the reply."""

from typing import Any

import httpx
import pytest

from tests.integration.reward.test_pool import score
from tests.upstream import Answer, Upstream


def modelled(completion: str, **params: Any) -> dict[str, Any]:
    return {
        "id": "modelled",
        "verifier": "model",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "completion": completion,
        "params": params,
    }


async def test_a_vllm_server_scores_the_whole_and_the_bare_answer(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    raw = {"<think>t</think><answer>a</answer>": 5.0, "a": -1.0}

    def answer(path: str, body: Any) -> Answer:
        return 200, {"data": [{"index": 0, "probs": [raw[body["messages"][-1]["content"]], 9.0]}]}

    upstream.answer = answer

    (result,) = await score(
        client, modelled("<think>t</think><answer>a</answer>", clip=3, answer_weight=0.6)
    )

    # As minimind mixes them: .4 of the whole, clipped at 3, and .6 of the answer.
    assert result["reward"] == pytest.approx(0.4 * 3.0 + 0.6 * -1.0)
    assert result["components"] == {"whole": 3.0, "answer": -1.0}
    assert {path for path, _, _ in upstream.asked} == {"/classify"}
    assert all(body["use_activation"] is False for _, body, _ in upstream.asked)
    assert upstream.asked[0][1]["messages"][:2] == modelled("")["prompt"]


async def test_without_an_answer_tag_the_reward_model_scores_the_whole(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    # A pooled row a token: the last one scores.
    upstream.answer = lambda path, body: (200, {"data": [{"data": [[9.0], [2.0]]}]})

    (result,) = await score(client, modelled("a", answer_weight=0.6, bias=1, scale=0.5))

    assert (result["reward"], result["components"]) == (0.5, {})


@pytest.mark.parametrize(
    ("answer", "params", "said"),
    [
        ((200, {"data": [{"probs": [1.0]}]}), {"label": 1}, "there is no label 1"),
        ((200, {"data": []}), {}, "answers neither classes nor a pooled row"),
        ((400, b"too long"), {}, "answers 400: too long"),
    ],
)
async def test_a_reward_model_that_cannot_score_is_an_error(
    client: httpx.AsyncClient,
    upstream: Upstream,
    answer: Answer,
    params: dict[str, Any],
    said: str,
) -> None:
    upstream.answer = lambda path, body: answer

    (result,) = await score(client, modelled("a", **params))

    assert (result["status"], result["reward"]) == ("error", None)
    assert said in result["detail"]
