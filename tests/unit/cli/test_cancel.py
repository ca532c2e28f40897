"""The words of `headrace cancel --now` about lost work."""

from typing import Any

from headrace.cli.runs.runs import what_is_lost


def run(**fields: Any) -> dict[str, Any]:
    given = {"id": "aa11", "started": 1.0, "step": 14, "committed_step": 12, "checkpoint": "c"}
    return given | {"is_released": True} | fields


def test_cancel_now_says_which_steps_are_lost_and_which_checkpoint_stays() -> None:
    assert what_is_lost(run()) == (
        "It keeps its checkpoint of step 12. Steps 13 to 14 are lost. Groups in flight are "
        "dropped. `headrace resume aa11` goes on after the checkpoint, and samples them again."
    )
    assert " Step 13 is lost. " in what_is_lost(run(step=13))
    assert " No step is lost. " in what_is_lost(run(step=12))
    assert what_is_lost(run(checkpoint=None, committed_step=0, step=1)) == (
        "It has no checkpoint: its 1 step and the groups in flight are lost. `headrace resume "
        "aa11` begins it anew."
    )
    assert what_is_lost(run(started=None)) == "It had not started: nothing is lost."


def test_cancel_now_names_no_lost_steps_while_a_learner_works_on_the_run() -> None:
    said = what_is_lost(run(is_released=False))
    assert said.startswith("Its learner works on it still")
    assert "14" not in said
