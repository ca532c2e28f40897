"""`python -m services.report`: write the report of one `Job`, JSON on stdin.

The gateway starts this process, so that drawing takes none of the gateway's time. The process reads
metrics, answers and evaluations from the runs' files. It exits with 1 if it cannot write; the last
line of stderr is the reason.
"""

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.contracts.evaluation import EvaluationRecord
from services.contracts.prices import Prices
from services.evaluations import DamagedAnswers, folder_of, measured, results
from services.evaluations.comparison import Comparison, compare
from services.report.chain_sections import chain_sections
from services.report.facts import Facts, with_names
from services.report.job import Job, JobRun
from services.report.rendering import write
from services.report.run_sections import sections
from services.rollouts.index import first_step
from services.rollouts.sampled import sampled_answers
from services.runtime.process import die_with_parent, keep_files_private
from services.volume.run_files import METRICS, read_metrics

SHOWN = 8
"""Answers of each step that the report may show."""
NICENESS = 10


def main() -> int:
    """Write the report of the job on stdin."""
    die_with_parent()
    keep_files_private()
    os.nice(NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    page = Path(job.page)
    try:
        # Without parents: the run may be deleted meanwhile.
        page.parent.mkdir(exist_ok=True)
        facts = [(run.step, facts_of(run, job)) for run in job.runs]
        if job.chain is not None:
            title = f"Chain {job.chain['name']} ({job.chain['id']})"
            write(page, title, chain_sections(job.chain, facts))
        else:
            (_, of_run), *others = facts
            against = others[0][1] if others else None
            write(page, f"Run {of_run.title}", sections(of_run, against))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def facts_of(run: JobRun, job: Job) -> Facts:
    files = Path(run.files)
    metrics, _ = read_metrics(files / METRICS, set(), -1, sys.maxsize, 0)
    folder = files / "rollouts"
    newest, _ = sampled_answers(folder, None, SHOWN)
    first, _ = sampled_answers(folder, first_step(folder) or 1, SHOWN)
    last = [sample for sample in newest if 1 < sample.step == newest[0].step]
    return Facts(
        record=with_names(run.record, run.names),
        metrics=metrics,
        first=[sample.model_dump() for sample in reversed(first)],
        last=[sample.model_dump() for sample in last],
        dataset=run.dataset,
        workers=run.workers,
        recipe=run.recipe,
        paired=list(paired(files)),
        version=job.version,
        prices=Prices.parse(job.prices) if job.prices else None,
        made=job.made,
    )


def paired(folder: Path) -> Iterator[tuple[str, int, int, Comparison]]:
    """Compare the last evaluation of each held-out set with the first, on the same rows."""
    root, run = folder.parents[1], folder.name
    by_set: dict[str, list[EvaluationRecord]] = defaultdict(list)
    for record in results(root, run):
        if record.state == "done":
            by_set[record.name].append(record)
    for name, records in by_set.items():
        records.sort(key=lambda record: record.step)
        first, last = records[0], records[-1]
        if first.step < last.step:
            # Lost or damaged files make no pair. The table of evaluations still has their figures.
            with contextlib.suppress(ValueError, OSError, DamagedAnswers):
                answers = [measured(folder_of(root, run, record.id)) for record in (last, first)]
                yield name, first.step, last.step, compare(*answers)


if __name__ == "__main__":
    sys.exit(main())
