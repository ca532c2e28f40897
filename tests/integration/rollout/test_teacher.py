"""A worker whose run has a server for a teacher, through a real reward service."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.model.loading.scratch import make_model
from services.launch import Stack, UpOptions
from services.runtime.api_key import REWARD_KEY, kept_key
from tests.integration.rollout.test_worker import told
from tests.integration.rollout.working import MODEL, working_with
from tests.upstream import Answer, Upstream

TAUGHT: dict[str, Any] = {"advantage": {"type": "reverse_kl"}, "teacher": {"endpoint": "big"}}
TOKENIZER = make_model(MODEL, 0).tokenizer
SAMPLING = {"max_tokens": 4}
ROLLOUT = {"groups_in_flight": 1}
REFUSALS = 4
"""More sequences than the reward service sends at once."""


def logprob(place: int, token: int) -> float:
    """Return the teacher's log-probability of a token at a place of the whole sequence."""
    return -place - token / 100


def teaching(
    swapped: dict[int, int] | None = None, refused: list[int] | None = None
) -> Callable[[str, Any], Answer]:
    """A vLLM server with the policy's tokens, except `swapped` ones. It is overloaded for the first
    REFUSALS requests of text, and of a completion that is `refused`."""
    left = {"/detokenize": REFUSALS if refused else 0, "/v1/completions": REFUSALS}

    def answer(path: str, body: Any) -> Answer:
        if left[path] and (path == "/detokenize" or ends_with(body["prompt"], refused)):
            left[path] -= 1
            return 503, {"error": "loading"}
        if path == "/detokenize":
            ids = [(swapped or {}).get(token, token) for token in body["tokens"]]
            return 200, {"prompt": TOKENIZER.decode(ids)}
        said = [
            {str(token): {"logprob": logprob(place, token)}}
            for place, token in enumerate(body["prompt"])
        ]
        return 200, {"choices": [{"prompt_logprobs": [None, *said[1:]]}]}

    return answer


def ends_with(tokens: list[int], completion: list[int] | None) -> bool:
    """Whether this is the end of a sequence."""
    return completion is not None and tokens[-len(completion) :] == completion


@pytest.fixture(scope="module")
def teacher() -> Iterator[Upstream]:
    server = Upstream(teaching())
    yield server
    server.close()


@pytest.fixture(scope="module")
def scoring(
    tmp_path_factory: pytest.TempPathFactory, teacher: Upstream
) -> Iterator[dict[str, str]]:
    """The environment that names a reward service which knows the teacher."""
    data = tmp_path_factory.mktemp("scoring")
    environment = {"HEADRACE_TEACHERS": json.dumps([f"big={teacher.url}"])}
    options = UpOptions(
        data=data, parts=frozenset({"reward"}), reward_port=0, environment=environment
    )
    with Stack(options) as stack:
        yield {
            "HEADRACE_REWARD_URL": stack.reward_url,
            "HEADRACE_REWARD_KEY": kept_key(data / REWARD_KEY),
        }


async def test_a_group_has_the_teachers_logprobs_and_only_failed_requests_are_retried(
    scoring: dict[str, str], teacher: Upstream, tmp_path: Path
) -> None:
    # Each prompt differs, for many groups after the first.
    replies = [[a, b, c] for a in range(3, 20) for b in range(3, 20) for c in range(3, 10)]
    teacher.answer = teaching(refused=replies[0])
    sections: dict[str, Any] = {"algorithm": TAUGHT, "sampling": SAMPLING, "rollout": ROLLOUT}
    script = {"replies": replies}
    async with working_with(scoring, tmp_path, ["1+1="], script, **sections) as one:
        group = await one.group(0)
        events = await one.events(lambda found: bool(told(found, "warning")))

    scored = [body["prompt"] for path, body, _ in teacher.asked if path == "/v1/completions"]
    for reply, times in ((replies[0], REFUSALS + 1), (replies[1], 1)):
        assert sum(ends_with(sequence, reply) for sequence in scored) == times
    said = group.teacher_logprobs
    assert said is not None
    first = len(group.prompt_tokens)
    places = np.concatenate([first + np.arange(length) for length in group.lengths])
    expected = [logprob(at, token) for at, token in zip(places, group.tokens, strict=True)]
    np.testing.assert_allclose(said, expected, rtol=1e-5)
    (warning,) = told(events, "warning")
    assert "groups wait for the teacher" in warning["message"]
    assert "'big' answers 503" in warning["message"]


async def test_a_teacher_with_other_tokens_fails_the_run_and_the_reason_names_a_token(
    scoring: dict[str, str], teacher: Upstream, tmp_path: Path
) -> None:
    vocabulary = TOKENIZER.get_vocab()
    five, six = vocabulary["5"], vocabulary["6"]
    teacher.answer = teaching({five: six, six: five})
    sections: dict[str, Any] = {"algorithm": TAUGHT, "sampling": SAMPLING, "rollout": ROLLOUT}
    async with working_with(scoring, tmp_path, ["1+1="], {}, **sections) as one:
        events = await one.events(
            lambda found: "failed" in [said["state"] for said in told(found, "state")]
        )

    (failed,) = [said for said in told(events, "state") if said["state"] == "failed"]
    first = min(five, six)
    assert "the teacher has another tokenizer than the policy" in failed["reason"]
    assert f"{first} is '6' there and '5' here" in failed["reason"]
