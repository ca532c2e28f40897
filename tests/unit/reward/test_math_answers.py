"""Every row of `math_answers`, and references with one digit changed or a part cut off."""

import re

import pytest

from tests.unit.reward import math_readings
from tests.unit.reward.math_answers import CORRECT, SAME, WRONG
from tests.unit.reward.scoring import score

NO_READING = [
    "1-\\operatorname{erf}(2)",
    "\\begin{cases} x+1 & x>0 \\\\ -x & x\\le 0 \\end{cases}",
    "x\\equiv5 \\pmod 7",
    "101_2",
    "1, 2, \\ldots, 9",
    "5\\text{ ft }11\\text{ in}",
    "30^\\circ 15'",
    "3:4:5",
    "12:30",
    "March 5, 2020",
    "2020-01-15",
    "f'(2) = 5",
    "\\frac{dy}{dx} = 3x",
    "H_2SO_4",
    "7 \\text{ R } 3",
    "\\begin{array}{c|c} 1 & 2 \\\\ \\hline 3 & 4 \\end{array}",
    "\\{x \\mid x > 3\\}",
    "3 \\uparrow\\uparrow 4",
    "P(3|4) = 5",
]
READ = [
    "1-\\frac{2}{\\mathrm{e}}",
    "\\langle 3,-2,5 \\rangle",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    "\\left[ 2, \\frac{7}{3} \\right)",
    "(-\\infty, -2] \\cup (3, \\infty)",
    "7.\\overline{36}",
    "1.2\\overline{3}",
    "3\\frac{1}{4}",
    "\\frac{-3 \\pm \\sqrt{17}}{4}",
    "\\log_{3}(x+2)",
    "e^{2\\pi i/3}",
    "\\sin\\left(\\frac{\\pi}{7}\\right)",
    "\\cos 40^\\circ",
    "\\int_0^2 x^3\\,dx",
    "\\sum_{k=2}^{10} k^2",
    "\\frac{x^2}{9} - \\frac{y^2}{4} = 3",
    "-2 \\le x < 5",
    "a_n = 3n + 2",
    "(x, y) = (2, -3)",
    "1.5 \\times 10^{-7}",
    "3.7\\%",
    "\\frac{2}{3 + \\frac{2}{5 + \\frac{2}{3}}}",
]


def rows(table: dict[str, list[tuple[str, object]]]) -> list[tuple[str, object]]:
    return [row for kind in table.values() for row in kind]


@pytest.mark.parametrize(("completion", "reference"), rows(CORRECT | math_readings.CORRECT))
def test_a_right_answer_is_correct_however_it_is_written(
    completion: str, reference: object
) -> None:
    verdict = score("math", completion, reference)

    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


@pytest.mark.parametrize(("completion", "reference"), rows(WRONG | math_readings.WRONG))
def test_a_wrong_answer_is_wrong_however_it_is_written(completion: str, reference: object) -> None:
    verdict = score("math", completion, reference)

    assert (verdict.status, verdict.reward) == ("wrong", 0.0), verdict.detail


@pytest.mark.parametrize("text", [*SAME, *NO_READING, *READ])
def test_an_answer_that_is_the_reference_letter_by_letter_is_correct(text: str) -> None:
    verdict = score("math", f"\\boxed{{{text}}}", text)

    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


def rewards(answers: list[str], reference: str) -> dict[str, float | None]:
    return {one: score("math", f"\\boxed{{{one}}}", reference).reward for one in answers}


@pytest.mark.parametrize("reference", [*NO_READING, *READ])
def test_an_answer_with_one_other_digit_is_wrong(reference: str) -> None:
    others = [
        reference[: digit.start()] + str((int(digit[0]) + 4) % 10) + reference[digit.end() :]
        for digit in re.finditer(r"\d", reference)
    ]

    assert rewards(others, reference) == dict.fromkeys(others, 0.0)


@pytest.mark.parametrize("reference", [*NO_READING, *READ])
def test_a_part_of_the_reference_is_wrong(reference: str) -> None:
    ends = [token.end() for token in re.finditer(r"\\[A-Za-z]+|\\.|\d+|.", reference)][:-1]
    ends = [end for end in ends if reference[:end].count("{") == reference[:end].count("}")]
    parts = [part for end in ends for part in (reference[:end], reference[end:])]
    # The right side of an equation is an answer too. The parts in `same` differ in spelling alone.
    parts = [part for part in parts if "=" not in reference or "=" in part.strip("= ")]
    same = {"\\int_0^2 x^3\\,", "\\int_0^2 x^3", "[ 2, \\frac{7}{3} \\right)", "3.7"}
    parts = [part for part in parts if part.strip() not in same]

    assert rewards(parts, reference) == dict.fromkeys(parts, 0.0)
