"""The changes that `PATCH /v1/runs/RUN` makes and refuses, by state and by key."""

from types import SimpleNamespace
from typing import Any

import pytest

from recipes import find_recipe, merged
from services.contracts.config import parse_config
from services.contracts.records import RunRecord, RunState
from services.contracts.run_edits import RunEdit
from services.gateway.run_edits import RunPatch, edit_run
from services.http import Problem

RAW = merged(
    find_recipe("grpo").config,
    {"model": {"path": "m"}, "data": {"dataset": "d"}, "training": {"max_steps": 10}},
)


def run(state: str = "running", **changes: Any) -> RunRecord:
    config = parse_config(merged(RAW, changes.pop("config", {})))
    return RunRecord(
        id="r1", name="r", pool="p", kind=config.type, state=RunState(state), created=1.0,
        step=4, max_steps=10, config=config.model_dump(mode="json"),
    ).model_copy(update=changes)  # fmt: skip


class Edits:
    """The store's part, which notes what is written. `meanwhile`: the record that another client
    has left, once."""

    def __init__(self, record: RunRecord, meanwhile: RunRecord | None = None) -> None:
        self.record, self.meanwhile = record, meanwhile
        self.fields: dict[str, Any] = {}
        self.event: dict[str, Any] = {}
        self.moved: list[Any] = []
        self.states: Any = None

    async def add(
        self,
        run: str,
        known: Any,
        fields: dict[str, Any],
        states: Any,
        event: dict[str, Any],
        kind: str | None = None,
    ) -> str:
        if self.meanwhile is not None:
            self.record, self.meanwhile = self.meanwhile, None
            return "again"
        self.states = states
        assert self.record.state in states
        self.fields, self.event = fields, event | ({"kind": kind} if kind else {})
        self.record = RunRecord.model_validate(self.record.model_dump() | fields)
        return ""

    async def move(self, *place: Any) -> None:
        self.moved.append(place)

    async def get(self, _: str) -> RunRecord:
        return self.record


async def edited(
    record: RunRecord, patch: dict[str, Any], meanwhile: RunRecord | None = None
) -> Edits:
    edits = Edits(record, meanwhile)
    deps: Any = SimpleNamespace(store=SimpleNamespace(run_edits=edits, runs=edits))
    await edit_run(deps, record, RunPatch.model_validate(patch), "alice")
    return edits


async def test_values_of_a_running_run_are_edits_and_the_config_has_the_newest() -> None:
    patch = {"max_steps": 20, "max_staleness": 3, "checkpoint_every": 5, "lr": 2e-6}
    edits = await edited(run(), patch)

    config = edits.record.config
    assert (config["training"]["max_steps"], config["rollout"]["max_staleness"]) == (20, 3)
    assert (config["training"]["checkpoint_every"], config["optimizer"]["lr"]) == (5, 2e-6)
    assert [(each.key, each.after, each.by) for each in edits.record.edits] == [
        ("max_steps", 20, "alice"), ("max_staleness", 3, "alice"),
        ("checkpoint_every", 5, "alice"), ("lr", 2e-6, "alice"),
    ]  # fmt: skip
    assert all(each.step is None for each in edits.record.edits)
    assert edits.event["by"] == "alice"
    assert edits.event["changes"]["max_steps"] == {"from": 10, "to": 20}
    # The record's own max_steps is that of the step that trains now.
    assert edits.record.max_steps == 10


async def test_what_is_equal_already_changes_nothing() -> None:
    edits = await edited(run(tags=["a"]), {"tags": ["a", "a"], "max_steps": 10})
    assert (edits.fields, edits.event) == ({}, {})


async def test_edits_of_two_clients_are_both_kept() -> None:
    theirs = RunEdit(key="max_steps", before=10, after=12, by="bob", time=1.0)
    edits = await edited(run(), {"lr": 2e-6}, meanwhile=run(edits=[theirs]))
    assert [each.by for each in edits.record.edits] == ["bob", "alice"]


async def test_a_queued_run_moves_in_its_queue() -> None:
    edits = await edited(run("queued"), {"priority": 7, "name": "first"})
    assert edits.fields == {"name": "first", "priority": 7}
    assert edits.moved == [("r1", "p", 1.0, 7)]
    edits = await edited(run("queued"), {"max_steps": 20})
    # A run that has started meanwhile has steps with the values of before.
    assert (edits.record.max_steps, edits.states) == (20, [RunState.QUEUED])


async def test_a_repeated_priority_mends_the_place_that_a_dead_gateway_left() -> None:
    edits = await edited(run("queued", priority=7), {"priority": 7})
    assert edits.moved == [("r1", "p", 1.0, 7)]


async def test_an_ended_run_still_takes_its_labels() -> None:
    edits = await edited(run("failed"), {"name": "x", "tags": ["t"], "notes": "it broke"})
    assert edits.event["changes"]["notes"] == {"from": "", "to": "it broke"}


SFT = {
    "type": "sft", "model": {"path": "m"}, "data": {"dataset": "d"}, "training": {"max_steps": 9},
}  # fmt: skip


def supervised(**changes: Any) -> RunRecord:
    config = parse_config(merged(SFT, changes.pop("config", {})))
    update = {"config": config.model_dump(mode="json"), "kind": "sft"}
    return run().model_copy(update=update | changes)


async def test_a_supervised_run_takes_the_values_that_it_has() -> None:
    epochs = {"training": {"max_steps": None, "epochs": 2}}
    patch = {"max_steps": 20, "evaluation_every": 3, "checkpoint_every": 5, "lr": 2e-6}
    edits = await edited(supervised(config=epochs), patch)

    config = edits.record.config
    assert (config["training"]["max_steps"], config["training"]["epochs"]) == (20, None)
    assert (config["validation"]["every"], config["optimizer"]["lr"]) == (3, 2e-6)
    assert [(each.key, each.before, each.after) for each in edits.record.edits] == [
        ("max_steps", 10, 20), ("evaluation_every", 100, 3), ("checkpoint_every", 10, 5),
        ("lr", 1e-5, 2e-6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "patch", "key", "why"),
    [
        (run(), {"priority": 1}, "priority", "it orders the queue, and the run is running"),
        (run("succeeded"), {"lr": 1e-6}, "lr", "only name, tags and notes can be changed. `headra"),
        (run("cancelling"), {"max_steps": 30}, "max_steps", "the run is cancelled|cancelling"),
        (run(), {"max_steps": 4}, "max_steps", "4 is not more than the 4 steps"),
        (run(max_steps=0), {"lr": 1e-6}, "lr", "evaluates a model, and trains nothing"),
        (supervised(), {"max_staleness": 1}, "max_staleness", "a supervised run has none"),
        (
            supervised(max_steps=None, config={"training": {"max_steps": None, "epochs": 2}}),
            {"max_steps": 30},
            "max_steps",
            "the steps of its epochs are not counted yet",
        ),
    ],
)
async def test_what_a_state_does_not_allow_is_refused_by_name(
    record: RunRecord, patch: dict[str, Any], key: str, why: str
) -> None:
    with pytest.raises(Problem, match=f"stays as it is: {key}: .*({why})") as refused:
        await edited(record, {"notes": "n", **patch})
    assert refused.value.status == 409
    assert [problem.path for problem in refused.value.problems] == [key]


async def test_a_patch_without_a_change_says_what_can_be_changed() -> None:
    with pytest.raises(Problem, match="send one of name, tags, notes, priority, max_steps"):
        await edited(run(), {})
