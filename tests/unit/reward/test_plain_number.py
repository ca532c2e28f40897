"""Numbers as people write them, and text that only the mathematics library may read."""

from fractions import Fraction

import pytest

from reward.verifiers.math.plain_number import PlainNumber, read_number, same_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        (" 72. ", 72),
        ("007", 7),
        ("-5", -5),
        ("\u22125", -5),
        ("+5", 5),
        ("1,234", 1234),
        ("12,345,678", 12345678),
        ("1 000 000", 1000000),
        ("1{,}234", 1234),
        ("$18", 18),
        ("-$5", -5),
        ("$-5", -5),
        ("\\$1,234.50", Fraction(2469, 2)),
        ("€3", 3),
        ("$72$", 72),
        ("\\(72\\)", 72),
        ("\\text{72}", 72),
        ("**72**", 72),
        ("18 eggs", 18),
        ("18 fresh duck eggs.", 18),
        ("18\\text{ cm}", 18),
        ("5 million dollars", 5_000_000),
        ("2.5 thousand", 2500),
        (".5", Fraction(1, 2)),
        ("-.25", Fraction(-1, 4)),
        ("1e3", 1000),
        ("1.5e-3", Fraction(3, 2000)),
        ("2 \\times 10^{5}", 200_000),
        ("1.5\\cdot10^{-3}", Fraction(3, 2000)),
        ("-3 × 10^2 cm", -300),
        ("60 km/h", 60),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("3 1/2", Fraction(7, 2)),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)),
        ("\\frac34", Fraction(3, 4)),
        ("3\\frac{1}{2}", Fraction(7, 2)),
        ("3\u00bd", Fraction(7, 2)),
        ("3 hundred", 300),
        ("2 dozen eggs", 24),
        ("3\u4e07", 30_000),
        ("0.\\overline{3}", Fraction(1, 3)),
        ("1.2\\overline{34}", Fraction(611, 495)),
        ("0.1(6)", Fraction(1, 6)),
        ("0.333...", Fraction(1, 3)),
        ("\uff15", 5),
        ("\u0663\u066b\u0665", Fraction(7, 2)),
        ("\u20135", -5),
        ("12 cm^2", 12),
        ("12\\text{ cm}^2", 12),
        ("9.8 m/s\u00b2", Fraction(49, 5)),
        ("20 \u00b0C", 20),
        ("1,000.99\u20ac", Fraction(100099, 100)),
        ("5\u4e2a", 5),
        ("3x10^5", 300_000),
    ],
)
def test_plain_numbers_are_read_exactly(text: str, value: int | Fraction) -> None:
    number = read_number(text)

    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "$", "x", "5x", "2 pi", "2 + 3", "3 or 4", "3 and 4", "1,5", "1,2345", "1.2.3"),
        *("12:30", "5-1/2", "5t", "3 t", "5 hours 30", "--5", "-$-5", "1/0", "5 squared"),
        *(
            "1e9999",
            "7 8",
            "{5}",
            "2^3",
            "3 x/y",
            "2 * 10",
            "2 * 10^5.5",
            "\\sqrt{4}",
            "1" * 1001,
        ),
    ],
)
def test_text_that_may_not_be_a_plain_number_is_left_to_the_library(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("72", "72.0", True),
        ("1/3", "2/6", True),
        ("1/3", "0.3333333", True),  # off by 3.3e-8
        ("1/3", "0.3333", False),  # off by 3.3e-5
        ("0.1234567", "0.1234571", True),  # off by 4e-7: less than half of 1e-6
        ("0.1234567", "0.1234573", False),  # off by 6e-7
        ("1/30", "0.033333333", True),
        ("1/30", "0.033333", False),  # five significant digits
        ("0", "1.6e-19", False),
        ("6.63e-34", "1.05e-34", False),
        ("123456.7", "123456.8", False),
        ("37.5%", "37.5", True),
        ("37.5%", "3/8", True),
        ("37.5%", "3.75", False),
        ("72", "73", False),
        ("9" * 400, "9" * 399 + "8", False),  # equal as floats
        ("1000001/1000000", "1000002/1000000", False),  # fractions are exact
    ],
)
def test_only_numbers_with_a_decimal_point_are_compared_to_six_decimals(
    left: str, right: str, same: bool
) -> None:
    first, second = read_number(left), read_number(right)
    assert first is not None
    assert second is not None

    assert same_number(first, second, places=6) is same
    assert same_number(second, first, places=6) is same


def test_fewer_decimals_accept_rounded_answers() -> None:
    third, rounded = PlainNumber(Fraction(1, 3), False), PlainNumber(Fraction(33, 100), True)

    assert same_number(third, rounded, places=2)
    assert not same_number(third, rounded, places=3)
