"""Building requests to vLLM, and parsing its answers."""

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from rollout.vllm.client.response import (
    MalformedAnswer,
    Span,
    parse_answer,
    request_body,
    sampling_params,
)
from rollout.vllm_plugin import wire
from services.contracts.config.rollout import Sampling


def choice(index=0, tokens=(5, 6), logprobs=(-0.5, -1.25), spans=((0, 2, "a:1"),), **more):
    given = {
        "index": index,
        "finish_reason": "stop",
        "token_ids": wire.ids(tokens),
        "logprobs": wire.logprobs(logprobs),
        "versions": [(v, s, e) for s, e, v in spans],
    }
    return wire.Choice(**given | more)


def answer(*choices) -> bytes:
    return msgspec.msgpack.encode(wire.GenerateAnswer(list(choices)))


def test_samples_come_in_index_order_with_tokens_logprobs_and_spans():
    second = choice(1, (7,), (-2.0,), ((0, 1, "a:2"),), finish_reason="length")
    samples = parse_answer(answer(second, choice(0)))

    assert [s.token_ids.tolist() for s in samples] == [[5, 6], [7]]
    assert samples[0].logprobs.dtype == np.float32
    assert samples[0].logprobs.tolist() == [-0.5, -1.25]
    assert [s.finish_reason for s in samples] == ["stop", "length"]
    assert samples[1].spans == [Span(0, 1, "a:2")]


def test_a_sample_over_two_versions_keeps_both_spans():
    spans = ((0, 2, "a:1"), (2, 3, "a:2"))
    (sample,) = parse_answer(answer(choice(tokens=(1, 2, 3), logprobs=(-1, -1, -1), spans=spans)))
    assert sample.spans == [Span(0, 2, "a:1"), Span(2, 3, "a:2")]


@pytest.mark.parametrize(
    "spans",
    [
        (),
        ((0, 1, "a:1"),),
        ((1, 2, "a:1"),),
        ((0, 1, "a:1"), (0, 2, "a:2")),
        ((0, 2, "a:1"), (2, 2, "a:2")),
        ((0, 3, "a:1"),),
    ],
)
def test_spans_that_leave_a_token_without_one_version_are_refused(spans):
    with pytest.raises(MalformedAnswer, match="do not cover the 2 sampled tokens"):
        parse_answer(answer(choice(spans=spans)))


def test_tokens_without_logprobs_are_refused():
    with pytest.raises(MalformedAnswer, match="sample 0 has 2 tokens and 1 log-probabilities"):
        parse_answer(answer(choice(logprobs=(-0.5,))))


def test_half_a_number_is_refused():
    with pytest.raises(MalformedAnswer, match="sample 0: 7 bytes are no int32 array"):
        parse_answer(answer(choice(token_ids=wire.ids((5, 6))[:7])))


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan")])
def test_tokens_without_probability_are_refused(logprob):
    with pytest.raises(MalformedAnswer, match="sample 0 has tokens to which the policy gives no"):
        parse_answer(answer(choice(logprobs=(-0.5, logprob))))


def test_an_unreadable_answer_is_refused():
    with pytest.raises(MalformedAnswer, match="cannot be read"):
        parse_answer(b'{"error": "no"}')


def test_end_of_sequence_and_own_stop_tokens_are_named():
    params = sampling_params(Sampling(stop_token_ids=[9]), eos_token_ids=[1, 2], tokens_left=100)
    assert params["stop_token_ids"] == [1, 2, 9]
    assert params["max_tokens"] == 64


def test_ignoring_end_of_sequence_keeps_own_stop_tokens():
    params = sampling_params(Sampling(ignore_eos=True, stop_token_ids=[9]), [1], 100)
    assert params["stop_token_ids"] == [9]
    assert params["ignore_eos"] is True


def test_a_schema_constrains_each_completion_and_needs_top_k():
    schema = {"type": "object"}
    params = sampling_params(Sampling(json_schema=schema, top_k=50), [1], 100)
    assert params["structured_outputs"] == {"json": schema}
    with pytest.raises(ValidationError, match="set top_k"):
        Sampling(json_schema=schema)
    with pytest.raises(ValidationError, match="ignore_eos"):
        Sampling(json_schema=schema, top_k=50, ignore_eos=True)


def test_a_completion_never_exceeds_the_room_its_prompt_leaves():
    params = sampling_params(Sampling(max_tokens=64), [1], tokens_left=10)
    assert params["max_tokens"] == 10


def test_a_request_asks_for_logprobs_and_keeps_the_prefix_cache_of_versions_apart():
    content = request_body([3, 4], 8, {"temperature": 1.0}, "a:7", "9f")
    body = msgspec.msgpack.decode(content)
    assert body == {
        "id": "9f",
        "model": "policy",
        "token_ids": [3, 4],
        "cache_salt": "a:7",
        "priority": 0,
        "sampling": {"temperature": 1.0, "n": 8, "logprobs": 0, "detokenize": False},
    }
