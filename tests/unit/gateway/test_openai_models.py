"""Models of OpenAI's API, and which projects may use them."""

from pathlib import Path
from typing import Any

import pytest

from services.contracts.records import RunState
from services.gateway.openai_jobs.models import models_of
from services.gateway.openai_jobs.permissions import (
    MOST_PERMISSIONS,
    add_permissions,
    delete_permission,
    is_permitted,
    kept_permissions,
)
from tests.unit.gateway.test_policy import run

MADE: dict[str, Any] = {"state": RunState.SUCCEEDED, "checkpoint": "c", "finished": 9.0}


def test_models_are_those_that_runs_have_made_and_have_started_from() -> None:
    runs = [
        run(id="0000000b", model="run:0000000a", project="p", **MADE),
        run(id="0000000a", model="org/base", **MADE),
        run(id="0000000c", model="org/base"),
    ]
    listed = [(model.id, model.owned_by) for model in models_of(runs, {"0000000a": "ft:job"})]
    assert listed == [
        ("ft:run:0000000a:p:sums:0000000b", "p"),
        ("ft:job", "headrace"),
        ("run:0000000b", "p"),
        ("run:0000000a", "headrace"),
        ("org/base", "headrace"),
    ]


async def test_a_permission_lets_another_project_use_a_model(tmp_path: Path) -> None:
    (made,) = add_permissions(tmp_path, "0000000a", ["other", "other"])
    assert add_permissions(tmp_path, "0000000a", ["other"]) == [made]
    assert await is_permitted(tmp_path, "0000000a", "other")
    assert not await is_permitted(tmp_path, "0000000a", "third")
    assert not await is_permitted(tmp_path, "0000000b", "other")
    assert not delete_permission(tmp_path, "0000000a", "cp_x")
    assert delete_permission(tmp_path, "0000000a", made.id)
    assert not await is_permitted(tmp_path, "0000000a", "other")
    assert kept_permissions(tmp_path, "0000000a") == []
    with pytest.raises(ValueError, match="at most 1,000 permissions"):
        add_permissions(tmp_path, "0000000a", [str(n) for n in range(MOST_PERMISSIONS + 1)])
