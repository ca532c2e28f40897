"""The words of `headrace cancel --now` about lost work."""

from typing import Any

from services.cli.runs.runs import what_is_lost


def run(**fields: Any) -> dict[str, Any]:
    given = {"id": "aa11", "started": 1.0, "step": 14, "committed_step": 12, "checkpoint": "c"}
    return given | fields


def test_cancel_now_says_which_steps_are_lost_and_which_checkpoint_stays() -> None:
    assert what_is_lost(run()) == (
        "Its checkpoint of step 12 stays. Steps 13 to 14 are lost, unless they were still saved. "
        "Groups in flight are dropped. `headrace resume aa11` goes on after the checkpoint, and "
        "samples them again."
    )
    assert "are lost" not in what_is_lost(run(step=12))
    assert what_is_lost(run(checkpoint=None, committed_step=0)) == (
        "It had no checkpoint: its 14 steps and the groups in flight are lost."
    )
    assert what_is_lost(run(started=None)) == "It had not started: nothing is lost."
