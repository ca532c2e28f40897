"""The `math` verifier by value: completion, reference, and what it is worth."""

import pytest
from math_verify import parse, verify
from pydantic import ValidationError

from reward.verifiers.base import BadReferenceError, Item, Verdict
from reward.verifiers.math.math_comparison import MathParams
from reward.verifiers.math.math_verifier import MathVerifier

VERIFIER = MathVerifier()

GSM8K = (
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
    "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"
)

EQUAL = [
    # numbers, as models write them
    ("72", "72"),
    (" 46", "46"),
    ("46\n", "46"),
    ("72.", "72"),
    ("72.0", "72"),
    ("$72", "72"),
    ("72 clips", "72"),
    ("-10", "-10"),
    ("1,234", "1234"),
    ("1234", "1,234"),
    ("1 000 000", "1000000"),
    ("5 million", "5000000"),
    ("1e3", "1000"),
    ("48 + 24 = 72", "72"),
    ("First 48/2=24.\nThen 48+24=72", "72"),
    ("So she sold 72 clips in total.", "72"),
    ("so 72", "72"),
    ("It is 72", "72"),
    ("The total cost is $25.50.", "25.5"),
    ("Let me think. 1, 2, 3... It must be 72", "72"),
    # GSM8K rows as they come
    ("72", GSM8K),
    (GSM8K, GSM8K),
    ("#### 72", GSM8K),
    ("She sold 24 in May and 48 in April.\n#### 72", GSM8K),
    ("The answer is 72 clips.", GSM8K),
    ("\\boxed{72}", GSM8K),
    ("#### 1,450,000", "... #### 1,450,000"),
    ("#### -10", "so he lost 10.\n#### -10"),
    # a calculator's calls, as verifiers read them
    ("<|python_start|>27+35<|python_end|><|output_start|>62<|output_end|>62", "62"),
    ("<|python_start|>27+35<|python_end|><|output_start|>62<|output_end|>", "62"),
    ("So it is <|output_start|>62<|output_end|> in all", "62"),
    ("<|output_start|>61<|output_end|>\n#### 62", "62"),
    # marked answers
    ("The answer is 72. I hope it is correct.", "72"),
    ("**Answer:** 72", "72"),
    ("<think>maybe 71</think><answer>72</answer>", "72"),
    ("<think>maybe \\boxed{71}</think><answer>72</answer>", "72"),
    ("<think>maybe \\boxed{71}. The answer is 71.</think>\n\n72", "72"),
    ("72", "<think>maybe \\boxed{71}</think>72"),
    ("$\\boxed{72}$ because 3 + 4 = 7", "72"),
    ("\\boxed{1} was wrong, so \\boxed{72}", "72"),
    ("The answer is 12 + 60 = 72", "72"),
    ("72", "The answer is 72."),
    ("72", "Therefore \\boxed{72}."),
    ("72", 72),
    ("0.5", 0.5),
    # fractions and decimals
    ("0.5", "1/2"),
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\frac12", "1/2"),
    ("3 1/2", "7/2"),
    ("$3\\frac{1}{2}$", "3.5"),
    ("0.3333333", "1/3"),
    ("The answer is $\\frac{3}{4}$ of the cake.", "3/4"),
    ("50%", "50"),
    ("1.5 \\times 10^{3}", "1500"),
    # expressions
    ("\\boxed{2\\sqrt{2}}", "\\sqrt{8}"),
    ("2π", "2\\pi"),
    ("\\boxed{x^2+2x+1}", "(x+1)^2"),
    ("x**2 + 1", "x^2+1"),
    ("$(x-1)(x+1)$", "x^2-1"),
    ("\\boxed{\\frac{a}{b}}", "a/b"),
    ("\\boxed{4!}", "24"),
    # intervals, sets, tuples, matrices, equations, inequalities
    ("\\boxed{[1, 2)}", "[1,2)"),
    ("\\boxed{(-\\infty, 2) \\cup (3, \\infty)}", "(-\\infty,2)\\cup(3,\\infty)"),
    ("\\boxed{2, 1}", "\\{1, 2\\}"),
    ("\\boxed{1} and \\boxed{2}", "1, 2"),
    ("\\boxed{-2} and \\boxed{1}", "1,-2"),
    ("\\boxed{12 $ and $13}", "between $\\boxed{12\\text{ and }13}$"),
    ("\\boxed{5} is half. Final answer: 10", "10"),
    ("\\boxed{5}. The answer is 5 since 2 of 7 remain.", "5"),
    ("\\boxed{12}\nThe final answer is 12 dollars, which is less than 20.", "12"),
    ("\\boxed{(3, 4)}", "(3, 4)"),
    (
        "\\boxed{\\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}}",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    ),
    ("\\boxed{x = 5}", "5"),
    ("5", "x = 5"),
    ("\\boxed{y = 2x + 3}", "y=2x+3"),
    ("\\boxed{x > 3}", "x>3"),
    ("\\boxed{3 < x}", "x > 3"),
    # words and letters
    ("The answer is Monday.", "Monday"),
    ("\\boxed{\\text{Monday}}", "monday"),
    ("The answer is New York.", "\\text{New York}"),
    ("\\boxed{C}", "(C)"),
]

WRONG = [
    ("73", "72"),
    ("-72", "72"),
    ("7.2", "72"),
    ("720", "72"),
    ("1234", "1,235"),
    ("72", GSM8K.replace("#### 72", "#### 73")),
    ("#### 24", GSM8K),
    ("Natalia sold 72 clips.\n#### 24", GSM8K),
    ("\\boxed{24}, not 72", GSM8K),
    ("The answer is 24. But 72 was close", GSM8K),
    ("The answer is 72 or 73", "72"),
    ("\\boxed{71}, \\boxed{72}", "72"),
    ("48 + 24 = 71", "72"),
    ("0.33", "1/3"),
    ("2/3", "3/2"),
    ("\\boxed{\\sqrt{7}}", "\\sqrt{8}"),
    ("\\boxed{x^2+1}", "(x+1)^2"),
    ("\\boxed{y+1}", "x+1"),
    ("\\boxed{[1, 2]}", "[1,2)"),
    ("\\boxed{(4, 3)}", "(3, 4)"),
    ("\\boxed{1, 2, 3}", "\\{1, 2\\}"),
    (
        "\\boxed{\\begin{pmatrix}1 & 2\\\\3 & 5\\end{pmatrix}}",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    ),
    ("\\boxed{x = 6}", "5"),
    ("\\boxed{x < 3}", "x>3"),
    ("\\boxed{\\text{Tuesday}}", "Monday"),
    ("\\boxed{pairs}", "Paris"),
    ("\\boxed{D}", "(C)"),
    ("9" * 1000, "9" * 999 + "8"),
]


def score(completion: str, answer: object, **params: object) -> Verdict:
    return VERIFIER.score(
        Item("math", "", completion, answer, {}), MathParams.model_validate(params)
    )


@pytest.mark.parametrize(("completion", "answer"), EQUAL)
def test_equal_answers_are_correct(completion: str, answer: object) -> None:
    verdict = score(completion, answer)

    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


@pytest.mark.parametrize(("completion", "answer"), WRONG)
def test_other_answers_are_wrong(completion: str, answer: str) -> None:
    verdict = score(completion, answer)

    assert (verdict.status, verdict.reward) == ("wrong", 0.0), verdict.detail


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("", "no_answer"),
        ("  \n ", "no_answer"),
        ("I do not know", "no_answer"),
        ("\\boxed{}", "no_answer"),
        ("\\boxed{72", "no_answer"),
        ("####", "no_answer"),
        ("<think>\\boxed{72}</think>\n", "no_answer"),
        ("\\boxed{???}", "unparsable"),
        ("The answer is beyond me", "unparsable"),
        ("\\boxed{" + "{" * 30_000 + "72" + "}" * 30_000 + "}", "unparsable"),
        ("\\boxed{" + "1+" * 2000 + "1}", "unparsable"),
    ],
)
def test_a_completion_without_an_answer_earns_zero(completion: str, status: str) -> None:
    verdict = score(completion, "72")

    assert (verdict.status, verdict.reward) == (status, 0.0), verdict.detail


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        [],
        {},
        "",
        "  ",
        "????",
        "no idea, see page 3",
        "see row 12 of the table",
        "####",
    ],
)
def test_a_reference_that_cannot_be_read_is_never_the_answers_fault(answer: object) -> None:
    with pytest.raises(BadReferenceError):
        score("72", answer)


def test_any_of_several_references_will_do() -> None:
    assert score("the answer is 9", ["7", "9"]).status == "correct"
    assert score("the answer is 8", ["7", "9"]).status == "wrong"


def test_extract_marked_ignores_a_last_number() -> None:
    assert score("So it is 72", "72", extract="marked").status == "no_answer"
    assert score("The answer is 72", "72", extract="marked").status == "correct"


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("First 48/2 = 24, then 72", "no_answer"),
        ("so 7 7 7 72", "no_answer"),
        ("\\boxed{72}, which", "correct"),
        ("#### 72\n#", "correct"),
        ("The answer is 72. I", "correct"),
    ],
)
def test_a_truncated_completion_needs_a_marked_answer(completion: str, status: str) -> None:
    verdict = VERIFIER.score(Item("math", "", completion, "72", {}, truncated=True), MathParams())

    assert verdict.status == status, verdict.detail


def test_extract_boxed_ignores_other_marks() -> None:
    assert score("The answer is 72", "72", extract="boxed").status == "no_answer"
    assert score("\\boxed{72}", "72", extract="boxed").status == "correct"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{-2} and \\boxed{1}", "$1,-2$"),
        ("\\boxed{5}. The final answer is $10$", "$10$"),
        ("$\\text{13}$", "$13$"),
        ("$2^{10}.$", "$2$"),
        ("The answer is 72", "72"),
        ("I do not know", "72"),
    ],
)
def test_strictness_math_verify_gives_the_librarys_own_verdict(
    completion: str, answer: str
) -> None:
    expected = verify(parse(answer), parse(completion))

    verdict = score(completion, answer, strictness="math_verify")

    assert verdict.reward == float(expected), verdict.detail


def test_a_reference_that_math_verify_cannot_read_is_an_error_of_the_dataset() -> None:
    with pytest.raises(BadReferenceError, match="math-verify reads nothing"):
        score("72", "no idea", strictness="math_verify")


def test_parameters_without_meaning_for_math_verify_are_refused() -> None:
    with pytest.raises(ValidationError, match="do not go with strictness"):
        score("72", "72", strictness="math_verify", worked_out=True)


def test_worked_out_refuses_to_take_the_question_for_an_answer() -> None:
    assert score("12+34", "46").status == "correct"
    assert score("12+34", "46", worked_out=True).status == "wrong"
    assert score("12+34=46", "46", worked_out=True).status == "correct"


def test_float_rounding_says_how_many_decimals_must_agree() -> None:
    assert score("3.14", "3.14159").status == "wrong"
    assert score("3.14", "3.14159", float_rounding=2).status == "correct"


def test_not_strict_matches_variables_by_position() -> None:
    assert score("\\boxed{y+1}", "x+1", strict=False).status == "correct"


def test_the_detail_names_the_compared_text_and_its_form() -> None:
    detail = score("The answer is 71.", GSM8K).detail

    assert detail == "'71' (answer is) against '72'"
