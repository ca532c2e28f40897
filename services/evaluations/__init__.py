"""Evaluations on the data volume: files of answers, a record of the outcome, and figures computed
from them. Imports contracts and `services.volume`, never the store.

runs/RUN/evaluations/ID/part-00001.parquet   answered rows, in parts as they come
runs/RUN/evaluations/ID/result.json          an EvaluationRecord, once it has ended
"""

from services.evaluations.answers import (
    DamagedAnswers,
    Measured,
    Verdict,
    copy_parts,
    measured,
    part_path,
    read_page,
    write_part,
)
from services.evaluations.outcome import outcome
from services.evaluations.results import folder_of, read_result, results, write_result
