"""`python -m services.report`: writes one report, of a `Job` as JSON on stdin. The gateway starts
it, so that drawing takes none of the gateway's time. Metrics and answers are read here, from the
runs' files.

Exit codes: 0 written, 1 not, with the reason as the last line on stderr.
"""

import os
import sys
from pathlib import Path

import msgspec

from services.report.chains import chain_sections
from services.report.content import sections
from services.report.facts import Facts, with_names
from services.report.job import Job, JobRun
from services.report.writing import write
from services.runtime.process import die_with_parent, keep_files_private
from services.volume.run_files import METRICS, SAMPLES, first_samples, read_metrics, read_samples

SHOWN = 8
"""Answers that are taken of a step."""
NICENESS = 10


def main() -> int:
    """Write the report of the job on stdin."""
    die_with_parent()
    keep_files_private()
    os.nice(NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    folder = Path(job.folder)
    try:
        # Not its parents: a run may be deleted meanwhile.
        folder.mkdir(exist_ok=True)
        facts = [(run.step, facts_of(run, job)) for run in job.runs]
        if job.chain is not None:
            title = f"Chain {job.chain['name']} ({job.chain['id']})"
            write(folder, title, chain_sections(job.chain, facts))
        else:
            ((_, one),) = facts
            write(folder, f"Run {one.title}", sections(one))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def facts_of(run: JobRun, job: Job) -> Facts:
    """All that is known of a run."""
    files = Path(run.files)
    metrics, _ = read_metrics(files / METRICS, set(), -1, sys.maxsize, 0)
    newest, _ = read_samples(files / SAMPLES, None, SHOWN, None)
    last = [one for one in newest if 1 < one.step == newest[0].step]
    return Facts(
        record=with_names(run.record, run.names),
        metrics=metrics,
        first=[one.model_dump() for one in first_samples(files / SAMPLES, SHOWN)],
        last=[one.model_dump() for one in last],
        audit=run.audit,
        dataset=run.dataset,
        workers=run.workers,
        recipe=run.recipe,
        version=job.version,
        made=job.made,
    )


if __name__ == "__main__":
    sys.exit(main())
