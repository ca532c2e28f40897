"""The place of the final answer in a completion."""

from itertools import product
from time import process_time

import pytest

from reward.verifiers.math.final_answer import find_answer, too_deep
from tests.unit.reward.scoring import score


@pytest.mark.parametrize(
    ("text", "answer", "form"),
    [
        ("so \\boxed{72}.", "72", "\\boxed"),
        ("\\boxed{1} no, \\boxed{2}", "2", "\\boxed"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", "\\boxed"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", "\\boxed"),
        ("\\boxed{\\boxed{3}}", "\\boxed{3}", "\\boxed"),
        ("$\\boxed{3}$ and $\\boxed{5}$", "3, 5", "\\boxed"),
        ("\\boxed{3}, \\boxed{4} or \\boxed{5}", "3, 4, 5", "\\boxed"),
        ("\\boxed{7} and then it was cut \\boxed{8", "7", "\\boxed"),
        ("\\fbox{7}", "7", "\\boxed"),
        ("\\boxed{}", "", "\\boxed"),
        ("\\boxed{-2} \\quad \\text{and} \\quad \\boxed{1}", "-2, 1", "\\boxed"),
        ("$x = \\boxed{-2}$ or $x = \\boxed{1}$", "-2, 1", "\\boxed"),
        ("\\boxed{-2}. Then add 3, which gives \\boxed{1}", "1", "\\boxed"),
        ("\\boxed{12 $ and $13 }", "12  and 13", "\\boxed"),
        ("\\boxed{\\$16,\\!386.20}", "\\$16,\\!386.20", "\\boxed"),
        # Announced after the box
        ("\\boxed{5}\n#### 6", "6", "####"),
        ("\\boxed{5} is half. The final answer is $10$.", "$10$", "answer is"),
        ("\\boxed{5} is half. **Final answer:** x = 10", "x = 10", "answer is"),
        ("\\boxed{5} is half. <answer>10</answer>", "10", "<answer>"),
        ("<answer>half of \\boxed{5}</answer>", "5", "\\boxed"),
        (
            "\\boxed{5}. The answer is about 10 miles per hour.",
            "about 10 miles per hour",
            "answer is",
        ),
        ("\\boxed{5} is half. The final answer is $x = 10$ apples", "$x = 10$ apples", "answer is"),
        ("\\boxed{5} is half. The answer is [1, 2).", "[1, 2)", "answer is"),
        ("\\boxed{5} days later. The answer is New York.", "New York", "answer is"),
        ("\\boxed{5} days later.\n#### blue", "blue", "####"),
        ("\\boxed{5}. The answer is $\\text{blue}$.", "$\\text{blue}$", "answer is"),
        ("\\boxed{A} seems right. The answer is C.", "C", "answer is"),
        # Words about an answer announce none
        ("\\boxed{5}. The answer is 5 since 2 of 7 remain.", "5", "\\boxed"),
        ("\\boxed{12}\nThe final answer is 12 dollars, which is less than 20.", "12", "\\boxed"),
        ("\\boxed{5}. The answer is 5 (not 7).", "5", "\\boxed"),
        ("\\boxed{42}. One might think the answer is 24, but that is a trap.", "42", "\\boxed"),
        ("\\boxed{42}. The answer is 24 but only there", "42", "\\boxed"),
        ("\\boxed{5}. The answer: 1) check 2) done", "5", "\\boxed"),
        ("\\boxed{5}. The answer: 1) done", "5", "\\boxed"),
        ("\\boxed{5}. The answer is not 7.", "5", "\\boxed"),
        ("\\boxed{5}. The answer is correct.", "5", "\\boxed"),
        ("\\boxed{5}. The answer is a", "5", "\\boxed"),
        ("\\boxed{C}. The answer is Option C.", "C", "\\boxed"),
        ("\\boxed{5}. I hope the answer is correct.", "5", "\\boxed"),
        ("\\boxed{5}. The answer is obtained in 3 steps.", "5", "\\boxed"),
        ("The answer is 4, no: \\boxed{5}", "5", "\\boxed"),
        ("<think>4</think><answer> 72 </answer>", "72", "<answer>"),
        ("<answer>1</answer> wait <answer>2</answer>", "2", "<answer>"),
        ("<answer>so \\boxed{2}</answer>", "2", "\\boxed"),
        ("48/2 = <<48/2=24>>24\n#### 72", "72", "####"),
        ("#### 72\nand more", "72", "####"),
        ("#### 1\n\n#### 2", "2", "####"),
        ("####", "", "####"),
        ("The answer is 72.", "72", "answer is"),
        ("The answer is 72. I hope it is correct.", "72", "answer is"),
        ("The answer is 3.5 apples", "3.5 apples", "answer is"),
        ("**Answer:** 72", "72", "answer is"),
        ("Final Answer: The final answer is $72$. I hope", "$72$", "answer is"),
        ("The answer to the question is: 8", "8", "answer is"),
        ("The answer is\n\n72", "72", "answer is"),
        ("The answer is:\n$$\n72\n$$\nDone", "$$\n72\n$$", "answer is"),
        ("The answer is 5. Or: the answer is", "5", "answer is"),
    ],
)
def test_finds_the_marked_answer(text: str, answer: str, form: str) -> None:
    assert find_answer(text) == (answer, form)


@pytest.mark.parametrize("text", ["", "72", "So it is 72.", "\\boxed{72", "my answers vary", "# 5"])
def test_unmarked_text_has_no_marked_answer(text: str) -> None:
    assert find_answer(text) is None


def test_depth_counts_open_brackets_only() -> None:
    assert not too_deep("()" * 1000)
    assert not too_deep("(" * 40 + ")" * 40)
    assert too_deep("(" * 41)


# Signs, words and commands that patterns search for. A policy may repeat any of them without end.
REPEATED = [
    *"{}()[<-+/=.,;:!?^_~*\\|&$%'`1ae²½十",
    *(
        "\\;",
        "\\,",
        "\\frac",
        "\\frac{",
        "\\sqrt",
        "\\left(",
        "\\text{",
        "\\text{a}",
        "\\textcolor{",
    ),
    *("\\begin{", "\\boxed{", "\\[", "\\(", "$$", "####", "1.", "1,", "1,000", "x=", "é"),
    *(" ", "\n", "\t", "\u00a0", "\u0301", "\\ ", "1 ", "A, ", "A and ", "B or ", "A - ", "1 m "),
    *("<think>", "</think>", "<answer>", "the answer is ", "word ", "eleven ", "option ", "not "),
    *("5, not ", "nicht ", "不是5，", "5가 아니라 ", "except ", "A seems ", "\\vec{a}\\times"),
]


def test_repeated_signs_of_any_length_take_seconds_in_all() -> None:
    # Characters: the longest text that is parsed, the longest that is compared, and longer ones.
    lengths = (1000, 1900, 16_000)
    start = process_time()
    for sign, length in product(REPEATED, lengths):
        text = f"The answer is 5{sign * (length // len(sign))} x"
        score("math", text, "5")
        score("choice", text, "B")

    # A pattern of quadratic time takes seconds for one text, a pattern of cubic time minutes.
    assert process_time() - start < 15


def test_a_megabyte_of_open_boxes_takes_linear_time() -> None:
    # Quadratic time here would be 10^11 steps: the test's own time limit catches it.
    assert find_answer("\\boxed{" * 150_000) is None
    assert find_answer("<answer>" * 130_000) is None
    assert find_answer("answer is " * 100_000) is not None
    assert find_answer("\\boxed{1}" * 50_000 + "answer is " * 50_000) is not None
    assert find_answer("\\boxed{1}" + "$ " * 500_000 + "\\boxed{2}") is not None
