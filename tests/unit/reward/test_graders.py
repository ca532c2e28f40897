"""OpenAI's graders: what is refused, and what an answer scores."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from reward.verifiers.base import BadReferenceError
from reward.verifiers.graders.evaluation import check_row, names_of
from reward.verifiers.graders.formulas import FormulaError, check, value_of
from reward.verifiers.graders.shapes import GraderParams
from reward.verifiers.graders.similarity import similarity
from reward.verifiers.graders.templates import parsed, rendered
from reward.verifiers.graders.worker_verifier import packed, unpacked, verdict_of
from tests.unit.reward.graders import SAME, graded, item, multi

PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 0.5"}
MODEL = {"name": "m", "model": "strict", "input": [{"role": "user", "content": "Grade."}]}


def nested(depth: int) -> dict[str, Any]:
    grader: dict[str, Any] = SAME
    for _ in range(depth):
        grader = multi("a", a=grader)
    return grader


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for row in item %}x{% endfor %}", "is a statement or a comment of Jinja"),
        ("{# note #}", "is a statement or a comment of Jinja"),
        ("{{ item.answer|upper }}", "is an expression"),
        ("{{ item.answer + 1 }}", "is an expression"),
        ("{{ item.__class__() }}", "is an expression"),
        ("{{ }}", "is an expression"),
        ("{{ item.answer", "has no end"),
        ("{{ sampel.output_text }}", "did you mean 'sample'"),
        ("{{ sample.output_txt }}", "did you mean 'output_text'"),
        ("{{ item }}", "names no field"),
    ],
)
def test_a_template_that_does_more_than_fill_in_is_refused(template: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        GraderParams.model_validate({"grader": {**SAME, "input": template}})


def test_a_template_fills_in_each_place_once() -> None:
    names = names_of(item('{"a": [{"b c": 7}]}', "{{ item.q }}", q=[1, "ü"], **{"x y": True}))

    template = "{{item.answer}} {{ item.q }} {{item['x y']}} {{ sample.output_json.a[0]['b c'] }}}"
    assert rendered(template, names) == '{{ item.q }} [1, "ü"] true 7}'
    assert rendered("{{sample.choices[0].message.content}}", names) == '{"a": [{"b c": 7}]}'
    assert parsed("no place") == ("no place",)


def test_a_template_with_many_open_places_is_refused_in_linear_time() -> None:
    with pytest.raises(ValueError, match="has no end"):
        parsed("{{" * 50_000)


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("__import__('os')", "is not allowed"),
        ("9**9**9", "it is too large"),
        ("a + 9^9^9^9", "it is too large"),
        ("1e999", "it is too large"),
        ("1/0", "division by zero"),
        ("a / (2 - 2)", "divides by zero"),
        ("(0 - 8) ** 0.5", "is no real number"),
        ("a.real", "is not allowed"),
        ("a if a else b", "is not allowed"),
        ("[a for a in b]", "is not allowed"),
        ("True", "is not allowed"),
        ("a // b", "is not allowed"),
        ("max(a)", "takes two or more numbers"),
        ("sqrt(a, b)", "takes one number"),
        ("max(a, *b)", "is not allowed"),
        ("ab", "no grader of it"),
        ("a +", "cannot be read"),
        ("", "cannot be read"),
        ("(" * 300 + "a" + ")" * 300, "cannot be read"),
        ("-" * 1900 + "a", "steps; 500 is the most|cannot be read"),
        ("a" * 5000, "characters; 2000 is the most"),
    ],
)
def test_a_formula_that_is_not_bounded_arithmetic_is_refused(formula: str, reason: str) -> None:
    with pytest.raises(FormulaError, match=reason):
        check(formula, ["a", "b"])


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0.25 * a + 0.75 * b", 0.25 * 3 + 0.75 * 2),
        ("a + b^2", 7),
        ("-a**2", -9),
        ("min(a, b, 1) + max(a, b) - abs(-1)", 3),
        ("floor(a / b) + ceil(a / b) + sqrt(4) + exp(0) + log(1)", 6),
    ],
)
def test_a_formula_computes_with_the_usual_precedence(formula: str, value: float) -> None:
    check(formula, ["a", "b"])

    assert value_of(formula, {"a": 3.0, "b": 2.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("grader", "place", "reason"),
    [
        ({**SAME, "type": "strng_check"}, ("grader",), "did you mean 'string_check'"),
        ({"name": "x"}, ("grader",), "grader 'x' has no type"),
        ({**SAME, "operation": "equals"}, ("grader", "string_check", "operation"), "ilike"),
        ({**SAME, "extra": 1}, ("grader", "string_check", "extra"), "Extra"),
        ({**PYTHON, "source": "def grad(a, b): 1"}, ("grader", "python", "source"), "no function"),
        ({**PYTHON, "source": "def grade(a): 1"}, ("grader", "python", "source"), "takes 1"),
        ({**PYTHON, "source": "async def grade(a, b): 1"}, ("grader", "python", "source"), "async"),
        ({**PYTHON, "source": "def grade("}, ("grader", "python", "source"), "line 1"),
        (multi("min", min=SAME), ("grader", "multi", "graders"), "is a function"),
        (multi("a", **{"a b": SAME}), ("grader", "multi", "graders"), "cannot stand"),
        (multi("a", **{"if": SAME}), ("grader", "multi", "graders"), "cannot stand"),
        (
            {**multi("fi"), "graders": {"fi": SAME, "\N{LATIN SMALL LIGATURE FI}": SAME}},
            ("grader", "multi", "graders"),
            "one name",
        ),
        (multi("b", a=SAME), ("grader", "multi"), "'b' is no grader of it"),
        (nested(10_000), ("grader",), "nests more than 8 graders"),
        (
            multi("a1", **{f"a{n}": SAME for n in range(10_000)}),
            ("grader",),
            "has more than 64 graders",
        ),
        (
            {**MODEL, "type": "label_model", "labels": ["good"], "passing_labels": ["god"]},
            ("grader", "label_model"),
            "did you mean 'good'",
        ),
        (
            {**MODEL, "type": "score_model", "range": [1, 0]},
            ("grader", "score_model", "range"),
            "is no scale",
        ),
        (
            {
                **MODEL,
                "type": "score_model",
                "input": [{"role": "user", "content": [{"type": "input_image"}]}],
            },
            ("grader", "score_model", "input", 0, "content"),
            "a part of type 'input_image' is not supported",
        ),
    ],
)
def test_a_grader_that_cannot_be_used_is_refused_with_its_place(
    grader: dict[str, Any], place: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason) as refused:
        GraderParams.model_validate({"grader": grader})

    assert [error["loc"] for error in refused.value.errors()] == [place]


@pytest.mark.parametrize(
    ("operation", "completion", "score"),
    [
        ("eq", "62", 1.0),
        ("eq", "62 ", 0.0),
        ("ne", "62", 0.0),
        ("ne", "63", 1.0),
        ("like", "It is 62.", 1.0),
        ("like", "six", 0.0),
        ("ilike", "STRASSE 62", 1.0),
    ],
)
def test_string_check_compares_two_texts(operation: str, completion: str, score: float) -> None:
    reference = "straße" if operation == "ilike" else "62"
    grader = {**SAME, "operation": operation}

    assert graded(grader, item(completion, reference)).score == score


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        # By rapidfuzz 3.14, sacrebleu 2.6, NLTK 3.10 and rouge-score 0.1.2.
        ("fuzzy_match", 0.904762),
        ("bleu", 0.537285),
        ("gleu", 0.611111),
        ("meteor", 0.743333),
        ("rouge_1", 0.833333),
        ("rouge_2", 0.6),
        ("rouge_3", 0.5),
        ("rouge_4", 1 / 3),
        ("rouge_5", 0.0),
        ("rouge_l", 0.833333),
    ],
)
def test_text_similarity_agrees_with_the_known_libraries(metric: str, score: float) -> None:
    given = similarity(metric, "The cat sat on a mat", "the cat sat on the mat")
    if metric == "fuzzy_match":
        given = similarity(metric, "the cat sat on a mat", "the cat sat on the mat")

    assert given == pytest.approx(score, abs=1e-6)
    assert similarity(metric, "", "x") == 0
    assert similarity(metric, "dog", "the cat sat") == pytest.approx(0, abs=1e-6)


def test_an_answer_that_lacks_a_field_of_its_json_scores_0_with_a_reason() -> None:
    grader = {**SAME, "input": "{{ sample.output_json.n }}"}

    assert graded(grader, item('{"n": 62}')).score == 1
    for completion, reason in (
        ('{"m": 62}', "sample.output_json has no 'n'; it has m"),
        ('{"n": null}', "sample.output_json.n is null"),
        ("62", "output_json has no 'n': it is '62'"),
        ('{"n": NaN}', "the answer is not JSON"),
        ("[" * 100_000, "the answer is not JSON"),
    ):
        outcome = graded(grader, item(completion))
        verdict = verdict_of(GraderParams.model_validate({"grader": grader}).grader, outcome, 0.0)
        assert (verdict.status, verdict.reward) == ("unparsable", 0.0)
        assert reason in verdict.detail
        assert "sample_parse_error" in outcome.flags


def test_a_field_that_the_row_lacks_is_an_error_and_not_a_0() -> None:
    outcome = graded(SAME, item("62", None, reference="62"))

    assert outcome.score is None
    assert "item has no 'answer'; it has reference" in outcome.flags["invalid_variable_error"]
    params = GraderParams.model_validate({"grader": multi("a", a=SAME)})
    with pytest.raises(BadReferenceError, match=r"grader 'a', reference: .* has no 'answer'"):
        check_row(params, item("", None, reference="62"))
    check_row(params, item("", "62"))
    asks = GraderParams.model_validate({"grader": {**SAME, "input": "{{ item.prompt }}"}})
    check_row(asks, item("", "62"))


def test_multi_combines_nested_graders_and_names_their_scores() -> None:
    grader = multi("0.5 * a + 0.25 * b + c", a=SAME, b=multi("x^2", x=PYTHON), c=PYTHON)

    outcome = graded(grader, item("62"), 0.5, c=0.125)

    assert outcome.score == pytest.approx(0.5 + 0.25 * 0.25 + 0.125)
    assert outcome.scores == {"a": 1.0, "b.x": 0.5, "b": 0.25, "c": 0.125}
    verdict = verdict_of(GraderParams.model_validate({"grader": grader}).grader, outcome, None)
    assert (verdict.status, verdict.components) == ("scored", outcome.scores)


def test_graders_may_stand_in_a_list_or_alone_by_their_own_names() -> None:
    other = {**SAME, "name": "other", "operation": "ne"}
    listed = {**multi("same - other"), "graders": [SAME, other]}
    alone = {**multi("2 * same"), "graders": SAME}

    assert graded(listed, item("62")).score == 1
    assert graded(alone, item("62")).score == 2


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("1 / a", "'1 / a' has no value with a = 0: float division by zero"),
        ("log(a)", r"'log\(a\)' has no value with a = 0"),
        ("1e13 + a", "a reward of 1e\\+13; training takes 1e\\+12"),
    ],
)
def test_a_formula_without_a_value_is_an_error_with_its_scores(formula: str, reason: str) -> None:
    outcome = graded(multi(formula, a=SAME), item("63"))

    assert outcome.score is None
    assert {*outcome.flags} <= {"formula_parse_error", "other_error"}
    assert re.search(reason, outcome.detail)


def test_thoughts_are_no_part_of_the_answer_and_tool_calls_are_read() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>{'
    sample = names_of(item(f"<think>62</think>\n\n{call}"))["sample"]

    assert sample["output_text"] == call
    (tool,) = sample["output_tools"]
    assert tool["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert sample["choices"][0]["finish_reason"] == "tool_calls"
    assert names_of(item("<think>62"))["sample"]["output_text"] == ""


def test_an_outcome_survives_the_way_from_a_worker() -> None:
    for grader, completion in ((multi("1 / a", a=SAME), "63"), (multi("a", a=SAME), "62")):
        outcome = graded(grader, item(completion))

        assert unpacked(packed(outcome)) == outcome
