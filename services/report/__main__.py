"""`python -m services.report`: write the report of one `Job`, JSON on stdin.

The gateway starts this process, so that drawing takes none of the gateway's time. The process reads
metrics and answers from the runs' files. It exits with 1 if it cannot write; the last line of
stderr is the reason.
"""

import os
import sys
from pathlib import Path

import msgspec

from services.report.chain_sections import chain_sections
from services.report.facts import Facts, with_names
from services.report.job import Job, JobRun
from services.report.rendering import write
from services.report.run_sections import sections
from services.runtime.process import die_with_parent, keep_files_private
from services.volume.run_files import METRICS, SAMPLES, first_samples, read_metrics, read_samples

SHOWN = 8
"""Answers of each step that the report may show."""
NICENESS = 10


def main() -> int:
    """Write the report of the job on stdin."""
    die_with_parent()
    keep_files_private()
    os.nice(NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    folder = Path(job.folder)
    try:
        # Without parents: the run may be deleted meanwhile.
        folder.mkdir(exist_ok=True)
        facts = [(run.step, facts_of(run, job)) for run in job.runs]
        if job.chain is not None:
            title = f"Chain {job.chain['name']} ({job.chain['id']})"
            write(folder, title, chain_sections(job.chain, facts))
        else:
            ((_, of_run),) = facts
            write(folder, f"Run {of_run.title}", sections(of_run))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def facts_of(run: JobRun, job: Job) -> Facts:
    files = Path(run.files)
    metrics, _ = read_metrics(files / METRICS, set(), -1, sys.maxsize, 0)
    newest, _ = read_samples(files / SAMPLES, None, SHOWN, None)
    last = [sample for sample in newest if 1 < sample.step == newest[0].step]
    return Facts(
        record=with_names(run.record, run.names),
        metrics=metrics,
        first=[sample.model_dump() for sample in first_samples(files / SAMPLES, SHOWN)],
        last=[sample.model_dump() for sample in last],
        audit=run.audit,
        dataset=run.dataset,
        workers=run.workers,
        recipe=run.recipe,
        version=job.version,
        made=job.made,
    )


if __name__ == "__main__":
    sys.exit(main())
