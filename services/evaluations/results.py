"""Records of ended evaluations on the data volume."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from services.contracts.evaluation import EvaluationRecord
from services.runtime.logs import get_logger
from services.volume import written_beside

log = get_logger(__name__)

RESULT = "result.json"


def folders_of(root: Path, run: str) -> Path:
    """Return the folder of all evaluations of a run; `root` is the data volume."""
    return root / "runs" / run / "evaluations"


def folder_of(root: Path, run: str, id: str) -> Path:
    return folders_of(root, run) / id


def write_result(root: Path, record: EvaluationRecord) -> None:
    """Write the record of an evaluation that has ended, durably."""
    with written_beside(folder_of(root, record.run, record.id) / RESULT) as beside:
        beside.write_text(record.model_dump_json(indent=1))


def read_result(root: Path, run: str, id: str) -> EvaluationRecord | None:
    """Return the record of an ended evaluation, or None if it is missing or unreadable."""
    return _read(folder_of(root, run, id) / RESULT)


def results(root: Path, run: str) -> Iterator[EvaluationRecord]:
    """Yield the records of a run's ended evaluations, ordered by id."""
    for path in sorted(folders_of(root, run).glob(f"*/{RESULT}")):
        if (record := _read(path)) is not None:
            yield record


def _read(path: Path) -> EvaluationRecord | None:
    try:
        return EvaluationRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.warning("the record of an evaluation cannot be read", file=str(path), error=str(error))
        return None
