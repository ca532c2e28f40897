"""References as their own answers, with one digit changed, and with a part cut off."""

import re

import pytest

from tests.unit.reward.scoring import score

SAME = [
    "12:00",
    "10:00",
    "8:15",
    "7:30",
    "00:00",
    "12:00 PM",
    "8:15 a.m.",
    "3:45:10",
    "2020-01-15",
    "12/25/2020",
    "March 5, 2020",
    "5 March 2020",
    "1:0",
    "0:1",
    "\\text{12:00}",
    "x",
    "N/A",
    "C_{60}",
    "H_2O",
    "\\text{H}_2\\text{O}",
    "A \\cup B",
    "\\neg p",
    "p \\land q",
    "\\forall x",
    "a|b",
    "3 \\mid 12",
    "n^{th}",
    "\\ldots",
    "f: X \\to Y",
    "2^{\\aleph_0}",
    "\\aleph_0",
    "\\mathcal{O}(n \\log n)",
    "O(n^2)",
    "x^{x^x}",
    "[0,1)",
    "]0,1[",
    "(1,2]",
    "\\emptyset",
    "\\frac{0}{0}",
    "1/0",
    "\\frac{1}{0}",
    "\\nabla f",
    "\\partial x",
    "\\int_0^1 x^2 dx",
    "\\sum_{k=1}^n k",
    "\\lim_{x\\to0} x",
    "\\prod_{i=1}^n i",
    "\\sqrt[3]{x}",
    "\\det A",
    "\\operatorname{rank}(A)",
    "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}",
    "\\begin{array}{cc}1&2\\\\3&4\\end{array}",
    "AB \\parallel CD",
    "AB \\perp CD",
    "\\sim",
    "\\approx 3",
    "x \\neq 3",
    "x<3",
    "1<x<2",
    "x\\le y",
    "a:b:c",
    "1:2:3",
    "3\\text{ and }4",
    "\\text{Yes}",
    "\\text{A, B}",
    "B, C",
    "(A)",
    "\\text{(A)}",
    "\\mathrm{(A)}",
    "+",
    "-",
    "\\times",
    "=",
    ">",
    "<",
    "Tuesday",
    "\\$5",
    "€5",
    "5 dollars",
    "7th",
    "1st",
    "\\text{7th}",
    "XIV",
    "3.50",
    "1,000",
    "10^6",
    "\\{1,2,\\ldots,10\\}",
    "\\left\\{ x \\mid x>0\\right\\}",
    "\\text{even}",
    "\\text{undefined}",
    "DNE",
    "\\text{DNE}",
    "y=mx+b",
    "3x+2y=5",
    "\\frac{dy}{dx}=x",
    "y''+y=0",
    "C(5,2)",
    "P(A|B)",
    "\\bar{x}",
    "x_1,x_2",
    "\\alpha+\\beta",
    "\\theta=\\frac{\\pi}{4}",
    "1+2i",
    "i",
    "e",
    "\\mathrm{i}",
    "\\ln 2",
    "\\log 2",
    "\\gcd(12,18)",
    "\\max(1,2)",
    "\\phi(12)",
]
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
