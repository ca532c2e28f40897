"""The calculator episode: the calls that it finds, the results that it inserts, and the tokens that
train."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rollout.episodes import Completion, UnusableEpisode, load_episode
from rollout.episodes.arithmetic import calculate
from rollout.vllm.client.response import Sample, Span
from services.contracts.config.episodes import Calculator
from services.contracts.rows.dataset import Row
from tests.unit.rollout.episodes import NO_REWARDS, Told, WordTokenizer, ids, sample

PROMPT = [7, 8]
MARKERS = Calculator(type="calculator", start="[", end="]", output_start="{", output_end="}")


def finished(sampler: Told, config: Calculator = MARKERS) -> list[Completion]:
    episode = load_episode(config, WordTokenizer(), {}, NO_REWARDS)
    return asyncio.run(episode.run(Row(prompt="", answer=""), PROMPT, 1, sampler))


def one(begun: Sample, *more: Sample, room: int = 99) -> tuple[Completion, Told]:
    sampler = Told([begun], {0: list(more)}, room)
    (completion,) = finished(sampler)
    return completion, sampler


def words(completion: Completion) -> str:
    return WordTokenizer().decode(completion.token_ids)


def test_the_result_follows_the_call_and_does_not_train() -> None:
    call, rest = sample(["so ", "[", "2", "+", "3", "]"]), sample([" is ", "5", "<eos>"])

    completion, sampler = one(call, rest)

    assert words(completion) == "so [2+3]{5} is 5<eos>"
    assert completion.loss_mask.tolist() == [True] * 6 + [False] * 3 + [True] * 3
    assert completion.logprobs.tolist() == [-0.5] * 6 + [0.0] * 3 + [-0.5] * 3
    assert completion.finish_reason == "stop"
    # It continues from the prompt and the 9 tokens so far.
    asked = [*PROMPT, *ids("so ", "[", "2", "+", "3", "]", "{", "5", "}")]
    assert sampler.asked == [(PROMPT, 1, "]", 0, 0), (asked, 1, "]", 0, 9)]


def test_the_result_belongs_to_no_version() -> None:
    completion, _ = one(sample(["[", "2", "]"]), sample(["so ", "<eos>"]))
    assert completion.spans == [Span(0, 3, "a:1"), Span(6, 8, "a:1")]


def test_versions_of_each_turn_are_kept() -> None:
    completion, _ = one(sample(["[", "2", "]"]), sample(["<eos>"], version="a:2"))
    assert completion.spans == [Span(0, 3, "a:1"), Span(6, 7, "a:2")]


def test_each_token_keeps_the_routing_that_its_successor_was_sampled_with() -> None:
    # One layer, one expert a token. The prompt has two tokens and the call three; all but the last
    # went through the layer. A result of three and a last token follow.
    call = replace(sample(["[", "2", "]"]), experts=np.full((4, 1, 1), 1, np.uint8))
    rest = replace(sample(["<eos>"]), experts=np.full((8, 1, 1), 2, np.uint8))
    completion, _ = one(call, rest)
    assert len(completion.token_ids) == 7
    assert completion.experts is not None
    assert completion.experts.flatten().tolist() == [1] * 4 + [2] * 4


def test_verifiers_read_markers_and_results_but_no_end_of_sequence() -> None:
    completion, _ = one(sample(["[", "4", "/", "2", "]"]), sample([" is ", "2", "<eos>"]))
    assert completion.text == "[4/2]{2.0} is 2"


def test_an_answer_may_call_more_than_once() -> None:
    second = sample(["[", "5", "*", "2", "]"])
    completion, _ = one(sample(["[", "2", "+", "3", "]"]), second, sample(["<eos>"]))
    assert words(completion) == "[2+3]{5}[5*2]{10}<eos>"


def test_a_token_that_holds_the_end_of_a_call_and_more_stays_as_it_was_sampled() -> None:
    completion, _ = one(sample(["[", "2", "] ok"]), sample(["<eos>"]))
    assert words(completion) == "[2] ok{2}<eos>"
    assert completion.loss_mask.tolist() == [True] * 3 + [False] * 3 + [True]


def test_a_token_may_end_one_call_and_begin_the_next() -> None:
    # The first call has no value, so the second begins in the same sampled tokens.
    completion, _ = one(sample(["[", "+", "]["]), sample(["2", "]"]), sample(["<eos>"]))
    assert words(completion) == "[+][2]{2}<eos>"


def test_tokens_sampled_after_a_call_without_its_result_are_dropped() -> None:
    """vLLM resumes a request that was interrupted within the marker."""
    late = sample(["[", "2", "]", "so ", "9", "<eos>"])
    completion, sampler = one(late, sample([" is ", "2", "<eos>"]))
    assert words(completion) == "[2]{2} is 2<eos>"
    assert completion.spans == [Span(0, 3, "a:1"), Span(6, 9, "a:1")]
    assert sampler.asked[1][4] == 6


@pytest.mark.parametrize(
    "call",
    [["[", "2", "/", "0", "]"], ["[", "]"], ["so ", "]"], ["[", "2", "*", "*", "2", "]"]],
    ids=["no value", "nothing to work out", "no call had begun", "a power"],
)
def test_an_expression_without_a_value_gets_no_output_and_the_answer_goes_on(
    call: list[str],
) -> None:
    completion, sampler = one(sample(call), sample(["so ", "<eos>"]))
    assert words(completion) == "".join(call) + "so <eos>"
    assert completion.loss_mask.all()
    assert completion.spans == [Span(0, len(call) + 2, "a:1")]
    assert sampler.asked[1][4] == len(call)


def test_calls_beyond_the_limit_get_no_output() -> None:
    once = MARKERS.model_copy(update={"max_calls": 1})
    sampler = Told([sample(["[", "2", "]"])], {0: [sample(["[", "3", "]"]), sample(["<eos>"])]})
    (completion,) = finished(sampler, once)
    assert words(completion) == "[2]{2}[3]<eos>"


def test_only_the_text_since_the_last_result_is_searched() -> None:
    # The call's output looks like a call, too, and the policy ends it.
    same = MARKERS.model_copy(update={"output_start": "[", "output_end": ""})
    sampler = Told([sample(["[", "2", "]"])], {0: [sample(["]"]), sample(["<eos>"])]})
    (completion,) = finished(sampler, same)
    assert words(completion) == "[2][2]<eos>"


def test_the_result_counts_to_the_length() -> None:
    # 5 tokens: 3 sampled, and 2 of the result's 3.
    completion, sampler = one(sample(["[", "4", "]"]), sample([], "length"), room=5)
    assert words(completion) == "[4]{4"
    assert completion.finish_reason == "length"
    assert sampler.asked[1][4] == 5


def test_an_answer_that_is_truncated_after_a_call_ends_there() -> None:
    completion, _ = one(sample(["[", "4", "]"]), sample([], "deadline"))
    assert (words(completion), completion.finish_reason) == ("[4]{4}", "deadline")
    completion, _ = one(sample(["[", "4"], "deadline"))
    assert (words(completion), completion.finish_reason) == ("[4", "deadline")


def test_each_answer_of_a_prompt_continues_alone() -> None:
    begun = [sample(["so ", "<eos>"]), sample(["[", "2", "]"]), sample(["[", "3", "]"])]
    sampler = Told(begun, {1: [sample(["<eos>"])], 2: [sample(["so ", "<eos>"])]})
    completions = finished(sampler)
    assert [words(c) for c in completions] == ["so <eos>", "[2]{2}<eos>", "[3]{3}so <eos>"]
    assert sorted(asked[3] for asked in sampler.asked[1:]) == [1, 2]


def test_a_marker_that_the_tokenizer_cannot_encode_is_refused() -> None:
    class WithoutBrackets(WordTokenizer):
        def decode(self, token_ids: object, **options: object) -> str:
            return super().decode(token_ids).replace("[", "?")

    with pytest.raises(UnusableEpisode, match=r"rollout.episode.start '\[' is '\?' to the model's"):
        load_episode(MARKERS, WithoutBrackets(), {}, NO_REWARDS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", "14"),
        ("(2 + 3) * 4", "20"),
        ("10/4", "2.5"),
        ("7//2", "3"),
        ("-(3)", "-3"),
        ("1,000*2", "2000"),
        (" .5+1 ", "1.5"),
        ("'strawberry'.count('r')", "3"),
        ("2**3", None),
        ("1/0", None),
        ("", None),
        ("()", None),
        ("3(4)", None),
        ("007", None),
        ("'a'*9", None),
        ("'a'.upper()", None),
        ("'a'.count(1)", None),
        ("().__class__", None),
        ("__import__('os').getpid()", None),
        ("[2 for x in 3]", None),
        ("True+1", None),
        ("1e308*10", None),
        ("9" * 257, None),
        ("(" * 256, None),
    ],
)
def test_the_calculator_knows_arithmetic_and_count_alone(text: str, value: str | None) -> None:
    assert calculate(text) == value


def test_the_longest_expression_takes_no_time() -> None:
    assert calculate("9" * 128 + "*" + "9" * 127) == str((10**128 - 1) * (10**127 - 1))
    assert calculate("-" * 255 + "1") == "-1"
