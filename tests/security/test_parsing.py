"""Every reader of answers takes time linear in their length, for any text."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from reward.verifiers.base import Item, Verifier
from reward.verifiers.math.final_answer import find_answer, last_line
from reward.verifiers.math.math_text import is_expression
from reward.verifiers.math.plain_number import read_decimal_comma, read_number
from reward.verifiers.programs.code_tests import read_tests
from reward.verifiers.programs.program_text import find_program
from reward.verifiers.text.answer_tags import FormatVerifier, XmlFormatVerifier
from reward.verifiers.text.choice import ChoiceVerifier
from reward.verifiers.text.length_and_language import LanguageVerifier, LengthVerifier
from reward.verifiers.text.structured import JsonSchemaVerifier
from reward.verifiers.text.text_comparison import ContainsVerifier, ExactVerifier

LENGTH = 60_000
SECONDS = 4.0
"""For one answer. Linear reading takes some 0.1 s; quadratic reading of this length a minute."""

PIECES = [
    *("`", "~", "$", "\\", "(", "[", "{", "}", " ", "\n", ",", ".", "=", "-", "a", "1", "<", "|"),
    *(
        "```\n",
        "```json\n{",
        "~~~\n",
        "\\boxed{",
        "\\boxed{1},",
        "<answer>",
        "</answer>",
        "<think>",
    ),
    *("\\(", "\\[", "\\text{", "1,", "1.", "(A) ", "A or ", "A, ", "answer: . ", "answer to "),
    *("the answer is $", "= 1 or ", "<|a|>", "####", "a'", "option ", "def f():\n "),
]

VERIFIERS: list[tuple[Verifier[Any], Any, dict[str, Any]]] = [
    (ChoiceVerifier(), "A", {}),
    (ExactVerifier(), "A", {}),
    (ContainsVerifier(), "A", {}),
    (JsonSchemaVerifier(), {"type": "object"}, {}),
    (FormatVerifier(), None, {}),
    (XmlFormatVerifier(), None, {}),
    (LengthVerifier(), None, {}),
    (LanguageVerifier(), None, {"script": "latin"}),
]
TESTS = read_tests("assert f(1) == 1", {})
READERS: dict[str, Callable[[str], object]] = {
    "code": lambda text: find_program(text, TESTS).source,
    "final answer": find_answer,
    "number": lambda text: (read_number(text), read_decimal_comma(text), last_line(text)),
    "expression": is_expression,
}


def texts(piece: str) -> list[str]:
    many = piece * (LENGTH // len(piece))
    return [many, f"Answer: {many}\nx", f"\\boxed{{1}}{many}x", f"{piece}\n" * (LENGTH // 4)]


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_a_long_answer_is_read_in_linear_time(piece: str) -> None:
    slow: list[tuple[str, float]] = []
    for text in texts(piece):
        for verifier, answer, given in VERIFIERS:
            item = Item(verifier.name, "", text, answer, given, {})
            params = verifier.Params.model_validate(given)
            slow += timed(verifier.name, lambda v=verifier, i=item, p=params: v.score(i, p))  # type: ignore[misc]
        for name, read in READERS.items():
            slow += timed(name, lambda r=read, t=text: r(t))  # type: ignore[misc]

    assert slow == []


def timed(name: str, action: Callable[[], object]) -> list[tuple[str, float]]:
    """(name, seconds) if the action takes too long."""
    began = time.process_time()
    action()
    spent = time.process_time() - began
    return [(name, spent)] if spent > SECONDS else []


def test_a_line_of_60_000_backticks_does_not_open_a_block() -> None:
    line = "`" * 60_000

    assert find_program(line, TESTS).source == line
