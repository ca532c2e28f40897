"""Evaluations: every row is answered once, all by one version, one evaluation after the other."""

from typing import Any

import pytest

from services.contracts.evaluation import EvaluationRequest
from services.store.errors import Fenced
from services.store.work.evaluations import EvaluationLeases
from tests.evaluating import answered, request
from tests.integration.store.scene import MINUTE, RUN, Scene, same_ids


async def asked(scene: Scene, rows: int = 3, version: int = 0, **fields: Any) -> EvaluationRequest:
    if not scene.lineage:
        await scene.start()
    one = request(scene.manifest(version), rows, **fields)
    await scene.store.evaluations.ask(RUN, scene.fencing_token, one)
    return one


async def lease(
    scene: Scene, count: int, version: int = 0, worker: str = "w", **fields: Any
) -> EvaluationLeases:
    given: dict[str, Any] = {"busy": False, "ttl": MINUTE, "version": f"aaa:{version}"}
    return await scene.store.evaluations.lease(RUN, worker=worker, count=count, **given | fields)


def rows(leases: EvaluationLeases) -> list[int]:
    return [row for _, row in leases.rows]


async def states(scene: Scene) -> dict[str, str]:
    return {one.id: one.state for one in await scene.store.evaluations.standing(RUN)}


async def test_an_evaluation_is_done_when_every_row_has_its_answers(scene: Scene) -> None:
    one = await asked(scene)
    evaluations = scene.store.evaluations
    first = await lease(scene, 2)
    assert first.request == one
    second = await lease(scene, 9, known=one.id)
    assert second.request is None
    assert (rows(first), rows(second)) == ([0, 1], [2])
    for attempt, row in first.rows:
        assert await evaluations.complete(RUN, one.id, attempt, answered(row, "correct"))
        assert not await evaluations.complete(RUN, one.id, attempt, answered(row, "wrong"))
    assert await states(scene) == {one.id: "open"}
    await evaluations.complete(RUN, one.id, second.rows[0][0], answered(2, "wrong"))
    assert await states(scene) == {one.id: "done"}
    assert (await lease(scene, 1)).id == ""
    found = await evaluations.answers(RUN, one.id, 10)
    assert [row.samples[0].text for row in found] == ["correct 0", "correct 1", "wrong 2"]


async def test_a_run_that_was_asked_to_pause_leases_no_row_until_it_is_resumed(
    scene: Scene,
) -> None:
    one = await asked(scene)
    state, edits = [(await scene.store.runs.get(RUN)).state], scene.store.run_edits  # type: ignore[union-attr]
    assert await edits.add(RUN, [], {"paused_by": "ann"}, state, {"by": "ann"}, "paused") == ""
    assert (await lease(scene, 1)).id == ""
    assert await edits.add(RUN, [], {"paused_by": ""}, state, {"by": "ann"}, "resumed") == ""
    assert (await lease(scene, 1)).id == one.id


async def test_released_and_lapsed_rows_are_leased_again(scene: Scene) -> None:
    one = await asked(scene)
    evaluations = scene.store.evaluations
    (back, _), (kept, _) = (await lease(scene, 2)).rows
    ((lapsing, _),) = (await lease(scene, 1, ttl=0)).rows
    await evaluations.release(RUN, [back, "unknown"])
    await evaluations.renew(RUN, "w", [kept], MINUTE)
    again = await lease(scene, 3)
    assert sorted(rows(again)) == [0, 2]
    assert not await evaluations.complete(RUN, one.id, lapsing, answered(2, "correct"))
    assert await evaluations.complete(RUN, one.id, kept, answered(1, "correct"))


async def test_only_the_version_that_is_evaluated_gets_rows(scene: Scene) -> None:
    one = await asked(scene, version=3)
    # It has a seat, and learns which version to load.
    ahead = await lease(scene, 1, version=4)
    assert (ahead.id, ahead.request, ahead.rows) == (one.id, one, [])
    assert rows(await lease(scene, 1, version=3)) == [0]
    await scene.take_over("bbb")
    assert rows(await lease(scene, 1, version=3)) == [1], "a new learner changes nothing"


async def test_the_limit_of_workers_answers_and_idle_workers_come_first(scene: Scene) -> None:
    await asked(scene)
    evaluations = scene.store.evaluations
    await evaluations.let(RUN, scene.fencing_token, 1)
    assert (await lease(scene, 1, worker="busy", busy=True)).id == ""
    assert rows(await lease(scene, 1, worker="idle")) == [0]
    assert (await lease(scene, 1, worker="other")).id == ""
    # One seat lapses, and one is left.
    await evaluations.renew(RUN, "idle", [], 0)
    assert rows(await lease(scene, 1, worker="other")) == [1]
    await evaluations.release(RUN, [], leaves="other")
    await scene.raw.hset("headrace:{r1}:evaluation", "opened", 0)
    assert rows(await lease(scene, 1, worker="busy", busy=True)) == [2]


async def test_a_worker_that_only_evaluates_keeps_its_seat_between_evaluations(
    scene: Scene,
) -> None:
    await scene.start()
    evaluations = scene.store.evaluations
    await evaluations.let(RUN, scene.fencing_token, 1)
    assert (await lease(scene, 1, worker="own", reserved=True)).id == ""
    one = await asked(scene)
    assert (await lease(scene, 1, worker="idle")).id == ""
    assert rows(await lease(scene, 1, worker="own", reserved=True)) == [0]
    await evaluations.let(RUN, scene.fencing_token, 2)
    assert rows(await lease(scene, 1, worker="idle")) == [1]
    # A later worker gets a seat, too.
    assert rows(await lease(scene, 1, worker="late", reserved=True)) == [2]
    assert await states(scene) == {one.id: "open"}


async def test_another_worker_evaluates_once_the_reserved_worker_is_gone(scene: Scene) -> None:
    await asked(scene)
    evaluations = scene.store.evaluations
    await evaluations.let(RUN, scene.fencing_token, 1)
    ((held, _),) = (await lease(scene, 1, worker="own", reserved=True)).rows
    assert (await lease(scene, 1, worker="idle")).id == ""
    # Its seat and its row lapse.
    await evaluations.renew(RUN, "own", [held], 0)
    assert sorted(rows(await lease(scene, 3, worker="idle"))) == [0, 1, 2]


async def test_a_run_that_has_ended_reserves_no_seat(scene: Scene) -> None:
    await scene.start()
    await scene.store.runs.set_state(RUN, "failed", "broken")
    assert (await lease(scene, 1, worker="own", reserved=True)).id == ""
    assert not await scene.raw.exists("headrace:{r1}:evaluation_seats")


async def test_after_the_last_step_all_workers_answer(scene: Scene) -> None:
    await asked(scene)
    await scene.store.evaluations.let(RUN, scene.fencing_token, 0)
    found = [rows(await lease(scene, 1, worker=name, busy=True)) for name in "abc"]
    assert found == [[0], [1], [2]]


async def test_the_next_evaluation_opens_when_one_ends(scene: Scene) -> None:
    first, second, third = [
        await asked(scene, rows=1, step=5, name=name) for name in ("a", "b", "c")
    ]
    evaluations = scene.store.evaluations
    ((attempt, _),) = (await lease(scene, 9)).rows
    await evaluations.complete(RUN, first.id, attempt, answered(0, "correct"))
    assert (await lease(scene, 9)).id == second.id
    assert not await evaluations.fail(RUN, first.id, "w", "too late")
    assert await evaluations.fail(RUN, second.id, "w", "its weights are gone")
    assert (await lease(scene, 9)).request == third
    assert await states(scene) == {first.id: "done", second.id: "failed", third.id: "open"}
    assert [one.id for one in await evaluations.requests(RUN)] == [first.id, second.id, third.id]
    # Answers of one evaluation are separate from another's.
    assert len(await evaluations.answers(RUN, first.id, 9)) == 1
    assert await evaluations.answers(RUN, second.id, 9) == []


async def test_an_evaluation_goes_on_while_another_worker_has_a_seat(
    scene: Scene,
) -> None:
    one = await asked(scene)
    evaluations = scene.store.evaluations
    await lease(scene, 1, worker="serves it")
    assert (await lease(scene, 1, worker="cannot", version=9)).id == one.id
    assert not await evaluations.fail(RUN, one.id, "cannot", "its file is damaged")
    assert not await evaluations.fail(RUN, one.id, "has no seat", "its file is damaged")
    assert await states(scene) == {one.id: "open"}
    # A seat lapses.
    await evaluations.renew(RUN, "serves it", [], 0)
    assert await evaluations.fail(RUN, one.id, "cannot", "its file is damaged")
    assert await states(scene) == {one.id: "failed"}


async def test_an_evaluation_ends_when_every_worker_with_a_seat_has_failed_to_load_its_version(
    scene: Scene,
) -> None:
    one = await asked(scene)
    evaluations = scene.store.evaluations
    for worker in ("first", "second"):
        # They keep their seats between two tries.
        await lease(scene, 1, worker=worker, version=9, reserved=True)
    assert not await evaluations.fail(RUN, one.id, "first", "its file is damaged")
    assert await evaluations.fail(RUN, one.id, "second", "its file is damaged")
    assert await states(scene) == {one.id: "failed"}


async def test_a_reserved_seat_is_renewed_after_half_of_its_time(
    scene: Scene,
) -> None:
    await scene.start()
    key = f"headrace:{{{RUN}}}:evaluation_seats"
    scores = []
    for ttl in (60.0, 60.0, 600.0):
        await lease(scene, 1, worker="own", reserved=True, ttl=ttl)
        scores.append(await scene.raw.zscore(key, "own"))
    assert scores[0] == scores[1] < scores[2]


async def test_answers_are_deleted_once_they_are_in_a_file(scene: Scene) -> None:
    one = await asked(scene)
    evaluations, token = scene.store.evaluations, scene.fencing_token
    for attempt, row in (await lease(scene, 3)).rows:
        await evaluations.complete(RUN, one.id, attempt, answered(row, "correct"))
    for _ in range(2):  # a repeated call changes nothing
        await evaluations.stored(RUN, token, one.id, 1, [0, 2])
    (standing,) = await evaluations.standing(RUN)
    assert (standing.parts, standing.answered) == (1, 3)
    assert [row.row for row in await evaluations.answers(RUN, one.id, 9)] == [1]
    await scene.take_over("bbb")
    with pytest.raises(Fenced):
        await evaluations.stored(RUN, token, one.id, 2, [1])
    with pytest.raises(Fenced):
        await evaluations.close(RUN, token, one.id)
    await evaluations.close(RUN, scene.fencing_token, one.id, [1])
    assert await evaluations.standing(RUN) == []
    assert await scene.raw.keys("*evaluation_[^s]*") == []


async def test_a_repeated_lease_gets_the_same_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(scene)
    for _ in range(2):
        monkeypatch.setattr("services.store.work.evaluations.secrets.token_hex", same_ids())
        assert rows(await lease(scene, 2)) == [0, 1]
    monkeypatch.undo()
    assert rows(await lease(scene, 2)) == [2]


async def test_a_repeated_request_for_an_evaluation_changes_nothing(scene: Scene) -> None:
    one = await asked(scene)
    ((attempt, _),) = (await lease(scene, 1)).rows
    await scene.store.evaluations.ask(RUN, scene.fencing_token, one)
    assert await scene.store.evaluations.complete(RUN, one.id, attempt, answered(0, "correct"))
    assert len(await scene.store.evaluations.requests(RUN)) == 1


async def test_a_replaced_learner_cannot_request_an_evaluation(scene: Scene) -> None:
    one = await asked(scene)
    before = scene.fencing_token
    await scene.take_over("bbb")
    with pytest.raises(Fenced):
        await scene.store.evaluations.ask(RUN, before, request(scene.manifest(9)))
    assert await scene.store.evaluations.requests(RUN) == [one]


async def test_a_cancelling_run_leases_no_rows(scene: Scene) -> None:
    await asked(scene)
    await scene.store.runs.take("default")
    await scene.store.runs.cancel(RUN)
    assert (await lease(scene, 1)).id == ""


async def test_a_run_that_ends_deletes_its_evaluations(scene: Scene) -> None:
    one = await asked(scene)
    await asked(scene, name="another")
    (attempt, row), (back, _), _ = (await lease(scene, 3)).rows
    await scene.store.evaluations.complete(RUN, one.id, attempt, answered(row, "wrong"))
    await scene.store.evaluations.release(RUN, [back])
    await scene.store.runs.finish(RUN, "default", "cancelled", "")
    assert await scene.raw.keys("*evaluation*") == []
