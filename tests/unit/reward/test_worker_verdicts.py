"""Verdicts of a worker after an exception: the answer's fault, or ours."""

import pytest

from reward.verifiers.base import Item, Step, Verdict, Verifier, VerifierParams
from reward.workers.worker import verdict_on
from tests.unit.reward.scoring import VERIFIERS


@pytest.mark.parametrize(
    ("name", "completion", "answer"),
    [
        ("math", "\\boxed{" + "-" * 998 + "5}", "5"),
        ("math", "\\boxed{" + "-" * 998 + "x}", "x"),
        ("countdown", "-" * 998 + "5", {"nums": [5], "target": 5}),
        ("json_schema", "1e400", {"multipleOf": 0.01}),
        ("json_schema", "1e400", {"multipleOf": 3}),
    ],
)
def test_an_answer_that_breaks_a_verifier_of_ours_earns_nothing(
    name: str, completion: str, answer: object
) -> None:
    verdict = verdict_on(VERIFIERS[name], Item(name, "", completion, answer, {}), Step.SCORE)

    assert verdict.reward == 0, verdict


def test_a_mistake_in_a_verifier_of_the_users_own_stays_an_error() -> None:
    class Broken(Verifier[VerifierParams]):
        name = "broken"
        description = "Raises."
        Params = VerifierParams

        def score(self, item: Item, params: VerifierParams) -> Verdict:
            raise RuntimeError("a typo")

    verdict = verdict_on(Broken(), Item("broken", "", "x", None, {}), Step.SCORE)

    assert (verdict.status, verdict.reward) == ("error", None)
    assert "a typo" in verdict.detail
