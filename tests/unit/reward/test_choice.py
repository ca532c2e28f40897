"""The `choice` verifier by value: completion, reference, and what it is worth."""

import pytest

from reward.verifiers.base import BadReferenceError
from tests.unit.reward.scoring import score

RIGHT = [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B) Paris", "B"),
    ("B. Paris", "(B) Paris"),
    ("**B**", "B"),
    ("$\\boxed{B}$", "B"),
    ("\\boxed{\\text{B}}", "B"),
    ("\\boxed{\\text{(B)}}", "B"),
    ("\\boxed{A} no, I mean: \\boxed{B}", "B"),
    ("The answer is B.", "B"),
    ("The answer is (B).", "B"),
    ("The answer is **B**.", "B"),
    ("The correct answer is option B", "B"),
    ("Answer: B) Paris", "B"),
    ("Answer: b", "B"),
    ("The answer is A.", "A"),
    ("The answer is A because cats purr.", "A"),
    ("The answer is B since A is wrong.", "B"),
    ("<think>A or C?</think><answer>C</answer>", "C"),
    ("<think>So \\boxed{A}? The answer is A.</think>C", "C"),
    ("#### D", "D"),
    ("Paris is in France.\nB", "B"),
    ("So I choose option C here", "C"),
    ("I pick (D) over (C)... no, (C)", "C"),
    ("B", 1),
    ("A", 0),
    ("B", ["A", "B"]),
    ("\\boxed{\\textbf{(B)}\\ 12}", "B"),
    ("\\boxed{\\mathbf{B}}", "B"),
    ("\\boxed{\\mathrm{(B)}}", "B"),
    ("\\boxed{B\\text{: Paris}}", "B"),
    ("\u56e0\u6b64\u9009\u62e9 B\u3002", "B"),
    ("\u7b54\u6848\u662fB\u3002", "B"),
    ("\u7b54\u6848\uff1a\uff08B\uff09", "B"),
    ("\u6545\u9009B", "B"),
    ("\u041e\u0442\u0432\u0435\u0442: B", "B"),
    ("The answer is B, not A.", "B"),
    ("The answer is not A but B.", "B"),
    ("So option B fits, not option A", "B"),
    ("B is correct.", "B"),
]

WRONG = [
    ("A", "B"),
    ("The answer is A.", "B"),
    ("The answer is A or B", "B"),
    ("The answer is A, B, C, D", "A"),
    ("\\boxed{A} and \\boxed{B}", "B"),
    ("\\boxed{B}, \\boxed{C}", "B"),
    ("A or B", ["A", "B"]),
    ("(A)", 1),
    ("Z", "B"),
    ("\\boxed{\\mathbf{C}}", "B"),
    ("\u56e0\u6b64\u9009\u62e9 C\u3002", "B"),
    ("The answer is B, not A.", "A"),
    ("The answer is not A but B.", "A"),
    ("The answer is not B.", "B"),
    ("So option B fits, not option A", "A"),
]


@pytest.mark.parametrize(("completion", "answer"), RIGHT)
def test_the_right_letter_is_correct(completion: str, answer: object) -> None:
    verdict = score("choice", completion, answer)

    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


@pytest.mark.parametrize(("completion", "answer"), WRONG)
def test_another_letter_or_several_are_wrong(completion: str, answer: object) -> None:
    verdict = score("choice", completion, answer)

    assert (verdict.status, verdict.reward) == ("wrong", 0.0), verdict.detail


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
def test_words_are_no_letters(completion: str, status: str) -> None:
    verdict = score("choice", completion, "A")

    assert (verdict.status, verdict.reward) == (status, 0.0), verdict.detail


def test_extract_marked_ignores_a_letter_that_nothing_marks() -> None:
    assert score("choice", "B", "B", extract="marked").status == "no_answer"
    assert score("choice", "Answer: B", "B", extract="marked").status == "correct"


@pytest.mark.parametrize("answer", [None, True, [], "", "Paris", "E", 4, -1, 1.0, "A or B", {}])
def test_a_reference_that_is_none_of_four_choices_is_refused(answer: object) -> None:
    with pytest.raises(BadReferenceError):
        score("choice", "A", answer, choices=4)
