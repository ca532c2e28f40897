"""`python -m bench.agents`."""

import sys

from bench.agents.run import main

sys.exit(main())
