"""Expert routing from vLLM's answers to a group on the wire keeps each token's experts."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from rollout.vllm.client.expert_routing import (
    MissingRouting,
    bytes_per_token,
    decoded,
    extended,
    gathered,
)
from rollout.vllm.client.response import MalformedAnswer, Sample, Span, parse_answer
from rollout.vllm.client.resume import begun_by, joined, not_sampled
from tests.unit.rollout.test_response import answer, choice


def experts(*first: int) -> np.ndarray:
    """Return two layers of two experts for each token; `first` has the first expert of the first
    layer."""
    return np.array([[[e, 9], [8, 7]] for e in first], np.uint8)


def as_vllm_says_it(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_the_routing_in_an_answer_is_decoded() -> None:
    said = experts(1, 2, 3)
    (sample,) = parse_answer(answer(choice(experts=as_vllm_says_it(said))))
    assert sample.experts is not None
    assert sample.experts.dtype.itemsize == 1
    assert sample.experts.tolist() == said.tolist()
    (plain,) = parse_answer(answer(choice()))
    assert plain.experts is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "sample 0: not a .npy file"),
        (b"no array", "sample 0"),
        (as_vllm_says_it(np.zeros((3, 2))), r"float64 \[3, 2\] in place of integers"),
        (as_vllm_says_it(np.array([{}], dtype=object)), "sample 0"),
    ],
)
def test_malformed_routing_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(MalformedAnswer, match=message):
        parse_answer(answer(choice(experts=content)))


def test_a_later_request_adds_the_routing_of_new_tokens_only() -> None:
    # The token after i was sampled with the experts that i had in that request.
    for known, more, whole in (
        (experts(1, 2), experts(5, 6, 7, 8), experts(1, 2, 7, 8)),
        (None, experts(5), experts(5)),
        (experts(1), None, experts(1)),
    ):
        np.testing.assert_array_equal(np.asarray(extended(known, more)), whole)
    assert extended(None, None) is None


def test_a_resumed_completion_keeps_the_routing_of_its_beginning() -> None:
    def sample(tokens: list[int], said: np.ndarray) -> Sample:
        ids, logprobs = np.array(tokens, np.int32), np.zeros(len(tokens), np.float32)
        return Sample(ids, logprobs, "stop", [Span(0, len(tokens), "a:1")], experts=said)

    # A prompt of two tokens: 2 + 2 − 1 at first, then all four are the prompt of the rest.
    whole = joined(sample([5, 6], experts(1, 2, 3)), sample([7], experts(11, 12, 13, 14)))
    assert whole.experts is not None
    assert whole.experts.tolist() == experts(1, 2, 3, 14).tolist()


def test_dropped_tokens_lose_their_routing() -> None:
    # The prompt has two tokens. Three were sampled, and two are kept. Then a result and an answer
    # follow.
    ids, logprobs = np.array([5, 6, 7], np.int32), np.zeros(3, np.float32)
    whole = Sample(ids, logprobs, "stop", [Span(0, 3, "a:1")], experts=experts(1, 2, 3, 4))
    kept = begun_by(whole, 2)
    assert kept.experts is not None
    assert kept.experts.tolist() == experts(1, 2, 3).tolist()
    shown = joined(kept, not_sampled([8], "stop"))
    assert shown.experts is not None
    assert shown.experts.tolist() == experts(1, 2, 3).tolist()
    one = Sample(
        ids[:1], logprobs[:1], "stop", [Span(0, 1, "a:2")], experts=experts(9, 9, 9, 14, 15)
    )
    answered = joined(shown, one)
    assert answered.experts is not None
    assert answered.experts.tolist() == experts(1, 2, 3, 14, 15).tolist()


def test_a_group_holds_the_prompts_routing_once() -> None:
    # A prompt of two. Answers of three, one and two tokens, whose last tokens have not been through
    # a layer. After the last answer an episode added two tokens.
    found = [experts(1, 2, 3, 4), experts(1, 2), experts(1, 2, 5)]
    whole, routed = gathered(2, [3, 1, 4], found)
    assert whole.tolist() == experts(1, 2, 3, 4, 5).tolist()
    assert routed.tolist() == [2, 0, 1]


@pytest.mark.parametrize("lacking", [None, experts(1)])
def test_an_answer_without_routing_is_not_sent(lacking: np.ndarray | None) -> None:
    with pytest.raises(MissingRouting, match=r"router\.replay .* episode type hand on"):
        gathered(2, [1, 1], [experts(1, 2), lacking])


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}, 384),
        ({"num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2}, 64),
        (
            {
                "text_config": {
                    "num_hidden_layers": 10,
                    "num_experts": 512,
                    "num_experts_per_tok": 10,
                }
            },
            200,
        ),
        ({"num_hidden_layers": 2, "n_routed_experts": 384, "num_experts_per_tok": 8}, 32),
    ],
    ids=["Qwen3-30B-A3B", "Mixtral-8x7B", "more experts than a byte names", "by another name"],
)
def test_routing_bytes_follow_the_models_config(
    config: dict[str, object], size: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bytes_per_token(tmp_path) == size


def test_only_arrays_of_numbers_are_ever_read() -> None:
    with pytest.raises(ValueError, match="OBJECT array"):
        decoded(memoryview(as_vllm_says_it(np.array([{}], dtype=object))))
