"""Evaluations: every row answered once, all by one version."""

from typing import Any

import pytest

from services.contracts.config.training import Evaluation
from services.store.errors import Fenced
from services.store.evaluations import EvaluationLeases
from tests.integration.store.scene import MINUTE, RUN, Scene, same_ids

RIGHT: dict[str, Any] = {"rewards": [1.0], "statuses": ["correct"]}
WRONG: dict[str, Any] = {"rewards": [0.0], "statuses": ["wrong"]}
BROKEN: dict[str, Any] = {"rewards": [None], "statuses": ["error"]}


async def asked(scene: Scene, rows: int = 3, min_version: int = 0, samples: int = 1) -> str:
    await scene.start()
    await scene.dataset(rows, "held-out")
    evaluation = Evaluation(dataset="held-out", samples=samples)
    return await scene.store.evaluations.ask(
        RUN, scene.fencing_token, evaluation, step=5, min_version=min_version
    )


async def lease(scene: Scene, count: int, version: int = 0, **fields: Any) -> EvaluationLeases:
    given: dict[str, Any] = {"lineage": scene.lineage, "ttl": MINUTE}
    return await scene.store.evaluations.lease(
        RUN, worker="w", version=version, count=count, **given | fields
    )


def rows(leases: EvaluationLeases) -> list[int]:
    return [row for _, row in leases.rows]


async def test_an_evaluation_is_done_when_every_row_has_one_answer(scene: Scene) -> None:
    id = await asked(scene)
    evaluations = scene.store.evaluations
    first = await lease(scene, 2)
    second = await lease(scene, 9)
    assert (rows(first), rows(second)) == ([0, 1], [2])
    for (attempt, _), outcome in zip(first.rows, (RIGHT, WRONG), strict=True):
        assert await evaluations.complete(RUN, id, attempt, outcome)
        assert not await evaluations.complete(RUN, id, attempt, RIGHT)
    assert await evaluations.outcome(RUN, id) is None
    await evaluations.complete(RUN, id, second.rows[0][0], BROKEN)
    # The broken one is not correct (1 of 3), and has no reward (1 and 0 are left).
    assert await evaluations.outcome(RUN, id) == {
        "step": 5,
        "version": 0,
        "name": "held-out",
        "accuracy": pytest.approx(1 / 3),
        "reward": 0.5,
        "rows": 3,
    }
    assert (await lease(scene, 1)).rows == []


async def test_answers_that_are_only_rated_have_no_accuracy(scene: Scene) -> None:
    id = await asked(scene, rows=2)
    rated: dict[str, Any] = {"rewards": [0.25, 0.5], "statuses": ["scored", "scored"]}
    for (attempt, _), outcome in zip((await lease(scene, 2)).rows, (rated, BROKEN), strict=True):
        await scene.store.evaluations.complete(RUN, id, attempt, outcome)

    told = await scene.store.evaluations.outcome(RUN, id)

    assert told == {"step": 5, "version": 0, "name": "held-out", "reward": 0.375, "rows": 2}


async def test_with_several_samples_a_row_the_chance_that_one_is_right_is_known(
    scene: Scene,
) -> None:
    id = await asked(scene, samples=4)
    one_of_four = {"rewards": [1, 0, 0, 0], "statuses": ["correct", *["wrong"] * 3]}
    answers = [one_of_four, {"rewards": [1] * 4, "statuses": ["correct"] * 4}, BROKEN]
    for (attempt, _), answer in zip((await lease(scene, 3)).rows, answers, strict=True):
        await scene.store.evaluations.complete(RUN, id, attempt, answer)

    outcome = await scene.store.evaluations.outcome(RUN, id)

    # Of 2 drawn from the first row's, C(3,2)/C(4,2) = 1/2 have no right one; the last row has none.
    assert outcome is not None
    assert outcome["pass_at_2"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert outcome["pass_at_4"] == pytest.approx(2 / 3)
    # A row that failed counts as 4 wrong answers, whatever was recorded of it.
    assert outcome["accuracy"] == pytest.approx((1 + 4 + 0) / 12)


async def test_released_and_lapsed_rows_are_leased_again(scene: Scene) -> None:
    id = await asked(scene)
    evaluations = scene.store.evaluations
    (back, _), (kept, _), (lapsing, _) = (await lease(scene, 3)).rows
    await evaluations.release(RUN, [back, "unknown"])
    await evaluations.renew(RUN, [kept], MINUTE)
    await evaluations.renew(RUN, [lapsing], 0)
    again = await lease(scene, 3)
    assert sorted(rows(again)) == [0, 2]
    assert not await evaluations.complete(RUN, id, lapsing, RIGHT)
    assert await evaluations.complete(RUN, id, kept, RIGHT)


async def test_a_version_before_the_one_asked_for_gets_no_row(scene: Scene) -> None:
    await asked(scene, min_version=3)
    assert rows(await lease(scene, 1, version=2)) == []
    assert rows(await lease(scene, 1, version=4)) == [0]


async def test_another_version_waits_while_the_first_one_answers(scene: Scene) -> None:
    await asked(scene)
    await lease(scene, 1, version=4)
    assert rows(await lease(scene, 1, version=5)) == []
    assert rows(await lease(scene, 1, version=4)) == [1]


async def test_a_newer_version_starts_over_what_no_one_goes_on_with(scene: Scene) -> None:
    id = await asked(scene, rows=3)
    evaluations = scene.store.evaluations
    answered, unanswered = (await lease(scene, 2, version=4)).rows
    await evaluations.complete(RUN, id, answered[0], RIGHT)
    await evaluations.release(RUN, [unanswered[0]])
    assert rows(await lease(scene, 9, version=3)) == []
    newer = await lease(scene, 9, version=5)
    assert rows(newer) == [0, 1, 2]
    for attempt, _ in reversed(newer.rows):
        assert await evaluations.outcome(RUN, id) is None
        await evaluations.complete(RUN, id, attempt, WRONG)
    outcome = await evaluations.outcome(RUN, id)
    assert outcome is not None
    assert (outcome["version"], outcome["accuracy"], outcome["rows"]) == (5, 0.0, 3)


async def test_a_new_lineage_starts_over_although_its_versions_are_lower(scene: Scene) -> None:
    id = await asked(scene, rows=2)
    first = await lease(scene, 1, version=4)
    await scene.store.evaluations.complete(RUN, id, first.rows[0][0], RIGHT)
    await scene.take_over("bbb")
    assert rows(await lease(scene, 9, version=4, lineage="aaa")) == []
    assert rows(await lease(scene, 9, version=1)) == [0, 1]


async def test_a_lease_whose_reply_was_lost_is_the_same_lease_when_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(scene)
    for _ in range(2):
        monkeypatch.setattr("services.store.evaluations.secrets.token_hex", same_ids())
        assert rows(await lease(scene, 2)) == [0, 1]
    monkeypatch.undo()
    assert rows(await lease(scene, 2)) == [2]


async def test_a_new_evaluation_replaces_an_open_one(scene: Scene) -> None:
    old = await asked(scene)
    leases = await lease(scene, 1)
    new = await scene.store.evaluations.ask(
        RUN, scene.fencing_token, Evaluation(dataset="held-out", rows=2), step=6, min_version=0
    )
    assert not await scene.store.evaluations.complete(RUN, old, leases.rows[0][0], RIGHT)
    again = await lease(scene, 9)
    assert (again.id, rows(again)) == (new, [0, 1])


async def test_a_learner_that_was_replaced_cannot_put_its_evaluation_before_its_successor_s(
    scene: Scene,
) -> None:
    await asked(scene)
    before = scene.fencing_token
    await scene.take_over("bbb")
    evaluation = Evaluation(dataset="held-out")
    id = await scene.store.evaluations.ask(
        RUN, scene.fencing_token, evaluation, step=6, min_version=0
    )

    with pytest.raises(Fenced):
        await scene.store.evaluations.ask(RUN, before, evaluation, step=9, min_version=0)

    assert await scene.store.evaluations.left(RUN) == (id, 6)


async def test_a_repeated_request_for_an_evaluation_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.start()
    await scene.dataset(3, "held-out")
    monkeypatch.setattr("services.store.evaluations.secrets.token_hex", lambda _: "feed")
    evaluation = Evaluation(dataset="held-out")
    await scene.store.evaluations.ask(RUN, scene.fencing_token, evaluation, step=5, min_version=0)
    monkeypatch.undo()
    first = await lease(scene, 1)
    monkeypatch.setattr("services.store.evaluations.secrets.token_hex", lambda _: "feed")
    await scene.store.evaluations.ask(RUN, scene.fencing_token, evaluation, step=5, min_version=0)

    assert await scene.store.evaluations.complete(RUN, "feed", first.rows[0][0], RIGHT)


async def test_a_run_that_is_to_end_evaluates_no_more(scene: Scene) -> None:
    await asked(scene)
    assert rows(await lease(scene, 0)) == []
    await scene.store.runs.take("default")
    await scene.store.runs.cancel(RUN)
    assert rows(await lease(scene, 1)) == []


async def test_a_run_that_has_ended_keeps_nothing_of_its_evaluation(scene: Scene) -> None:
    id = await asked(scene)
    one, two, _ = (await lease(scene, 3)).rows
    await scene.store.evaluations.complete(RUN, id, one[0], RIGHT)
    await scene.store.evaluations.release(RUN, [two[0]])
    await scene.store.runs.finish(RUN, "default", "cancelled", "")
    assert await scene.raw.keys("*evaluation*") == []


async def test_a_dataset_that_is_not_there_is_named(scene: Scene) -> None:
    await scene.start()
    with pytest.raises(KeyError, match="there is no dataset 'nowhere'"):
        await scene.store.evaluations.ask(
            RUN, scene.fencing_token, Evaluation(dataset="nowhere"), step=0, min_version=0
        )


async def test_an_evaluation_is_there_until_it_is_reported(scene: Scene) -> None:
    id = await asked(scene, rows=1)
    evaluations = scene.store.evaluations
    assert await evaluations.left(RUN) == (id, 5)
    ((attempt, _),) = (await lease(scene, 1)).rows
    await evaluations.complete(RUN, id, attempt, RIGHT)
    assert await evaluations.left(RUN) == (id, 5)

    await evaluations.close(RUN, "another")
    assert await evaluations.outcome(RUN, id) is not None
    await evaluations.close(RUN, id)
    assert await evaluations.left(RUN) is None
    with pytest.raises(KeyError, match=id):
        await evaluations.outcome(RUN, id)
