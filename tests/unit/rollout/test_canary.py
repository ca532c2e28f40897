"""The canary's verdict: which weights vLLM serves, by its log-probabilities of fixed sequences."""

import msgspec
import numpy as np
import pytest

from rollout.vllm.client.canary_request import Unscored, parse_scores
from rollout.vllm.weights.canary_verdict import (
    FLOAT32,
    OTHERWISE,
    VersionScores,
    expected,
    judge,
    limit_for,
)
from rollout.vllm_plugin.wire import LOWEST, GenerateAnswer, logprobs
from services.contracts.canary import Canary, Floats, packed, sequences

LIMIT = 0.01


def values(*numbers: float) -> Floats:
    return np.array(numbers, dtype=np.float32)


def version(
    number: int, expected: Floats, found: Floats | None = None, lineage: str = "a"
) -> VersionScores:
    return VersionScores(f"version {lineage}:{number}", expected, found, lineage)


BEFORE, NOW = values(-1.0, -2.0, -3.0, -4.0), values(-1.5, -2.5, -3.5, -4.5)


def test_the_gap_is_the_mean_absolute_difference() -> None:
    verdict = judge(version(2, NOW, NOW + values(0.002, -0.002, 0.004, 0)), LIMIT, [])
    assert verdict.problem == ""
    assert verdict.gap == pytest.approx(0.002, abs=1e-6)


def test_more_than_the_usual_difference_is_a_problem() -> None:
    verdict = judge(version(2, NOW, NOW + values(0.1, 0, -0.1, 0)), LIMIT, [])
    assert verdict.problem == (
        "they differ by 0.05 nats on average; up to 0.01 is usual (rollout.canary_limit)"
    )


def test_a_token_that_vllm_calls_impossible_counts_for_20_nats() -> None:
    verdict = judge(version(2, NOW, values(-1.5, -2.5, LOWEST, -np.inf)), LIMIT, [])
    assert verdict.gap == 10.0


def test_unchanged_weights_are_found_below_the_usual_difference() -> None:
    # A step of 0.003 nats: within the limit, and far more than vLLM's own difference.
    now, found = BEFORE + np.float32(0.003), BEFORE + values(0.0005, -0.0005, 0, 0)
    verdict = judge(version(2, now, found), LIMIT, [version(1, BEFORE, BEFORE)])
    assert verdict.problem == "they are those of version a:1"
    right = now + values(0.0005, -0.0005, 0, 0)
    assert judge(version(2, now, right), LIMIT, [version(1, BEFORE, BEFORE)]).problem == ""


def test_the_nearest_of_several_versions_is_named() -> None:
    steps = [version(n, BEFORE + np.float32(n / 100)) for n in range(4)]
    late = version(4, BEFORE + np.float32(0.04), BEFORE + np.float32(0.0199))
    assert judge(late, LIMIT, steps).problem == "they are those of version a:2"


def test_a_step_within_rounding_names_no_other_version() -> None:
    # Both are within 0.0002 nats of vLLM's values.
    now = BEFORE + np.float32(0.00015)
    other = version(1, BEFORE, BEFORE + np.float32(1e-6))
    assert judge(version(2, now, BEFORE.copy()), LIMIT, [other]).problem == ""


def test_an_adapter_that_did_not_arrive_is_named() -> None:
    blank = VersionScores("the model without its adapter", BEFORE)
    verdict = judge(version(2, NOW, BEFORE + np.float32(0.001)), 0.6, [blank])
    assert verdict.problem == "they are those of the model without its adapter"


def test_unchanged_scores_are_a_problem_if_the_learners_changed() -> None:
    # In bfloat16 the learner's step is smaller than vLLM's own difference.
    found = BEFORE + values(0.02, -0.03, 0.01, 0.02)
    now = BEFORE + values(0.001, 0.002, -0.001, 0)
    verdict = judge(version(2, now, found.copy()), 0.3, [version(1, BEFORE, found)])
    assert verdict.problem == "they have not changed since version a:1"


def test_equal_scores_are_right_if_the_weights_are_equal() -> None:
    found = BEFORE + values(0.02, -0.03, 0.01, 0.02)
    same = version(1, BEFORE, found)
    assert judge(version(2, BEFORE.copy(), found.copy()), 0.3, [same]).problem == ""
    # Another lineage rounds differently.
    now = BEFORE + values(0.001, 0.002, -0.001, 0.001)
    other_start = version(1, BEFORE, found, lineage="b")
    assert judge(version(2, now, found.copy()), 0.3, [other_start]).problem == ""


def test_the_limit_is_small_only_if_both_sides_compute_in_float32() -> None:
    exact, rounded = (Canary(dtype, 32, 31, b"") for dtype in ("float32", "bfloat16"))
    assert limit_for(exact, "auto", None) == limit_for(exact, "float32", None) == FLOAT32
    assert limit_for(exact, "bfloat16", None) == OTHERWISE
    assert limit_for(rounded, "auto", None) == limit_for(rounded, "float32", None) == OTHERWISE
    assert limit_for(exact, "auto", 0.7) == 0.7


def test_a_deep_model_may_round_more() -> None:
    # log-probabilities of random tokens with a spread of 4 nats, as of a model with sharp logits.
    canary = Canary("bfloat16", 32, 31, packed(values(-14.0, -6.0, -14.0, -6.0)))
    # 5 / 256 · 4 · √layers
    assert limit_for(canary, "auto", None, (), 36) == pytest.approx(0.46875)
    assert limit_for(canary, "auto", None, (), 4) == OTHERWISE
    assert limit_for(canary, "auto", None, [0.05] * 4, 36) == pytest.approx(0.4)
    exact = Canary("float32", 32, 31, canary.logprobs)
    assert limit_for(exact, "auto", None, (), 36) == FLOAT32


def test_after_four_versions_the_limit_is_eight_times_their_median_difference() -> None:
    exact, rounded = (Canary(dtype, 32, 31, b"") for dtype in ("float32", "bfloat16"))
    assert limit_for(rounded, "auto", None, [0.01, 0.01, 0.02]) == OTHERWISE
    assert limit_for(rounded, "auto", None, [0.01, 0.01, 0.01, 0.04]) == pytest.approx(0.08)
    assert limit_for(rounded, "auto", None, [0.1] * 4) == OTHERWISE
    assert limit_for(rounded, "auto", None, [1e-6] * 4) == FLOAT32
    assert limit_for(rounded, "auto", 0.7, [0.01] * 4) == 0.7
    assert limit_for(exact, "auto", None, [1e-6] * 4) == FLOAT32


def answer(*found: float) -> bytes:
    return msgspec.msgpack.encode(GenerateAnswer([], logprobs(found)))


def test_scores_are_those_of_all_tokens_but_the_first() -> None:
    assert parse_scores(answer(-0.5, -1.25), [5, 7, 9]).tolist() == [-0.5, -1.25]


def test_scores_missing_for_a_cached_prefix_count_as_impossible() -> None:
    assert parse_scores(answer(-1.25), [5, 7, 9]).tolist() == [LOWEST, -1.25]
    assert parse_scores(answer(-0.5, np.nan), [5, 7, 9]).tolist() == [-0.5, LOWEST]


def test_an_answer_without_scores_is_refused() -> None:
    for content in (answer(), b"nothing"):
        with pytest.raises(Unscored):
            parse_scores(content, [5, 7])


def test_the_sequences_are_the_same_in_every_process() -> None:
    first, second = sequences(1000, 4095)
    assert (len(first), len(second)) == (136, 32)
    assert first[:4] == [931, 692, 705, 815]
    assert [len(tokens) for tokens in sequences(32, 15)] == [15, 15]
    assert sequences(32, 3) == []


def test_a_canary_of_another_length_than_its_sequences_is_refused() -> None:
    canary = Canary("float32", 32, 15, packed([0.0] * 28))
    assert len(expected(canary)) == sum(len(tokens) - 1 for tokens in sequences(32, 15))
    with pytest.raises(ValueError, match="the canary has 27 values for 28 tokens"):
        expected(Canary("float32", 32, 15, packed([0.0] * 27)))
