"""`format`, `xml_format`, `length`, `repetition` and `language` by value."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reward.verifiers.base import Item
from reward.verifiers.text.answer_tags import has_form
from reward.verifiers.text.parts import Part, part_of
from tests.unit.reward.scoring import score

GOOD = "<think>\n2 + 2\n</think>\n<answer>\n4\n</answer>"


@pytest.mark.parametrize(
    ("completion", "status", "pattern", "tags"),
    [
        (GOOD, "correct", 0.5, 1.0),
        (GOOD + "\n", "correct", 0.5, 1.0),
        (GOOD.replace("</think>\n", "</think>\n\n"), "correct", 0.5, 1.0),
        (GOOD + "\n\n", "partial", 0.0, 1.0),
        (GOOD.replace("\n", ""), "partial", 0.0, 1.0),
        (GOOD.replace("4\n", ""), "partial", 0.0, 1.0),
        ("Well: " + GOOD, "partial", 0.0, 1.0),
        (GOOD + " done", "partial", 0.0, 1.0),
        (GOOD.replace("2 + 2", "<think>"), "partial", 0.5, 0.75),
        (GOOD + GOOD, "partial", 0.5, 0.0),
        ("<think>\nhm\n</think>\n4", "partial", 0.0, 0.5),
        ("<answer>4", "partial", 0.0, 0.25),
        ("4", "wrong", 0.0, 0.0),
        ("", "wrong", 0.0, 0.0),
    ],
)
def test_format_rewards_the_whole_form_and_each_tag(
    completion: str, status: str, pattern: float, tags: float
) -> None:
    verdict = score("format", completion)

    assert (verdict.status, verdict.reward) == (status, pattern + tags)
    assert verdict.components == {"pattern": pattern, "tags": tags}


def test_format_counts_what_the_chat_template_has_written() -> None:
    rest = GOOD.removeprefix("<think>\n")

    assert score("format", rest).reward == 0.75
    assert score("format", rest, prefill="<think>\n").reward == 1.5
    elements = "hm</think><answer>4</answer>"
    assert score("xml_format", elements, prefill="<think>").reward == 1.0


def test_format_rewards_can_be_set() -> None:
    assert score("format", GOOD, pattern_reward=1, tag_reward=0).reward == 1.0


PIECES = [
    "<think>\n",
    "\n</think>",
    "\n",
    "\n<answer>\n",
    "\n</answer>",
    "x",
    "</think>",
    "</answer>",
]
MINIMIND = (
    r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$",
    r"^<think>\n.*?\n</think>\n\n<answer>\n.*?\n</answer>$",
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_form_is_what_minimind_matches(text: str) -> None:
    expected = any(re.match(pattern, text, re.DOTALL) for pattern in MINIMIND)

    assert has_form(text) is expected


def test_the_form_of_a_megabyte_of_middles_takes_linear_time() -> None:
    # Quadratic time here would be 10^11 steps: the test's own time limit catches it.
    assert not has_form("<think>\n" + "\n</think>\n<answer>\n" * 50_000)


@pytest.mark.parametrize(
    ("completion", "status", "reward"),
    [
        ("<think>a</think><answer>b</answer>", "correct", 1.0),
        (" <think>a</think>\n\n<answer>b</answer>\n", "correct", 1.0),
        # All elements are there: half of the reward. The rest is for nothing outside, in order.
        ("Hm <think>a</think><answer>b</answer>", "partial", 0.5),
        ("<answer>b</answer><think>a</think>", "partial", 0.5),
        ("<think><answer>b</answer></think>", "partial", 0.5),
        # One element of two: a quarter.
        ("<think>a</think>", "partial", 0.25),
        ("</think>a<think><answer>b</answer>", "partial", 0.25),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "partial", 0.25),
        ("b", "wrong", 0.0),
    ],
)
def test_xml_format_scores_elements_that_are_there_once_in_order(
    completion: str, status: str, reward: float
) -> None:
    verdict = score("xml_format", completion)

    assert (verdict.status, verdict.reward) == (status, reward), verdict.detail


def test_xml_format_takes_other_tags() -> None:
    params = {"tags": ["plan", "code", "test"], "whole_share": 0.25}

    assert score("xml_format", "<plan>a</plan><code>b</code>", **params).reward == 0.5  # .75 · 2/3
    with pytest.raises(ValidationError, match="no name of a tag"):
        score("xml_format", "", tags=["a b"])
    with pytest.raises(ValidationError, match="twice"):
        score("xml_format", "", tags=["a", "a"])


def thinking(completion: str, prefill: str = "") -> Item:
    return Item("length", "", completion, None, {}, prefill=prefill)


@pytest.mark.parametrize(
    ("part", "expected"),
    [("whole", "<think> a </think> b <answer>c</answer>"), ("thinking", "a"), ("answer", "c")],
)
def test_a_completion_is_split_into_thinking_and_answer(part: Part, expected: str) -> None:
    assert part_of(thinking(" <think> a </think> b <answer>c</answer>"), part) == expected


def test_text_without_the_marks_of_thinking_is_all_answer() -> None:
    assert part_of(thinking("b"), "thinking") is None
    assert part_of(thinking(" b "), "answer") == "b"
    assert part_of(thinking("a</think> b"), "thinking") == "a"
    assert part_of(thinking("a</think> b"), "answer") == "b"


@pytest.mark.parametrize("begun", [("<think>", ""), ("", "<think>\n")])
def test_a_cut_off_thought_is_neither_thinking_nor_answer(begun: tuple[str, str]) -> None:
    written, prefill = begun
    cut = thinking(f"{written}a <answer>b</answer>", prefill)

    assert part_of(cut, "thinking") is None
    assert part_of(cut, "answer") is None


MINIMIND_LENGTH = {"minimum": 20, "maximum": 800, "within": 0.5, "outside": -0.5}


@pytest.mark.parametrize(
    ("length", "reward"), [(0, -0.5), (19, -0.5), (20, 0.5), (800, 0.5), (801, -0.5)]
)
def test_length_is_rewarded_as_in_minimind(length: int, reward: float) -> None:
    verdict = score("length", " " + "x" * length + "\n", **MINIMIND_LENGTH)

    assert (verdict.status, verdict.reward) == ("scored", reward)


def test_length_of_thinking_is_rewarded_as_in_minimind() -> None:
    params = {"part": "thinking", "minimum": 20, "maximum": 300, "within": 1.0, "outside": -0.5}

    assert score("length", "<think>" + "x" * 20 + "</think>4", **params).reward == 1.0
    assert score("length", "hm</think>4", **params).reward == -0.5
    assert score("length", "4", **params).reward == 0.0


@pytest.mark.parametrize(("words", "reward"), [(10, 0.0), (11, -0.25), (14, -1.0), (99, -1.0)])
def test_length_falls_with_a_slope_outside_the_range(words: int, reward: float) -> None:
    verdict = score("length", "word " * words, unit="words", maximum=10, slope=4)

    assert verdict.reward == reward


def test_length_needs_a_range() -> None:
    with pytest.raises(ValidationError, match="below minimum"):
        score("length", "", minimum=2, maximum=1)


SAID_AGAIN = [
    "good day to you ",
    "你好",
    "好",
    "你好。",
    "你好 world ",
    "今天天气很好，我们去公园吧！",
    "ありがとう",
    "カタカナで書く。",
    "감사합니다 ",
    "สวัสดีครับ",
    "ค่ะ",
    "ສະບາຍດີ",
    "မင်္ဂလာပါ",
    "Привет мир. ",
    "مرحبا ",
    "नमस्ते ",
    "hahahahahaha",
    "🙂",
]


@pytest.mark.parametrize(
    ("completion", "params", "reward"),
    [
        ("", {}, 0.0),
        ("a b", {}, 0.0),
        ("a b c d", {}, 0.0),
        # Trigrams abc bca cab abc: one of four again; 2 · 0.5 · 1/4.
        ("a b c a b c", {}, -0.25),
        # The trigrams of "a b , c a b , c" repeat "a b ," and "b , c": two of six.
        ("A b, C a B, c", {}, -1 / 3),
        # aaa three times: two of three again; 2/3, but at most 0.5.
        ("a a a a a", {}, -0.5),
        ("a a a a a", {"penalty": 2}, -2.0),
        ("a b a b", {"ngram": 1}, -0.5),
        # Bigrams ab ba ab: one of three.
        ("abab", {"unit": "characters", "ngram": 2}, -1 / 3),
        ("a b c a b c</think> fine", {}, 0.0),
        # The same text five times, in any script, with spaces or without, costs as much.
        *((text * 5, {}, -0.5) for text in SAID_AGAIN),
        # Five pairs of characters, a comma and the pairs again: three of nine trigrams.
        ("今天天气很好，今天天气很好", {}, -1 / 3),
        ("今天天气很好", {}, 0.0),
        ("我们先把两边同时乘以三，再移项，就得到答案是十二。", {}, 0.0),
        ("สวัสดีตอนเช้าทุกคน", {}, 0.0),
        ("नमस्ते दुनिया यह ठीक है", {}, 0.0),
        ("Donaudampfschifffahrtsgesellschaft", {}, 0.0),
        ("1" * 60, {}, 0.0),
        ("abcabcabcabcabcabc", {}, -0.5),
        ("hahaha, so bananas", {}, 0.0),
        # No answer: of < think > a b c a b c one of seven trigrams.
        ("<think>a b c a b c", {}, -1 / 7),
        ("a b c a b c</think> fine", {"part": "thinking"}, -0.25),
    ],
)
def test_repeated_ngrams_are_penalized(
    completion: str, params: dict[str, object], reward: float
) -> None:
    verdict = score("repetition", completion, **params)

    assert verdict.status == "scored"
    assert verdict.reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("completion", "script", "reward"),
    [
        ("Hello, world 123!", "latin", 1.0),
        ("Größe", "latin", 1.0),
        ("你好 ab", "chinese", 0.5),
        ("你好 ab", "latin", 0.5),
        ("Привет", "cyrillic", 1.0),
        ("カタひら漢字", "japanese", 1.0),
        ("カタ漢字", "chinese", 0.5),
        ("안녕", "korean", 1.0),
        ("你好 $x + y$ \\(z\\) \\[w\\] ```\nprint(1)\n``` 吗", "chinese", 1.0),
    ],
)
def test_language_is_the_share_of_letters_of_a_script(
    completion: str, script: str, reward: float
) -> None:
    verdict = score("language", completion, script=script)

    assert (verdict.status, verdict.reward) == ("scored", reward)


def test_language_with_a_minimum_is_all_or_nothing() -> None:
    assert score("language", "你好吗 a", script="chinese", minimum=0.75).reward == 1.0
    assert score("language", "你好 ab", script="chinese", minimum=0.75).reward == 0.0


def test_text_without_letters_has_no_language() -> None:
    verdict = score("language", "123", script="latin")

    assert (verdict.status, verdict.reward) == ("no_answer", 0.0)
