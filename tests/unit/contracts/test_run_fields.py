"""A run's record is read from Redis as it was written."""

from services.contracts.records import RunRecord
from services.store.runs.new_run import text_of
from services.store.unreadable import read_run


def test_each_field_of_a_new_run_is_read_as_it_was_written() -> None:
    record = RunRecord(
        id="0123abcd", name="n", pool="default", kind="rl", state="queued", created=1.5, config={}
    )
    fields = {
        name: text_of(value).encode()
        for name, value in record.model_dump(mode="json").items()
        if value is not None
    }

    assert read_run(RunRecord, record.id, fields) == record
