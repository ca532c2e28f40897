"""`exact`, `contains` and `regex` by value."""

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.text.text_comparison import RegexParams
from tests.unit.reward.scoring import score


@pytest.mark.parametrize(
    ("name", "completion", "answer", "params", "status"),
    [
        ("exact", " yes\n", "yes", {}, "correct"),
        ("exact", " yes", "yes", {"strip": False}, "wrong"),
        ("exact", "YES", "yes", {}, "wrong"),
        ("exact", "YES", "yes", {"ignore_case": True}, "correct"),
        ("exact", "7", 7, {}, "correct"),
        ("exact", "b", ["a", "b"], {}, "correct"),
        ("exact", "", "yes", {}, "no_answer"),
        ("contains", "It is Paris, of course.", "Paris", {}, "correct"),
        ("contains", "It is paris.", "Paris", {}, "wrong"),
        ("contains", "It is paris.", "Paris", {"ignore_case": True}, "correct"),
        ("regex", "call 555-1234 now", r"\d{3}-\d{4}", {}, "correct"),
        ("regex", "call 555-1234 now", r"\d{3}-\d{4}", {"whole": True}, "wrong"),
        ("regex", "abc", None, {"pattern": "B", "ignore_case": True}, "correct"),
    ],
)
def test_text_verifiers_compare_the_completion_as_it_is(
    name: str, completion: str, answer: object, params: dict[str, object], status: str
) -> None:
    verdict = score(name, completion, answer, **params)

    assert (verdict.status, verdict.reward) == (status, 1.0 if status == "correct" else 0.0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("exact", None),
        ("exact", []),
        ("exact", ""),
        ("exact", ["a", " "]),
        ("exact", {"a": 1}),
        ("contains", ""),
        ("regex", "("),
    ],
)
def test_unusable_references_are_refused(name: str, answer: object) -> None:
    with pytest.raises(BadReferenceError):
        score(name, "yes", answer)


def test_a_pattern_that_does_not_compile_is_named() -> None:
    with pytest.raises(BadReferenceError, match="is no regular expression"):
        score("regex", "x", None, pattern="(")


def test_a_pattern_is_not_compiled_where_parameters_are_checked() -> None:
    # Ignoring case, each range is expanded to a million characters: seconds, outside any deadline.
    RegexParams(pattern="(?i)" + r"[\x00-\U0010ffff]" * 400)
