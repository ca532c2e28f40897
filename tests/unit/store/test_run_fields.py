"""A run's record as fields of a hash in Redis."""

import json

from services.contracts.preview import RenderedRow, Rendering
from services.contracts.records import RunRecord, RunState
from services.store.runs.new_run import submission
from services.store.unreadable import read_run


def test_each_field_of_a_run_is_read_as_it_was_written() -> None:
    record = RunRecord(
        id="r",
        name="r",
        pool="default",
        kind="sft",
        state=RunState.QUEUED,
        created=1.0,
        config={"data": {"dataset": "d"}, "model": {}},
        warnings=["w"],
        from_datasets={"data.template": "d"},
        dataset_names={"data.dataset": "d"},
        preview=Rendering(form="chat_template", rows=[RenderedRow(index=0, tokens=3)]),
        dataset_rows=[3],
        metrics={"m": 1.5},
        computation={"device": "cpu"},
    )
    fields, *_ = submission(record, 3, None, None)
    written = {name: text.encode() for name, text in json.loads(fields).items()}
    assert read_run(RunRecord, "r", written) == record
