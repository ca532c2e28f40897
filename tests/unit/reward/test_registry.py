"""Finding verifiers: built in, named by the operator, and misspelt."""

import pytest
from pydantic import ValidationError

from reward.verifiers.mathematics import MathVerifier
from reward.verifiers.registry import (
    RegistryError,
    build_registry,
    nearest,
    param_problems,
    parse_params,
)


def test_the_built_in_verifiers_describe_themselves() -> None:
    registry = build_registry()

    assert {"math", "exact", "contains", "regex"} <= set(registry)
    for name, verifier in registry.items():
        assert verifier.name == name
        assert verifier.description
        assert "\n" not in verifier.description
        assert "timeout" in verifier.Params.model_json_schema()["properties"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no.such.module:Verifier", "cannot be imported"),
        ("reward.verifiers.mathematics:Missing", "cannot be imported"),
        ("reward.verifiers.mathematics", "cannot be imported"),
        ("reward.verifiers.base:Item", "is not a class derived from"),
        ("reward.verifiers.mathematics:MathVerifier", "exists already"),
    ],
)
def test_an_unusable_verifier_is_named(path: str, reason: str) -> None:
    with pytest.raises(RegistryError, match=reason) as caught:
        build_registry([path])

    assert path in str(caught.value)


def test_the_nearest_name_is_offered() -> None:
    assert nearest("maths", ["math", "exact"]) == "; did you mean 'math'?"
    assert nearest("zzz", ["math", "exact"]) == ""


def test_bad_parameters_are_named_one_by_one() -> None:
    verifier = MathVerifier()

    with pytest.raises(ValidationError) as caught:
        parse_params(verifier, {"stric": True, "float_rounding": -1})

    problems = dict(param_problems(verifier, caught.value))
    assert "did you mean 'strict'?" in problems["stric"]
    assert "greater than or equal to 0" in problems["float_rounding"]
