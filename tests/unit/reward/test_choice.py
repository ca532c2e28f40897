"""The `choice` verifier by value: completion, reference and reward."""

import pytest

from reward.verifiers.base import BadReferenceError
from tests.unit.reward.scoring import score

OF_OTHER_KINDS = [
    ("B", 1, "correct"),
    ("A", 0, "correct"),
    ("B", ["A", "B"], "correct"),
    ("A or B", ["A", "B"], "wrong"),
    ("(A)", 1, "wrong"),
]

REFUSED = [
    "It can't be B.",
    "We eliminate B.",
    "Option B can be eliminated.",
    "Eliminate option B.",
    "Rule out option B",
    "So it can't be option B.",
    "Option B is ruled out",
    "Not B",
    "B is not correct",
    "B isn't right",
    "B cannot be right",
    "B can't be the answer",
    "I would not choose B",
    "I don't pick B",
    "Do not choose option B",
    "Neither A nor B",
    "All but B",
    "Everything except B",
    "B is out",
    "B fails",
    "B doesn't work",
    "Exclude B",
    "Discard B",
    "(B) is incorrect",
    "B would be wrong.",
    "B: wrong",
    "The answer is unlikely to be B",
    "It's not B",
    "It is not B",
    "Between B and C, B is worse",
    "Eliminate A, B and D.",
    "Eliminate B",
    "B should be eliminated",
    "B must be false",
    "B? No.",
    "The incorrect option is B",
    "The wrong answer is B",
    "The least likely option is B",
]


@pytest.mark.parametrize("completion", REFUSED)
def test_a_letter_that_the_text_rules_out_is_not_chosen(completion: str) -> None:
    assert score("choice", completion, "B").reward == 0.0


@pytest.mark.parametrize(("completion", "answer", "status"), OF_OTHER_KINDS)
def test_a_reference_may_be_an_index_or_a_list(
    completion: str, answer: object, status: str
) -> None:
    assert score("choice", completion, answer).status == status


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("", "no_answer"),
        ("I do not know", "no_answer"),
        ("<think>The answer is A.</think>", "no_answer"),
        ("A cat sat on the mat", "no_answer"),
        ("\\boxed{}", "no_answer"),
        ("The answer is a cat.", "unparsable"),
        ("The answer is A cat.", "unparsable"),
        ("The answer is I think unclear", "unparsable"),
        ("The answer is Paris", "unparsable"),
        ("\\boxed{7}", "unparsable"),
    ],
)
def test_words_are_not_read_as_letters(completion: str, status: str) -> None:
    verdict = score("choice", completion, "A")

    assert (verdict.status, verdict.reward) == (status, 0.0), verdict.detail


def test_extract_marked_ignores_a_letter_that_nothing_marks() -> None:
    assert score("choice", "B", "B", extract="marked").status == "no_answer"
    assert score("choice", "Answer: B", "B", extract="marked").status == "correct"


@pytest.mark.parametrize("answer", [None, True, [], "", "Paris", "E", 4, -1, 1.0, "A or B", {}])
def test_a_reference_outside_the_four_choices_is_refused(answer: object) -> None:
    with pytest.raises(BadReferenceError):
        score("choice", "A", answer, choices=4)


@pytest.mark.parametrize(
    ("completion", "status"),
    [("So B", "no_answer"), ("It is (B) and then", "no_answer"), ("Answer: B. It is", "correct")],
)
def test_a_truncated_completion_needs_a_marked_letter(completion: str, status: str) -> None:
    assert score("choice", completion, "B", truncated=True).status == status


def test_a_megabyte_of_letters_takes_linear_time() -> None:
    # Quadratic time here would be 10^11 steps: the test's own time limit catches it.
    for piece in ("B, ", "(B ", "not ", "option ", "B" + " " * 3000):
        score("choice", piece * (1_000_000 // len(piece)), "B")
