"""What a resumed run cannot change."""

from services.gateway.resuming import changed_by_resume


def test_a_resumed_run_keeps_where_its_prompts_come_from() -> None:
    before = {"type": "rl", "data": {"dataset": "train"}}
    rows = {"type": "rl", "data": {"source": "dataset", "dataset": "train"}}
    live = {"type": "rl", "data": {"source": "sessions"}}

    assert changed_by_resume(rows, before) == []
    assert changed_by_resume(live, live) == []
    assert changed_by_resume({"type": "sft", "data": []}, {"type": "sft", "data": []}) == []
    assert [path for path, _ in changed_by_resume(live, before)] == ["data.source"]
    assert [path for path, _ in changed_by_resume(rows, live)] == ["data.source"]
