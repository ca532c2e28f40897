"""`python -m learner`: start the learner's ranks on this host, and start them again when one dies.

Exit codes: 0 asked to end (SIGTERM, SIGINT); 1 asked to end while a rank crashed; 2 and 3 are the
exit codes of a rank that no restart can help (`learner.rank`).
"""

import sys

from learner.settings import LearnerSettings
from learner.supervise.rank_supervisor import supervise
from services.log_shipping import ShippedLogs
from services.runtime.logs import configure
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import from_command_line


def main() -> int:
    """Keep the ranks running until asked to end. Returns the exit code."""
    die_with_parent()
    keep_files_private()
    settings = from_command_line(LearnerSettings)
    configure("learner", settings.log_level, settings.log_format)
    with ShippedLogs(settings, "learner", settings.pool):
        return supervise(settings, ("learner.rank", *sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
