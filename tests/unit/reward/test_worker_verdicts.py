"""A worker's verdicts after an exception, which the answer or the verifier has caused."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from reward.metrics import Metrics
from reward.scoring import Service, verdicts_of
from reward.verifiers.base import Item, ItemWork, Verdict, Verifier, VerifierParams
from reward.verifiers.math.math_verifier import ONLY_WORDS
from reward.workers import worker
from reward.workers.protocol import Request, request_for
from reward.workers.worker import verdict_on
from tests.unit.reward.scoring import VERIFIERS


@pytest.mark.parametrize(
    ("name", "completion", "answer"),
    [
        ("math", "\\boxed{" + "-" * 998 + "5}", "5"),
        ("math", "\\boxed{" + "-" * 998 + "x}", "x"),
        ("countdown", "-" * 9998 + "5", {"nums": [5], "target": 5}),
        ("json_schema", "1e400", {"multipleOf": 0.01}),
        ("json_schema", "1e400", {"multipleOf": 3}),
    ],
)
def test_an_answer_that_breaks_a_verifier_of_ours_earns_nothing(
    name: str, completion: str, answer: object
) -> None:
    verdict = verdict_on(VERIFIERS[name], Item(name, "", completion, answer, {}), ItemWork.SCORE)

    assert verdict.reward == 0, verdict


def test_a_mistake_in_a_verifier_of_the_users_own_stays_an_error() -> None:
    class Broken(Verifier[VerifierParams]):
        name = "broken"
        description = "Raises."
        Params = VerifierParams

        def score(self, item: Item, params: VerifierParams) -> Verdict:
            raise RuntimeError("a typo")

    verdict = verdict_on(Broken(), Item("broken", "", "x", None, {}), ItemWork.SCORE)

    assert (verdict.status, verdict.reward) == ("error", None)
    assert "a typo" in verdict.detail


async def test_an_exception_of_a_built_in_verifier_is_counted_and_logged_once() -> None:
    class Nested(Verifier[VerifierParams]):
        name = "nested"
        description = "Raises."
        Params = VerifierParams

        def score(self, item: Item, params: VerifierParams) -> Verdict:
            raise {"a": RecursionError, "b": KeyError}[item.completion](item.completion)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "BUILT_IN", (Nested,))
        items = [Item("nested", "", answer, None, {}) for answer in "aab"]
        verdicts = [verdict_on(Nested(), item, ItemWork.SCORE) for item in items]

    async def score(asked: list[Request]) -> list[Verdict]:
        return verdicts if asked else []

    pool: Any = SimpleNamespace(admit=lambda _: None, score=score)
    nobody: Any = None
    service = Service(nobody, pool, pool, nobody, Metrics())
    requests = [request_for(item, VerifierParams(), Nested()) for item in items]
    with capture_logs() as logs:
        assert await verdicts_of(service, requests) == verdicts
    assert [(line["verifier"], line["error"]) for line in logs] == [
        ("nested", "RecursionError: a"),
        ("nested", "KeyError: 'b'"),
    ]
    counted = 'headrace_reward_unjudged_total{error="RecursionError",verifier="nested"} 2.0'
    assert counted in service.metrics.render().decode()


@pytest.mark.parametrize(
    "answer", ["easy", "北京", r"\text{even}", "twelve", ["hard", "very hard"]]
)
def test_math_remarks_on_a_reference_of_words_which_it_compares_as_text(answer: Any) -> None:
    item = Item("math", "", "", answer, {})
    assert verdict_on(VERIFIERS["math"], item, ItemWork.REFERENCE).detail == ONLY_WORDS


@pytest.mark.parametrize(
    "answer", ["x", "12", "Level 5", "2 apples", "x+ab", "pi", "sin x", ["hard", "3"]]
)
def test_math_has_no_remark_on_values_and_formulas(answer: Any) -> None:
    item = Item("math", "", "", answer, {})
    assert verdict_on(VERIFIERS["math"], item, ItemWork.REFERENCE).detail == ""
