"""`python -m learner`: start the learner's ranks on this host, and start them again when one dies.

Started by torchrun, or by srun with other tasks, the process is itself a rank (`learner.rank`).
Then the engine starts the ranks again.

Exit codes: 0 asked to end (SIGTERM, SIGINT); 1 asked to end while a rank crashed; 2 and 3 are the
exit codes of a rank that no restart can help (`learner.rank`).
"""

import os
import sys

from learner.job.variables import JobError, job_rank
from learner.settings import LearnerSettings
from learner.supervise.rank_processes import rank_variables
from learner.supervise.rank_supervisor import supervise
from services.log_shipping import ShippedLogs
from services.runtime.logs import configure
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import from_command_line


def main() -> int:
    """Keep the ranks running until asked to end, or be one. Returns the exit code."""
    try:
        job = job_rank(os.environ)
    except JobError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.code
    if job is not None:
        # Before torch is imported, and its libraries read them.
        os.environ.update(rank_variables() | job.variables)
        from learner.rank import main as serve

        return serve()
    die_with_parent()
    keep_files_private()
    settings = from_command_line(LearnerSettings)
    configure("learner", settings.log_level, settings.log_format)
    with ShippedLogs(settings, "learner", settings.pool):
        return supervise(settings, ("learner.rank", *sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
