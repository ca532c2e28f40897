"""The verifier `judge`: its question to a judge, and the reward for the reply."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.integration.reward.test_pool import score
from tests.upstream import Answer, Upstream


def judged(**params: Any) -> dict[str, Any]:
    return {
        "id": "judged",
        "verifier": "judge",
        "prompt": "Which is larger?",
        "completion": "The whale. {answer}",
        "answer": "whale",
        "params": {"judge": "strict", **params},
    }


def says(*replies: str | None) -> Callable[[str, Any], Answer]:
    left = list(replies)

    def answer(path: str, body: Any) -> Answer:
        text = left.pop(0) if len(left) > 1 else left[0]
        return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}

    return answer


async def test_a_judge_is_asked_with_the_template_and_its_score_is_scaled(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("It says whale, as it should. Score: 4/5")

    (result,) = await score(
        client,
        judged(
            template="Q: {prompt} A: {completion} R: {answer} from {minimum} to {maximum}",
            system="Be fair.",
            model="judge-7b",
            minimum=1,
            maximum=5,
        ),
    )

    assert (result["status"], result["reward"]) == ("scored", 0.75)
    assert "as it should" in result["detail"]
    ((path, body, authorization),) = upstream.asked
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret-1")
    assert body == {
        "model": "judge-7b",
        "messages": [
            {"role": "system", "content": "Be fair."},
            # Fields inside a filled-in text stay as they are.
            {
                "role": "user",
                "content": "Q: Which is larger? A: The whale. {answer} R: whale from 1 to 5",
            },
        ],
        "temperature": 0.0,
        "max_tokens": 1024,
    }


async def test_a_key_goes_to_its_own_endpoint_alone(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("Score: 10")

    await score(client, judged(judge="mild"))

    assert [authorization for _, _, authorization in upstream.asked] == [None]


async def test_a_reply_without_a_score_is_retried(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("Well.", None, "Score: 11", "Score: 5")

    (result,) = await score(client, judged(attempts=4))
    (given_up,) = await score(client, judged(attempts=1, marker="Grade:"))

    assert (result["status"], result["reward"]) == ("scored", 0.5)
    assert (given_up["status"], given_up["reward"]) == ("error", None)
    assert "gives no score from 0 to 10 after 'Grade:'" in given_up["detail"]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (judged(judge=None), "parameter 'judge' must say which one to ask: strict, mild"),
        (judged(judge="harsh"), "there is no judge 'harsh'; there is strict, mild"),
        (judged(minimum=5, maximum=5), "minimum 5 is not below maximum 5"),
        (judged(temprature=1), "did you mean 'temperature'?"),
    ],
)
async def test_an_unusable_judge_is_reported_before_anything_is_scored(
    client: httpx.AsyncClient, item: dict[str, Any], said: str
) -> None:
    response = await client.post("/v1/score", json={"items": [item]})

    assert response.status_code == 422
    assert said in response.json()["detail"]
