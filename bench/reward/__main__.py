"""`python -m bench.reward`."""

import sys

from bench.reward.run import main

sys.exit(main())
