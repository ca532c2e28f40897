"""The verifiers of IFEval and Countdown: every instruction both ways, every refusal."""

from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.tasks.instructions import INSTRUCTIONS, sentences
from services.contracts.scores import ScoreStatus
from tests.unit.reward.scoring import score

EXAMPLES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["Kiwi", "a+b"]}, "a kiwi, a+b", "a kiwi, aab"),
    ("keywords:frequency", {"keyword": "so", "frequency": 2}, "so so", "so"),
    (
        "keywords:frequency",
        {"keyword": "so", "frequency": 2, "relation": "less than"},
        "so",
        "So so",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "a Cat"),
    ("keywords:letter_frequency", {"letter": "A", "let_frequency": 3}, "banana", "ban"),
    (
        "keywords:letter_frequency",
        {"letter": "!", "let_frequency": 2, "let_relation": "less than"},
        "yes!",
        "yes!!",
    ),
    (
        "language:response_language",
        {"language": "de"},
        "Das ist ein schönes Haus mit einem Garten.",
        "This is a beautiful house with a garden.",
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2}, "One. Two.", "Dr. A. One."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***a***b***", "a***   ***b"),
    ("length_constraints:number_words", {"num_words": 3}, "one two three", "one two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Well"},
        "a\n\n'well, b",
        "well\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a] b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np. s. b", "a\nPS b"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "P.P.S b", "P.S. b"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* *b*", "*a* **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>\ntext"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it twice", "it"),
    ("startend:end_checker", {"end_phrase": "The End"}, 'x "the end"', "the end."),
    ("startend:quotation", {}, ' "a" ', '"a'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2}, "A-B is OK", "A-B is"),
    (
        "change_case:english_capital",
        {},
        "THIS IS A VERY GOOD HOUSE WITH A GARDEN",
        "This is a very good house with a garden",
    ),
    (
        "change_case:english_lowercase",
        {},
        "this is a very good house with a garden",
        "das ist ein sehr gutes haus mit einem garten",
    ),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]


def row(*instructions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "instruction_id_list": [name for name, _ in instructions],
        "kwargs": [arguments for _, arguments in instructions],
    }


@pytest.mark.parametrize(("name", "arguments", "follows", "misses"), EXAMPLES)
def test_each_instruction_is_checked_by_the_authors_rule(
    name: str, arguments: dict[str, Any], follows: str, misses: str
) -> None:
    reference = row((name, arguments))

    assert score("ifeval", follows, reference).status is ScoreStatus.CORRECT
    missed = score("ifeval", misses, reference)
    assert (missed.status, missed.reward) == (ScoreStatus.WRONG, 0)
    assert name in missed.detail


def test_every_instruction_has_an_example() -> None:
    assert {name for name, *_ in EXAMPLES} == set(INSTRUCTIONS)


def test_all_instructions_count_or_each_its_share() -> None:
    reference = row(("punctuation:no_comma", {}), ("startend:quotation", {}))

    assert score("ifeval", "a b", reference).reward == 0
    assert score("ifeval", "a b", reference, credit="fraction").reward == 0.5
    assert score("ifeval", "a, b", reference, credit="fraction").status is ScoreStatus.WRONG


def test_the_loose_mode_also_reads_the_answer_without_its_first_line() -> None:
    reference = row(("startend:quotation", {}))
    text = 'Sure, here it is:\n"**a**"'

    assert score("ifeval", text, reference).reward == 0
    assert score("ifeval", text, reference, mode="loose").reward == 1


def test_thoughts_are_left_out_of_the_answer() -> None:
    reference = row(("punctuation:no_comma", {}))

    assert score("ifeval", "well, so</think>yes", reference).reward == 1
    assert score("ifeval", "well</think> ", reference).status is ScoreStatus.NO_ANSWER


def test_arguments_of_parquet_are_read_past_nulls_and_floats() -> None:
    kwargs = {"num_words": 2.0, "relation": "less than", "keywords": None}

    assert score("ifeval", "one", row(("length_constraints:number_words", kwargs))).reward == 1


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (None, "no list instruction_id_list"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "no list of 1 objects"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["{}"]}, "of 1 objects"),
        (row(("punctuation:no_commas", {})), "did you mean 'punctuation:no_comma'"),
        (row(("keywords:existence", {"keywords": "a"})), "needs keywords, of type list"),
    ],
)
def test_a_row_of_another_form_is_a_bad_reference(reference: Any, reason: str) -> None:
    with pytest.raises(BadReferenceError, match=reason):
        score("ifeval", "x", reference)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two! Three?", 3),
        ("Mr. X. Y came. He left.", 2),
        ("3.5 is it.", 1),
    ],
)
def test_sentences_end_at_their_marks_but_not_after_abbreviations(text: str, count: int) -> None:
    assert sentences(text) == count


@pytest.mark.parametrize("sign", ["[", "<<", "\n", "*", "-", "."])
def test_many_signs_take_linear_time(sign: str) -> None:
    # With a pattern of quadratic time each takes ten seconds: the test's time limit catches it.
    for name, arguments, *_ in EXAMPLES:
        if not name.startswith("language"):
            INSTRUCTIONS[name].follows(sign * 60_000, arguments)


PUZZLE = {"nums": [44, 19, 35], "target": 98}


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("<answer>44 + 19 + 35</answer>", ScoreStatus.CORRECT),
        ("<answer>(44+19)+35 = 98</answer>", ScoreStatus.CORRECT),
        ("<answer>98 = (44+19)+35</answer>", ScoreStatus.CORRECT),
        ("The answer is 44 + 19 + 35, which is 98.", ScoreStatus.CORRECT),
        ("#### 44 + 19 + 35 (all of them)", ScoreStatus.CORRECT),
        ("so $\\boxed{44 + 19 + 35 = 98}$", ScoreStatus.CORRECT),
        ("**44 + 19 + 35**", ScoreStatus.CORRECT),
        ("\u7b54\u6848\uff1a\uff14\uff14\uff0b\uff11\uff19\uff0b\uff13\uff15", ScoreStatus.CORRECT),
        ("<answer>44 + 19 + 35 - 98 + 98</answer>", ScoreStatus.WRONG),
        ("So the equation is: 44 + 19 + 35 = 98", ScoreStatus.CORRECT),
        ("<answer>{44+19}+[35]</answer>", ScoreStatus.CORRECT),
        ("<answer>98 = 98</answer>", ScoreStatus.WRONG),
        ("so \\boxed{44 + 19 + 35}", ScoreStatus.CORRECT),
        ("I add them\n35 + 44 + 19", ScoreStatus.CORRECT),
        ("<answer>44 + 54</answer>", ScoreStatus.WRONG),
        ("<answer>44 + 19 + 35 + 35 - 35</answer>", ScoreStatus.WRONG),
        ("<answer>44 + 35 - 19</answer>", ScoreStatus.WRONG),
        ("<answer>44 / (19 - 19) + 35</answer>", ScoreStatus.WRONG),
        ("<answer>44 ** 19</answer>", ScoreStatus.UNPARSABLE),
        ("<answer>__import__('os')</answer>", ScoreStatus.UNPARSABLE),
        ("<answer>44 + </answer>", ScoreStatus.UNPARSABLE),
        ("<answer>" + "(" * 900 + "1" + ")" * 90 + "</answer>", ScoreStatus.UNPARSABLE),
        ("<answer>" + "1" * 5000 + "</answer>", ScoreStatus.UNPARSABLE),
        ("", ScoreStatus.NO_ANSWER),
    ],
)
def test_an_equation_has_to_use_each_number_once_and_reach_the_target(
    completion: str, status: ScoreStatus
) -> None:
    assert score("countdown", completion, PUZZLE).status is status


@pytest.mark.parametrize(
    "equation",
    ["6 \\div (1 - 3 \u00f7 4)", "6:(1-3:4)", "\\frac{6}{1-\\frac{3}{4}}", "6/(1\u20133/4) = 24"],
)
def test_fractions_are_exact_and_signs_of_latex_are_read(equation: str) -> None:
    puzzle = {"nums": [1, 3, 4, 6], "target": 24}

    assert score("countdown", f"<answer>{equation}</answer>", puzzle).reward == 1


@pytest.mark.parametrize(
    "reference", [None, {"nums": [], "target": 1}, {"nums": [1], "target": "2"}]
)
def test_a_row_without_a_puzzle_is_a_bad_reference(reference: Any) -> None:
    with pytest.raises(BadReferenceError, match="of the row is"):
        score("countdown", "1", reference)
