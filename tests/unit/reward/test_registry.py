"""Finding verifiers: built in, named by the operator, and misspelt."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from reward.remote_endpoints import Endpoint
from reward.validation import checked_uses
from reward.verifiers.base import Item, RemoteParams, RemoteVerifier, Verdict, Verifier, correct
from reward.verifiers.math.math_verifier import MathVerifier
from reward.verifiers.registry import (
    UnusableError,
    build_registry,
    param_problems,
    parse_params,
    usable,
)
from reward.verifiers.remote.http_verifier import HttpVerifier
from reward.verifiers.trial import tried
from services.contracts.scores import Use


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
    """An own verifier that would ask another service."""

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
    function, code = re.findall(
        r"```python\n(.*?)```", page.read_text().split("## Your own verifier")[1], re.S
    )
    (tmp_path / "haiku.py").write_text(code)
    (tmp_path / "short.py").write_text(function)
    trial = tried(tmp_path / "short.py", "")
    assert (trial.name, trial.problem, len(trial.tests)) == ("short", None, 1)
    monkeypatch.syspath_prepend(tmp_path)

    haiku = build_registry(["haiku:HaikuVerifier"])["haiku"]

    assert isinstance(haiku, Verifier)
    item = Item("haiku", "", "one\ntwo", None, {})
    assert haiku.score(item, parse_params(haiku, {"lines": 2})) == correct()
    assert haiku.score(item, parse_params(haiku, {})).detail == "2 lines"


def test_a_check_names_the_uses_whose_verifier_does_not_come_with_headrace() -> None:
    uses = [Use(verifier=name) for name in ("math", "asked", "code", "missing")]

    assert checked_uses(uses, build_registry([f"{__name__}:Asked"])).own_verifier_uses == [1]


def test_a_url_may_not_take_the_name_of_a_verifier() -> None:
    registry = build_registry((), [HttpVerifier(Endpoint("math", "http://localhost:9"))])

    assert isinstance(registry["math"], MathVerifier)
    (refused,) = (one for one in registry.values() if not one.available)
    assert "a verifier 'math' exists already" in refused.notice


def test_a_verifier_in_a_file_is_found_whatever_else_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "math.py"
    file.write_text(f"from {__name__} import Asked\nfrom beside import NAME\n")
    (tmp_path / "beside.py").write_text("NAME = 1\n")

    assert build_registry([f"{file}:Asked"])["asked"].available


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no.such.module:Verifier", "cannot be loaded: ModuleNotFoundError"),
        ("/no/such/file.py:Verifier", "cannot be loaded: FileNotFoundError"),
        ("reward.verifiers.math.math_verifier:Missing", "cannot be loaded: AttributeError"),
        ("reward.verifiers.math.math_verifier", "has no known form"),
        ("haiku=my.module:Mine", "No module named"),
        ('["haiku:Haiku"', "has no known form"),
        ("reward.verifiers.base:Item", "it is neither a function nor a class derived from"),
        ("reward.verifiers.base:Verifier", "cannot be loaded: TypeError"),
        ("reward.verifiers.math.math_verifier:MathVerifier", "exists already"),
    ],
)
def test_a_bad_verifier_disables_itself_and_says_why(path: str, reason: str) -> None:
    registry = build_registry([path])

    bad = registry[path]
    assert not bad.available
    assert reason in bad.notice
    assert bad.notice.startswith(f"HEADRACE_VERIFIERS (--verifiers): {path!r}")
    assert reason == "exists already" or "package.module:Class" in bad.notice
    assert registry["math"].available


def test_using_a_verifier_that_was_not_loaded_names_the_reason() -> None:
    with pytest.raises(UnusableError, match=r"'haiku' does not exist.* Not loaded: HEADRACE_VERIF"):
        usable(build_registry(["no_such:Haiku"]), "haiku", {})


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(UnusableError, match=r"'maths' does not exist \(did you mean 'math'\?\)$"):
        usable(build_registry(), "maths", {})
    with pytest.raises(UnusableError, match=r"'zzz' does not exist; there is math, exact, "):
        usable(build_registry(), "zzz", {})


def test_only_the_first_ten_bad_parameters_are_named() -> None:
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
    assert "at least 0" in problems["float_rounding"]
