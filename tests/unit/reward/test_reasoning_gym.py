"""The verifier of reasoning-gym. Tests of the library run if it is installed."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from reward.verifiers.tasks.reasoning import (
    EVALUATING,
    MAX_CHARACTERS,
    PARSING,
    VERSION,
    ReasoningGymVerifier,
    evaluated,
    parsed,
)
from services.contracts.scores import ScoreStatus
from services.datasets import DatasetError
from services.datasets.generated import gym_rows
from tests.unit.reward.scoring import score

ATTACKS = (
    "__import__('os').system('touch /tmp/owned')",
    "().__class__.__base__.__subclasses__()",
    "open('/etc/passwd').read()",
    "x.diff",
    "[c for c in 'a']",
    "1" * (MAX_CHARACTERS + 1) + "+",
    "(" * 1999 + "x",
)


@pytest.mark.parametrize("text", ATTACKS)
def test_text_that_is_more_than_a_literal_or_a_formula_is_never_evaluated(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, RecursionError, MemoryError)):
        evaluated(text)
    with pytest.raises((ValueError, SyntaxError, RecursionError, MemoryError)):
        parsed(text)


def test_literals_arithmetic_and_formulas_are_read() -> None:
    assert evaluated("['a', 'b']") == ["a", "b"]
    assert evaluated("(0x1f + 2) * 3") == 99
    assert evaluated("(1 << 3) | 1") == 9
    assert str(parsed("sin(x)*x**2 + C - 1.5")) == "C + x**2*sin(x) - 1.5"


def test_without_the_library_the_verifier_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    verifier = ReasoningGymVerifier()
    verifier.probe()

    assert (verifier.available, verifier.lacks_extra) == (False, True)
    assert "pip install" in verifier.notice


def test_a_row_that_the_library_did_not_make_is_a_bad_reference() -> None:
    with pytest.raises(BadReferenceError, match="no metadata"):
        score("reasoning_gym", "<answer>2</answer>", {"answer": "2"})


def test_the_reviewed_version_is_pinned() -> None:
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"

    assert f'"reasoning-gym=={VERSION}"' in project.read_text()


# --- with the library -------------------------------------------------------------------------


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("reasoning_gym", reason="headrace-server[tasks] is not installed")


def rows(task: str, **config: Any) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in gym_rows(task, 3, 1, config)]


@pytest.mark.parametrize(
    "task", ["chain_sum", "countdown", "n_queens", "simple_integration", "bitwise_arithmetic"]
)
def test_rows_are_made_again_by_their_seed_and_their_own_answers_are_right(
    library: Any, task: str
) -> None:
    assert rows(task) == rows(task)
    for row in rows(task):
        reference = {"answer": row["answer"], "metadata": row["metadata"]}
        right = score("reasoning_gym", f"<answer>{row['answer']}</answer>", reference)
        assert (right.status, right.reward) == (ScoreStatus.CORRECT, 1)
        assert score("reasoning_gym", "no tags", reference).status is ScoreStatus.NO_ANSWER
        for attack in ATTACKS:
            said = score("reasoning_gym", f"<answer>{attack}</answer>", reference)
            assert said.status is not ScoreStatus.CORRECT


def test_unknown_tasks_and_keys_are_refused_with_the_known_names(library: Any) -> None:
    with pytest.raises(DatasetError, match="did you mean 'chain_sum'"):
        rows("chain_sums")
    with pytest.raises(DatasetError, match="did you mean 'min_terms'"):
        rows("chain_sum", min_term=3)
    with pytest.raises(DatasetError, match="makes no rows of this config"):
        rows("chain_sum", min_terms=-1)
    with pytest.raises(DatasetError, match="scored otherwise"):
        rows("arc_agi")


def test_no_other_module_of_the_library_evaluates_text(library: Any) -> None:
    known = {*EVALUATING, *PARSING}
    root = Path(library.__file__).parent
    # Their rows come from the library itself, and are never scored by evaluation.
    own = {"code.codeio", "arithmetic.basic_arithmetic", "logic.propositional_logic"}
    own |= {f"arithmetic.gsm_symbolic.generators_{part}" for part in ("00_49", "50_99")}
    calls = ("eval(", "exec(", "parse_expr(", "sympify(", "literal_eval(", "pickle")
    found = set()
    for file in root.rglob("*.py"):
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        text = file.read_text().replace("ast.literal_eval(", "").replace("re.", "")
        if any(call in text for call in calls):
            found.add(name)
    assert found - own == known
    for name in known:
        importlib.import_module(f"reasoning_gym.{name}")
