"""Finding verifiers: built in, named by the operator, and misspelt."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from reward.endpoints import Endpoint
from reward.verifiers.base import Item, RemoteParams, RemoteVerifier, Verdict, Verifier, correct
from reward.verifiers.mathematics import MathVerifier
from reward.verifiers.registry import (
    RegistryError,
    build_registry,
    nearest,
    param_problems,
    parse_params,
)
from reward.verifiers.remote import HttpVerifier


def test_the_built_in_verifiers_describe_themselves() -> None:
    registry = build_registry()

    assert {"math", "exact", "choice", "contains", "regex", "json_schema"} <= set(registry)
    assert {"format", "xml_format", "length", "repetition", "language"} <= set(registry)
    for name, verifier in registry.items():
        assert verifier.name == name
        assert verifier.description
        assert "\n" not in verifier.description
        assert "timeout" in verifier.Params.model_json_schema()["properties"]


class Asked(RemoteVerifier[RemoteParams]):
    """An own verifier that would ask others."""

    name = "asked"
    description = "Everything is right."
    Params = RemoteParams

    async def score(self, item: Item, params: RemoteParams) -> Verdict:
        return correct()


def test_an_installed_package_brings_its_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[headrace.verifiers]\nmy = {__name__}:Asked\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert build_registry()["asked"].description == "Everything is right."


def test_the_own_verifier_of_the_documentation_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[3] / "docs" / "rewards.md"
    code = re.search(
        r"```python\n(.*?)```", page.read_text().split("## Your own verifier")[1], re.S
    )
    assert code is not None
    (tmp_path / "haiku.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)

    haiku = build_registry(["haiku:HaikuVerifier"])["haiku"]

    assert isinstance(haiku, Verifier)
    item = Item("haiku", "", "one\ntwo", None, {})
    assert haiku.score(item, parse_params(haiku, {"lines": 2})) == correct()
    assert haiku.score(item, parse_params(haiku, {})).detail == "2 lines"


def test_a_url_may_not_take_the_name_of_a_verifier() -> None:
    with pytest.raises(RegistryError, match="'math' exists already; choose another name"):
        build_registry((), [HttpVerifier(Endpoint("math", "http://localhost:9"))])


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


def test_of_many_bad_parameters_a_few_are_named() -> None:
    verifier = MathVerifier()

    with pytest.raises(ValidationError) as caught:
        parse_params(verifier, {f"{number}" * 1000: 0 for number in range(1000)})

    problems = param_problems(verifier, caught.value)
    assert len(problems) == 10
    assert all(len(name) <= 100 for name, _ in problems)


def test_bad_parameters_are_named_one_by_one() -> None:
    verifier = MathVerifier()

    with pytest.raises(ValidationError) as caught:
        parse_params(verifier, {"stric": True, "float_rounding": -1})

    problems = dict(param_problems(verifier, caught.value))
    assert "did you mean 'strict'?" in problems["stric"]
    assert "greater than or equal to 0" in problems["float_rounding"]
