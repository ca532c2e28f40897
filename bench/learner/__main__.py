"""`python -m bench.learner`."""

import sys

from bench.learner.run import main

sys.exit(main())
